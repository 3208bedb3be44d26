"""Searching the memory of a user right after a session: for its updated points and for its questions."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from deltamem.errors import DeltaMemError, EmbedderUnavailableError
from eval.halumem.files import RunFiles
from eval.halumem.linking import PointFinder
from eval.halumem.loader import HalumemSession, MemoryPoint, Question
from eval.halumem.points import point_record, routed
from eval.halumem.records import PointRecord
from eval.results.records import QuestionRecord
from eval.systems.protocol import Memory, Passage, SystemUnavailableError

SEARCHES_AT_ONCE = 4
"""An embedder works for one query at a time: more searches would wait in line, and their wait be counted as latency."""

LATE = "searched after later sessions were taken in"
"""Note on what an interrupted or failed search was asked again."""


@dataclass(frozen=True)
class Searching:
    """How memories are searched.

    Attributes:
        files: Where passages are kept.
        slots: Bounds the searches that go on at once.
        ranked: Whether the system orders by relevance, so that ranks are noted.
        update_k: Passages for an updated point.
        question_k: Passages for a question.
    """

    files: RunFiles
    slots: asyncio.Semaphore
    ranked: bool
    update_k: int
    question_k: int

    async def question(
        self, memory: Memory, finder: PointFinder, user: str, session: HalumemSession, question: Question, *, late: bool
    ) -> QuestionRecord:
        """Search for a question; a failure is in the record.

        Raises:
            SystemUnavailableError: If the system cannot search at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
        """
        record = question_record(user, session, question)
        evidence = dict.fromkeys(question.evidence)
        turns = {text: finder.turns(text, session.number) for text in evidence}
        linked = tuple(text for text in evidence if turns[text])
        notes = [f"evidence that no turn could be found for: {text}" for text in evidence if not turns[text]]
        notes += [LATE] if late else []
        record = record.model_copy(update={"evidence": linked, "notes": tuple(notes)})
        passages, seconds, error = await self._search(memory, question.text, self.question_k)
        if error is not None:
            return record.model_copy(update={"error": error})
        ranks = tuple(finder.rank(text, turns[text], passages) for text in linked) if self.ranked else ()
        found = self.files.keep(passages, user)
        return record.model_copy(update={"retrieved": found, "ranks": ranks, "search_seconds": seconds})

    async def point(
        self, memory: Memory, finder: PointFinder, user: str, session: HalumemSession, point: MemoryPoint, *, late: bool
    ) -> PointRecord:
        """Search for the new text of an updated point; a failure is in the record.

        Raises:
            SystemUnavailableError: If the system cannot search at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
        """
        turns = finder.turns(point.text, session.number)
        notes = (LATE,) if late else ()
        record = point_record(user, session, point).model_copy(update={"turns": turns, "notes": notes})
        passages, seconds, error = await self._search(memory, point.text, self.update_k)
        if error is not None:
            return record.model_copy(update={"error": error})
        rank = finder.rank(point.text, turns, passages) if self.ranked and turns else None
        found = self.files.keep(passages, user)
        return routed(
            record.model_copy(
                update={"searched": True, "retrieved": found, "rank": rank, "search_seconds": seconds},
            )
        )

    async def _search(self, memory: Memory, query: str, k: int) -> tuple[list[Passage], float, str | None]:
        async with self.slots:
            started = time.perf_counter()
            try:
                passages = await memory.search(query, k)
            except (SystemUnavailableError, EmbedderUnavailableError):
                raise
            except Exception as error:  # one broken search must not lose the others
                reason = str(error) if isinstance(error, DeltaMemError) else f"{type(error).__name__}: {error}"
                return [], 0.0, f"search: {reason}"
            return passages, round(time.perf_counter() - started, 4), None


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
