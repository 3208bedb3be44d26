"""From records to scores: what one question is worth, and the mean by category with its interval.

A value is None where there is nothing to score: no answer, a judge that failed, a question without evidence. None is left
out of the mean; it is never a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from eval.metrics.intervals import RESAMPLES, Interval, bootstrap_interval, wilson_interval
from eval.metrics.ranks import recall_at, reciprocal_rank
from eval.results.records import QuestionRecord

Value = Callable[[QuestionRecord], float | None]

ALL = "all"
"""Name of the row of all pooled categories."""

GOOD_LABELS = frozenset({"correct", "abstained"})
"""Labels of judges that count as 1, in lower case; any other label counts as 0."""


def verdict_value(judge: str) -> Value:
    """Share of the answer runs that a judge found right, of those with a verdict."""

    def value(record: QuestionRecord) -> float | None:
        verdicts = [answer.verdicts[judge] for answer in record.answers if judge in answer.verdicts]
        return _mean(verdict.label.lower() in GOOD_LABELS for verdict in verdicts if verdict.label is not None)

    return value


def answer_value(score: str) -> Value:
    """Mean of a lexical score over the answer runs that have it."""

    def value(record: QuestionRecord) -> float | None:
        return _mean(answer.scores[score] for answer in record.answers if score in answer.scores)

    return value


def recall_value(k: int) -> Value:
    """Share of the evidence among the first `k` passages; None for questions without evidence."""

    def value(record: QuestionRecord) -> float | None:
        return recall_at(record.ranks, k) if record.ranks and record.error is None else None

    return value


def reciprocal_rank_value(record: QuestionRecord) -> float | None:
    """One over the rank of the first evidence that was found; None for questions without evidence."""
    return reciprocal_rank(record.ranks) if record.ranks and record.error is None else None


def category_scores(
    questions: Sequence[QuestionRecord],
    value: Value,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    pooled: Collection[str] | None = None,
    order: Sequence[str] = (),
) -> dict[str, dict[str, float | int] | None]:
    """Mean by category and over all questions, each with a 95% interval.

    The interval is a bootstrap of groups (conversations, users, personas). Where all questions are of one group it is
    Wilson's for values that are 0 or 1, and a bootstrap of questions for others: it then says nothing of other groups.

    Args:
        questions: The records.
        value: What a question is worth, None to leave it out.
        resamples: Bootstrap draws.
        seed: Seed of the draws.
        pooled: Categories that count for ``all``; None means every one.
        order: Categories in the order of the benchmark; others follow as they occur.

    Returns:
        `eval.metrics.Interval` as a dictionary by category and for ``all``; None where no question has a value.
    """
    valued = [(record, worth) for record in questions if (worth := value(record)) is not None]
    present = {record.category for record in questions}
    names = [name for name in order if name in present]
    names += dict.fromkeys(record.category for record in questions if record.category not in names)
    scores = {
        name: _interval([pair for pair in valued if pair[0].category == name], resamples=resamples, seed=seed)
        for name in names
    }
    everything = [pair for pair in valued if pooled is None or pair[0].category in pooled]
    scores[ALL] = _interval(everything, resamples=resamples, seed=seed)
    return {name: None if interval is None else interval.as_dict() for name, interval in scores.items()}


def _interval(valued: Sequence[tuple[QuestionRecord, float]], *, resamples: int, seed: int) -> Interval | None:
    values = [worth for _, worth in valued]
    groups = [record.group for record, _ in valued]
    if len(set(groups)) == 1:
        if set(values) <= {0.0, 1.0}:
            return wilson_interval(round(sum(values)), len(values))
        groups = [record.key for record, _ in valued]
    return bootstrap_interval(values, groups, resamples=resamples, seed=seed)


def counts_by_category(questions: Iterable[QuestionRecord], order: Sequence[str] = ()) -> dict[str, int]:
    """How many questions each category has."""
    counts = dict.fromkeys(order, 0)
    for record in questions:
        counts[record.category] = counts.get(record.category, 0) + 1
    return {name: count for name, count in counts.items() if count}


def _mean(values: Iterable[float]) -> float | None:
    kept = list(values)
    return sum(kept) / len(kept) if kept else None
