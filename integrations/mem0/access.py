"""What a key of mem0's clients reaches: users' memories by name, by filter, and by a UUID that does not say whose it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Request

from deltamem.journal.jobs import Job
from deltamem.manager import MemoryManager
from deltamem.memory import Memory
from deltamem.server.access import Caller, allow, service_of
from deltamem.server.keys import Key, Scope
from deltamem.server.problems import Problem, not_found
from deltamem.server.service import Service
from integrations.mem0.filters import MemoryView, check_mem0_keys, user_name, users_of


@dataclass(frozen=True, slots=True)
class Located:
    """A memory and where it is."""

    manager: MemoryManager
    memory: Memory
    uuid: UUID
    added: datetime
    """The time that it had at first."""


@dataclass(frozen=True, slots=True)
class Mem0Access:
    """The service for one key. What is no coroutine may read the disk: call it in a thread."""

    service: Service
    key: Key

    def owners(self) -> list[str]:
        """The known owners of the key."""
        if self.key.owners is not None:
            return [owner for owner in sorted(self.key.owners) if self.service.known(owner)]
        return self.service.store.journal.owners()

    def writable(self, owner: str, scope: Scope) -> MemoryManager:
        """The memory of a user, who may be new: mem0's users come into being with what is remembered of them."""
        opened_user(self.key, owner, scope)
        return self.service.manager_of(owner)

    def readable(self, owners: Iterable[str]) -> list[MemoryManager]:
        """The memories of users; of one who is new there is nothing to read, which is no error to mem0's clients."""
        named = list(owners)
        if not all(self.key.opens(owner) for owner in named):
            raise not_found()
        allow(self.key, Scope.READ)
        return [self.service.manager_of(owner) for owner in named if self.service.known(owner)]

    def named(self, filters: Mapping[str, object]) -> list[MemoryManager]:
        """The memories of the users that a filter names, if it names nothing else that there is not."""
        managers = self.readable(users_of(filters))
        check_mem0_keys(filters, [memory for manager in managers for memory in manager.state().memories])
        return managers

    def find(self, memory_id: str, scope: Scope) -> Located:
        """A memory by its UUID."""
        allow(self.key, scope)
        uuid = _uuid(memory_id)
        owners = [owner for owner in self.service.store.journal.owners_of_memory(uuid) if self.key.opens(owner)]
        if len(owners) > 1:
            raise Problem(409, "this id belongs to several users of this key, whose memories were imported from one export")
        for owner in owners:
            manager = self.service.manager_of(owner)
            memory = manager.state().get(manager.journal.memory_id(str(uuid)))
            if memory is not None:
                return Located(manager, memory, uuid, self.service.added(manager).get(memory.id, memory.time))
        raise not_found()

    def matching(self, manager: MemoryManager, test: Callable[[Mapping[str, Any]], bool]) -> list[Located]:
        """The memories that meet a filter."""
        memories, uuids, added = manager.state().memories, self.service.uuids(manager), self.service.added(manager)
        return [
            Located(manager, memory, uuids[memory.id], added[memory.id])
            for memory in memories
            # What was written between the three readings is not there yet.
            if memory.id in uuids
            and memory.id in added
            and test(MemoryView(manager.owner, uuids[memory.id], memory, added[memory.id]))
        ]

    def job(self, event_id: str) -> tuple[MemoryManager, Job]:
        """The job that an event is."""
        allow(self.key, Scope.READ)
        job_id = _uuid(event_id).hex
        owner = self.service.store.journal.owner_of_job(job_id)
        if owner is None or not self.key.opens(owner):
            raise not_found()
        manager = self.service.manager_of(owner)
        return manager, manager.journal.job(job_id)

    async def erase(self, found: Iterable[Located]) -> int:
        """Erase memories for good; how many there were."""
        by_owner: dict[str, list[Located]] = {}
        for one in found:
            by_owner.setdefault(one.manager.owner, []).append(one)
        removed = 0
        for those in by_owner.values():
            removed += len(await self.service.forget_all(those[0].manager, [str(one.uuid) for one in those]))
        return removed


async def _access(key: Caller, request: Request) -> Mem0Access:
    return Mem0Access(service_of(request), key)


Access = Annotated[Mem0Access, Depends(_access)]


def opened_user(key: Key, owner: str, scope: Scope) -> None:
    """Make sure that a key opens a user's memory for a scope."""
    if not key.opens(owner):
        raise not_found()
    allow(key, scope)


def user_of(entities: Mapping[str, Any]) -> str:
    """Whose memory is meant."""
    if "user_id" not in entities:
        raise Problem(400, "user_id is missing: it says whose memory this is; agent_id, app_id and run_id alone do not")
    return user_name(entities["user_id"])


def _uuid(given: str) -> UUID:
    try:
        return UUID(given)
    except ValueError:
        raise not_found() from None
