"""A run: contexts are taken in piece by piece, and each question is searched for when its history is in the store.

A question must never be searched for in a store that knows more than its history, or less. So a store that an earlier run
has fed beyond a question that still waits, or that lacks a session in between, begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

from deltamem.errors import EmbedderUnavailableError, reason_of
from eval.answering.asking import Asking
from eval.answering.protocol import ContextBlock
from eval.personamem.histories import Asked, History
from eval.personamem.retrieval import block_rank, question_record
from eval.results.records import IngestRecord, QuestionRecord
from eval.running.files import RunFiles
from eval.running.progress import Shown
from eval.running.searching import search_stores
from eval.systems.ingesting import ingest_sessions
from eval.systems.protocol import DialogueSession, Memory, System, SystemUnavailableError


@dataclass(frozen=True)
class Part:
    """One context of a run, and those of its questions that the run asks."""

    history: History
    asked: tuple[Asked, ...]

    @property
    def sessions(self) -> tuple[DialogueSession, ...]:
        """What has to be taken in for the last of the questions."""
        return self.history.before(max(asked.question.end for asked in self.asked))


class Run:
    """Does what is not done yet."""

    def __init__(
        self,
        system: System,
        files: RunFiles,
        parts: Sequence[Part],
        asking: Asking | None,
        shown: Shown,
        tell: Callable[[str], None],
        *,
        k: int,
        stores_at_once: int,
        searches: asyncio.Semaphore,
    ) -> None:
        """Prepare a run; nothing is done yet.

        Args:
            system: The system under test.
            files: What is done, and where the rest is written.
            parts: The contexts, each with at least one question.
            asking: How questions are answered; None if they are not.
            shown: Told of sessions and questions, those of earlier runs included.
            tell: Told in a sentence of each store that begins anew.
            k: Passages that a question is searched for.
            stores_at_once: Stores that may be open at the same time.
            searches: Held by each search while it is timed, see `eval.systems.embedding_lock.OneAtATime.turns`.
        """
        self._system = system
        self._files = files
        self._parts = parts
        self._asking = asking
        self._shown = shown
        self._tell = tell
        self._k = k
        self._stores = asyncio.Semaphore(stores_at_once)
        self._searches = searches

    def searches_missing(self) -> bool:
        """Whether some question has to be searched for, so that its history has to be in a store."""
        return any(self._waits(asked) for part in self._parts for asked in part.asked)

    def questions_missing(self) -> bool:
        """Whether some question has to be answered."""
        return any(not self._done(asked) for part in self._parts for asked in part.asked)

    async def do(self) -> None:
        """Take in, search and answer, all at the same time.

        Raises:
            SystemUnavailableError: If the system cannot work at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
            OSError: If a record cannot be written.
        """
        async with asyncio.TaskGroup() as answers, asyncio.TaskGroup() as contexts:
            for part in self._parts:
                contexts.create_task(self._part(part, answers))

    async def _part(self, part: Part, answers: asyncio.TaskGroup) -> None:
        for asked in part.asked:
            found = self._files.retrieved.get(asked.key)
            if self._done(asked):
                self._shown.question(self._files.questions.get(asked.key) or question_record(asked))
            elif found is not None:
                answers.create_task(self._answer(asked, found))
        waiting = [asked for asked in part.asked if self._waits(asked)]
        if not waiting:
            for session in part.sessions:
                if noted := self._noted(part.history, session.id):
                    self._shown.session(noted)
            return
        async with self._stores, AsyncExitStack() as stack:
            try:
                memory = await stack.enter_async_context(self._system.open(part.history.key))
                await self._make_fit(part.history, memory, min(asked.question.end for asked in waiting))
            except (SystemUnavailableError, EmbedderUnavailableError):
                raise
            except Exception as error:  # one broken store must not lose the other contexts
                self._give_up(waiting, f"the store cannot be opened: {reason_of(error)}")
                return
            await self._feed(part.history, memory, waiting, answers)

    async def _make_fit(self, history: History, memory: Memory, end: int) -> None:
        """Make sure that a store holds a beginning of what comes before a question, without gaps, and nothing else."""
        if not self._fits(history, memory.known, end):
            self._tell(
                f"{history.key.id}: the store does not hold what comes before message {end} and nothing else, "
                "so it begins anew"
            )
            await memory.reset()

    def _fits(self, history: History, known: Collection[str], end: int) -> bool:
        gap = False
        wanted = [session.id for session in history.before(end)]
        for name in wanted:
            if name in known:
                if gap:
                    return False
            else:
                noted = self._noted(history, name)
                gap |= noted is None or noted.outcome != "unreadable"
        return set(known) <= set(wanted)

    async def _feed(self, history: History, memory: Memory, waiting: Sequence[Asked], answers: asyncio.TaskGroup) -> None:
        due: dict[str | None, list[Asked]] = {}
        for asked in waiting:
            before = history.before(asked.question.end)
            due.setdefault(before[-1].id if before else None, []).append(asked)
        sessions = history.before(max(asked.question.end for asked in waiting))
        await self._search_all(due.pop(None, ()), history, memory, answers)
        feed = ingest_sessions(memory, history.key, sessions, self._files.sessions, self._shown.session)
        async with aclosing(feed):  # type: ignore[type-var]
            async for session, record in feed:
                if record.outcome == "failed":
                    late = [asked for members in due.values() for asked in members]
                    self._give_up(late, f"messages {session.id} of its history could not be taken in: {record.reason}")
                    return
                await self._search_all(due.pop(session.id, ()), history, memory, answers)

    async def _search_all(
        self, questions: Sequence[Asked], history: History, memory: Memory, answers: asyncio.TaskGroup
    ) -> None:
        async with asyncio.TaskGroup() as searches:
            for asked in questions:
                searches.create_task(self._search(asked, history, memory, answers))

    async def _search(self, asked: Asked, history: History, memory: Memory, answers: asyncio.TaskGroup) -> None:
        record = question_record(asked)
        passages, seconds, error = await search_stores([memory], record.question, self._k, self._searches)
        if error is not None:
            self._finish(record.model_copy(update={"error": error}))
            return
        [best] = passages
        found = record.model_copy(
            update={
                "retrieved": self._files.keep(best, history.key.id),
                "ranks": block_rank(asked, best) if self._system.ranked and record.evidence else (),
                "search_seconds": seconds,
            }
        )
        self._files.retrieved.add(found)
        answers.create_task(self._answer(asked, found))

    async def _answer(self, asked: Asked, found: QuestionRecord) -> None:
        """Answer; answers from an earlier run that did not fail are kept."""
        earlier = self._files.questions.get(found.key)
        if earlier is not None and earlier.retrieved == found.retrieved:
            found = found.model_copy(update={"answers": earlier.answers})
        if self._asking is not None:
            # The data has no dates: only the order tells an answerer what came last.
            blocks = [ContextBlock("", self._files.found(found.retrieved), by_time=not self._system.ranked)]
            found = await self._asking.ask(found, asked.question.text, blocks, asked.question.options)
        self._finish(found)

    def _give_up(self, questions: Sequence[Asked], reason: str) -> None:
        for asked in questions:
            self._finish(question_record(asked).model_copy(update={"error": reason}))

    def _finish(self, record: QuestionRecord) -> None:
        self._files.questions.add(record)
        self._shown.question(record)

    def _done(self, asked: Asked) -> bool:
        record = self._files.questions.get(asked.key)
        return record is not None and record.complete

    def _waits(self, asked: Asked) -> bool:
        return not self._done(asked) and asked.key not in self._files.retrieved

    def _noted(self, history: History, session: str) -> IngestRecord | None:
        return self._files.sessions.get(f"{history.key.id}/{session}")
