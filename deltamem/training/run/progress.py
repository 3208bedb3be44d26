"""What a GRPO run shows on the console: a progress line, and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deltamem.training.run.alarms import Alarms

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
