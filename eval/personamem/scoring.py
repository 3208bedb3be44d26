"""From records to scores: accuracy over the answer runs, and recall of the referenced block beside that of chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import comb
from statistics import fmean, pstdev
from typing import Any

from eval.metrics.passk import pass_at_k
from eval.personamem.histories import Asked
from eval.personamem.letters import chosen_letters, is_correct
from eval.personamem.question_types import in_order
from eval.personamem.retrieval import precision_value
from eval.results.record_file import RecordFile
from eval.results.records import PassageRecord, QuestionRecord
from eval.results.scores import ALL, Value, answer_value, category_scores, recall_value, reciprocal_rank_value

CORRECT = "correct"
"""The score of an answer: 1 if it names the right letter and no other, else 0. An answer without a letter is wrong."""


def score_answer(record: QuestionRecord, text: str) -> dict[str, float]:
    """The scores of one answer."""
    return {CORRECT: float(is_correct(text, record.gold or ""))}


def run_scores(
    questions: Sequence[QuestionRecord],
    asked: Mapping[str, Asked],
    passages: RecordFile[PassageRecord],
    *,
    runs: int,
    cutoffs: Sequence[int],
    resamples: int,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """All scores by metric and type, with intervals by bootstrap of the personas.

    Args:
        questions: The records.
        asked: The questions that have a history, by key.
        passages: What was found.
        runs: Answers to each question.
        cutoffs: The k of recall.
        resamples: Bootstrap draws.
        seed: Of the draws.

    Returns:
        ``accuracy`` (mean over the runs), ``accuracy_run_n``, ``pass@n`` for several runs; ``recall@k`` and
        ``precision@k`` of the referenced block, ``mrr``, and the same for turns drawn at random (``random_...``), unless the
        system tells of no passage where it comes from.
    """
    values: dict[str, Value] = {"accuracy": answer_value(CORRECT)}
    if runs > 1:
        values |= {f"accuracy_run_{run + 1}": _of_run(run) for run in range(runs)}
        values |= {f"pass@{k}": _pass_value(k) for k in range(1, runs + 1)}
    if not len(passages) or any(passage.sources for passage in passages):
        for k in sorted(set(cutoffs)):
            values |= {
                f"recall@{k}": recall_value(k),
                f"random_recall@{k}": _where_ranked(lambda one, k=k: random_recall(one, k), asked),  # type: ignore[misc]
                f"precision@{k}": precision_value(asked, passages, k),
            }
        values["random_precision"] = _where_ranked(random_precision, asked)
        values["mrr"] = reciprocal_rank_value
    order = in_order(record.category for record in questions)
    scores = {
        name: category_scores(questions, value, resamples=resamples, seed=seed, order=order)
        for name, value in values.items()
    }
    return {name: by_type for name, by_type in scores.items() if any(by_type.values())}


def spread_over_runs(questions: Sequence[QuestionRecord], runs: int) -> dict[str, dict[str, Any]]:
    """The protocol's figures: accuracy of each run over all questions that it answered, their mean and standard deviation.

    Args:
        questions: The records.
        runs: Answers to each question.

    Returns:
        By type and for ``all``: ``per_run``, ``mean`` and ``std`` (of the population of runs); types in which some run
        answered nothing are left out.
    """
    spread = {}
    for name in [*in_order(record.category for record in questions), ALL]:
        members = [record for record in questions if name in (ALL, record.category)]
        by_run = [[value for record in members if (value := _of_run(run)(record)) is not None] for run in range(runs)]
        if all(by_run):
            per_run = [fmean(values) for values in by_run]
            spread[name] = {"per_run": per_run, "mean": fmean(per_run), "std": pstdev(per_run)}
    return spread


def letters_named(questions: Sequence[QuestionRecord]) -> dict[str, int]:
    """How many answers name one letter, several, or none, where they settle."""
    names = ("none", "one", "several", "several", "several")
    texts = [answer.text for record in questions for answer in record.answers if answer.text is not None]
    counts = Counter(names[len(chosen_letters(text))] for text in texts)
    return {name: counts[name] for name in ("one", "several", "none")}


def random_precision(asked: Asked) -> float:
    """Share of a question's history that lies in the block: the precision of turns that are drawn at random."""
    return len(asked.evidence) / asked.turns


def random_recall(asked: Asked, k: int) -> float:
    """Chance that any of `k` turns lies in the block, if they are drawn at random from the history, none twice."""
    drawn = min(k, asked.turns)
    return 1 - comb(asked.turns - len(asked.evidence), drawn) / comb(asked.turns, drawn)


def _where_ranked(chance: Callable[[Asked], float], asked: Mapping[str, Asked]) -> Value:
    return lambda record: chance(asked[record.key]) if record.ranks and record.error is None else None


def _of_run(run: int) -> Value:
    return lambda record: record.answers[run].scores.get(CORRECT) if run < len(record.answers) else None


def _pass_value(k: int) -> Value:
    """Chance that one of `k` answers is right, of questions with at least as many."""

    def value(record: QuestionRecord) -> float | None:
        scores = [answer.scores[CORRECT] for answer in record.answers if CORRECT in answer.scores]
        return pass_at_k(len(scores), sum(map(int, scores)), k) if len(scores) >= k else None

    return value
