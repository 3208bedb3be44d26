"""verl's log of metrics, turned into ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deltamem.files import atomic_writer
from deltamem.training.rollout.metrics import PREFIX

Rates = Mapping[str, Sequence[str]]
"""Name of a share of counts -> names of its numerator and denominator."""

_HELDOUT = ("val-core/deltamem/", "val-aux/deltamem/")
_MEAN = "/mean@"
_SECONDS = "timing_s/"
_PARTS = (
    "gen",
    "reward",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "update_weights",
    "save_checkpoint",
)
"""The phases that verl's time of a step is made of."""

_RENAMED = {
    "actor/grad_norm": "train/grad_norm",
    "actor/lr": "train/lr",
    "actor/pg_loss": "train/policy_loss",
    "actor/entropy": "train/entropy",
    "actor/pg_clipfrac": "train/clip_fraction",
    "actor/kl_loss": "train/kl_to_start",
    "training/rollout_probs_diff_max": "train/sampler_gap_max",
    "response_length/mean": "train/response_tokens",
    "perf/total_num_tokens": "speed/tokens",
    "perf/throughput": "speed/tokens_per_second_per_gpu",
    "perf/mfu/actor": "speed/mfu",
    "actor/perf/cpu_memory_used_gb": "memory/node_used_gb",
    "actor/perf/max_memory_allocated_gb": "memory/gpu_allocated_gb",
    "actor/perf/max_memory_reserved_gb": "memory/gpu_reserved_gb",
}
_TO_SAMPLER = ("rollout_corr/kl", "actor/ppo_kl")
"""Where the actor computes its log-probs again verl compares them with the sampler's; else the sampler's are those that the
update is compared with."""


def convert(step: int, data: Mapping[str, Any], rates: Rates) -> dict[str, Any]:
    """One line of ``metrics.jsonl`` from one line of verl's log.

    Args:
        step: Training steps done.
        data: What verl logged.
        rates: Shares to compute from the counts, of training and of the held-out sessions alike. A share is left out when
            its denominator is 0.

    Returns:
        ``step`` and the metrics under the names of `deltamem.training.run.metric_names.METRICS`. What is no finite number is
        left out.
    """
    record = {name.removeprefix(PREFIX): value for name, value in data.items() if name.startswith(PREFIX)}
    record |= {_RENAMED[name]: value for name, value in data.items() if name in _RENAMED}
    record |= {f"heldout/{name}": value for name, value in _heldout(data).items()}
    record |= _seconds(data)
    if to_sampler := [data[name] for name in _TO_SAMPLER if name in data]:
        record["train/kl_to_sampler"] = to_sampler[0]
    for split in ("train", "heldout"):
        for name, (numerator, denominator) in rates.items():
            if whole := record.get(f"{split}/{denominator}"):
                record[f"{split}/{name}"] = record.get(f"{split}/{numerator}", 0.0) / whole
    return {"step": step} | {name: value for name, value in record.items() if _finite(value)}


def _heldout(data: Mapping[str, Any]) -> dict[str, Any]:
    """Means over the held-out sessions; of those that verl gives, the one over the most rollouts a session."""
    found: dict[str, tuple[int, Any]] = {}
    for name, value in data.items():
        prefix = next((prefix for prefix in _HELDOUT if name.startswith(prefix)), None)
        figure, mean, rollouts = name.rpartition(_MEAN)
        if prefix is not None and mean and rollouts.isdigit():
            figure = figure.removeprefix(prefix)
            found[figure] = max(found.get(figure, (0, None)), (int(rollouts), value), key=lambda pair: pair[0])
    return {figure: value for figure, (_, value) in found.items()}


def _seconds(data: Mapping[str, Any]) -> dict[str, Any]:
    phases = {name.removeprefix(_SECONDS): value for name, value in data.items() if name.startswith(_SECONDS)}
    if "step" in phases:
        phases["other"] = phases["step"] - sum(phases.get(phase, 0.0) for phase in _PARTS)
    return {f"seconds/{phase}": value for phase, value in phases.items()}


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``; empty if there is no such file. A cut-off last line is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


class MetricsFile:
    """``metrics.jsonl`` of a run: one line a step, without repetition after a resume."""

    def __init__(self, path: Path, *, from_step: int | None) -> None:
        """Open the file.

        Args:
            path: The file.
            from_step: Step of the checkpoint from which training goes on; later lines are dropped, for those steps are
                made again. None begins a new file.
        """
        self._path = path
        self._steps: set[int] = set()
        kept = [] if from_step is None else [line for line in read_metrics(path) if line["step"] <= from_step]
        with atomic_writer(path) as file:
            for record in kept:
                self._steps.add(record["step"])
                file.write(json.dumps(record) + "\n")

    def add(self, record: Mapping[str, Any]) -> bool:
        """Append a step; one that is there already (the validation before training after a resume) is left alone.

        Returns:
            Whether the step is new.
        """
        if record["step"] in self._steps:
            return False
        self._steps.add(record["step"])
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        return True


class Tail:
    """New whole lines of a growing JSONL file of verl's ``file`` logger."""

    def __init__(self, path: Path, rates: Rates) -> None:
        """Follow a file that may not exist yet.

        Args:
            path: The file.
            rates: See `convert`.
        """
        self._path = path
        self._rates = rates
        self._offset = 0

    def records(self) -> Iterator[dict[str, Any]]:
        """What was written since the last call, converted."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                entry = json.loads(line)
                yield convert(entry["step"], entry["data"], self._rates)
