"""verl's replay buffer with metrics and trajectories of the rollouts, and an end to a run whose rollouts fail."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
import torch
import transfer_queue as tq
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from deltamem.episode import session_fields
from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer
from deltamem.training.interruption import SaveAndStop
from deltamem.training.machine import memory_figures, run_processes
from deltamem.training.metrics import PREFIX, ROLLOUT_INFO, RolloutRow, batch_metrics


def generation_records(rows: Iterable[RolloutRow]) -> list[dict[str, Any]]:
    """The validation generations among the rollouts, by session and rollout.

    Each is a record like those of ``trajectories.jsonl`` (`deltamem.episode`) with the ``score`` in detail and ``rollout``,
    the number of the rollout within its session, from 0.
    """
    records = []
    for row in rows:
        if (generation := row.info["generation"]) is not None:
            episode = {name: value for name, value in generation.items() if name != "session"}
            session = session_fields(generation["session"])
            records.append({**session, "rollout": row.number, **episode, "failure": row.failure})
    return sorted(records, key=lambda record: (record["key"], record["rollout"]))


class ValidationFolder:
    """``validation/step_000018.jsonl`` and so on: the validation generations of each step, in whole files."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; it is created with the first file."""
        self._folder = folder
        self._step: int | None = None
        self._records: list[dict[str, Any]] = []

    def add(self, step: int, records: list[dict[str, Any]]) -> None:
        """Write the records of a batch of a validation after those of its earlier batches.

        What another process wrote for the same `step` (training steps done before) is replaced.
        """
        if step != self._step:
            self._step, self._records = step, []
        self._records += records
        if not self._records:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_writer(self._folder / f"step_{step:06d}.jsonl") as file:
            for record in self._records:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


logger = logging.getLogger(__name__)


class DeltaMemReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """The synchronous replay buffer of verl."""

    def __init__(self, *, sampler_kwargs: Mapping[str, Any], refill_fn: Callable[..., Any], **kwargs: Any) -> None:
        """Make the buffer; verl calls this.

        `sampler_kwargs` are those of ``configs/train.yaml``; `refill_fn`, a method of the trainer, is the only way to its
        configuration.
        """
        self._options = dict(sampler_kwargs)
        if (mode := kwargs["trainer_mode"]) != "sync":
            raise DeltaMemError(
                f"trainer.v1.trainer_mode={mode}: only sync is supported (docs/training.md, Partial rollouts)"
            )
        trainer: Any = getattr(refill_fn, "__self__")  # noqa: B009
        self._stop = SaveAndStop(Path(self._options["stop_file"]), trainer.config)
        self._stoppable: int | None = None  # the step that may be left undone
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
            StoppedError: If there is a request to stop, and the step before is saved.
        """
        training = partition_id == "train"
        # Everything is up: the launcher waits no longer.
        Path(self._options["started_file"]).touch()
        # A validation is done to its end, but for the one before the first step.
        self._stoppable = global_steps if training else 1 if global_steps == 0 else None
        self._check_stop()
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        expected = batch_size * self._options["train_rollouts" if training else "heldout_rollouts"]
        rows = _rows(batch)
        lost = Counter(row.failure for row in rows if row.failure is not None)
        # A rollout that is not there at all failed outside of our own handling.
        lost["the rollout was lost; see the agent loop worker's log"] += max(expected - len(rows), 0)
        check_failures(lost, expected, self._options["max_failure_rate"])
        if training:
            _spare_groups(batch.partition_id, rows)
            figures = batch_metrics(rows, expected)
            figures |= {f"memory/{name}": value for name, value in memory_figures(run_processes(self._process)).items()}
            self.figures = {f"{PREFIX}{name}": float(value) for name, value in figures.items()}
            metrics = metrics | self.figures
        else:
            self._validation.add(global_steps, generation_records(rows))
        if training and self._options["sort_by_length"]:
            # verl cuts micro-batches out of the batch in order: neighbours of equal length need no padding.
            batch.reorder(sorted(range(len(batch.keys)), key=lambda place: batch.tags[place]["seq_len"]))
        return batch, metrics

    def _check_stop(self) -> None:
        if self._stoppable is not None:
            self._stop.check(self._stoppable)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        self._check_stop()
        return float(super()._wait_for_next_poll(partition_id, last_debug_time))


def _rows(batch: KVBatchMeta) -> list[RolloutRow]:
    if not batch.keys:
        return []
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields", "rm_scores"])
    return [
        RolloutRow(key, float(scores.sum()), entry["reward_extra_info"], entry[ROLLOUT_INFO], entry["failure"])
        for key, scores, entry in zip(batch.keys, data["rm_scores"].unbind(), data["extra_fields"], strict=True)
    ]


def _spare_groups(partition_id: str, rows: Sequence[RolloutRow]) -> None:
    """Take the rollouts that broke in our own machinery out of their groups, so that they move no advantage.

    They have no token to learn from, but verl has no mask for a whole rollout: they would count in the mean of their group
    and, with ``algorithm.norm_adv_by_std_in_grpo``, in its deviation. So each becomes a group of its own. The advantage of
    the only rollout of a group is to verl its reward; therefore one that is left alone keeps a broken one, of equal reward.
    """
    earned: defaultdict[str, list[float]] = defaultdict(list)
    broken: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.failure is None:
            earned[row.group].append(row.reward)
        else:
            broken[row.group].append(row.key)
    groups: dict[str, str] = {}
    scores: list[torch.Tensor] = []
    for group, keys in broken.items():
        if values := earned[group]:
            groups |= {key: key for key in keys} | ({keys[0]: group} if len(values) == 1 else {})
            # The mean of the group: so they do not show in verl's own figures of the rewards either.
            scores += [torch.tensor([mean(values)])] * len(keys)
    if groups:
        rewards = torch.nested.as_nested_tensor(scores, layout=torch.jagged)
        fields = TensorDict({"uid": NonTensorStack(*groups.values()), "rm_scores": rewards}, batch_size=len(groups))
        tq.kv_batch_put(keys=list(groups), partition_id=partition_id, fields=fields)


def check_failures(lost: Counter[str], expected: int, max_failure_rate: float) -> None:
    """Refuse a batch of `expected` rollouts of which too many failed (`lost` counts them by reason)."""
    if lost.total():
        logger.warning("%d of %d rollouts failed: %s", lost.total(), expected, dict(lost))
    if lost.total() > max_failure_rate * expected:
        reason, _ = lost.most_common(1)[0]
        raise DeltaMemError(
            f"{lost.total()} of {expected} rollouts of one step failed, more than deltamem.max_failure_rate="
            f"{max_failure_rate} allows; most often: {reason}"
        )
