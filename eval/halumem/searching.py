"""Searching the memory of a user right after a session: for its updated points and for its questions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from eval.halumem.files import PointFiles
from eval.halumem.linking import PointFinder
from eval.halumem.loader import HalumemSession, MemoryPoint, Question
from eval.halumem.points import failed, point_record, routed
from eval.halumem.records import PointRecord
from eval.results.records import QuestionRecord
from eval.running.searching import search_stores
from eval.systems.protocol import Memory

LATE = "searched after later sessions were taken in"
"""Note on what was searched for again, or late, because the search or its session had failed."""

LACKING = "searched without earlier sessions that failed: "
"""Beginning of the note on what was searched for in a memory that lacks sessions; their ids follow."""


@dataclass(frozen=True)
class Searching:
    """How memories are searched.

    Attributes:
        files: Where passages are kept.
        slots: Held by each search while it is timed, see `eval.systems.embedding_lock.OneAtATime.turns`.
        ranked: Whether the system orders by relevance, so that ranks are noted.
        update_k: Passages for an updated point.
        question_k: Passages for a question.
    """

    files: PointFiles
    slots: asyncio.Semaphore
    ranked: bool
    update_k: int
    question_k: int

    async def question(
        self,
        memory: Memory,
        finder: PointFinder,
        user: str,
        session: HalumemSession,
        question: Question,
        notes: tuple[str, ...],
    ) -> QuestionRecord:
        """Search for a question; a failure is in the record, which gets `notes` on the state of the memory.

        Raises:
            SystemUnavailableError: If the system cannot search at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
        """
        record = question_record(user, session, question)
        evidence = dict.fromkeys(question.evidence)
        turns = {text: finder.turns(text, session.number) for text in evidence}
        linked = tuple(text for text in evidence if turns[text])
        unlinked = tuple(f"evidence that no turn could be found for: {text}" for text in evidence if not turns[text])
        record = record.model_copy(update={"evidence": linked, "notes": unlinked + notes})
        searched = await search_stores([memory], question.text, self.question_k, self.slots)
        if searched.error is not None:
            return record.model_copy(update={"error": searched.error})
        [passages] = searched.passages
        ranks = tuple(finder.rank(text, turns[text], passages) for text in linked) if self.ranked else ()
        found = self.files.keep(passages, user)
        return record.model_copy(update={"retrieved": found, "ranks": ranks, "search_seconds": searched.seconds})

    async def point(
        self,
        memory: Memory,
        finder: PointFinder,
        user: str,
        session: HalumemSession,
        point: MemoryPoint,
        notes: tuple[str, ...],
    ) -> PointRecord:
        """Search for the new text of an updated point; a failure is in the record, which gets `notes` as in `question`.

        Raises:
            SystemUnavailableError: If the system cannot search at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
        """
        turns = finder.turns(point.text, session.number)
        record = point_record(user, session, point).model_copy(update={"turns": turns, "notes": notes})
        searched = await search_stores([memory], point.text, self.update_k, self.slots)
        if searched.error is not None:
            return failed(record, searched.error)
        [passages] = searched.passages
        rank = finder.rank(point.text, turns, passages) if self.ranked and turns else None
        found = self.files.keep(passages, user)
        return routed(
            record.model_copy(
                update={"searched": True, "retrieved": found, "rank": rank, "search_seconds": searched.seconds},
            )
        )


def question_record(user: str, session: HalumemSession, question: Question) -> QuestionRecord:
    """The record of a question before anything was searched for."""
    return QuestionRecord(
        key=question.key,
        group=user,
        category=question.type,
        question=question.text,
        gold=question.answer,
        evidence=tuple(dict.fromkeys(question.evidence)),
        session=session.number,
    )
