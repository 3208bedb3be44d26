"""How far a run of a benchmark is, by its records."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from rich.console import Console

from deltamem.progress import ProgressDisplay
from eval.benchmark import Timeline
from eval.records import Cost, IngestRecord, PointRecord, QuestionRecord

_PARTIAL_SECONDS, _PARTIAL_SHARE = 60.0, 50.0
"""Between two summaries of what is done so far: so many seconds, and so many times as long as writing one takes."""


class ProgressBars(ProgressDisplay):
    """Sessions, questions and memory points."""

    def __init__(
        self, console: Console, timelines: Sequence[Timeline], *, points: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Count what there is to do; `clock` gives seconds."""
        steps = [step for timeline in timelines for step in timeline.steps]
        totals = {
            "sessions": sum(len(sessions) for step in steps for sessions in step.sessions),
            "questions": sum(len(step.questions) for step in steps),
        }
        if points:
            totals["points"] = sum(len(step.points or ()) for step in steps)
        super().__init__(console, totals, clock=clock)

    def session(self, record: IngestRecord) -> None:
        """A session was ingested, or failed; its memories are checked like points."""
        self.expect("points", len(record.memories or ()))
        self._count("sessions", record.cost, failed=record.outcome == "failed")

    def question(self, record: QuestionRecord) -> None:
        """A question is done, or failed."""
        costs = (cost for answer in record.answers for cost in answer.costs)
        self._count("questions", sum(costs, Cost(seconds=record.search_seconds)), failed=not record.complete)

    def point(self, record: PointRecord) -> None:
        """A point or memory is done, or failed."""
        searched = Cost(seconds=record.search_seconds)
        cost = searched + record.verdict.cost if record.verdict else searched
        self._count("points", cost, failed=not record.complete)

    def _count(self, name: str, cost: Cost, *, failed: bool) -> None:
        self.advance(name, tokens=cost.prompt_tokens + cost.completion_tokens, seconds=cost.seconds, failed=failed)

    async def watch_run(self, write_partial: Callable[[], None]) -> None:
        """`watch`, and write down now and then what there is."""
        pause, last = _PARTIAL_SECONDS, time.monotonic()

        def partial() -> None:
            nonlocal pause, last
            if (began := time.monotonic()) - last >= pause:
                with suppress(OSError):  # the records are there; the next time may go well
                    write_partial()
                last = time.monotonic()
                pause = max(_PARTIAL_SECONDS, _PARTIAL_SHARE * (last - began))

        await self.watch(partial)
