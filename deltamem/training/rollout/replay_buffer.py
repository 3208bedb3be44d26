"""verl's replay buffer with eyes: metrics and trajectories of the rollouts, and an end to a run whose rollouts fail.

verl shows the figures of a reward in validation only, and goes on when agent loops fail. Its replay buffer sees every batch
and may return metrics, so this is the place for all of it (``trainer.v1.sampler.custom_sampler``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from deltamem.errors import DeltaMemError
from deltamem.training.rollout.facts import FACTS
from deltamem.training.rollout.metrics import PREFIX, RolloutRow, batch_metrics
from deltamem.training.rollout.process_memory import memory_figures, run_processes
from deltamem.training.rollout.shown import ValidationFolder, shown_records
from deltamem.training.run.stop import SaveAndStop, StopRequest

logger = logging.getLogger(__name__)


class DeltaMemReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """The synchronous replay buffer of verl."""

    def __init__(self, *, sampler_kwargs: Mapping[str, Any], refill_fn: Callable[..., Any], **kwargs: Any) -> None:
        """Make the buffer; verl calls this.

        Args:
            sampler_kwargs: ``trainer.v1.sampler.sampler_kwargs``: `poll_seconds`, `max_failure_rate`, `sort_by_length`,
                the numbers of rollouts a session, `train_rollouts` and `heldout_rollouts`, `stop_file`, and
                `validation_folder`, see `deltamem.training.rollout.shown`.
            refill_fn: A method of the trainer, through which its configuration is reached: nothing else of it is handed out.
            kwargs: What verl passes on.
        """
        self._options = dict(sampler_kwargs)
        trainer: Any = getattr(refill_fn, "__self__")  # noqa: B009
        self._stop = SaveAndStop(StopRequest(Path(self._options["stop_file"])), trainer.config)
        self._validation = ValidationFolder(Path(self._options["validation_folder"]))
        self._process = psutil.Process()
        self.figures: dict[str, float] = {}
        """Metrics of the last training step; the manifest of a checkpoint holds them, too."""
        super().__init__(
            sampler_kwargs=sampler_kwargs, poll_interval=self._options["poll_seconds"], refill_fn=refill_fn, **kwargs
        )

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Wait for a batch, look at it, and return it with metrics.

        Raises:
            DeltaMemError: If too large a share of its rollouts failed.
            StoppedError: If the trainer was asked to end, and has saved the step before.
        """
        training = partition_id == "train"
        if training:
            self._stop.before_step()
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if training:
            self._stop.during_step()
        expected = batch_size * self._options["train_rollouts" if training else "heldout_rollouts"]
        rows = _rows(batch)
        lost = Counter(row.failure for row in rows if row.failure is not None)
        # A rollout that is not there at all failed outside of our own handling.
        lost["the rollout was lost; see the agent loop worker's log"] += max(expected - len(rows), 0)
        check_failures(lost, expected, self._options["max_failure_rate"])
        if training:
            figures = batch_metrics(rows, expected)
            figures |= {f"memory/{name}": value for name, value in memory_figures(run_processes(self._process)).items()}
            self.figures = {f"{PREFIX}{name}": float(value) for name, value in figures.items()}
            metrics = metrics | self.figures
        else:
            self._validation.add(global_steps, shown_records(rows))
        if training and self._options["sort_by_length"]:
            # verl cuts micro-batches out of the batch in order: neighbours of equal length need no padding.
            batch.reorder(sorted(range(len(batch.keys)), key=lambda place: batch.tags[place]["seq_len"]))
        return batch, metrics


def _rows(batch: KVBatchMeta) -> list[RolloutRow]:
    if not batch.keys:
        return []
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields", "rm_scores"])
    return [
        RolloutRow(key, float(scores.sum()), entry["reward_extra_info"], entry[FACTS], entry["failure"])
        for key, scores, entry in zip(batch.keys, data["rm_scores"].unbind(), data["extra_fields"], strict=True)
    ]


def check_failures(lost: Counter[str], expected: int, max_failure_rate: float) -> None:
    """Refuse a batch whose rollouts failed too often.

    Args:
        lost: How many rollouts failed, by reason.
        expected: How many rollouts there should be.
        max_failure_rate: The largest share that is accepted.

    Raises:
        DeltaMemError: If the share is larger; names the most frequent reason.
    """
    if lost.total():
        logger.warning("%d of %d rollouts failed: %s", lost.total(), expected, dict(lost))
    if lost.total() > max_failure_rate * expected:
        reason, _ = lost.most_common(1)[0]
        raise DeltaMemError(
            f"{lost.total()} of {expected} rollouts of one step failed, more than deltamem.max_failure_rate="
            f"{max_failure_rate} allows; most often: {reason}"
        )
