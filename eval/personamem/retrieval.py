"""The record of a question, and how far what was found comes from the block that it refers to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from eval.personamem.histories import Asked, group_of
from eval.results.record_file import RecordFile
from eval.results.records import PassageRecord, QuestionRecord
from eval.systems.protocol import Passage


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
