"""How far a run is: bars on a terminal, else a plain line now and then, as a log file takes it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eval.benchmark import Timeline
from eval.records import Cost, IngestRecord, PointRecord, QuestionRecord

_SECONDS = 30.0
"""Between two plain lines at most, while something happens or not."""

_LEAST_SECONDS = 3.0
"""Between two plain lines at least."""

_STEP = 0.05
"""Share of the work after which there is a plain line sooner."""

_PARTIAL_SECONDS, _PARTIAL_SHARE = 60.0, 50.0
"""Between two summaries of what is done so far: so many seconds, and so many times as long as writing one takes."""

_REMEMBERED = 20
"""Plain lines from which the speed is known: what an earlier run had done is over in no time."""

_LEAST_WORK = 1e-3
"""Seconds that anything counts for, so that what costs no model any time is counted too."""


class ProgressBars:
    """Counts of sessions, questions and points, with the tokens and failures so far; shown within a ``with`` block."""

    def __init__(
        self, console: Console, timelines: Sequence[Timeline], *, points: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Count what there is to do; `clock` gives seconds."""
        kind, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
        columns = (kind, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), note)
        self._console = console
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        steps = [step for timeline in timelines for step in timeline.steps]
        totals = {
            "sessions": sum(len(sessions) for step in steps for sessions in step.sessions),
            "questions": sum(len(step.questions) for step in steps),
        }
        if points:
            totals["points"] = sum(len(step.points or ()) for step in steps)
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

    def session(self, record: IngestRecord) -> None:
        """A session was ingested, or failed; its memories are checked like points."""
        if (points := self._tasks.get("points")) is not None:
            self._bars.update(points.id, total=(points.total or 0) + len(record.memories or ()))
        self._advance("sessions", record.cost, failed=record.outcome == "failed")

    def question(self, record: QuestionRecord) -> None:
        """A question is done, or failed."""
        costs = (cost for answer in record.answers for cost in answer.costs)
        searched = Cost(seconds=record.search_seconds)
        self._advance("questions", sum(costs, searched), failed=not record.complete)

    def point(self, record: PointRecord) -> None:
        """A point or memory is done, or failed."""
        searched = Cost(seconds=record.search_seconds)
        self._advance("points", searched + record.verdict.cost if record.verdict else searched, failed=not record.complete)

    def _advance(self, name: str, cost: Cost, *, failed: bool) -> None:
        task = self._tasks[name]
        tokens = task.fields["tokens"] + cost.prompt_tokens + cost.completion_tokens
        failures = task.fields["failed"] + failed
        note = f"{tokens:,} tokens" + (f", {failures} failed" if failures else "")
        work = task.fields["work"] + max(cost.seconds, _LEAST_WORK)
        self._bars.update(task.id, advance=1, note=note, tokens=tokens, failed=failures, work=work)
        self.tick()

    async def watch(self, write_partial: Callable[[], None]) -> None:
        """Print plain lines while nothing is done either, and write down now and then what there is, until cancelled."""
        pause, last = _PARTIAL_SECONDS, time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            self.tick()
            if (began := time.monotonic()) - last >= pause:
                with suppress(OSError):  # the records are there; the next time may go well
                    write_partial()
                last = time.monotonic()
                pause = max(_PARTIAL_SECONDS, _PARTIAL_SHARE * (last - began))

    def tick(self) -> None:
        """Print a plain line if it is time for one."""
        if not self._bars.disable:
            return
        tasks = self._bars.tasks
        now, done, total = self._clock(), sum(task.completed for task in tasks), sum(task.total or 0 for task in tasks)
        before, done_before, _ = self._lines[-1]
        much = total and done - done_before >= _STEP * total
        if now - before >= (_LEAST_SECONDS if much else _SECONDS):
            self._lines.append((now, done, sum(task.fields["work"] for task in tasks)))
            parts = [f"{task.description} {task.completed:,}/{task.total:,}" for task in tasks]
            parts.append(f"{sum(task.fields['tokens'] for task in tasks):,} tokens")
            if failed := sum(task.fields["failed"] for task in tasks):
                parts.append(f"{failed:,} failed")
            self.say(", ".join([*parts, *self._left()]))

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
