"""verl's log turned into ``metrics.jsonl``, trackers, warnings and the console's progress line."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer
from deltamem.training.rollout_metrics import PREFIX

METRICS = {
    "step": "training steps done; the line of step 0 holds the validation before training",
    "train/reward": "mean reward of the rollouts; one that failed counts 0",
    "train/format": "format reward",
    "train/retrieval": "retrieval reward",
    "train/transition": "transition reward",
    "train/precision": "soft precision of the transition",
    "train/recall": "soft recall of the transition",
    "train/positive_distance": "what is in the policy's state and not in the target's",
    "train/negative_distance": "what is in the target's state and not in the policy's",
    "train/count/<name>": "mean per session of a count of `rewards/diagnostics.py`, for example `predicted_adds`",
    "train/count/violations/<kind>": "how often a session breaks a rule of the protocol, by kind",
    "train/wrong_target": "share of the UPDATEs whose memory is not due one",
    "train/add_for_update": "share of the due UPDATEs done as an ADD while the old text stays: how this reward is gamed",
    "train/add_precision": "share of the ADDs that match a target ADD",
    "train/add_recall": "share of the target ADDs that an ADD matches",
    "train/update_precision": "share of the UPDATEs that rewrite a memory that is due one",
    "train/update_recall": "share of the due UPDATEs whose memory is rewritten",
    "train/update_matched_recall": "the same, where the new text matches too",
    "train/none_precision": "share of the NONEs that name a memory of a target NONE",
    "train/none_recall": "share of the target NONEs whose memory is named in a NONE",
    "train/queries_per_memory": "search queries for each target operation",
    "train/operations_per_memory": "operations of the policy for each target operation",
    "train/failure": "share of the rollouts that broke in our own machinery, or were lost",
    "train/group_std": "standard deviation of the rewards of one prompt's rollouts, mean over prompts",
    "train/no_signal": "share of the prompts whose rollouts all have the same reward: GRPO learns nothing from them",
    "train/truncated": "share of the episodes that a token limit ended",
    "train/turns": "assistant turns of an episode",
    "train/model_tokens_mean": "tokens that the model wrote in an episode",
    "train/model_tokens_p50": "their median",
    "train/model_tokens_p95": "their 95th percentile",
    "train/model_tokens_max": "the longest",
    "train/tool_tokens": "tokens of the search results in an episode",
    "train/retrieved_per_query": "memories that the searches returned for each query",
    "train/response_tokens": "tokens after the prompt, the model's and the tool's",
    "train/grad_norm": "norm of the gradient before clipping",
    "train/lr": "learning rate",
    "train/policy_loss": "the clipped policy loss",
    "train/entropy": "entropy of the policy, where the actor computes the log-probs again",
    "train/clip_fraction": "share of the tokens whose ratio is clipped",
    "train/kl_to_sampler": "mean log-prob of the sampler minus that of the actor; far from 0 the two are different policies",
    "train/kl_to_start": "KL loss towards the policy before training, where it is used",
    "train/sampler_gap_max": "largest difference of a token's probability between sampler and actor",
    "heldout/<name>": "the same of the held-out sessions, for the figures of the reward, the counts and their shares",
    "data/order": "a checksum of the step's sessions; equal for runs that take the data in the same order",
    "seconds/step": "a training step, without validation",
    "seconds/gen": "until the last rollout of the step is there",
    "seconds/reward": "verl's own reward stage, where there is one",
    "seconds/old_log_prob": "log-probs of the actor before the update",
    "seconds/ref": "log-probs of the reference policy",
    "seconds/values": "values of a critic, where there is one",
    "seconds/adv": "advantages",
    "seconds/update_actor": "the update",
    "seconds/update_critic": "the update of a critic, where there is one",
    "seconds/update_weights": "new weights for the sampler",
    "seconds/save_checkpoint": "a checkpoint",
    "seconds/other": "what is left of the step",
    "seconds/testing": "validation, which is not part of the step",
    "seconds/rollout_<phase>_mean": "wall time of a phase of one rollout: generate, search, reward",
    "seconds/rollout_<phase>_sum": "its sum over the step's rollouts, which run at the same time",
    "speed/tokens": "tokens of the step, prompts included",
    "speed/tokens_per_second_per_gpu": "by the time of the whole step",
    "speed/mfu": "share of the devices' peak FLOP/s that the update uses",
    "memory/rss_gb": "resident memory of the run's processes on the trainer's node; shared pages count for each",
    "memory/pss_gb": "the same with shared pages counted once",
    "memory/processes": "how many processes these are",
    "memory/node_used_gb": "memory in use on the node, whoever uses it",
    "memory/gpu_allocated_gb": "most GPU memory that tensors of the trainer's process took",
    "memory/gpu_reserved_gb": "most GPU memory that the trainer's process held",
}
"""Name to meaning; a part in angle brackets stands for several names."""

_PATTERNS = [re.compile(re.sub(r"<\w+>", ".+", name)) for name in METRICS]


def described(name: str) -> bool:
    """Whether a metric is in `METRICS`."""
    return any(pattern.fullmatch(name) for pattern in _PATTERNS)


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
        ``step`` and the metrics under the names of `deltamem.training.metrics.METRICS`. What is no finite number is
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


_NO_SIGNAL_STEPS = 10


@dataclass(frozen=True, slots=True)
class _Limit:
    """A metric whose size should not exceed a limit for a number of steps."""

    metric: str
    limit: float
    steps: int
    sentence: str


_LIMITS = (
    _Limit(
        "train/no_signal",
        0.8,
        _NO_SIGNAL_STEPS,
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
    """Watches the metrics of a run."""

    _above: dict[str, int] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def check(self, record: Mapping[str, Any]) -> list[str]:
        """Look at a line of ``metrics.jsonl``; a line without a metric leaves its count alone.

        Returns:
            One sentence for each condition that holds now for the first time.
        """
        sentences = []
        for limit in _LIMITS:
            value = record.get(limit.metric)
            if value is None:
                continue
            self._above[limit.metric] = self._above.get(limit.metric, 0) + 1 if abs(value) > limit.limit else 0
            if self._above[limit.metric] >= limit.steps and limit.metric not in self._told:
                self._told.add(limit.metric)
                sentences.append(f"step {record['step']}: {limit.sentence.format(value=value)}")
        return sentences


_SHOWN = {
    "train/wrong_target": "wrong target",
    "train/add_for_update": "add for update",
    "train/no_signal": "no signal",
    "train/truncated": "truncated",
}


class GrpoProgress:
    """The progress line of GRPO: step, rewards, seconds a step, what goes wrong, time left."""

    def __init__(self, console: Console, total: int, start: int) -> None:
        """Begin.

        Args:
            console: Where to show it. Without a terminal one line a step is printed.
            total: Steps of the run.
            start: Steps done before.
        """
        self._console = console
        self._total = total
        self._heldout: float | None = None
        self._alarms = Alarms()
        self._bar = Progress(
            TextColumn("grpo"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
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
        parts += [f"{label} {record[name]:.2f}" for name, label in _SHOWN.items() if name in record]
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


_START_SECONDS = 30.0
"""How long the start waits for wandb's server."""
_END_SECONDS = 60.0
"""How long the end waits until wandb has sent everything; what it has not sent stays in the run folder."""


class Tracker(Protocol):
    """Takes the metrics of a run elsewhere."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        ...

    def close(self) -> None:
        """Write what is left and end."""
        ...


class TensorBoard:
    """Event files in a folder, for ``tensorboard --logdir``."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        """Open a new event file.

        Args:
            folder: Where the event files of all attempts lie.
            first_step: What earlier attempts wrote of this step and later ones is not shown any more.
        """
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=first_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left and end."""
        self._writer.close()


class Wandb:
    """A run at wandb, which a later attempt goes on with; ``WANDB_MODE=offline`` keeps it in the run folder.

    wandb takes no step twice: of those that were lost with a process and made again it keeps the first.
    """

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        """Open the run whose id is in ``wandb_id`` in the run folder, or a new one.

        Args:
            out: The run folder.
            config: Shown with the run.
        """
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "deltamem"),
            name=out.name,
            id=_wandb_id(out / "wandb_id"),
            resume="allow",
            dir=str(out),
            config=dict(config),
            settings=wandb.Settings(
                init_timeout=_START_SECONDS,
                finish_timeout=_END_SECONDS,
                finish_timeout_raises=True,
                silent=True,
                console="off",
            ),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write what is left and end."""
        self._run.finish()


def _wandb_id(path: Path) -> str:
    if not path.exists():
        with atomic_writer(path) as file:
            file.write(uuid4().hex[:12])
    return path.read_text(encoding="utf-8").strip()


class Trackers:
    """The trackers of a run. One that fails is given up with a warning; none of them ends the training."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        """Begin without any.

        Args:
            warn: Shows one sentence.
        """
        self._warn = warn
        self._open: dict[str, Tracker] = {}

    def start(self, name: str, make: Callable[[], Tracker]) -> None:
        """Start a tracker, or say why it does not start."""
        try:
            self._open[name] = make()
        except Exception as error:
            self._warn(f"{name} does not start, training goes on without it: {_one_line(error)}")

    def add(self, record: Mapping[str, Any]) -> None:
        """Hand a line of ``metrics.jsonl`` to all of them."""
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
    """Refuse trackers that are not installed; each is called like its package.

    Raises:
        DeltaMemError: Names the first of them.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise DeltaMemError(f"config key 'deltamem.trackers': {name} is not installed; run: pip install {name}")


def open_trackers(
    names: Sequence[str], out: Path, *, first_step: int, config: Mapping[str, Any], warn: Callable[[str], None]
) -> Trackers:
    """Start the trackers of a run.

    Args:
        names: Of ``tensorboard`` and ``wandb`` those that are wanted.
        out: The run folder.
        first_step: The first step that will be logged.
        config: The configuration, for wandb.
        warn: Shows one sentence.
    """
    trackers = Trackers(warn)
    makers: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(out / "tensorboard", first_step=first_step),
        "wandb": lambda: Wandb(out, config),
    }
    for name in names:
        trackers.start(name, makers[name])
    return trackers
