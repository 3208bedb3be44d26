"""Scores of a run with their intervals: the benchmark's metrics, lexical scores, recall of memory points, curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from eval.halumem.aggregation import (
    METRICS,
    RECALL,
    TARGET_ACCURACY,
    JudgeRecord,
    Metric,
    f1,
    point_judgements,
    question_judgements,
)
from eval.halumem.lines import QUESTION_TYPES
from eval.halumem.records import PointRecord
from eval.metrics import Interval, bleu1, bootstrap_interval, cumulative_accuracy, set_f1, wilson_interval
from eval.results.records import QuestionRecord
from eval.results.scores import (
    ALL,
    answer_value,
    category_scores,
    recall_value,
    reciprocal_rank_value,
    verdict_value,
)

MAIN_JUDGE = "qa"
"""The judge whose labels stand for those of the papers."""

STRICT = "strict_"
"""What the names of the metrics of the other judge begin with."""

CURVE_SESSIONS = 25
"""As many sessions as Figures 4 and 5 of the paper show."""

Scores = dict[str, dict[str, Any]]
Row = tuple[str, str, JudgeRecord]
"""The user, the category, and what was judged."""


def lexical_scores(gold: str, text: str) -> dict[str, float]:
    """The lexical scores of an answer."""
    return {"set_f1": set_f1(text, gold), "bleu1": bleu1(text, gold)}


def run_scores(
    questions: Sequence[QuestionRecord],
    points: Sequence[PointRecord],
    *,
    judges: Sequence[str],
    cutoffs: Sequence[int],
    update_k: int,
    ranked: bool,
    resamples: int,
    seed: int,
) -> Scores:
    """All scores of a run, by metric and category.

    Args:
        questions: Those that are asked.
        points: Memory points and extracted memories.
        judges: Names of the judges of answers.
        cutoffs: The k of recall@k for questions.
        update_k: The k of recall for updated points.
        ranked: Whether the system orders by relevance; else there is no recall.
        resamples: Bootstrap draws of users.
        seed: Seed of the draws.

    Returns:
        Only metrics that something has a value of. Questions without evidence that is linked to turns have no recall.
    """
    judged = [(record.user, record.memory_type or "", judgement) for record, judgement in point_judgements(points)]
    draws = {"resamples": resamples, "seed": seed}
    scores: Scores = {}
    for group in ("memory_integrity", "memory_accuracy", "memory_update"):
        scores |= _metric_scores(METRICS[group], judged, (), **draws)
    scores["memory_extraction_f1"] = {ALL: _f1_interval(judged, **draws)}
    for scope in ("all", "valid"):
        scores[f"memory_type_accuracy({scope})"] = {
            name: _interval(metric, judged, scope == "valid", **draws)
            for name, metric in METRICS["memory_type_accuracy"].items()
        }
    for judge in judges:
        answers = [
            (record.group, record.category, judgement)
            for record in questions
            for judgement in question_judgements(record, judge)
        ]
        prefix = "" if judge == MAIN_JUDGE else STRICT
        named = {f"{prefix}{name}": metric for name, metric in METRICS["question_answering"].items()}
        scores |= _metric_scores(named, answers, QUESTION_TYPES, **draws)
    values = {name: answer_value(name) for name in ("set_f1", "bleu1")}
    if ranked:
        values |= {f"recall@{k}": recall_value(k) for k in sorted(set(cutoffs))} | {"mrr": reciprocal_rank_value}
    scores |= {
        name: category_scores(questions, value, order=QUESTION_TYPES, resamples=resamples, seed=seed)
        for name, value in values.items()
    }
    if ranked:
        scores[f"update_recall@{update_k}"] = {ALL: _update_recall(points, update_k, **draws)}
    return {name: rows for name, rows in scores.items() if any(rows.values())}


def curve(questions: Sequence[QuestionRecord], judge: str) -> list[dict[str, float | int]]:
    """Cumulative accuracy by session of the answers, mean over users; empty if nothing is judged."""
    value = verdict_value(judge)
    by_user: dict[str, list[tuple[int, float]]] = {}
    for record in questions:
        if record.session is not None and (worth := value(record)) is not None:
            by_user.setdefault(record.group, []).append((record.session, worth))
    return [point.as_dict() for point in cumulative_accuracy(list(by_user.values()), sessions=CURVE_SESSIONS)]


def _metric_scores(
    metrics: Mapping[str, Metric], rows: Sequence[Row], categories: Sequence[str], *, resamples: int, seed: int
) -> Scores:
    present = {category for _, category, _ in rows}
    chosen = [name for name in categories if name in present]
    scores: Scores = {}
    for name, metric in metrics.items():
        for scope in ("all", "valid"):
            valid = scope == "valid"
            by_category = {
                category: _interval(
                    metric, [row for row in rows if row[1] == category], valid, resamples=resamples, seed=seed
                )
                for category in chosen
            }
            by_category[ALL] = _interval(metric, rows, valid, resamples=resamples, seed=seed)
            scores[f"{name}({scope})"] = by_category
    return scores


def _interval(
    metric: Metric, rows: Sequence[Row], valid: bool, *, resamples: int, seed: int
) -> dict[str, float | int] | None:
    """By bootstrap of users; for a single user Wilson's for shares and a bootstrap of records for other ratios."""
    terms = list(metric.terms((record for _, _, record in rows), valid=valid))
    values = [value for _, value, _ in terms]
    weights = [weight for _, _, weight in terms]
    groups: list[Any] = [rows[position][0] for position, _, _ in terms]
    interval: Interval | None
    if len(set(groups)) == 1 and set(values) <= {0.0, 1.0} and set(weights) == {1.0}:
        interval = wilson_interval(round(sum(values)), len(values))
    else:
        groups = groups if len(set(groups)) > 1 else list(range(len(groups)))
        interval = bootstrap_interval(values, groups, denominators=weights, resamples=resamples, seed=seed)
    return None if interval is None else interval.as_dict()


def _f1_interval(rows: Sequence[Row], *, resamples: int, seed: int) -> dict[str, float | int] | None:
    """F1 of extraction, by bootstrap of users, or of the records of a single user."""
    records = [record for _, _, record in rows]
    estimate = f1(TARGET_ACCURACY.ratio(records, valid=False), RECALL.ratio(records, valid=False))
    if estimate is None:
        return None
    terms = {0: list(TARGET_ACCURACY.terms(records, valid=False)), 2: list(RECALL.terms(records, valid=False))}
    users = {row[0] for row in rows}
    used = [position for kind in terms.values() for position, _, _ in kind]
    unit: dict[Any, int] = {}
    name: Callable[[int], Any] = (lambda position: rows[position][0]) if len(users) > 1 else (lambda position: position)
    for position in used:
        unit.setdefault(name(position), len(unit))
    sums = np.zeros((len(unit), 4))
    for column, kind in terms.items():
        for position, value, weight in kind:
            sums[unit[name(position)], column : column + 2] += value, weight
    draws = np.random.default_rng(seed).integers(len(unit), size=(resamples, len(unit)))
    drawn = [_f1_of(sums[draw].sum(axis=0)) for draw in draws]
    low, high = np.quantile([value for value in drawn if value is not None] or [estimate], [0.025, 0.975])
    return Interval(estimate, float(low), float(high), len(used), len(unit)).as_dict()


def _f1_of(sums: Any) -> float | None:
    precision, targets, recall, expected = sums
    return f1(precision / targets if targets else None, recall / expected if expected else None)


def _update_recall(points: Iterable[PointRecord], k: int, *, resamples: int, seed: int) -> dict[str, float | int] | None:
    """Share of the searched points that are linked to turns for which one of the first `k` passages holds them."""
    scored = [record for record in points if record.searched and record.turns]
    found = [float(record.rank is not None and record.rank <= k) for record in scored]
    users = [record.user for record in scored]
    if len(set(users)) == 1:
        interval = wilson_interval(round(sum(found)), len(found))
    else:
        interval = bootstrap_interval(found, users, resamples=resamples, seed=seed)
    return None if interval is None else interval.as_dict()
