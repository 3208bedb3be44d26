"""What a run shows of itself while it goes on."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eval.halumem.records import PointRecord
from eval.results.records import Cost, IngestRecord, QuestionRecord


class Shown:
    """Bars of sessions, questions and points, with the tokens and failures so far."""

    def __init__(self, console: Console, *, sessions: int, questions: int, points: int) -> None:
        """Make the bars; they appear when `progress` is entered.

        Args:
            console: Where they are shown.
            sessions: That are taken in.
            questions: That are asked.
            points: Of the benchmark; memories that the system extracts are added as they come.
        """
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.progress = Progress(*columns, console=console, transient=True)
        totals = {"sessions": sessions, "questions": questions, "points": points}
        self._bars = {name: self.progress.add_task(name, total=total, note="") for name, total in totals.items()}
        self._tokens = dict.fromkeys(totals, 0)
        self._failures = dict.fromkeys(totals, 0)
        self._points = points

    def session(self, record: IngestRecord) -> None:
        """A session is in, or failed."""
        self._advance("sessions", record.cost, failed=record.outcome == "failed")
        self._points += len(record.memories or ())
        self.progress.update(self._bars["points"], total=self._points)

    def question(self, record: QuestionRecord) -> None:
        """A question is done, or failed."""
        costs = [answer.cost for answer in record.answers]
        costs += [verdict.cost for answer in record.answers for verdict in answer.verdicts.values()]
        self._advance("questions", sum(costs, Cost()), failed=not record.complete)

    def point(self, record: PointRecord) -> None:
        """A point or memory is done, or failed."""
        cost = Cost() if record.verdict is None else record.verdict.cost
        self._advance("points", cost, failed=not record.complete)

    def _advance(self, name: str, cost: Cost, *, failed: bool) -> None:
        self._tokens[name] += cost.prompt_tokens + cost.completion_tokens
        self._failures[name] += failed
        note = f"{self._tokens[name]:,} tokens" + (f", {self._failures[name]} failed" if self._failures[name] else "")
        self.progress.update(self._bars[name], advance=1, note=note)
