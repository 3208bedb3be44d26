"""What an answer is worth, who judges it, and the scores of a run (PROTOCOLS 1.7, 1.8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval.answering.asking import ToJudge
from eval.answering.protocol import Judge
from eval.locomo.benchmark import ADVERSARIAL, COLUMNS, Asked
from eval.metrics import bleu1, locomo_f1, set_f1, token_set_f1
from eval.results.records import QuestionRecord
from eval.results.scores import (
    Value,
    answer_value,
    category_scores,
    recall_value,
    reciprocal_rank_value,
    verdict_value,
)

ABSTENTION = "abstention"
"""The official rule for category 5: whether the answer says that nothing is known."""

ABSTENTION_JUDGE = "abstention_judge"

LEXICAL = ("locomo_f1", "set_f1", "token_set_f1", "bleu1")


def lexical_scores(asked: Asked, text: str) -> dict[str, float]:
    """The lexical scores of an answer; none where there is no gold answer to compare with."""
    question = asked.question
    if question.category == 5:
        return {ABSTENTION: locomo_f1(text, question.answer, 5)}
    if question.answer is None:
        return {}
    return {
        "locomo_f1": locomo_f1(text, question.answer, question.category),
        "set_f1": set_f1(text, question.answer),
        "token_set_f1": token_set_f1(text, question.answer),
        "bleu1": bleu1(text, question.answer),
    }


def to_judge(asked: Asked, text: str, judges: Sequence[Judge], abstention: Judge | None) -> list[ToJudge]:
    """Who judges an answer.

    Args:
        asked: The question.
        text: The answer.
        judges: Of the categories that have a gold answer.
        abstention: Of category 5; None if nothing is judged.
    """
    question = asked.question
    if question.category == 5:
        trap = question.adversarial_answer or ""
        fields = {"question": question.text, "trap": trap, "answer": text}
        return [] if abstention is None else [ToJudge(abstention, fields)]
    if question.answer is None:
        return []
    return [ToJudge(judge, {"question": question.text, "gold": question.answer, "answer": text}) for judge in judges]


def run_scores(
    records: Sequence[QuestionRecord],
    *,
    cutoffs: Sequence[int],
    traced: bool,
    judges: Sequence[str],
    resamples: int,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """All scores of a run, by metric and category; category 5 never counts for ``all``.

    Args:
        records: The questions.
        cutoffs: The k of recall@k.
        traced: Whether the system tells which turns its passages come from; else there is no recall.
        judges: Names of the judges, without that of category 5.
        resamples: Bootstrap draws of conversations.
        seed: Seed of the draws.

    Returns:
        Only metrics that some question has a value of. Questions without usable evidence have no recall, failed answers no
        scores and failed judges no verdict; they are counted elsewhere.
    """
    metrics: dict[str, Value] = {judge: verdict_value(judge) for judge in (*judges, ABSTENTION_JUDGE)}
    metrics |= {name: answer_value(name) for name in (*LEXICAL, ABSTENTION)}
    if traced:
        metrics |= {f"recall@{k}": recall_value(k) for k in sorted(set(cutoffs))}
        metrics["mrr"] = reciprocal_rank_value
    scores: Mapping[str, dict[str, Any]] = {
        name: category_scores(records, value, resamples=resamples, seed=seed, pooled=COLUMNS, order=(*COLUMNS, ADVERSARIAL))
        for name, value in metrics.items()
    }
    return {name: by_category for name, by_category in scores.items() if any(by_category.values())}
