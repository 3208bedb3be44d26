"""What all routes of the server share: the store, the worker, and the managers of the owners."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

import anyio.to_thread

from deltamem.bank.store import MemoryStore
from deltamem.episode import Message
from deltamem.errors import LLMError
from deltamem.ingest import Transition
from deltamem.jobs import Worker, WorkerSettings
from deltamem.journal.jobs import Job
from deltamem.journal.owner import Point
from deltamem.journal.records import Entry, Erasure
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.policy import Completion, ModeChoice, Policy, choose_mode
from deltamem.server.problems import Problem
from deltamem.sessions import Session

Value = TypeVar("Value")
Erased = TypeVar("Erased")
Read = TypeVar("Read")
_Kept = WeakKeyDictionary[MemoryManager, tuple[int, dict[str, Value]]]
"""A position of an owner's journal, and values by the id of the memory as they are there.

By manager and not by name: who is erased and begins again has another one, and nothing of before is kept.
"""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server works."""

    max_body_bytes: int = 8 * 2**20
    max_import_bytes: int = 256 * 2**20
    """Of an export that is read back."""
    rate_limit: str | None = "1200/minute"
    """What one key may ask, as the library limits writes it; several are separated by ``;``."""
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    plugins: Mapping[str, object] = field(default_factory=dict)
    """Settings of plug-ins, by name."""


class NoModel:
    """Stands for the model of a server that has none: it is never asked, because no worker runs."""

    name = "no model"

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Refuse."""
        raise LLMError("this server has no model")


class Service:
    """One store and, if there is a model, the worker that reads the sessions. Threads may share it."""

    def __init__(
        self,
        store: MemoryStore,
        policy: Policy | None,
        manager_settings: ManagerSettings | None = None,
        settings: ServerSettings | None = None,
    ) -> None:
        """Put the parts together; nothing runs before the service is entered, in the event loop that serves."""
        self.store = store
        self.settings = settings or ServerSettings()
        self.policy: Policy = policy or NoModel()
        self.queue = store.journal.queue
        self.worker: Worker | None = None
        self.running = False
        """Whether it was entered and not stopped yet."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where it runs."""
        self.has_model = policy is not None
        """Whether sessions can be read."""
        self._manager_settings = manager_settings or ManagerSettings()
        self.mode: ModeChoice | None = None if policy is None else choose_mode(self._manager_settings.mode, policy)
        """How they are read."""
        self._managers: dict[str, MemoryManager] = {}
        self._known: set[str] = set()
        self._uuids: _Kept[UUID] = WeakKeyDictionary()
        self._added: _Kept[datetime] = WeakKeyDictionary()
        self._reviews: dict[asyncio.Future[Any], str] = {}
        self._lock = threading.Lock()

    def manager_of(self, owner: str) -> MemoryManager:
        """The manager of an owner, who may be new. It may read the disk: call it in a thread."""
        with self._lock:
            known = self._managers.get(owner)
        if known is not None and not known.erased:
            return known
        # Outside the lock, because opening a bank may take long.
        made = MemoryManager(self.store, owner, self.policy, self._manager_settings)
        with self._lock:
            known = self._managers.get(owner)
            if known is None or known.erased:
                known = self._managers[owner] = made
            return known

    def known(self, owner: str) -> bool:
        """Whether an owner has entries or jobs. It may read the disk: call it in a thread."""
        known = self.store.journal.knows(owner)
        with self._lock:
            if known:
                self._known.add(owner)
            else:
                self._known.discard(owner)
        return known

    def loaded(self, owner: str) -> MemoryManager | None:
        """The manager of an owner who was known before, without reading the disk; None if there is none yet."""
        with self._lock:
            manager = self._managers.get(owner) if owner in self._known else None
        return None if manager is None or manager.erased else manager

    @property
    def paused(self) -> bool:
        """Whether the model is not asked for now; sessions are still taken on. Outlasts a restart."""
        return self.queue.paused

    def pause(self, paused: bool) -> None:
        """Stop asking the model, or go on; call `wake` afterwards, in the event loop."""
        self.queue.pause(paused)

    def wake(self) -> None:
        """Let the worker look for jobs now; from its own event loop."""
        if self.worker is not None:
            self.worker.wake()

    async def ingest(self, session: Session, *, wait: float = 0.0) -> Transition | Job:
        """Enqueue a session and wait for it, see `Worker.ingest`; 503 without a model."""
        if self.worker is None:
            raise Problem(503, "this server has no model to read sessions with; memories can be written directly")
        return await self.worker.ingest(session, wait=wait)

    def uuids(self, manager: MemoryManager, point: Point = None) -> dict[str, UUID]:
        """UUIDs by id, see `OwnerJournal.uuids`; those of the present state are kept until it changes."""
        if point is not None:
            return manager.journal.uuids(point)
        return _kept(self._uuids, manager, manager.journal.uuids)

    async def present_uuids(self, manager: MemoryManager) -> dict[str, UUID]:
        """`uuids` of the present state; without a change of threads if they are current."""
        position, found = self._uuids.get(manager, (-1, {}))
        return found if position == manager.position else await anyio.to_thread.run_sync(self.uuids, manager)

    def added(self, manager: MemoryManager) -> dict[str, datetime]:
        """First times by id, see `MemoryManager.added`; kept until the state changes."""
        return _kept(self._added, manager, manager.journal.added)

    async def forget(self, manager: MemoryManager, memory_id: str) -> Entry:
        """Erase a memory for good, see `MemoryManager.forget`; NotFoundError if there never was one."""
        await asyncio.to_thread(manager.history, memory_id)  # raises, before anything is broken off for it
        return await self._erasing(manager, manager.forget(memory_id))

    async def forget_all(self, manager: MemoryManager, memory_ids: Sequence[str]) -> list[Entry]:
        """Erase several memories for good, see `MemoryManager.forget_all`."""
        return await self._erasing(manager, manager.forget_all(memory_ids)) if memory_ids else []

    async def review(self, owner: str, reading: Coroutine[Any, Any, Read]) -> Read:
        """Let an agent's trajectory be read. An erasure or the end of the server breaks it off (503); it can go on later."""
        task = asyncio.ensure_future(reading)
        self._reviews[task] = owner
        try:
            await asyncio.wait([task])
        finally:
            del self._reviews[task]
            task.cancel()
        if task.cancelled():
            raise Problem(503, "the reading was broken off by an erasure or the end of the server; send the same again")
        return task.result()

    def _break_off(self, owner: str | None = None) -> None:
        for task, of in self._reviews.items():
            if owner in (None, of):
                task.cancel()

    async def _erasing(self, manager: MemoryManager, erasure: Coroutine[Any, Any, Erased]) -> Erased:
        """Erase at once, and not when the model has answered, which may never be."""
        erasing = asyncio.ensure_future(erasure)
        await asyncio.sleep(0)  # now it stands in line for its turn, before the next job
        if self.worker is not None:
            self.worker.interrupt(manager.owner)
        self._break_off(manager.owner)
        return await erasing

    async def forget_owner(self, manager: MemoryManager) -> Erasure:
        """Erase everything about an owner, who may begin again."""
        try:
            return await self._erasing(manager, manager.forget_owner())
        finally:
            with self._lock:
                self._known.discard(manager.owner)
                if self._managers.get(manager.owner) is manager:
                    del self._managers[manager.owner]

    async def stop(self) -> None:
        """Begin no more jobs; those that run are finished or handed back."""
        self.running = False
        self._break_off()
        if self.worker is not None:
            await self.worker.stop()

    async def __aenter__(self) -> Self:
        self.running, self.loop = True, asyncio.get_running_loop()
        if self.has_model:
            self.worker = await Worker(self.queue, self.manager_of, self.settings.worker).__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()


def _kept(kept: _Kept[Value], manager: MemoryManager, read: Callable[[int], dict[str, Value]]) -> dict[str, Value]:
    """What was read of the present state of an owner; read again when the state has changed."""
    present = manager.position
    position, found = kept.get(manager, (-1, {}))
    if position != present:
        found = read(present)
        kept[manager] = present, found
    return found
