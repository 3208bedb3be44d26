"""What a run shows of itself while it goes on."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eval.results.records import Cost, IngestRecord, QuestionRecord

SESSIONS, QUESTIONS = "sessions", "questions"


class Shown:
    """Bars of sessions, questions and what else a benchmark counts, with the tokens and failures so far."""

    def __init__(self, console: Console, *, sessions: int, questions: int, **more: int) -> None:
        """Make the bars; they appear when `progress` is entered.

        Args:
            console: Where they are shown.
            sessions: In all stores.
            questions: That are asked.
            more: Further bars with their totals.
        """
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.progress = Progress(*columns, console=console, transient=True)
        totals = {SESSIONS: sessions, QUESTIONS: questions, **more}
        self._bars = {name: self.progress.add_task(name, total=total, note="") for name, total in totals.items()}
        self._tokens = dict.fromkeys(totals, 0)
        self._failures = dict.fromkeys(totals, 0)

    def session(self, record: IngestRecord) -> None:
        """A session is in, or failed."""
        self.advance(SESSIONS, record.cost, failed=record.outcome == "failed")

    def question(self, record: QuestionRecord) -> None:
        """A question is done, or failed."""
        costs = [answer.cost for answer in record.answers]
        costs += [verdict.cost for answer in record.answers for verdict in answer.verdicts.values()]
        self.advance(QUESTIONS, sum(costs, Cost()), failed=not record.complete)

    def advance(self, name: str, cost: Cost, *, failed: bool) -> None:
        """One more of a bar is done."""
        self._tokens[name] += cost.prompt_tokens + cost.completion_tokens
        self._failures[name] += failed
        note = f"{self._tokens[name]:,} tokens" + (f", {self._failures[name]} failed" if self._failures[name] else "")
        self.progress.update(self._bars[name], advance=1, note=note)

    def expect(self, name: str, total: int) -> None:
        """A bar has another total than was thought."""
        self.progress.update(self._bars[name], total=total)
