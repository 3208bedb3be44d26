"""verl's replay buffer with metrics and trajectories of the rollouts, and an end to a run whose rollouts fail or stall."""

from __future__ import annotations

import copy
import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import psutil
import ray
import torch
import transfer_queue as tq
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from deltamem.episode import session_fields
from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer
from deltamem.training.agent_loop import GIVEN_UP
from deltamem.training.checkpoints import is_whole
from deltamem.training.config import SAMPLER_SHARE
from deltamem.training.interruption import SaveAndStop, StoppedError
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


_LIVENESS_SECONDS = 10.0
"""How often the agent loop workers are asked whether they are alive."""


class DeltaMemReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """The synchronous replay buffer of verl, with its dynamic sampling where ``algorithm.filter_groups`` asks for it."""

    def __init__(self, *, sampler_kwargs: Mapping[str, Any], refill_fn: Callable[[int], Any], **kwargs: Any) -> None:
        """Make the buffer; verl calls this.

        `sampler_kwargs` are those of ``configs/train.yaml``; `refill_fn`, which samples so many prompts more, is a method of
        the trainer, and the only way to it.
        """
        self._options = dict(sampler_kwargs)
        if (mode := kwargs["trainer_mode"]) != "sync":
            raise DeltaMemError(
                f"trainer.v1.trainer_mode={mode}: only sync is supported (docs/training.md, Partial rollouts)"
            )
        self._trainer: Any = getattr(refill_fn, "__self__")  # noqa: B009
        config = self._trainer.config
        self._stop = SaveAndStop(Path(self._options["stop_file"]), config)
        self._stoppable: int | None = None  # the step that may be left undone
        self._validation = ValidationFolder(Path(self._options["validation_folder"]))
        self._pulse = Path(self._options["pulse_file"])
        self._process = psutil.Process()
        self._sample_more = refill_fn
        self._refilled = 0  # prompts that this step has sampled beyond its batch
        self._dropped: list[RolloutRow] = []  # of groups without spread
        self._data_state: Any = None  # of the data loader, after the last step
        self._seen: tuple[int, ...] = ()  # how many rollouts there are, and prompts without all of theirs
        self._since = self._asked = 0.0
        self.figures: dict[str, float] = {}
        """Metrics of the last training step; the manifest of a checkpoint holds them, too."""
        # verl gives these to its own buffers only.
        groups = config.algorithm.filter_groups
        super().__init__(
            sampler_kwargs=sampler_kwargs,
            poll_interval=self._options["poll_seconds"],
            refill_fn=self._refill,
            filter_groups_metric=str(groups.metric) if groups.enable else None,
            train_batch_size=config.data.train_batch_size,
            gen_batch_size=1,  # what verl's data loader gives where groups are filtered
            max_inflight_gen_batches=groups.max_inflight_gen_batches,
            **kwargs,
        )

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Wait for a batch, look at it, and return it with metrics.

        Raises:
            DeltaMemError: If too large a share of its rollouts failed, none comes any more, or too few groups have spread.
                What was learned before is saved then.
            StoppedError: If there is a request to stop, and the step before is saved.
        """
        training = partition_id == "train"
        expected = batch_size * self._options["train_rollouts" if training else "heldout_rollouts"]
        # A validation is done to its end, but for the one before the first step.
        self._stoppable = global_steps if training else 1 if global_steps == 0 else None
        self._check_stop()
        self._seen, self._refilled, self._dropped = (), 0, []
        try:
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
            rows = _rows(batch)
            self._check(rows, expected)
        except StoppedError:
            raise
        except DeltaMemError as error:
            raise DeltaMemError(f"{error}{self._saved(global_steps - training)}") from error
        if any((row.failure or "").startswith(GIVEN_UP) for row in (*rows, *self._dropped)):
            # verl waits until an engine has answered all requests before it takes its memory.
            self._trainer.checkpoint_manager.abort_replicas()
            self._trainer.checkpoint_manager.resume_generation_replicas()
        if training:
            _spare_groups(batch.partition_id, rows)
            figures = batch_metrics(rows, expected)
            figures |= {f"memory/{name}": value for name, value in memory_figures(run_processes(self._process)).items()}
            self.figures = {f"{PREFIX}{name}": float(value) for name, value in figures.items()}
            metrics = metrics | self.figures
            self._data_state = copy.deepcopy(self._trainer.train_dataloader.state_dict())
        else:
            self._validation.add(global_steps, generation_records(rows))
        if training and self._options["sort_by_length"]:
            # verl cuts micro-batches out of the batch in order: neighbours of equal length need no padding.
            batch.reorder(sorted(range(len(batch.keys)), key=lambda place: batch.tags[place]["seq_len"]))
        self._pulse.touch()
        return batch, metrics

    def _check_stop(self) -> None:
        if self._stoppable is not None:
            self._stop.check(self._stoppable)

    def _check(self, rows: Sequence[RolloutRow], expected: int) -> None:
        """Refuse a batch that should have so many rollouts if too many of them, or of the dropped groups, failed."""
        made = [*rows, *self._dropped]
        lost = Counter(row.failure for row in made if row.failure is not None)
        # A rollout that is not there at all failed outside of our own handling.
        lost["the rollout was lost; see the agent loop worker's log"] += max(expected - len(rows), 0)
        check_failures(lost, expected + len(self._dropped), self._options["max_failure_rate"])

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        """Give the launcher a sign of life where there is one; verl calls this while it waits for rollouts.

        Raises:
            DeltaMemError: If no rollout has come for too long, or an agent loop worker has died: verl would wait for ever
                for what it has taken along.
            StoppedError: If there is a request to stop, and the step before is saved.
        """
        self._check_stop()
        now, patience = time.monotonic(), SAMPLER_SHARE * self._options["stall_minutes"]
        waiting = self.pending_keys[partition_id] | self.running_keys[partition_id]
        seen = (len(self.partitions[partition_id]), len(waiting), self._refilled)
        if seen != self._seen:
            self._seen, self._since = seen, now
            self._pulse.touch()
        elif now - self._since > 60.0 * patience:
            raise DeltaMemError(
                f"no rollout has ended for {patience:.3g} minutes, and {len(waiting)} prompts are not done: an agent loop "
                "worker hangs, for its own deadlines have passed (deltamem.stall_minutes)"
            )
        if now - self._asked > _LIVENESS_SECONDS:
            self._asked = now
            _check_alive(self._trainer.agent_loop_manager.agent_loop_workers)
        return float(super()._wait_for_next_poll(partition_id, last_debug_time))

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, eviction_reasons: tuple[set[str], ...]) -> Any:
        """Keep in mind what the groups without spread were; verl calls this before it drops them.

        Rollouts that all failed have equal rewards, too: without this, engines that are down would never be noticed.
        """
        _, without_spread, *_ = eviction_reasons
        keys = [key for key in self.partitions[partition_id] if key.split("_")[0] in without_spread]
        self._dropped += _rows(KVBatchMeta(partition_id=partition_id, keys=keys, tags=[{}] * len(keys)))
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)

    def _refill(self, prompts: int) -> Any:
        """Sample so many prompts more, up to the limit of dynamic sampling."""
        config = self._trainer.config
        batch, most = config.data.train_batch_size, config.algorithm.filter_groups.max_num_gen_batches
        self._refilled += prompts
        if batch + self._refilled > batch * most:
            self._check([], 0)
            raise DeltaMemError(
                f"{len({row.group for row in self._dropped})} prompts of a step have no spread of rewards, and "
                f"algorithm.filter_groups.max_num_gen_batches={most} batches hold too few others: the policy has learned "
                "what these data can teach, or earns nothing"
            )
        return self._sample_more(prompts)

    def _saved(self, step: int) -> str:
        """Save what was learned until a step whose successor cannot be made; what there is to say about it."""
        config = self._trainer.config.trainer
        folder = Path(config.default_local_dir, f"global_step_{step}")
        if step == 0 or config.save_freq <= 0:
            return ""
        if not is_whole(folder):
            self._pulse.touch()
            # The weights are still those of that step; the data loader is a batch further.
            self._trainer.global_steps = step
            self._trainer.train_dataloader = SimpleNamespace(state_dict=lambda: self._data_state)
            try:
                self._trainer._save_checkpoint()
            except Exception:
                logger.exception("step %d could not be saved", step)
                return ""
        return f"; step {step} is saved, the same command goes on from there"


def _check_alive(workers: Sequence[Any]) -> None:
    """Raise a `DeltaMemError` if one of Ray's actors is dead; those that are busy have time until the next call."""
    answered, _ = ray.wait([worker.__ray_ready__.remote() for worker in workers], num_returns=len(workers), timeout=1.0)
    for answer in answered:
        try:
            ray.get(answer)
        except ray.exceptions.RayActorError as error:
            raise DeltaMemError(
                "an agent loop worker has died with its rollouts; it was killed, perhaps because memory ran out"
            ) from error


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
