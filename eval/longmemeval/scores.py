"""LongMemEval's scores: accuracy by type of question, recall of turns and of sessions, and their table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from deltamem.intervals import group_interval
from eval.compare.layout import ALL, Variant, columns_of
from eval.compare.layout import Table as PaperTable
from eval.headline import SCOPES
from eval.longmemeval.data import TYPES, LongMemEvalConfig, is_abstention, session_of
from eval.metrics import recall_at
from eval.records import QuestionRecord
from eval.scores import AskedValue, Value, answer_value, metric_scores, retrieval_values, verdict_value
from eval.summary import Summary, category_table

ACCURACY = "accuracy"
ABSTENTION = "abstention_accuracy"
TASKS = "task_average"


def run_scores(questions: Sequence[QuestionRecord], config: LongMemEvalConfig) -> dict[str, dict[str, Any]]:
    """All scores by metric and type of question.

    ``accuracy`` (of the judges; abstention questions count for their type, as officially), ``task_average`` (the mean of
    the types), ``abstention_accuracy``, ``set_f1``; ``recall@k`` (share of the answer turns), ``session_recall@k`` (share of
    the sessions with an answer turn) and ``all_sessions@k`` (whether all were found), each among the first k passages.
    """
    values: dict[str, Value] = {**VALUES, "set_f1": answer_value("set_f1"), **retrieval_values(config.cutoffs)}
    for k in sorted(set(config.cutoffs)):
        values[f"session_recall@{k}"] = _sessions_value(lambda ranks, k=k: recall_at(ranks, k))  # type: ignore[misc]
        values[f"all_sessions@{k}"] = _sessions_value(lambda ranks, k=k: float(recall_at(ranks, k) == 1))  # type: ignore[misc]
    draws = {"resamples": config.resamples, "seed": config.seed}
    scores = metric_scores(questions, values, order=tuple(TYPES), **draws)
    for scope, value in (("", VALUES[ACCURACY]), (SCOPES[1], VALUES[ACCURACY].valid)):
        if (accuracy := scores.get(f"{ACCURACY}{scope}")) is not None:
            average = _task_average(questions, value, **draws)
            scores[f"{TASKS}{scope}"] = {ALL: accuracy[ALL] | average}  # which fails where the accuracy does
    return scores


def _abstained(record: QuestionRecord) -> Sequence[tuple[float | None, bool]]:
    return verdict_value().parts(record) if is_abstention(record.key) else ()


VALUES: Mapping[str, AskedValue] = {ACCURACY: verdict_value(), ABSTENTION: AskedValue(_abstained)}
"""What a question is worth by the scores of the judges."""


def _task_average(questions: Sequence[QuestionRecord], value: Value, *, resamples: int, seed: int) -> dict[str, float | int]:
    """Each type has the same weight: a mean in which a question weighs one over the questions of its type."""
    valued = [(record, worth) for record in questions if (worth := value(record)) is not None]
    counts = Counter(record.category for record, _ in valued)
    weights = [1 / counts[record.category] for record, _ in valued]
    worths = [worth * weight for weight, (_, worth) in zip(weights, valued, strict=True)]
    interval = group_interval(worths, [one.group for one, _ in valued], weights, resamples=resamples, seed=seed)
    assert interval is not None  # there is an accuracy
    return interval.bounds()


def _sessions_value(worth: Callable[[Sequence[int | None]], float]) -> AskedValue:
    """Of the rank of each session with an answer turn: that of its first turn that was found."""

    def parts(record: QuestionRecord) -> list[tuple[float | None, bool]]:
        if not record.ranks:
            return []
        found: dict[str, list[int]] = {session_of(turn): [] for turn in record.evidence}
        for turn, rank in zip(record.evidence, record.ranks, strict=True):
            if rank is not None:
                found[session_of(turn)].append(rank)
        ranks = [min(own, default=None) for own in found.values()]
        return [(None if record.error is not None else worth(ranks), False)]

    return AskedValue(parts)


def table(summary: Summary) -> Table:
    """Scores by type of question."""
    caption = "95% intervals: bootstrap over questions. Recall: whether the text of a passage still holds what was said."
    return category_table(summary, caption, lambda name: name.replace("-", "-\n"))


LAYOUTS = (
    PaperTable(
        "as in Table 3 of the Zep paper",
        columns_of(TYPES | {ALL: sum(TYPES.values())}, {"accuracy": ""}),
        (Variant("", {"accuracy": "accuracy"}),),
        id="longmemeval",
        note="Published rows are of the file before its histories were cleaned in September 2025.",
    ),
)
"""As papers have them."""
