"""What a run shows of itself while it goes on, memory points included."""

from __future__ import annotations

from rich.console import Console

from eval.halumem.records import PointRecord
from eval.results.records import Cost, IngestRecord
from eval.running.progress import Shown

POINTS = "points"


class ShownPoints(Shown):
    """Bars of sessions, questions and points."""

    def __init__(self, console: Console, *, sessions: int, questions: int, points: int) -> None:
        """Make the bars.

        Args:
            console: Where they are shown.
            sessions: That are taken in.
            questions: That are asked.
            points: Of the benchmark; memories that the system extracts are added as they come.
        """
        super().__init__(console, sessions=sessions, questions=questions, points=points)
        self._points = points

    def session(self, record: IngestRecord) -> None:
        """A session is in, or failed."""
        super().session(record)
        self._points += len(record.memories or ())
        self.expect(POINTS, self._points)

    def point(self, record: PointRecord) -> None:
        """A point or memory is done, or failed."""
        cost = Cost() if record.verdict is None else record.verdict.cost
        self.advance(POINTS, cost, failed=not record.complete)
