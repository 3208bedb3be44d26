"""The metrics of training: what a rollout reports, figures of a batch, ``metrics.jsonl`` and the progress line.

docs/metrics.md lists the names.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self, TypedDict

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deltamem.runs import atomic_writer

ROLLOUT_INFO = "rollout_info"
"""Key of the `RolloutInfo` in verl's ``extra_fields``."""


class RolloutInfo(TypedDict):
    """What the agent loop notes of one rollout."""

    key: str  # of the session
    heldout: bool
    truncated: bool  # a token limit ended the episode
    turns: int  # of the assistant
    model_tokens: int
    tool_tokens: int  # with the markup around them
    queries: int
    retrieved: int  # memories that the searches returned
    seconds: dict[str, float]  # wall time by phase: ``generate``, ``search``, ``reward``
    # A validation generation: ``session`` (its line of sessions.jsonl), the fields of its trajectory and ``score``.
    generation: dict[str, Any] | None


PREFIX = "deltamem/"
"""Goes before the names in verl's log."""

_EQUAL = 1e-6
"""Rewards of a group that differ by less give GRPO nothing to learn from."""


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One rollout as the trainer sees it."""

    key: str  # verl's key of the batch, ``<uid>_<rollout>_<index>``; rollouts of one prompt share the uid
    reward: float
    figures: Mapping[str, float]  # from the scorer; only the failure if the rollout failed
    info: RolloutInfo
    failure: str | None  # why our own machinery broke, if it did

    @property
    def group(self) -> str:
        """The prompt that the rollout belongs to."""
        return self.key.split("_", 1)[0]

    @property
    def number(self) -> int:
        """Which of its group's rollouts this is, from 0."""
        return int(self.key.split("_")[1])


def batch_metrics(rows: Sequence[RolloutRow], expected: int) -> dict[str, float]:
    """All figures of a training batch that should have `expected` rollouts, under the names of ``metrics.jsonl``."""
    answered = [row for row in rows if row.failure is None]
    infos = [row.info for row in answered]
    figures = [{**row.figures, "reward": row.reward} for row in answered]
    train = {name: _mean(entry[name] for entry in figures if name in entry) for name in sorted(set().union(*figures))}
    train["failure"] = (expected - len(answered)) / expected
    train |= group_signal([(row.group, row.reward) for row in answered]) | episode_shape(infos)
    metrics = {f"train/{name}": value for name, value in train.items()}
    # The rollouts of a batch run at the same time, so the sums are no part of the step's own time.
    for phase in sorted({phase for entry in infos for phase in entry["seconds"]}):
        spent = [entry["seconds"].get(phase, 0.0) for entry in infos]
        metrics[f"seconds/rollout_{phase}_mean"] = _mean(spent)
        metrics[f"seconds/rollout_{phase}_sum"] = float(np.sum(spent))
    return metrics | {"data/order": float(data_order(row.info["key"] for row in rows))}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def group_signal(rewards: Sequence[tuple[str, float]]) -> dict[str, float]:
    """How much there is to learn from the groups of GRPO, from the group and reward of each rollout.

    ``group_std`` is the mean over groups of the standard deviation of their rewards, ``no_signal`` the share of groups whose
    rewards are all equal; nothing if no group has two rollouts.
    """
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for group, reward in rewards:
        groups[group].append(reward)
    compared = [values for values in groups.values() if len(values) > 1]
    if not compared:
        return {}
    return {
        "group_std": _mean(float(np.std(values, ddof=1)) for values in compared),
        "no_signal": _mean(max(values) - min(values) < _EQUAL for values in compared),
    }


def episode_shape(infos: Sequence[RolloutInfo]) -> dict[str, float]:
    """Lengths, turns, searches and the share of episodes that a token limit ended; empty without episodes."""
    if not infos:
        return {}
    tokens = [entry["model_tokens"] for entry in infos]
    half, most = np.percentile(tokens, [50, 95])
    shape = {
        "truncated": _mean(entry["truncated"] for entry in infos),
        "turns": _mean(entry["turns"] for entry in infos),
        "model_tokens_mean": _mean(tokens),
        "model_tokens_p50": float(half),
        "model_tokens_p95": float(most),
        "model_tokens_max": float(max(tokens)),
        "tool_tokens": _mean(entry["tool_tokens"] for entry in infos),
    }
    if queries := sum(entry["queries"] for entry in infos):
        shape["retrieved_per_query"] = sum(entry["retrieved"] for entry in infos) / queries
    return shape


def data_order(keys: Iterable[str]) -> int:
    """A checksum of a step's sessions, whatever order their rollouts ended in."""
    return zlib.crc32("\n".join(sorted(set(keys))).encode("utf-8"))


Rates = Mapping[str, Sequence[str]]
"""Name of a share of counts -> names of its numerator and denominator."""

_HELDOUT = ("val-core/deltamem/", "val-aux/deltamem/")
_SECONDS = "timing_s/"
_PARTS = [
    *("gen", "reward", "old_log_prob", "ref", "values", "adv"),
    *("update_critic", "update_actor", "update_weights", "save_checkpoint"),
]
"""The phases that verl's time of a step is made of."""

_RENAMED = {
    "actor/grad_norm": "train/grad_norm",
    "actor/lr": "train/lr",
    "actor/pg_loss": "train/policy_loss",
    "actor/entropy": "train/entropy",
    "actor/pg_clipfrac": "train/clip_fraction",
    "actor/kl_loss": "train/kl_to_start",
    # Where the actor computes its log-probs again verl compares them with the sampler's (the later of the two counts);
    # else the sampler's are those that the update is compared with.
    "actor/ppo_kl": "train/kl_to_sampler",
    "rollout_corr/kl": "train/kl_to_sampler",
    "training/rollout_probs_diff_max": "train/sampler_gap_max",
    "training/filter_groups/evicted_samples": "train/dropped_prompts",
    "response_length/mean": "train/response_tokens",
    "perf/total_num_tokens": "speed/tokens",
    "perf/throughput": "speed/tokens_per_second_per_gpu",
    "perf/mfu/actor": "speed/mfu",
    "actor/perf/cpu_memory_used_gb": "memory/node_used_gb",
    "actor/perf/max_memory_allocated_gb": "memory/gpu_allocated_gb",
    "actor/perf/max_memory_reserved_gb": "memory/gpu_reserved_gb",
}


def convert(step: int, data: Mapping[str, Any], rates: Rates) -> dict[str, Any]:
    """One line of ``metrics.jsonl``, under the names of docs/metrics.md, from one line of verl's log after `step` steps.

    `rates` are shares to compute from the counts, of training and of the held-out sessions alike. A share is left out when
    its denominator is 0, and so is what is no finite number.
    """
    record = {name.removeprefix(PREFIX): value for name, value in data.items() if name.startswith(PREFIX)}
    record |= {ours: data[name] for name, ours in _RENAMED.items() if name in data}
    record |= {f"heldout/{name}": value for name, value in _heldout(data).items()}
    phases = {name.removeprefix(_SECONDS): value for name, value in data.items() if name.startswith(_SECONDS)}
    if "step" in phases:
        phases["other"] = phases["step"] - sum(phases.get(phase, 0.0) for phase in _PARTS)
    record |= {f"seconds/{phase}": value for phase, value in phases.items()}
    for split in ("train", "heldout"):
        for name, (numerator, denominator) in rates.items():
            if whole := record.get(f"{split}/{denominator}"):
                record[f"{split}/{name}"] = record.get(f"{split}/{numerator}", 0.0) / whole
    finite = {name: value for name, value in record.items() if isinstance(value, int | float) and math.isfinite(value)}
    return {"step": step} | finite


def _heldout(data: Mapping[str, Any]) -> dict[str, Any]:
    """Means over the held-out sessions; of those that verl gives, the one over the most rollouts a session."""
    means: dict[str, tuple[int, Any]] = {}
    for name, value in data.items():
        prefix = next((prefix for prefix in _HELDOUT if name.startswith(prefix)), None)
        figure, mean, rollouts = name.rpartition("/mean@")
        if prefix is not None and mean and rollouts.isdigit():
            figure = figure.removeprefix(prefix)
            means[figure] = max(means.get(figure, (0, None)), (int(rollouts), value), key=lambda pair: pair[0])
    return {figure: value for figure, (_, value) in means.items()}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``; empty if there is no such file. A cut-off last line is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


class MetricsFile:
    """``metrics.jsonl`` of a run: one line a step, without repetition after a resume."""

    def __init__(self, path: Path, *, from_step: int | None) -> None:
        """Open the file; lines after `from_step`, the step of the checkpoint to go on from, go. None begins anew."""
        self._path = path
        kept = [] if from_step is None else [line for line in read_metrics(path) if line["step"] <= from_step]
        self._steps: set[int] = {record["step"] for record in kept}
        with atomic_writer(path) as file:
            file.writelines(json.dumps(record) + "\n" for record in kept)

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a step. Of one that is there only new figures count: of a validation that a killed process had lost."""
        if record["step"] not in self._steps:
            self._steps.add(record["step"])
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            return
        lines = read_metrics(self._path)
        merged = [{**record, **line} if line["step"] == record["step"] else line for line in lines]
        if merged != lines:
            with atomic_writer(self._path) as file:
                file.writelines(json.dumps(line) + "\n" for line in merged)


class Tail:
    """New whole lines of a growing JSONL file of verl's ``file`` logger."""

    def __init__(self, path: Path, rates: Rates) -> None:
        """Follow a file that may not exist yet; `rates` as for `convert`."""
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


class _Limit(NamedTuple):
    """A metric whose size should not exceed a limit for a number of steps."""

    metric: str
    limit: float
    steps: int
    sentence: str


_LIMITS = (
    _Limit(
        "train/no_signal",
        0.8,
        10,
        "{value:.0%} of the groups are without signal, and not for the first step: the rollouts of a prompt all earn the "
        "same, and GRPO learns nothing; more rollouts a prompt or a higher temperature may help",
    ),
    _Limit(
        "train/truncated",
        0.2,
        1,
        "a token limit ended {value:.0%} of the episodes; see deltamem.turn_tokens and data.max_response_length",
    ),
    _Limit(
        "train/add_for_update",
        0.5,
        1,
        "the policy does {value:.0%} of the due UPDATEs as ADDs: this games the reward; see deltamem.reward.stale_weight",
    ),
    _Limit(
        "train/kl_to_sampler",
        0.05,
        1,
        "sampler and actor are different policies (KL {value:.3f}): their weights, precision or templates disagree",
    ),
)


@dataclass
class Alarms:
    """Warns of a condition in the metrics the first time that it holds."""

    _above: dict[str, int] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    def check(self, record: Mapping[str, Any]) -> list[str]:
        """One sentence for each condition that now holds for the first time; a missing metric leaves its count alone."""
        sentences = []
        for limit in _LIMITS:
            value = record.get(limit.metric)
            if value is None:
                continue
            self._above[limit.metric] = self._above.get(limit.metric, 0) + 1 if abs(value) > limit.limit else 0
            if self._above[limit.metric] >= limit.steps and limit.metric not in self._warned:
                self._warned.add(limit.metric)
                sentences.append(f"step {record['step']}: {limit.sentence.format(value=value)}")
        return sentences


class StageProgress:
    """The progress line of a stage that takes many steps; a printed line now and then where there is no terminal."""

    def __init__(self, console: Console, title: str, total: int, start: int = 0, *, every: int = 1, text: str = "") -> None:
        """Begin after `start` of `total` steps with a `text`; without a terminal every so many steps are printed."""
        self._console, self._title, self._total, self._every, self._text = console, title, total, every, text
        self._bar = Progress(
            TextColumn(title),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=total, completed=start, text=text)

    def __enter__(self) -> Self:
        self._bar.start()
        if self._text and not self._console.is_terminal:
            self._console.print(f"{self._title}: {self._text}")
        return self

    def __exit__(self, *_exception: object) -> None:
        self._bar.stop()

    def show(self, step: int, text: str, plain: str = "") -> None:
        """Show that a step is done; `plain` follows the text where there is no bar to show it."""
        self._bar.update(self._task, completed=step, text=text)
        if not self._console.is_terminal and (step % self._every == 0 or step == self._total):
            self._console.print(f"{self._title} {step}/{self._total}: {text}{plain}", soft_wrap=True)


_WATCHED = {
    "train/wrong_target": "wrong target",
    "train/add_for_update": "add for update",
    "train/no_signal": "no signal",
    "train/truncated": "truncated",
}


class GrpoProgress(StageProgress):
    """The progress line of GRPO: step, rewards, seconds a step, what goes wrong, time left."""

    def __init__(self, console: Console, total: int, start: int) -> None:
        """Begin after `start` of `total` steps."""
        super().__init__(console, "grpo", total, start, text="starting verl (about a minute)")
        self._heldout: float | None = None
        self._alarms = Alarms()

    def add(self, record: Mapping[str, Any]) -> None:
        """Show one step, and warn of what is new and bad."""
        self._heldout = record.get("heldout/reward", self._heldout)
        parts = []
        if "train/reward" in record:
            parts.append(f"reward {record['train/reward']:.3f}")
        if self._heldout is not None:
            parts.append(f"held-out {self._heldout:.3f}")
        seconds = record.get("seconds/step")
        if seconds is not None:
            parts.append(f"{seconds:.1f} s/step")
        parts += [f"{label} {record[name]:.2f}" for name, label in _WATCHED.items() if name in record]
        left = "" if seconds is None else f", about {(self._total - record['step']) * seconds / 60:.1f} min left"
        self.show(record["step"], ", ".join(parts), left)
        for sentence in self._alarms.check(record):
            self._console.print(f"warning: {sentence}", style="yellow", markup=False, soft_wrap=True)
