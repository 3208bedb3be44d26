"""A run: conversations are taken in, questions searched for and answered at once, and everything kept as it is made."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from deltamem.errors import EmbedderUnavailableError, reason_of
from eval.answering.asking import Asking
from eval.locomo.benchmark import Asked
from eval.locomo.dialogues import Dialogue
from eval.locomo.retrieval import OpenStore, context, search
from eval.results.records import QuestionRecord
from eval.running.files import RunFiles
from eval.running.progress import Shown
from eval.systems.ingesting import ingest_sessions
from eval.systems.protocol import System, SystemUnavailableError

_OUTDATED = "searched for before all sessions were taken in"


@dataclass(frozen=True)
class Part:
    """One conversation of a run: its stores, and the questions about it."""

    dialogues: tuple[Dialogue, ...]
    asked: tuple[Asked, ...]


class Run:
    """Does what is not done yet."""

    def __init__(
        self,
        system: System,
        files: RunFiles,
        parts: Sequence[Part],
        asking: Asking | None,
        shown: Shown,
        *,
        k: int,
        stores_at_once: int,
        searches: asyncio.Semaphore,
    ) -> None:
        """Prepare a run; nothing is done yet.

        Args:
            system: The system under test.
            files: What is done, and where the rest is written.
            parts: The conversations.
            asking: How questions are answered; None if they are not.
            shown: Told of sessions and questions, those of earlier runs included.
            k: Passages from each store.
            stores_at_once: Stores that may be open at the same time.
            searches: Held by each search while it is timed, see `eval.systems.embedding_lock.OneAtATime.turns`.
        """
        self._system = system
        self._files = files
        self._parts = parts
        self._asking = asking
        self._shown = shown
        self._k = k
        stores = max(len(part.dialogues) for part in parts)
        self._conversations = asyncio.Semaphore(max(1, stores_at_once // stores))
        self._searches = searches
        self._twins: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    def sessions_missing(self) -> bool:
        """Whether some session has to be taken in."""
        return any(self._missing(part) for part in self._parts)

    def questions_missing(self) -> bool:
        """Whether some question has to be answered or judged."""
        return any(self._done(asked) is None for part in self._parts for asked in part.asked)

    async def do(self) -> None:
        """Take in, search, answer and judge, all at the same time.

        Raises:
            SystemUnavailableError: If the system cannot work at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
            OSError: If a record cannot be written.
        """
        async with asyncio.TaskGroup() as answers, asyncio.TaskGroup() as conversations:
            for part in self._parts:
                conversations.create_task(self._part(part, answers))

    async def _part(self, part: Part, answers: asyncio.TaskGroup) -> None:
        missing = self._missing(part)
        if not missing:
            waiting = self._answer_what_was_found(part, answers)
            if not waiting:
                self._tell_sessions(part)
                return
        async with self._conversations, AsyncExitStack() as stack:
            try:
                stores = [
                    OpenStore(dialogue, await stack.enter_async_context(self._system.open(dialogue.key)))
                    for dialogue in part.dialogues
                ]
            except (SystemUnavailableError, EmbedderUnavailableError):
                raise
            except Exception as error:  # one broken store must not lose the other conversations
                reason = reason_of(error)
                if missing:
                    waiting = self._answer_what_was_found(part, answers)
                for asked in waiting:
                    self._finish(asked.record().model_copy(update={"error": f"the store cannot be opened: {reason}"}))
                return
            if missing:
                await self._complete(part, stores)
                waiting = self._answer_what_was_found(part, answers)
            else:
                await asyncio.gather(*(self._ingest(store) for store in stores))
            async with asyncio.TaskGroup() as searches:
                for asked in waiting:
                    searches.create_task(self._search(asked, part, stores, answers))

    async def _complete(self, part: Part, stores: Sequence[OpenStore]) -> None:
        """Take in the missing sessions. What was found without them is outdated, even if this process is killed now."""
        before = [found for asked in part.asked if (found := self._found(asked)) is not None]
        for found in before:
            self._files.retrieved.add(found.model_copy(update={"error": _OUTDATED}))
        if not any(await asyncio.gather(*(self._ingest(store) for store in stores))):
            for found in before:
                self._files.retrieved.add(found)

    def _missing(self, part: Part) -> bool:
        for dialogue in part.dialogues:
            for session in dialogue.sessions:
                noted = self._files.sessions.get(f"{dialogue.key.id}/{session.id}")
                if noted is None or noted.outcome == "failed":
                    return True
        return False

    def _found(self, asked: Asked) -> QuestionRecord | None:
        record = self._files.retrieved.get(asked.key)
        return None if record is None or record.error is not None else record

    def _done(self, asked: Asked) -> QuestionRecord | None:
        record = self._files.questions.get(asked.key)
        return None if record is None or not record.complete or self._found(asked) is None else record

    def _answer_what_was_found(self, part: Part, answers: asyncio.TaskGroup) -> list[Asked]:
        """Go on with questions that were searched for; returns the others."""
        waiting = []
        for asked in part.asked:
            if done := self._done(asked):
                self._shown.question(done)
            elif found := self._found(asked):
                answers.create_task(self._answer(found, part))
            else:
                waiting.append(asked)
        return waiting

    def _tell_sessions(self, part: Part) -> None:
        for dialogue in part.dialogues:
            for session in dialogue.sessions:
                if noted := self._files.sessions.get(f"{dialogue.key.id}/{session.id}"):
                    self._shown.session(noted)

    async def _ingest(self, store: OpenStore) -> bool:
        """Take in all sessions of a store; returns whether some were taken in that were not there before."""
        key = store.dialogue.key
        missing = {
            session.id
            for session in store.dialogue.sessions
            if (noted := self._files.sessions.get(f"{key.id}/{session.id}")) is None or noted.outcome == "failed"
        }
        changed = False
        sessions = store.dialogue.sessions
        async for session, record in ingest_sessions(store.memory, key, sessions, self._files.sessions, self._shown.session):
            changed |= session.id in missing and record.outcome == "applied"
        return changed

    async def _search(self, asked: Asked, part: Part, stores: Sequence[OpenStore], answers: asyncio.TaskGroup) -> None:
        ranked = self._system.ranked
        found = await search(asked.record(), stores, self._k, self._files, self._searches, ranked=ranked)
        if found.error is not None:
            self._finish(found)
            return
        self._files.retrieved.add(found)
        answers.create_task(self._answer(found, part))

    async def _answer(self, found: QuestionRecord, part: Part) -> None:
        """Answer and judge; answers to the same passages from an earlier run are kept."""
        earlier = self._files.questions.get(found.key)
        if earlier is not None and earlier.retrieved == found.retrieved:
            found = found.model_copy(update={"answers": earlier.answers})
        if self._asking is not None:
            blocks = context(found, part.dialogues, self._files, ranked=self._system.ranked)
            # Some questions occur twice: the second then finds the answers to the first in the cache.
            async with self._twins[found.group, found.question]:
                found = await self._asking.ask(found, found.question, blocks)
        self._finish(found)

    def _finish(self, record: QuestionRecord) -> None:
        self._files.questions.add(record)
        self._shown.question(record)
