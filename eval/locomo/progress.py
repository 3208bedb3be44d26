"""What a run shows of itself while it goes on."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eval.results.records import IngestRecord, QuestionRecord


class Shown:
    """Bars of sessions and questions, with the tokens and failures so far."""

    def __init__(self, console: Console, *, sessions: int, questions: int) -> None:
        """Make the bars; they appear when `progress` is entered.

        Args:
            console: Where they are shown.
            sessions: In all stores.
            questions: That are asked.
        """
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.progress = Progress(*columns, console=console, transient=True)
        self._sessions = self.progress.add_task("sessions", total=sessions, note="")
        self._questions = self.progress.add_task("questions", total=questions, note="")
        self._tokens = [0, 0]
        self._failures = [0, 0]

    def session(self, record: IngestRecord) -> None:
        """A session is in, or failed."""
        self._tokens[0] += record.cost.prompt_tokens + record.cost.completion_tokens
        self._failures[0] += record.outcome == "failed"
        self.progress.update(self._sessions, advance=1, note=self._note(0))

    def question(self, record: QuestionRecord) -> None:
        """A question is done, or failed."""
        costs = [answer.cost for answer in record.answers]
        costs += [verdict.cost for answer in record.answers for verdict in answer.verdicts.values()]
        self._tokens[1] += sum(cost.prompt_tokens + cost.completion_tokens for cost in costs)
        self._failures[1] += not record.complete
        self.progress.update(self._questions, advance=1, note=self._note(1))

    def _note(self, bar: int) -> str:
        failed = f", {self._failures[bar]} failed" if self._failures[bar] else ""
        return f"{self._tokens[bar]:,} tokens{failed}"
