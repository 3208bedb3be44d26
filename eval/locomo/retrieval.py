"""Evidence recall: which share of the turns that answer a question is among what a system retrieved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval.locomo.loader import CATEGORIES, Conversation, Question
from eval.locomo.systems import System
from eval.metrics.intervals import bootstrap_interval


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """What happened to one question; one line of ``questions.jsonl``.

    Attributes:
        conversation: Id of the conversation.
        index: Position of the question in it; together they are the key.
        category: Name of the category.
        question: The question.
        evidence: Ids of the turns that hold the answer.
        unusable_evidence: Evidence strings of the file that name no turn.
        retrieved: Ids of the retrieved turns, best first.
        hits: For each cut-off k, how many evidence turns are among the first k passages.
    """

    conversation: str
    index: int
    category: str
    question: str
    evidence: tuple[str, ...]
    unusable_evidence: tuple[str, ...]
    retrieved: tuple[str, ...]
    hits: dict[int, int]

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


async def retrieve_all(
    system: System, conversation: Conversation, categories: Collection[int], cutoffs: Sequence[int]
) -> list[QuestionRecord]:
    """Let a system take in a conversation and search for its questions.

    Args:
        system: The system under test.
        conversation: What it takes in.
        categories: Categories of the questions that are asked.
        cutoffs: The k of recall@k.

    Returns:
        One record for each question, in the order of the file.
    """
    questions = [question for question in conversation.questions if question.category in categories]
    async with system.ingest(conversation) as memory:
        found = await memory.retrieve([question.text for question in questions], max(cutoffs))
    return [
        _record(conversation.id, question, [passage.sources for passage in passages], cutoffs)
        for question, passages in zip(questions, found, strict=True)
    ]


def _record(
    conversation_id: str, question: Question, sources: Sequence[Sequence[str]], cutoffs: Sequence[int]
) -> QuestionRecord:
    evidence = frozenset(question.evidence)
    return QuestionRecord(
        conversation=conversation_id,
        index=question.index,
        category=CATEGORIES[question.category],
        question=question.text,
        evidence=question.evidence,
        unusable_evidence=question.unusable,
        retrieved=tuple(dict.fromkeys(turn_id for passage in sources for turn_id in passage)),
        hits={k: len(evidence.intersection(*[{turn for passage in sources[:k] for turn in passage}])) for k in cutoffs},
    )


def summarise(records: Sequence[QuestionRecord], cutoffs: Sequence[int], *, resamples: int, seed: int) -> dict[str, Any]:
    """Aggregate the records, over all and by category.

    Args:
        records: One for each question.
        cutoffs: The k of recall@k.
        resamples: Bootstrap draws of conversations.
        seed: Seed of the draws.

    Returns:
        For ``all`` and each category: ``questions`` asked, ``scored`` (those with usable evidence) and their
        ``evidence_turns``, and by k the 95% intervals ``recall_per_question`` (mean over questions of the share found) and
        ``recall_micro`` (evidence turns found over all evidence turns).
    """
    groups = {"all": list(records)}
    for name in CATEGORIES.values():
        if members := [record for record in records if record.category == name]:
            groups[name] = members
    return {name: _aggregate(members, cutoffs, resamples, seed) for name, members in groups.items()}


def _aggregate(records: Sequence[QuestionRecord], cutoffs: Iterable[int], resamples: int, seed: int) -> dict[str, Any]:
    scored = [record for record in records if record.evidence]
    conversations = [record.conversation for record in scored]
    sizes = [len(record.evidence) for record in scored]
    per_question, micro = {}, {}
    for k in cutoffs:
        hits = [record.hits[k] for record in scored]
        shares = [hit / size for hit, size in zip(hits, sizes, strict=True)]
        mean = bootstrap_interval(shares, conversations, resamples=resamples, seed=seed)
        pooled = bootstrap_interval(hits, conversations, denominators=sizes, resamples=resamples, seed=seed)
        per_question[k] = mean.as_dict() if mean else None
        micro[k] = pooled.as_dict() if pooled else None
    return {
        "questions": len(records),
        "scored": len(scored),
        "without_usable_evidence": len(records) - len(scored),
        "evidence_turns": sum(sizes),
        "recall_per_question": per_question,
        "recall_micro": micro,
    }
