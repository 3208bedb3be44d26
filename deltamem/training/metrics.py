"""verl's log turned into ``metrics.jsonl`` (docs/metrics.md lists the names), trackers, warnings and a progress line."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer
from deltamem.training.rollout_metrics import PREFIX

Rates = Mapping[str, Sequence[str]]
"""Name of a share of counts -> names of its numerator and denominator."""

_HELDOUT = ("val-core/deltamem/", "val-aux/deltamem/")
_MEAN = "/mean@"
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
        ``step`` and the metrics under the names of docs/metrics.md. What is no finite number is left out.
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

        `from_step` is the step of the checkpoint from which training continues; later lines are dropped, because
        those steps are repeated. None begins a new file.
        """
        self._path = path
        self._steps: set[int] = set()
        kept = [] if from_step is None else [line for line in read_metrics(path) if line["step"] <= from_step]
        with atomic_writer(path) as file:
            for record in kept:
                self._steps.add(record["step"])
                file.write(json.dumps(record) + "\n")

    def add(self, record: Mapping[str, Any]) -> bool:
        """Append a step, and return whether it is new: the validation before training comes again after a resume."""
        if record["step"] in self._steps:
            return False
        self._steps.add(record["step"])
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        return True


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


_WATCHED = {
    "train/wrong_target": "wrong target",
    "train/add_for_update": "add for update",
    "train/no_signal": "no signal",
    "train/truncated": "truncated",
}


def _bar(console: Console, title: str) -> Progress:
    return Progress(
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


class StageProgress:
    """The progress line of a stage that takes many steps."""

    def __init__(self, console: Console, title: str, total: int, start: int = 0, *, every: int) -> None:
        """Begin after `start` of `total` steps. Without a terminal a line is printed after every so many."""
        self._console, self._title, self._total, self._every = console, title, total, every
        self._bar = _bar(console, title)
        self._task = self._bar.add_task(title, total=total, completed=start, text="")

    def __enter__(self) -> StageProgress:
        self._bar.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._bar.stop()

    def show(self, step: int, text: str) -> None:
        """Show that a step is done."""
        self._bar.update(self._task, completed=step, text=text)
        if not self._console.is_terminal and (step % self._every == 0 or step == self._total):
            self._console.print(f"{self._title} {step}/{self._total}: {text}", soft_wrap=True)


class GrpoProgress:
    """The progress line of GRPO: step, rewards, seconds a step, what goes wrong, time left."""

    def __init__(self, console: Console, total: int, start: int) -> None:
        """Begin after `start` of `total` steps. Without a terminal one line a step is printed."""
        self._console = console
        self._total = total
        self._heldout: float | None = None
        self._alarms = Alarms()
        self._bar = _bar(console, "grpo")
        self._task = self._bar.add_task("grpo", total=total, completed=start, text="starting verl (about a minute)")

    def __enter__(self) -> GrpoProgress:
        self._bar.start()
        if not self._console.is_terminal:
            self._console.print("grpo: starting verl (about a minute)")
        return self

    def __exit__(self, *_exception: object) -> None:
        self._bar.stop()

    def show(self, record: Mapping[str, Any]) -> None:
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
        text = ", ".join(parts)
        self._bar.update(self._task, completed=record["step"], text=text)
        if not self._console.is_terminal:
            left = "" if seconds is None else f", about {(self._total - record['step']) * seconds / 60:.1f} min left"
            self._console.print(f"grpo {record['step']}/{self._total}: {text}{left}", soft_wrap=True)
        for sentence in self._alarms.check(record):
            self.warn(sentence)

    def warn(self, sentence: str) -> None:
        """Show a warning; the run goes on."""
        self._console.print(f"warning: {sentence}", style="yellow", markup=False, soft_wrap=True)


class Tracker(Protocol):
    """Somewhere else that the metrics of a run go."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        ...

    def close(self) -> None:
        """Write what is left and end."""
        ...


class TensorBoard:
    """Event files in a folder, for ``tensorboard --logdir``."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        """Open a new event file; what earlier attempts wrote of `first_step` and later steps is hidden."""
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=first_step)
        self.close = self._writer.close

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


class Wandb:
    """A run at wandb, which a later attempt goes on with; ``WANDB_MODE=offline`` keeps it in the run folder.

    wandb takes no step twice: of those that were lost with a process and made again it keeps the first.
    """

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        """Open the run whose id is in ``wandb_id`` in the run folder, or a new one with this configuration."""
        import wandb

        note = out / "wandb_id"
        if not note.exists():
            with atomic_writer(note) as file:
                file.write(uuid4().hex[:12])
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "deltamem"),
            name=out.name,
            id=note.read_text(encoding="utf-8").strip(),
            resume="allow",
            dir=str(out),
            config=dict(config),
            # Seconds to wait for its server at the start, and at the end for it to take everything; the rest stays here.
            settings=wandb.Settings(
                init_timeout=30.0, finish_timeout=60.0, finish_timeout_raises=True, silent=True, console="off"
            ),
        )
        self.close = self._run.finish

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        self._run.log(dict(values), step=step)


class Trackers:
    """The trackers of a run. One that fails is dropped with a warning; none of them ends the training."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        """Begin without any; `warn` shows one sentence."""
        self._warn = warn
        self._open: dict[str, Tracker] = {}

    def start(self, name: str, make: Callable[[], Tracker]) -> None:
        """Start a tracker, or say why it does not start."""
        try:
            self._open[name] = make()
        except Exception as error:
            self._warn(f"{name} does not start, training goes on without it: {_one_line(error)}")

    def add(self, record: Mapping[str, Any]) -> None:
        """Log a line of ``metrics.jsonl`` to all of them."""
        values = {key: value for key, value in record.items() if key != "step"}
        for name, tracker in list(self._open.items()):
            try:
                tracker.log(record["step"], values)
            except Exception as error:
                del self._open[name]
                self._warn(f"{name} failed at step {record['step']}, training goes on without it: {_one_line(error)}")

    def close(self) -> None:
        """Write what is left and end all of them."""
        for name, tracker in self._open.items():
            try:
                tracker.close()
            except Exception as error:
                self._warn(f"{name} could not be closed: {_one_line(error)}")
        self._open.clear()


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers whose package, of the same name, is not installed.

    Raises:
        DeltaMemError: Names the first of them.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise DeltaMemError(f"config key 'deltamem.trackers': {name} is not installed; run: pip install {name}")


def open_trackers(
    names: Sequence[str], out: Path, *, first_step: int, config: Mapping[str, Any], warn: Callable[[str], None]
) -> Trackers:
    """Start those of ``tensorboard`` and ``wandb`` that are named; `first_step` is the first that will be logged."""
    trackers = Trackers(warn)
    makers: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(out / "tensorboard", first_step=first_step),
        "wandb": lambda: Wandb(out, config),
    }
    for name in names:
        trackers.start(name, makers[name])
    return trackers
