"""The memory manager as a system under test: the same code that an application calls, with any policy behind it.

Every store lies in a folder of its own, so that an interrupted run goes on where it was: sessions that the journal knows are
not read again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltamem
from deltamem.bank.store import MemoryStore
from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.policy import Policy
from deltamem.transition import Outcome, Transition
from eval.systems.deltamem_turns import Sources, reading
from eval.systems.embedding_lock import one_at_a_time
from eval.systems.protocol import DialogueSession, Ingested, Passage, StoreKey, SystemUnavailableError, Usage
from eval.systems.store_folder import store_folder

Connect = Callable[[], Awaitable[int | None]]
"""Makes sure that the model answers; returns its context window in tokens, None if that is not known."""


class DeltaMemSystem:
    """Reads every session with `MemoryManager`, one store a person: its owner is the user."""

    name = "deltamem"
    per_speaker = True
    ranked = True

    def __init__(
        self,
        policy: Policy,
        embedder: Embedder,
        folder: Path,
        *,
        settings: ManagerSettings | None = None,
        connect: Connect | None = None,
    ) -> None:
        """Begin with what the folder holds.

        Args:
            policy: Decides about the memories.
            embedder: Embeds memories and queries.
            folder: Each store gets a folder in it.
            settings: Prompts and limits of the manager. With `connect`, the window is filled in here.
            connect: Called once, before the first session that has to be read.
        """
        self._policy = policy
        self._embedder = one_at_a_time(embedder)
        self._folder = folder
        self._settings = settings or ManagerSettings()
        self._connect = connect
        self._connecting = asyncio.Lock()
        self._window: tuple[int | None] | None = None

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[ManagedMemory]:
        """Open a store, or make it.

        Raises:
            DeltaMemError: If its id cannot name a folder, its files cannot be read, or it is open already.
            EmbedderUnavailableError: If the embedder is missing.
        """
        folder = store_folder(self._folder, key)
        await self._embedder.load()
        # Not in a thread: if the run were cancelled meanwhile, nobody would close the store.
        with MemoryStore.open(folder, self._embedder) as store, closing(Sources(folder)) as sources:
            yield ManagedMemory(store, key.owner, sources, self._manager)

    def facts(self) -> dict[str, Any]:
        """Model, prompts, version, and the window by which long sessions were split (None if nobody knows it)."""
        window = self._window[0] if self._window else self._settings.window_tokens
        return {
            "model": self._policy.name,
            "window": window,
            "embedder": self._embedder.name,
            "prompt_hashes": self._settings.episode.prompt_hashes,
            "versions": {"deltamem": deltamem.__version__},
        }

    async def _manager(self, store: MemoryStore, owner: str) -> MemoryManager:
        """A manager that can read sessions.

        Raises:
            SystemUnavailableError: If the model does not answer at all.
        """
        async with self._connecting:
            if self._window is None:
                try:
                    self._window = (await self._connect() if self._connect else self._settings.window_tokens,)
                except DeltaMemError as error:
                    raise SystemUnavailableError(str(error)) from error
        settings = replace(self._settings, window_tokens=self._window[0])
        return MemoryManager(store, owner, self._policy, settings)


class ManagedMemory:
    """One person's memory in a store of its own."""

    def __init__(
        self,
        store: MemoryStore,
        owner: str,
        sources: Sources,
        manager: Callable[[MemoryStore, str], Awaitable[MemoryManager]],
    ) -> None:
        """Bind an open store.

        Args:
            store: The store.
            owner: Whose memory it is; memories name the person so.
            sources: Where its memories come from.
            manager: Makes the manager when the first session has to be read.
        """
        self._store = store
        self._owner = owner
        self._sources = sources
        self._make_manager = manager
        self._manager: MemoryManager | None = None
        self._known: dict[str, int] = {}
        for entry in store.bank(owner).journal.entries():
            if entry.kind is EntryKind.SESSION and entry.session_id is not None:
                self._note(entry.session_id, entry.position, entry.changes)

    @property
    def known(self) -> Collection[str]:
        """Ids of the sessions that the journal holds; unreadable ones are not among them."""
        return self._known.keys()

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Read a session. What a known one did is told from the journal; its cost is not known there.

        Raises:
            SystemUnavailableError: If the model does not answer at all.
            DeltaMemError: If this session could not be read or written down.
        """
        if session.id in self._known:
            entry = self._store.bank(self._owner).journal.entry(self._known[session.id])
            return _ingested(entry.changes, entry.violations)
        if not session.turns:
            return _ingested((), {})
        if self._manager is None:
            self._manager = await self._make_manager(self._store, self._owner)
        turns, ids = reading(session)
        self._sources.expect(session.id, ids)
        transition = await self._manager.ingest(self._manager.session(session.id, session.time, turns))
        if transition.position is not None:
            self._note(session.id, transition.position, transition.changes)
        return _told(transition)

    async def search(self, query: str, k: int) -> list[Passage]:
        """The `k` memories most similar to a query."""
        if k < 1:
            return []
        bank = self._store.bank(self._owner).bank
        (hits,) = await asyncio.to_thread(lambda: bank.search(self._store.queries([query]), k))
        return [
            Passage(hit.memory.text, hit.memory.time, self._sources[hit.memory.id], float(hit.similarity)) for hit in hits
        ]

    async def reset(self) -> None:
        """Erase the memories, their journal and index; answers in a response cache stay."""
        if self._known:
            await asyncio.to_thread(self._store.erase_owner, self._owner)
        self._known.clear()
        self._sources.clear()
        self._manager = None

    def _note(self, session: str, position: int, changes: Sequence[Change]) -> None:
        self._known[session] = position
        self._sources.add(session, changes)


def _told(transition: Transition) -> Ingested:
    usage = transition.usage
    return replace(
        _ingested(transition.changes, transition.violations),
        usage=Usage(usage.calls, usage.cached, usage.prompt_tokens, usage.completion_tokens, usage.searches),
        parts=transition.parts,
        readable=transition.outcome is not Outcome.UNREADABLE,
    )


def _ingested(changes: Sequence[Change], violations: Mapping[str, int]) -> Ingested:
    written = [change.after for change in changes if change.event in (ChangeEvent.ADD, ChangeEvent.UPDATE)]
    return Ingested(
        memories=tuple(memory.text for memory in written if memory is not None),
        operations=Counter(str(change.event) for change in changes),
        violations=dict(violations),
    )
