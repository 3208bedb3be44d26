"""LoCoMo's scores: retrieval, lexical, judged, by category."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from rich import box
from rich.table import Table

from eval.answer import ContextBlock, Judge, JudgeRequest, Prompt, load_prompt
from eval.judge import ABSTENTION_FIELDS, ABSTENTION_LABELS, QUESTION_FIELDS, QUESTION_LABELS, LLMJudge
from eval.locomo.data import ADVERSARIAL, COLUMNS, Asked, Dialogue, LocomoConfig
from eval.metrics import bleu1, locomo_f1, set_f1, token_set_f1
from eval.models import Models, answer_prompt, make_judge
from eval.records import Found, QuestionRecord
from eval.runner import RunFiles, search_stores
from eval.summary import Value, answer_value, category_scores, recall_value, reciprocal_rank_value, verdict_value
from eval.systems.base import Memory, Passage

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


def to_judge(asked: Asked, text: str, judges: Sequence[Judge], abstention: Judge | None) -> list[JudgeRequest]:
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
        return [] if abstention is None else [JudgeRequest(abstention, fields)]
    if question.answer is None:
        return []
    return [JudgeRequest(judge, {"question": question.text, "gold": question.answer, "answer": text}) for judge in judges]


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


ANSWER_PROMPT = "answer_locomo"
ANSWER_FIELDS = ("context", "question")


@dataclass(frozen=True)
class Prompts:
    """All prompts of a run.

    Attributes:
        answer: Of the answering model; None if none answers.
        judges: By name of the judge; empty if nothing is judged.
        abstention: Of the judge of category 5; None if nothing of it is judged.
    """

    answer: Prompt | None
    judges: dict[str, Prompt]
    abstention: Prompt | None

    @property
    def hashes(self) -> dict[str, str]:
        """sha256 by name of the prompt."""
        own = [self.answer, *self.judges.values(), self.abstention]
        return {prompt.name: prompt.sha256 for prompt in own if prompt is not None}


def load_prompts(config: LocomoConfig) -> Prompts:
    """Load what the run will need, before anything expensive happens.

    Raises:
        DeltaMemError: If a prompt does not exist or does not fit.
    """
    names = dict.fromkeys(config.judges) if config.judged else ()
    return Prompts(
        answer=answer_prompt(config, ANSWER_PROMPT, ANSWER_FIELDS),
        judges={name: load_prompt(f"judge_{name}", QUESTION_FIELDS) for name in names},
        abstention=load_prompt("judge_abstention", ABSTENTION_FIELDS) if config.judged else None,
    )


@dataclass(frozen=True)
class Judges:
    """The judges of a run.

    Attributes:
        graded: Of answers to questions that have a gold answer.
        abstention: Of category 5; None if nothing is judged.
    """

    graded: tuple[LLMJudge, ...]
    abstention: LLMJudge | None


def make_judges(config: LocomoConfig, models: Models, prompts: Prompts) -> Judges:
    """The judges on the judging model; none if nothing is judged."""
    graded = tuple(make_judge(config, models, name, prompt, QUESTION_LABELS) for name, prompt in prompts.judges.items())
    if prompts.abstention is None:
        return Judges(graded, None)
    return Judges(graded, make_judge(config, models, ABSTENTION_JUDGE, prompts.abstention, ABSTENTION_LABELS))


@dataclass(frozen=True)
class OpenStore:
    """A store that can be searched."""

    dialogue: Dialogue
    memory: Memory


async def search(
    record: QuestionRecord,
    stores: Sequence[OpenStore],
    k: int,
    files: RunFiles,
    slots: asyncio.Semaphore,
    *,
    ranked: bool,
) -> QuestionRecord:
    """Search all stores of a conversation.

    Args:
        record: The question.
        stores: One, or one for each speaker.
        k: Passages from each store.
        files: Where passages are kept.
        slots: Bounds the searches of the run.
        ranked: Whether the system orders by relevance, so that the ranks of the evidence are noted.

    Returns:
        The record with what was found, one store after the other, or with the error.

    Raises:
        SystemUnavailableError: If the system cannot search at all.
        EmbedderUnavailableError: If the embedder cannot be loaded.
    """
    found, seconds, error = await search_stores([store.memory for store in stores], record.question, k, slots)
    if error is not None:
        return record.model_copy(update={"error": error})
    kept = [files.keep(passages, store.dialogue.key.id) for store, passages in zip(stores, found, strict=True)]
    ranks = evidence_ranks(record.evidence, merged(found)) if ranked else ()
    retrieved = tuple(chain.from_iterable(kept))
    return record.model_copy(update={"retrieved": retrieved, "ranks": ranks, "search_seconds": seconds})


def merged(found: Sequence[Sequence[Passage]]) -> list[Passage]:
    """Bring the passages of several stores into one order.

    By similarity, the earlier store first where it is equal; where a system does not tell similarities, the best of each
    store come first, then the second of each, and so on.
    """
    together = list(chain.from_iterable(found))
    if all(passage.similarity is not None for passage in together):
        return sorted(together, key=lambda passage: -(passage.similarity or 0.0))
    return [passage for row in zip_longest(*found) for passage in row if passage is not None]


def evidence_ranks(evidence: Sequence[str], passages: Sequence[Passage]) -> tuple[int | None, ...]:
    """For each evidence turn the rank, from 1, of the first passage that comes from it; None if there is none."""
    first: dict[str, int] = {}
    for rank, passage in enumerate(passages, start=1):
        for turn in passage.sources:
            first.setdefault(turn, rank)
    return tuple(first.get(turn) for turn in evidence)


def context(
    record: QuestionRecord, dialogues: Sequence[Dialogue], files: RunFiles, *, ranked: bool
) -> tuple[ContextBlock, ...]:
    """What was found as the answering model is shown it: a block for each store, under the names of its people.

    Args:
        record: The question.
        dialogues: The stores in order.
        files: Where passages are kept.
        ranked: Whether the system orders by relevance; else passages are shown by time.

    Raises:
        DeltaMemError: If a passage is not among those that were kept.
    """
    blocks: dict[str, list[Found]] = {dialogue.key.id: [] for dialogue in dialogues}
    for found in record.retrieved:
        blocks[files.store_of(found)].append(found)
    return tuple(
        ContextBlock(dialogue.title, files.found(blocks[dialogue.key.id]), by_time=not ranked) for dialogue in dialogues
    )


ABSTENTIONS = {ABSTENTION: "abstention\nby phrase", ABSTENTION_JUDGE: "abstention\njudged"}


def table(summary: Mapping[str, Any]) -> Table:
    """Scores by category in percent, each with its interval. Category 5 is not in it.

    With an audit the ceiling is beside the judges' scores: the share of questions whose answer in the file is right.
    """
    counts: dict[str, int] = summary["questions"]["by_category"]
    accounting = summary["accounting"]
    pooled = sum(counts.get(name, 0) for name in COLUMNS)
    view = Table(
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        title=f"{summary['version']}, {summary['system']}, gold {summary['protocol']['gold']}: %",
        caption=_caption(accounting, audited=summary["ceiling"] is not None),
    )
    view.add_column("")
    for name in COLUMNS:
        view.add_column(f"{name}\n{counts.get(name, 0)}", justify="right")
    view.add_column(f"overall\n{pooled}", justify="right")
    judges = set(summary["protocol"]["judges"])
    rows = {name: of for name, of in summary["scores"].items() if of["all"] is not None and name not in ABSTENTIONS}
    last_judge = max((number for number, name in enumerate(rows) if name in judges), default=-1)
    ceiling = summary["ceiling"] or {}
    if ceiling and last_judge < 0:
        view.add_row(*_ceiling(ceiling), end_section=True)
    for number, (name, of) in enumerate(rows.items()):
        view.add_row(name, *(_cell(of.get(category)) for category in (*COLUMNS, "all")))
        if ceiling and number == last_judge:
            view.add_row(*_ceiling(ceiling), end_section=True)
    return view


def adversarial_table(summary: Mapping[str, Any]) -> Table | None:
    """The row of category 5, in percent; None if nothing of it was asked or scored."""
    scores = {name: of[ADVERSARIAL] for name, of in summary["scores"].items() if of.get(ADVERSARIAL) is not None}
    if not scores:
        return None
    view = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    view.add_column("")
    names = sorted(scores, key=lambda name: name not in ABSTENTIONS)
    for name in names:
        view.add_column(ABSTENTIONS.get(name, name), justify="right")
    view.add_row(
        f"{ADVERSARIAL} {summary['questions']['by_category'][ADVERSARIAL]}", *(_cell(scores[name]) for name in names)
    )
    return view


def _caption(accounting: Mapping[str, Any], *, audited: bool) -> str:
    left_out = [f"{count:,} not asked ({reason})" for reason, count in accounting["not_asked"].items() if count]
    parts = [f"{accounting['asked']:,} asked", *left_out, f"{accounting['failed']:,} failed"]
    ceiling = " Ceiling: questions whose answer in the file is right." if audited else ""
    return f"95% intervals: bootstrap over conversations. Questions: {accounting['total']:,} = {' + '.join(parts)}.{ceiling}"


def _cell(interval: Mapping[str, float] | None) -> str:
    if interval is None:
        return "-"
    return f"{100 * interval['estimate']:.1f}\n[dim]{100 * interval['low']:.1f}-{100 * interval['high']:.1f}[/dim]"


def _ceiling(ceiling: Mapping[str, float]) -> list[str]:
    shares = [ceiling.get(category) for category in (*COLUMNS, "all")]
    return ["ceiling", *("-" if share is None else f"{100 * share:.1f}" for share in shares)]
