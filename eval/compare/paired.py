"""The difference of two runs on the same questions: a bootstrap of groups in which both runs are drawn together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from eval.compare.loading import Run
from eval.metrics.intervals import Interval, bootstrap_interval
from eval.results.records import QuestionRecord
from eval.results.scores import Value, answer_value, recall_value, reciprocal_rank_value, verdict_value

_READ_FROM = {"accuracy": "correct", "correct_qa_ratio(valid)": "qa", "strict_correct_qa_ratio(valid)": "qa_strict"}
"""Scores that have another name in the records, and the name there."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better one run is than another.

    Attributes:
        metric: Name of the score.
        first: Name of the run.
        second: Name of the run that is taken from it.
        interval: First minus second, over the questions for which both have a value.
        apart: Whether the interval leaves out 0; False where there is one group only, which has no interval.
    """

    metric: str
    first: str
    second: str
    interval: Interval
    apart: bool


def paired_differences(runs: Sequence[Run], *, resamples: int = 2000, seed: int = 0) -> list[Difference]:
    """Compare every two runs of a benchmark on every score that both have.

    Args:
        runs: Of one benchmark. Two runs of other data, or that gave a key to other questions, are not compared.
        resamples: Bootstrap draws of groups; the same in all comparisons.
        seed: Seed of the draws.

    Returns:
        By pair and score. Questions that count for no ``all`` in the summary (LoCoMo's category 5) count here only for the
        scores that they alone have.
    """
    found = []
    for first, second in combinations(runs, 2):
        if first.summary.data.get("sha256") != second.summary.data.get("sha256"):
            continue
        others = {record.key: record for record in second.questions}
        pairs = [(record, others[record.key]) for record in first.questions if record.key in others]
        pairs = [(one, two) for one, two in pairs if one.question == two.question]
        for metric in first.summary.scores:
            if metric in second.summary.scores and (value := _value(metric, first.questions)) is not None:
                pooled = _pooled(first, metric)
                kept = [pair for pair in pairs if pair[0].category in pooled]
                interval = _difference(kept, value, resamples, seed)
                if interval is not None:
                    apart = interval.groups > 1 and (interval.low > 0 or interval.high < 0)
                    found.append(Difference(metric, first.name, second.name, interval, apart))
    return found


def _value(metric: str, questions: Sequence[QuestionRecord]) -> Value | None:
    """How a question's value is read from its record; None for scores that are not of questions."""
    if metric == "mrr":
        return reciprocal_rank_value
    name, _, k = metric.partition("@")
    if name == "recall" and k.isdecimal() and int(k) > 0:
        return recall_value(int(k))
    noted = _READ_FROM.get(metric, metric)
    answers = [answer for record in questions for answer in record.answers]
    if any(noted in answer.verdicts for answer in answers):
        return verdict_value(noted)
    return answer_value(noted) if any(noted in answer.scores for answer in answers) else None


def _pooled(run: Run, metric: str) -> set[str]:
    """The categories whose questions make up ``all``; where it is empty, those that have the score."""
    scores = run.summary.scores[metric]
    counts = {name: interval.count for name, interval in scores.items() if interval is not None and name != "all"}
    everything = scores.get("all")
    if everything is None or everything.count == sum(counts.values()):
        return set(counts)
    pooled = run.summary.protocol.get("pooled")
    return set(pooled) if isinstance(pooled, list) else {name for name in counts if name != "adversarial"}


def _difference(
    pairs: Sequence[tuple[QuestionRecord, QuestionRecord]], value: Value, resamples: int, seed: int
) -> Interval | None:
    differences, groups = [], []
    for one, two in pairs:
        worth, other = value(one), value(two)
        if worth is not None and other is not None:
            differences.append(worth - other)
            groups.append(one.group)
    return bootstrap_interval(differences, groups, resamples=resamples, seed=seed)
