"""What questions are worth by each metric, and the means of categories with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltamem.intervals import RESAMPLES, group_interval
from eval.compare.layout import ALL
from eval.metrics import recall_at, reciprocal_rank
from eval.records import QuestionRecord, Verdict

Value = Callable[[QuestionRecord], float | None]


def judge_runs(verdicts: Mapping[str, Verdict], judge: str) -> list[Verdict]:
    """The verdicts of all runs of a judge."""
    return [verdict for name, verdict in verdicts.items() if name.partition("#")[0] == judge]


@dataclass(frozen=True, slots=True)
class AskedValue:
    """What a question is worth, from parts that may have failed.

    Attributes:
        parts: The worth of each part, None if it failed, and whether that was the answerer's own doing.
        together: Of the worth of several parts, None of too few; the mean.
    """

    parts: Callable[[QuestionRecord], Sequence[tuple[float | None, bool]]]
    together: Callable[[Sequence[float]], float | None] = lambda parts: sum(parts) / len(parts) if parts else None

    def __call__(self, record: QuestionRecord) -> float | None:
        """Of all parts, those that failed count as 0; None if there are none."""
        return self.together([worth or 0.0 for worth, _ in self.parts(record)])

    def valid(self, record: QuestionRecord) -> float | None:
        """Of the parts that did not fail."""
        return self.together([worth for worth, _ in self.parts(record) if worth is not None])

    def failed(self, record: QuestionRecord) -> bool:
        """Whether a part failed."""
        return any(worth is None for worth, _ in self.parts(record))

    def lost(self, record: QuestionRecord) -> bool:
        """Whether a part failed through no fault of the answerer: by the endpoint, the judge, the memory."""
        return any(worth is None and not silent for worth, silent in self.parts(record))


def verdict_value(judge: str | None = None) -> AskedValue:
    """Share of the answers that a judge, or each question's own, found right, over answer runs and runs of the judge."""
    return AskedValue(
        lambda record: [
            (verdict.worth, answer.silent)
            for answer in record.answers
            for verdict in (answer.verdicts.values() if judge is None else judge_runs(answer.verdicts, judge))
        ]
    )


def answer_value(score: str) -> AskedValue:
    """Mean of a score that needs no judge over the answer runs."""
    return AskedValue(
        lambda record: [
            (None if answer.error is not None else answer.scores[score], answer.silent)
            for answer in record.answers
            if score in answer.scores
        ]
    )


def search_value(worth: Callable[[QuestionRecord], float | None]) -> AskedValue:
    """What a search was worth, failed where the question could not be searched for; None for questions without evidence."""

    def parts(record: QuestionRecord) -> list[tuple[float | None, bool]]:
        found = worth(record)
        return [] if found is None else [(None if record.error is not None else found, False)]

    return AskedValue(parts)


def recall_value(k: int) -> AskedValue:
    """Share of the evidence among the first `k` passages."""
    return search_value(lambda record: recall_at(record.ranks, k) if record.ranks else None)


reciprocal_rank_value = search_value(lambda record: reciprocal_rank(record.ranks) if record.ranks else None)
"""One over the rank of the first evidence that was found."""

GOLD_WORDS = "gold_words_shown"
"""Score of retrieval without which recall says little: keywords of many turns are recalled and hardly tell anything."""

gold_words_value = search_value(lambda record: record.gold_words_shown)
"""Share of the words of the evidence that all passages found show."""


def retrieval_values(cutoffs: Iterable[int]) -> Mapping[str, Value]:
    """Recall at each cutoff, the mean reciprocal rank, and how much of the evidence is shown."""
    recall = {f"recall@{k}": recall_value(k) for k in sorted(set(cutoffs))}
    return recall | {"mrr": reciprocal_rank_value, GOLD_WORDS: gold_words_value}


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

    Groups are conversations, users or personas; see `deltamem.intervals.group_interval` for the kind of the interval.
    Categories that are not `pooled` do not count for ``all``; `order` is that of the benchmark, others follow.

    Returns:
        A `deltamem.intervals.Interval` as a dictionary by category and for ``all``, with ``failed`` if something failed
        through no fault of the answerer: at how many of the questions; None where no question has a value.
    """
    valued = [(record, worth) for record in questions if (worth := value(record)) is not None]
    members = {name: [pair for pair in valued if pair[0].category == name] for name in counts_by_category(questions, order)}
    members[ALL] = [pair for pair in valued if pooled is None or pair[0].category in pooled]
    scores: dict[str, dict[str, float | int] | None] = {}
    for name, pairs in members.items():
        worths, groups = [worth for _, worth in pairs], [record.group for record, _ in pairs]
        interval = group_interval(worths, groups, resamples=resamples, seed=seed)
        failed = sum(value.lost(record) for record, _ in pairs) if isinstance(value, AskedValue) else 0
        scores[name] = None if interval is None else interval.as_dict() | {"failed": failed}
    return scores


def metric_scores(questions: Sequence[QuestionRecord], values: Mapping[str, Value], **options: Any) -> dict[str, Any]:
    """`category_scores` of several metrics by name; a metric that no question has a value of is left out.

    Failures count as 0; where something failed, ``<name>(valid)`` leaves them out.
    """
    scores = {}
    for name, value in values.items():
        scores[name] = category_scores(questions, value, **options)
        if isinstance(value, AskedValue) and any(map(value.failed, questions)):
            scores[f"{name}(valid)"] = category_scores(questions, value.valid, **options)
    return {name: by_category for name, by_category in scores.items() if any(by_category.values())}


def drawn_over(groups: int, unit: str) -> str:
    """What the intervals of a run are of, whose questions are of so many groups; see `category_scores`."""
    return f"over questions, all of one {unit}" if groups == 1 else f"bootstrap over {unit}s"


def counts_by_category(questions: Iterable[QuestionRecord], order: Sequence[str] = ()) -> dict[str, int]:
    """How many questions each category has."""
    counts = Counter(record.category for record in questions)
    return {name: counts[name] for name in (*order, *counts) if counts[name]}
