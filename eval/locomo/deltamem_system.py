"""The memory manager as a system under test: the same code that an application calls, with any policy behind it.

A conversation of two people becomes two memories, one for each of them, in which this person is the user and the other the
assistant (as Mem0 and MemOS feed LoCoMo). They lie in a store on disk, so that an interrupted run goes on where it was:
sessions that the journal knows are not read again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from deltamem.bank.protocol import Hit
from deltamem.bank.store import MemoryStore
from deltamem.embedding import Embedder, Vectors
from deltamem.errors import DeltaMemError
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.policy import Policy
from eval.locomo.loader import Conversation
from eval.locomo.session_log import SessionLog, SessionRecord, check_making, note_making
from eval.locomo.session_report import session_report
from eval.locomo.speaker_reader import Sources, SpeakerReader
from eval.locomo.systems import Passage, Retriever, TurnText

LOG_FILE = "sessions.jsonl"

Connect = Callable[[], Awaitable[int | None]]
"""Makes sure that the model answers; returns its context window in tokens, None if that is not known."""


class DeltaMemSystem:
    """Reads every session for both speakers with `MemoryManager`; a question searches both memories."""

    name = "deltamem"

    def __init__(
        self,
        policy: Policy,
        embedder: Embedder,
        folder: Path,
        *,
        settings: ManagerSettings | None = None,
        turn_text: TurnText | None = None,
        making: Mapping[str, Any] | None = None,
        max_concurrency: int = 16,
        connect: Connect | None = None,
        on_session: Callable[[SessionRecord], None] | None = None,
    ) -> None:
        """Begin with what the folder holds.

        Args:
            policy: Decides about the memories.
            embedder: Embeds memories, queries and questions.
            folder: Each conversation gets a memory store in it.
            settings: Prompts and limits of the manager. The names and, with `connect`, the window are filled in here.
            turn_text: Whether captions are part of a turn, and dates part of a passage.
            making: What else decides what is remembered; a folder that was made with something else is refused.
            max_concurrency: Memories that are worked on at once, at least the two of one conversation. Each waits for one
                answer of the model at a time.
            connect: Called once, before the first session that has to be read.
            on_session: Told of each session, those of earlier runs included.

        Raises:
            DeltaMemError: If the folder was made with other settings.
        """
        self._policy = policy
        self._embedder = _OneAtATime(embedder)
        self._folder = folder
        self._settings = settings or ManagerSettings()
        self._turn_text = turn_text or TurnText()
        self._slots = asyncio.Semaphore(max(1, max_concurrency // 2))
        self._connect = connect
        self._connecting = asyncio.Lock()
        self._window: tuple[int | None] | None = None
        self._on_session = on_session or (lambda record: None)
        self._records: list[SessionRecord] = []
        self._memories: dict[str, dict[str, int]] = {}
        self._making = making or {}
        check_making(folder, self._making)

    @asynccontextmanager
    async def ingest(self, conversation: Conversation) -> AsyncIterator[Retriever]:
        """Read the sessions that are not known yet, for both speakers at once.

        A session that fails is noted and the next one goes on without it.

        Raises:
            DeltaMemError: If the store cannot be opened, or the model does not answer at all.
        """
        async with self._slots:
            folder = self._folder / _folder_name(conversation)
            # Not in a thread: if the run were cancelled meanwhile, nobody would close the store.
            with MemoryStore.open(folder, self._embedder) as store:
                log = SessionLog(folder / LOG_FILE)
                readers = [
                    SpeakerReader(store.bank(owner).journal, log, conversation, self._turn_text)
                    for owner in conversation.speakers
                ]
                window = await self._connected() if any(reader.waiting for reader in readers) else None
                managers = [self._manager(store, owner, window) for owner in conversation.speakers]
                async with asyncio.TaskGroup() as group:
                    for reader, manager in zip(readers, managers, strict=True):
                        group.create_task(reader.read(manager, self._on_session))
                self._records += log.records
                self._memories[conversation.id] = {manager.owner: len(manager.state()) for manager in managers}
                sources = [reader.sources() for reader in readers]
                yield _Memories(list(zip(managers, sources, strict=True)), self._turn_text)

    def report(self) -> dict[str, Any]:
        """Model, prompts, counts, costs and failures of all conversations taken in so far."""
        return {
            "model": self._policy.name,
            "prompt_hashes": self._settings.episode.prompt_hashes,
            **session_report(self._records),
            "memories": dict(sorted(self._memories.items())),
        }

    @property
    def failed(self) -> int:
        """Sessions that broke; a later run tries them again."""
        return sum(record.outcome == "failed" for record in self._records)

    async def _connected(self) -> int | None:
        """The model's window; asked for once, when it is certain that there is something to read."""
        async with self._connecting:
            if self._window is None:
                self._window = (await self._connect() if self._connect else self._settings.window_tokens,)
                note_making(self._folder, self._making)
            return self._window[0]

    def _manager(self, store: MemoryStore, owner: str, window: int | None) -> MemoryManager:
        settings = replace(self._settings, person_name=owner, window_tokens=window)
        return MemoryManager(store, owner, self._policy, settings)


class _Memories:
    """Both speakers' memories as one."""

    def __init__(self, memories: Sequence[tuple[MemoryManager, Sources]], turn_text: TurnText) -> None:
        self._memories = memories
        self._turn_text = turn_text

    async def retrieve(self, questions: Sequence[str], k: int) -> list[list[Passage]]:
        """Search both and keep the `k` most similar; equal similarities leave the first speaker first."""
        found: list[list[tuple[Hit, tuple[str, ...]]]] = [[] for _ in questions]
        for manager, sources in self._memories:
            for merged, hits in zip(found, await manager.search_many(questions, k), strict=True):
                merged += [(hit, sources[hit.memory.id]) for hit in hits]
        return [
            [
                Passage(self._turn_text.dated(hit.memory.time, hit.memory.text), sources)
                for hit, sources in sorted(merged, key=lambda pair: -pair[0].similarity)[:k]
            ]
            for merged in found
        ]


class _OneAtATime:
    """Stores embed in threads, and a model must not be called from two at once."""

    def __init__(self, embedder: Embedder) -> None:
        self.name = embedder.name
        self._embedder = embedder
        self._lock = threading.Lock()

    def documents(self, texts: Sequence[str]) -> Vectors:
        with self._lock:
            return self._embedder.documents(texts)

    def queries(self, texts: Sequence[str]) -> Vectors:
        with self._lock:
            return self._embedder.queries(texts)


def _folder_name(conversation: Conversation) -> str:
    """The conversation's id, which names its folder.

    Raises:
        DeltaMemError: If it cannot, or the two speakers cannot be told apart.
    """
    if not conversation.id or conversation.id in (".", "..") or set(conversation.id) & set("/\\\0"):
        raise DeltaMemError(f"the id {conversation.id!r} of a conversation cannot be the name of a folder")
    if len(set(conversation.speakers)) < 2:
        raise DeltaMemError(f"conversation {conversation.id}: both speakers are called {conversation.speakers[0]!r}")
    return conversation.id
