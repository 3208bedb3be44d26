"""What is said of a run before anything else: its headline score, and what that must not be read without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval.compare.conditions import warnings_of
from eval.compare.runs import CLOSED_BOOK, FinishedRun, Headline
from eval.metrics import Interval

_LABELS = {
    "lenient": "lenient judge",
    "strict": "strict judge",
    "correct_qa_ratio(all)": "answers judged correct",
    "accuracy_final": "accuracy of the final answer",
}


@dataclass(frozen=True, slots=True)
class Card:
    """One run in short. Scores are in percent."""

    run: FinishedRun
    number: int  # Position among the runs, which decides mark and colour
    metric: str
    score: Interval | None  # None if withheld, or if there is none
    closed_book: Interval | None  # The same score without any memory, of a run that is compared
    withheld: str  # Why there is no score
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]  # Without those that all runs share, see `shared_warnings`

    @property
    def percent(self) -> str:
        """The score, or why there is none."""
        if self.score is not None:
            return f"{100 * self.score.estimate:.1f}"
        return "withheld" if self.withheld else "no score"

    @property
    def bounds(self) -> str:
        """The 95% interval; empty without a score, or where one group has no interval."""
        return "" if self.score is None else bounds(self.score)


def cards(runs: Sequence[FinishedRun]) -> list[Card]:
    """The cards of the runs of one benchmark."""
    closed = {run.headline.metric: _shown(run.headline) for run in runs if run.summary.system == CLOSED_BOOK}
    common = shared_warnings(runs)
    return [
        Card(
            run=run,
            number=number,
            metric=metric_label(run.headline.metric),
            score=_shown(run.headline),
            closed_book=closed.get(run.headline.metric) if run.summary.system != CLOSED_BOOK else None,
            withheld=run.headline.withheld or "",
            facts=tuple((name, value) for name, value in _facts(run).items() if value),
            warnings=tuple(sentence for sentence in warnings_of(run) if sentence not in common),
        )
        for number, run in enumerate(runs)
    ]


def shared_warnings(runs: Sequence[FinishedRun]) -> list[str]:
    """What must be known of every run, where there are several."""
    first, *others = map(warnings_of, runs)
    return [sentence for sentence in first if others and all(sentence in other for other in others)]


def _shown(headline: Headline) -> Interval | None:
    return None if headline.withheld else headline.score


def _facts(run: FinishedRun) -> dict[str, str]:
    summary, headline, passages = run.summary, run.headline, run.summary.passages
    models, error = summary.making.models, headline.judge_error
    managed = summary.cost.get("ingest", {}).get("calls")
    return {
        "questions": questions(headline),
        "failures": f"{headline.failures:,}",
        "silent answers": f"{headline.silent:,}",
        "context tokens": tokens(headline),
        "false accepts": _rate(error.false_accept if error else None),
        "false rejects": _rate(error.false_reject if error else None),
        "passages": f"{passages.per_question:.0f} of {passages.tokens_each:,.0f} tokens" if passages else "",
        "turns a passage": f"{passages.sources_each:.1f}" if passages and passages.sources_each else "",
        "manager": (models.get("manager") or "") if managed else "",
        "answers by": models.get("answer") or "",
        "judged by": models.get("judge") or "",
        "package": str(summary.system_facts.get("package", "")),
    }


def metric_label(metric: str | None) -> str:
    """A score by a name that needs no table."""
    return _LABELS.get(metric or "", metric or "")


def bounds(interval: Interval) -> str:
    """An interval in percent."""
    return f"{100 * interval.low:.1f}\u2013{100 * interval.high:.1f}"


def questions(headline: Headline) -> str:
    """How many questions the headline is of, and of how many."""
    if headline.n == headline.of:
        return f"all {headline.n:,}"
    return f"{headline.n:,} of {'an unknown number' if headline.of is None else f'{headline.of:,}'}"


def tokens(headline: Headline) -> str:
    """Context tokens of an answer; empty if there are none to tell."""
    return "" if headline.context_tokens is None else f"{headline.context_tokens:,.0f}"


def _rate(rate: Interval | None) -> str:
    return "" if rate is None else f"{100 * rate.estimate:.0f}% ({100 * rate.low:.0f}\u2013{100 * rate.high:.0f})"
