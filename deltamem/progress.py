"""How far long work is: bars on a terminal, else a plain line now and then, as a log file takes it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS = 30.0  # Between two plain lines at most, while something happens or not
_LEAST_SECONDS = 3.0  # Between two plain lines at least
_STEP = 0.05  # Share of the work after which there is a plain line sooner
_REMEMBERED = 20  # Plain lines from which the speed is known: what an earlier run had done is over in no time
_LEAST_WORK = 1e-3  # Seconds that anything counts for, so that what costs no model any time is counted too


class ProgressDisplay:
    """Counts of items by kind, with tokens and failures so far; shown within a ``with`` block.

    Other threads may not use it; `watch` prints plain lines while nothing is done.
    """

    def __init__(
        self,
        console: Console,
        totals: Mapping[str, float],
        *,
        figures: Callable[[], Iterable[str]] = tuple,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to count.

        `totals` are how many items of each kind there are, `figures` what plain lines say besides, `seconds` the time
        between two of them; by default half a minute, less after much work.
        """
        kind, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
        columns = (kind, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), note)
        self._console = console
        self._figures, self._seconds = figures, seconds
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        for name, total in totals.items():
            self._bars.add_task(name, total=total, note="", tokens=0, failed=0, work=0.0)
        self._tasks = {task.description: task for task in self._bars.tasks}
        self._clock = clock
        self._lines = deque([(clock(), 0.0, 0.0)], maxlen=_REMEMBERED)  # when, how many items, and their seconds

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def say(self, sentence: str) -> None:
        """Print a sentence beside the progress."""
        self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def expect(self, name: str, more: float) -> None:
        """Raise the total of a kind, if there is one of that name."""
        if (task := self._tasks.get(name)) is not None:
            self._bars.update(task.id, total=(task.total or 0) + more)

    def advance(self, name: str, *, tokens: int = 0, seconds: float = 0.0, failed: bool = False) -> None:
        """An item is done, or failed; `seconds` are what it cost, by which the time that is left is told."""
        task = self._tasks[name]
        tokens += task.fields["tokens"]
        failures = task.fields["failed"] + failed
        note = f"{tokens:,} tokens" + (f", {failures} failed" if failures else "")
        work = task.fields["work"] + max(seconds, _LEAST_WORK)
        self._bars.update(task.id, advance=1, note=note, tokens=tokens, failed=failures, work=work)
        self.tick()

    async def watch(self, each: Callable[[], None] = lambda: None) -> None:
        """Print plain lines while nothing is done either, and call `each` every second, until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            self.tick()
            each()

    def tick(self) -> None:
        """Print a plain line if it is time for one."""
        if not self._bars.disable:
            return
        tasks = self._bars.tasks
        now, done, total = self._clock(), sum(task.completed for task in tasks), sum(task.total or 0 for task in tasks)
        before, done_before, _ = self._lines[-1]
        much = total and done - done_before >= _STEP * total
        if now - before >= (self._seconds or (_LEAST_SECONDS if much else _SECONDS)):
            self._lines.append((now, done, sum(task.fields["work"] for task in tasks)))
            parts = [f"{task.description} {task.completed:,}/{task.total:,}" for task in tasks]
            parts.append(f"{sum(task.fields['tokens'] for task in tasks):,} tokens")
            if failed := sum(task.fields["failed"] for task in tasks):
                parts.append(f"{failed:,} failed")
            self.say(", ".join([*parts, *self._figures(), *self._left()]))

    def _left(self) -> list[str]:
        """How long what is left will take, each kind by what it has cost so far: a session takes longer than a question."""
        first, _, work_first = self._lines[0]
        now, _, work = self._lines[-1]
        open_tasks = [task for task in self._bars.tasks if task.completed < (task.total or 0)]
        known = [task for task in open_tasks if task.completed]
        if work == work_first or not known:
            return []
        left = sum(((task.total or 0) - task.completed) * task.fields["work"] / task.completed for task in known)
        unknown = " and ".join(task.description for task in open_tasks if not task.completed)
        beside = f" without {unknown}" if unknown else ""
        return [f"about {_duration(left * (now - first) / (work - work_first))} left{beside}"]


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{max(0, round(seconds))} s"
    return f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"
