"""A run (PROTOCOLS 2.4): each user's sessions in order, each searched at once for its points and questions.

Answers and verdicts are asked for as soon as something was searched for, while later sessions are taken in. Everything is on
disk as it is made, what was found included: a later run needs no earlier state of a memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from deltamem.errors import EmbedderUnavailableError, reason_of
from eval.halumem.evaluating import Evaluating
from eval.halumem.files import PointFiles
from eval.halumem.linking import PointFinder
from eval.halumem.loader import HalumemSession, MemoryPoint, Question
from eval.halumem.parts import Part
from eval.halumem.progress import ShownPoints
from eval.halumem.searching import LACKING, LATE, Searching
from eval.results.records import IngestRecord
from eval.systems.ingesting import ingest_sessions
from eval.systems.protocol import Memory, System, SystemUnavailableError


class Run:
    """Does what is not done yet."""

    def __init__(
        self,
        system: System,
        files: PointFiles,
        parts: Sequence[Part],
        searching: Searching,
        evaluating: Evaluating,
        shown: ShownPoints,
        *,
        stores_at_once: int,
    ) -> None:
        """Prepare a run; nothing is done yet.

        Args:
            system: The system under test.
            files: What is done, and where the rest is written.
            parts: The users.
            searching: How memories are searched.
            evaluating: How what was found is answered and judged.
            shown: Told of sessions, those of earlier runs included.
            stores_at_once: Users whose sessions are taken in at the same time.
        """
        self._system = system
        self._files = files
        self._parts = parts
        self._searching = searching
        self._evaluating = evaluating
        self._shown = shown
        self._stores = asyncio.Semaphore(stores_at_once)

    def sessions_missing(self) -> bool:
        """Whether some session has to be taken in."""
        return any(self._noted(part, session) is None for part in self._parts for session in part.sessions)

    def verdicts_missing(self) -> bool:
        """Whether something has to be answered or judged."""
        for part in self._parts:
            for session in part.evaluated:
                noted = self._noted(part, session)
                if noted is None or self._evaluating.missing(part, session, noted):
                    return True
        return False

    async def do(self) -> None:
        """Take in, search, answer and judge, all at the same time.

        Raises:
            SystemUnavailableError: If the system cannot work at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
            OSError: If a record cannot be written.
        """
        async with asyncio.TaskGroup() as later, asyncio.TaskGroup() as users:
            for part in self._parts:
                users.create_task(self._user(part, later))

    async def _user(self, part: Part, later: asyncio.TaskGroup) -> None:
        noted = {session.number: self._noted(part, session) for session in part.sessions}
        reached: set[int] = set()
        broken: str | None = None
        if None in noted.values() or any(self._to_search(part, session) for session in part.evaluated):
            async with self._stores:
                try:
                    async with self._system.open(part.key) as memory:
                        await self._read(part, memory, reached, later)
                except (SystemUnavailableError, EmbedderUnavailableError, OSError, BaseExceptionGroup):
                    raise
                except Exception as error:  # one broken store must not lose the other users
                    broken = f"the store cannot be used: {reason_of(error)}"
        for session in part.sessions:
            if session.number not in reached:
                if (record := noted[session.number]) is not None:
                    self._shown.session(record)
                if not session.generated:
                    self._evaluating.session(part, session, record, later, broken)

    async def _read(self, part: Part, memory: Memory, reached: set[int], later: asyncio.TaskGroup) -> None:
        """Take in the sessions, and search after each before the next one comes."""
        finder = PointFinder(part.user)
        sessions = {session.dialogue.id: session for session in part.sessions}
        dialogues = [session.dialogue for session in part.sessions]
        lacking: list[str] = []
        async for dialogue, noted in ingest_sessions(memory, part.key, dialogues, self._files.sessions, self._shown.session):
            session = sessions[dialogue.id]
            if noted.outcome == "failed":
                lacking.append(dialogue.id)
            elif not session.generated:
                late = any(after.dialogue.id in memory.known for after in part.sessions[session.number + 1 :])
                notes = ((LATE,) if late else ()) + ((LACKING + ", ".join(lacking),) if lacking else ())
                await self._search(part, memory, finder, session, notes)
            if not session.generated:
                self._evaluating.session(part, session, noted, later)
            reached.add(session.number)

    async def _search(
        self, part: Part, memory: Memory, finder: PointFinder, session: HalumemSession, notes: tuple[str, ...]
    ) -> None:
        user = part.user.id

        async def question(asked: Question) -> None:
            record = await self._searching.question(memory, finder, user, session, asked, notes)
            (self._files.retrieved if record.error is None else self._files.questions).add(record)

        async def point(sought: MemoryPoint) -> None:
            self._files.points.add(await self._searching.point(memory, finder, user, session, sought, notes))

        async with asyncio.TaskGroup() as searches:
            for wanted in self._to_search(part, session):
                searches.create_task(question(wanted) if isinstance(wanted, Question) else point(wanted))

    def _to_search(self, part: Part, session: HalumemSession) -> list[Question | MemoryPoint]:
        """What the memory is to be searched for after a session and was not yet."""
        wanted: list[Question | MemoryPoint] = []
        for point in session.points:
            record = self._files.points.get(point.key)
            if point.searched and (record is None or not record.searched):
                wanted.append(point)
        wanted += (question for question in part.questions(session) if question.key not in self._files.retrieved)
        return wanted

    def _noted(self, part: Part, session: HalumemSession) -> IngestRecord | None:
        """What became of a session in an earlier run; None if it has to be taken in."""
        noted = self._files.sessions.get(f"{part.key.id}/{session.dialogue.id}")
        return None if noted is None or noted.outcome == "failed" else noted
