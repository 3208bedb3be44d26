"""Searching a store for a question, and how far what was found comes from the block that the question refers to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from deltamem.errors import DeltaMemError, EmbedderUnavailableError
from eval.answering.protocol import ContextBlock
from eval.personamem.histories import Asked, group_of
from eval.results.record_file import RecordFile
from eval.results.records import Found, PassageRecord, QuestionRecord
from eval.systems.protocol import Memory, Passage, SystemUnavailableError


def question_record(asked: Asked) -> QuestionRecord:
    """The record of a question before it is searched for.

    Its evidence is the referenced block as one thing, so that recall at k tells whether any passage comes from it.
    """
    question, block = asked.question, asked.block
    notes = []
    if block is None:
        notes.append(f"a distance of {question.blocks_back} blocks points to no session before the question")
    elif not block.agrees:
        notes.append(f"distances of {question.blocks_back} blocks and {question.tokens_back} tokens do not fit each other")
    return QuestionRecord(
        key=asked.key,
        group=group_of(question),
        category=question.type,
        question=question.text,
        gold=question.gold,
        evidence=(f"messages {block.start}-{block.stop - 1}",) if block is not None and asked.evidence else (),
        session=asked.session,
        notes=tuple(notes),
    )


async def search(
    asked: Asked, memory: Memory, store: str, k: int, passages: RecordFile[PassageRecord], *, ranked: bool
) -> QuestionRecord:
    """Search a store that holds exactly the history of a question.

    Args:
        asked: The question.
        memory: The store.
        store: Its id.
        k: How many passages are asked for.
        passages: Where passages are kept.
        ranked: Whether the system orders by relevance, so that the rank of the block is noted.

    Returns:
        The record with what was found, or with the error.

    Raises:
        SystemUnavailableError: If the system cannot search at all.
        EmbedderUnavailableError: If the embedder cannot be loaded.
    """
    record = question_record(asked)
    started = time.perf_counter()
    try:
        found = await memory.search(record.question, k)
    except (SystemUnavailableError, EmbedderUnavailableError):
        raise
    except Exception as error:  # one broken search must not lose the other questions
        return record.model_copy(update={"error": f"search: {reason_of(error)}"})
    seconds = round(time.perf_counter() - started, 4)
    retrieved = []
    for passage in found:
        kept = PassageRecord.of(passage, store)
        if kept.id not in passages:
            passages.add(kept)
        retrieved.append(Found(passage=kept.id, similarity=passage.similarity))
    ranks = block_rank(asked, found) if ranked and record.evidence else ()
    return record.model_copy(update={"retrieved": tuple(retrieved), "ranks": ranks, "search_seconds": seconds})


def block_rank(asked: Asked, found: Sequence[Passage]) -> tuple[int | None, ...]:
    """The rank, from 1, of the first passage that comes from the referenced block; None if there is none.

    Empty if the system tells of no passage where it comes from.
    """
    if found and not any(passage.sources for passage in found):
        return ()
    hits = (rank for rank, passage in enumerate(found, start=1) if not asked.evidence.isdisjoint(passage.sources))
    return (next(hits, None),)


def precision_value(
    asked: Mapping[str, Asked], passages: RecordFile[PassageRecord], k: int
) -> Callable[[QuestionRecord], float | None]:
    """Share of the first `k` passages that come from the referenced block; None where there is no rank or no passage."""

    def value(record: QuestionRecord) -> float | None:
        if not record.ranks or record.error is not None or not record.retrieved:
            return None
        evidence = asked[record.key].evidence
        found = [passages.get(found.passage) for found in record.retrieved[:k]]
        return sum(kept is not None and not evidence.isdisjoint(kept.sources) for kept in found) / len(found)

    return value


def context(record: QuestionRecord, passages: RecordFile[PassageRecord]) -> tuple[ContextBlock, ...]:
    """What was found, as the answering model is shown it.

    Raises:
        DeltaMemError: If a passage is not among those that were kept.
    """
    shown = []
    for found in record.retrieved:
        kept = passages.get(found.passage)
        if kept is None:
            raise DeltaMemError(f"question {record.key}: passage {found.passage} is not in the file of passages")
        shown.append(Passage(kept.text, kept.time, kept.sources, found.similarity))
    return (ContextBlock("", tuple(shown)),)


def reason_of(error: Exception) -> str:
    """What to tell of an error."""
    return str(error) if isinstance(error, DeltaMemError) else f"{type(error).__name__}: {error}"
