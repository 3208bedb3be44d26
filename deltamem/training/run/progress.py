"""What a GRPO run shows and records: verl's log of metrics, turned into ``metrics.jsonl`` and a progress line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deltamem.files import atomic_writer

_TRAIN = "deltamem/"
_HELDOUT = ("val-core/deltamem/", "val-aux/deltamem/")
_SECONDS = "timing_s/"
_OTHERS = {
    "actor/grad_norm": "grad_norm",
    "actor/lr": "lr",
    "actor/ppo_kl": "kl_to_sampler",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/kl_loss": "kl_to_start",
    "response_length/mean": "response_tokens",
}


def convert(step: int, data: Mapping[str, Any]) -> dict[str, Any]:
    """One line of ``metrics.jsonl`` from one line of verl's log.

    Returns:
        ``step``, then ``train/<figure>``, ``heldout/<figure>``, ``seconds/<phase>`` and a few figures of the update. Step 0
        holds the validation before training.
    """
    record: dict[str, Any] = {"step": step}
    for name, value in data.items():
        if name.startswith(_TRAIN):
            record[f"train/{name.removeprefix(_TRAIN)}"] = value
        elif name.startswith(_SECONDS):
            record[f"seconds/{name.removeprefix(_SECONDS)}"] = value
        elif name in _OTHERS:
            record[f"train/{_OTHERS[name]}"] = value
        elif name.startswith(_HELDOUT) and "/mean@" in name:
            figure = name.split("/deltamem/", 1)[1].rsplit("/mean@", 1)[0]
            record[f"heldout/{figure}"] = value
    return record


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

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a step; one that is there already (the validation before training after a resume) is left alone."""
        if record["step"] in self._steps:
            return
        self._steps.add(record["step"])
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


class Tail:
    """New whole lines of a growing JSONL file of verl's ``file`` logger."""

    def __init__(self, path: Path) -> None:
        """Follow a file that may not exist yet."""
        self._path = path
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
                yield convert(entry["step"], entry["data"])


class GrpoProgress:
    """The progress line of GRPO: step, rewards, seconds a step, time left."""

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
        """Show one step."""
        self._heldout = record.get("heldout/reward", self._heldout)
        parts = []
        if "train/reward" in record:
            parts.append(f"reward {record['train/reward']:.3f}")
        if self._heldout is not None:
            parts.append(f"held-out {self._heldout:.3f}")
        seconds = record.get("seconds/step")
        if seconds is not None:
            parts.append(f"{seconds:.1f} s/step")
        text = ", ".join(parts)
        self._bar.update(self._task, completed=record["step"], text=text)
        if not self._console.is_terminal:
            left = "" if seconds is None else f", about {(self._total - record['step']) * seconds / 60:.1f} min left"
            self._console.print(f"grpo {record['step']}/{self._total}: {text}{left}")
