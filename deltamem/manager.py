"""The memory manager that an application calls: policy + bank + episode loop, bound to one owner."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import time as clock
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TextIO, TypeVar

from anyio.from_thread import start_blocking_portal

from deltamem.audit import Audit, audit_owner
from deltamem.bank.base import Hit
from deltamem.bank.store import MemoryStore, Progress, SearcherKind, searcher_kind
from deltamem.edits import Edit, noted
from deltamem.embedding import OFFLINE_MODEL, LazyEmbedder
from deltamem.errors import DeltaMemError
from deltamem.filters import check_queries
from deltamem.ingest import Outcome, ReadingSettings, SessionReader, Transition
from deltamem.journal.jobs import Job
from deltamem.journal.owner import OwnerJournal, Point, SessionKnownError, StaleJournalError
from deltamem.journal.records import Entry, Erasure, HistoryStep, Origin, digest_of
from deltamem.journal.transfer import Counts, export_owner, import_owner
from deltamem.memory import Diff, Memory, MemoryState
from deltamem.policy import Policy, ScopedPolicy
from deltamem.sessions import Session, Turn

T = TypeVar("T")

_CONFLICTS = 20  # How often a session is read again because something was recorded for the same owner meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings(ReadingSettings):
    """How a manager works."""

    person_name: str | None = None  # How memories name the person; the owner's name if None
    keep_dialogue: bool = True  # Whether the journal stores what was said; `blame` quotes it and the audit checks against it
    retrieval: str = "similarity"
    """What `search` ranks by: ``similarity``, or the name of a plug-in of the group ``deltamem.searchers``. The model's own
    searches while it reads a session stay those by similarity."""


class MemoryManager:
    """Keeps one person's long-term memory. Every method concerns this owner and nobody else.

    Methods that may wait for a model or a disk are coroutines; those that only read the journal are plain.
    `deltamem.manager.SyncMemoryManager` is the same without ``await``.
    """

    def __init__(
        self,
        store: MemoryStore,
        owner: str,
        policy: Policy,
        settings: ManagerSettings | None = None,
        *,
        searcher: SearcherKind | None = None,
    ) -> None:
        """Bind a store, an owner and a policy.

        Args:
            store: Holds the journal and the bank; may serve many managers.
            owner: Whose memory.
            policy: The language model that decides.
            settings: Prompts and limits.
            searcher: Makes what `search` ranks by; by default the plug-in that `retrieval` names.

        Raises:
            DeltaMemError: If the owner's name is empty, the bank cannot be opened, or `retrieval` names no plug-in.
        """
        self.owner = owner
        self.settings = settings or ManagerSettings()
        self.person_name = self.settings.person_name or owner
        self._store = store
        self._policy = policy
        self.owned = store.bank(owner)
        """The owner's journal and bank, for plug-ins that keep something beside them."""
        self._reader = SessionReader(store, self.owned, policy, self.settings)
        self.mode, self.mode_reason = self._reader.mode, self._reader.mode_reason
        """How sessions are read, see `deltamem.policy.choose_mode`, and why so."""
        if searcher is None and self.settings.retrieval != "similarity":
            searcher = searcher_kind(self.settings.retrieval)
        self.searcher = None if searcher is None else searcher(self.owned, store.embedder, self.person_name, relabel=True)
        self._closes_store = False

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        owner: str,
        policy: Policy,
        embedder: str = OFFLINE_MODEL,
        settings: ManagerSettings | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Open a store for one owner; closing the manager closes it. Share a `MemoryStore` to serve several owners.

        Raises:
            DeltaMemError: If another process has the store open, or it cannot be read.
        """
        store = MemoryStore.open(folder, LazyEmbedder(embedder), progress=progress)
        try:
            manager = cls(store, owner, policy, settings)
        except BaseException:
            store.close()
            raise
        manager._closes_store = True
        return manager

    def session(
        self, session_id: str, time: datetime, turns: Sequence[Turn], metadata: Mapping[str, object] | None = None
    ) -> Session:
        """A session of this owner, ready for `ingest`; its id is unique among them, and each is applied once.

        Each memory that the session adds gets its metadata. A memory that it rewrites gets its keys beside those it has, of
        which equal ones are replaced: like the time, they are of the session that wrote last.

        Raises:
            DeltaMemError: If the metadata is not flat, see `deltamem.memory.Metadata`.
        """
        return Session(self.owner, self.person_name, time, tuple(turns), session_id, noted(metadata))

    async def ingest(self, session: Session) -> Transition:
        """Read a session and bring the memory up to date with it.

        When this returns with the outcome ``applied`` the session is on disk and survives a crash. A session id that was
        applied before changes nothing. Sessions of one owner take turns.

        Raises:
            DeltaMemError: If the session has no id or no turns, or belongs to somebody else.
            LLMError: If the model cannot be reached; nothing is recorded then.
        """
        started = clock.perf_counter()
        self._check(session)
        async with self.owned.turn():
            return await self._searchable(await self._ingest(session, started))

    async def enqueue(self, session: Session) -> Job:
        """Take a session on, to be read later by a `deltamem.jobs.Worker`; when this returns, it is on the disk.

        The same session may be given any number of times; see `deltamem.journal.owner.OwnerJournal.enqueue`.

        Raises:
            JobConflictError: If the session's id stands for another session.
            DeltaMemError: If the session has no id or no turns, or belongs to somebody else.
        """
        self._check(session)
        return await asyncio.to_thread(self.owned.enqueue, session)

    async def ingest_job(self, job_id: str) -> Transition | None:
        """Read the session of a job, as `ingest` does; None if there is no such job now, or it is done.

        The session is fetched when its turn has come: what was forgotten while it waited is not in it any more.

        Raises:
            LLMError: If the model cannot be reached; nothing is recorded then.
        """
        started = clock.perf_counter()
        async with self.owned.turn():
            session = await asyncio.to_thread(self.owned.journal.job_session, job_id)
            return None if session is None else await self._searchable(await self._ingest(session, started))

    async def write(self, edits: Sequence[Edit], actor: str) -> Entry:
        """Write, correct and retract memories without a model, as one journal entry: all of it or nothing.

        When this returns the entry is on disk; its changes, one an edit, name the ids of what was added. The edits
        (`deltamem.edits`) are applied in order. What is retracted keeps its history; `forget` erases. `actor` says who
        writes: a person, a program, a key.

        Raises:
            DeltaMemError: If there are no edits, `actor` or a text is empty, metadata is not flat, or a memory is not in
                the state.
        """
        return await self._in_turn(self.owned.edit, edits, actor)

    async def search(self, query: str, k: int = 5, filters: Mapping[str, object] | None = None) -> list[Hit]:
        """The `k` memories most similar to a query that meet the filters (`deltamem.filters`), by falling similarity.

        Raises:
            FilterError: If the filters cannot be understood.
            ValueError: If `k` is not positive.
        """
        return (await self.search_many([query], k, filters))[0]

    async def search_many(
        self,
        queries: Sequence[str],
        k: int = 5,
        filters: Mapping[str, object] | None = None,
        *,
        among: Set[str] | None = None,
    ) -> list[list[Hit]]:
        """`search` for several queries at once, which is cheaper than one after the other.

        Only memories whose ids are `among` these are found, if it is given.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        if self.searcher is not None:
            check_queries(queries)
            return [list((await self.searcher.search(query, k, filters, among)).hits) for query in queries]
        return await asyncio.to_thread(self.owned.search, self._store.embedder.queries, queries, k, filters, among)

    def memories(
        self,
        filters: Mapping[str, object] | None = None,
        *,
        point: Point = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Memory]:
        """The memories in the order of their ids, page by page if they are many.

        Args:
            filters: What their metadata must meet, see `deltamem.filters`.
            point: As they were at a position, session or time.
            after: Only those behind this id, whether or not it is still there: the last one of the page before.
            limit: At most so many.

        Raises:
            FilterError: If the filters cannot be understood.
            DeltaMemError: If there is no such point, or `after` is no id of a memory.
        """
        return self.owned.page(self.state(point), {} if filters is None else filters, after)[:limit]

    def state(self, point: Point = None) -> MemoryState:
        """The memory state now, or at an earlier position, session or time."""
        return self.owned.bank.state if point is None else self.owned.journal.state(point)

    async def set_timezone(self, zone: str | None) -> None:
        """Set the owner's time zone (an IANA name), which dates what is said without a time; None forgets it.

        Raises:
            DeltaMemError: If there is no zone by this name.
        """
        await asyncio.to_thread(self.owned.set_timezone, zone)

    @property
    def journal(self) -> OwnerJournal:
        """Points, UUIDs, jobs and all else that the journal says of this owner. Write by the manager only.

        Whatever takes the id of a memory takes its UUID as well.
        """
        return self.owned.journal

    @property
    def position(self) -> int:
        """The journal position of the present `state`, without reading the disk."""
        return self.owned.bank.position

    @property
    def erased(self) -> bool:
        """Whether the owner was erased since; then the manager refuses everything, and a new one has to be made."""
        return self.owned.erased

    def history(self, memory_id: str) -> tuple[HistoryStep, ...]:
        """Everything that happened to a memory, oldest first; see `deltamem.journal.owner.OwnerJournal.history`."""
        return self.owned.journal.history(memory_id)

    def blame(self, memory_id: str) -> tuple[Origin, ...]:
        """The sessions, turns and edits that a memory comes from; see `deltamem.journal.owner.OwnerJournal.blame`."""
        return self.owned.journal.blame(memory_id)

    def diff(self, before: Point, after: Point = None) -> Diff:
        """What changed between two points, memory by memory."""
        return self.owned.journal.diff(before, after)

    async def audit(self) -> Audit:
        """Look for duplicates, contradictions and unsupported memories, see `deltamem.audit`."""
        return await asyncio.to_thread(audit_owner, self.owned, self.person_name)

    async def rollback(self, to: Point) -> Entry:
        """Restore the state of an earlier point. It is a new journal entry, so it can itself be rolled back.

        Sessions after that point count as not ingested and may be given again.
        """
        async with self.owned.turn():
            return await asyncio.to_thread(self.owned.rollback, self.owned.journal.resolve(to))

    async def forget(self, memory_id: str) -> Entry:
        """Erase a memory for good, with its history and the turns it came from; that it happened is recorded.

        Exports and backups made before are out of reach.

        Raises:
            DeltaMemError: If there never was such a memory.
        """
        return await self._in_turn(self.owned.forget, memory_id, erases=True)

    async def forget_all(self, memory_ids: Sequence[str]) -> list[Entry]:
        """Erase several memories for good at the cost of one, see `forget`; those that there are not are left out."""
        return await self._in_turn(self.owned.forget_all, memory_ids, erases=True)

    async def forget_owner(self) -> Erasure:
        """Erase everything about this owner. Only a hash of the name, the time and counts remain.

        The manager cannot be used afterwards.
        """
        return await self._in_turn(self._store.erase_owner, self.owner, erases=True)

    def export(self, stream: TextIO) -> Counts:
        """Write the state and the whole journal as JSON lines."""
        return export_owner(self.owned.journal, stream)

    async def import_from(self, stream: IO[bytes] | IO[str], *, rename: bool = False) -> Counts:
        """Read what `export` wrote into this owner's empty journal; vectors are computed again.

        With `rename` the export of an owner with another name is accepted.

        Raises:
            DeltaMemError: If the journal is not empty or the export is damaged; nothing is imported then.
        """
        async with self.owned.turn():
            counts = await asyncio.to_thread(import_owner, self.owned.journal, stream, rename=rename)
            await asyncio.to_thread(self.owned.reload)
            return counts

    async def close(self) -> None:
        """Write what is pending and release the directory, if this manager opened it."""
        if self._closes_store:
            await asyncio.to_thread(self._store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check(self, session: Session) -> None:
        if session.person_id != self.owner:
            raise DeltaMemError(f"session {session.id!r} belongs to {session.person_id!r}, not to {self.owner!r}")
        if not session.id:
            raise DeltaMemError("a session needs an id, by which the journal knows that it was ingested")
        if not session.dialogue:
            raise DeltaMemError(f"session {session.id!r} has no turns")

    async def _ingest(self, session: Session, started: float) -> Transition:
        journal = self.owned.journal
        for attempt in itertools.count(1):
            position, state = journal.session_position(session.id), self.owned.bank.state
            step = Transition(self.owner, session.id, session.time, Outcome.KNOWN, state, state, position=position)
            try:
                if position is None:
                    step = await self._read_and_record(session, step)
                elif journal.session_digest(session.id) != digest_of(session):
                    note = f"session {session.id!r} was ingested before with other content; nothing was changed"
                    step = replace(step, notes=(note,))
                break
            except (StaleJournalError, SessionKnownError):
                # A write whose caller was cancelled ends without holding the turn: read again, against what it left.
                if attempt == _CONFLICTS:
                    raise
        return replace(step, seconds=clock.perf_counter() - started)

    async def _read_and_record(self, session: Session, step: Transition) -> Transition:
        reading = await self._reader.read(session)
        step = replace(
            step,
            outcome=Outcome.UNREADABLE,
            violations=dict(reading.violations),
            notes=tuple(reading.notes),
            parts=reading.parts,
            usage=reading.usage,
        )
        if not reading.readable:
            return step
        entry = await asyncio.to_thread(
            self.owned.commit,
            session,
            reading.changes,
            reading.state,
            reading.vectors,
            started_from=reading.started_from,
            model=self._policy.name,
            prompt_hash=self._reader.prompt_hash,
            violations=reading.violations,
            keep_dialogue=self.settings.keep_dialogue,
        )
        changes = tuple(reading.changes)
        return replace(step, outcome=Outcome.APPLIED, after=reading.state, changes=changes, position=entry.position)

    async def _searchable(self, transition: Transition) -> Transition:
        """The transition, once `search` finds what it wrote; a failure is a note, and made up for later."""
        if self.searcher is None or not transition.changes:
            return transition
        try:
            await self.searcher.catch_up()
        except DeltaMemError as error:
            return replace(transition, notes=(*transition.notes, f"the search is yet to catch up: {error}"))
        return transition

    async def _in_turn(self, write: Callable[..., T], *given: object, erases: bool = False) -> T:
        async with self.owned.turn():
            done = await asyncio.to_thread(write, *given)
            # Answers of the models that a response cache holds repeat what was said.
            if erases and self.searcher is not None:
                await asyncio.to_thread(self.searcher.forget_answers)
            if erases and isinstance(self._policy, ScopedPolicy):
                await asyncio.to_thread(self._policy.forget_scope, self.owner)
            return done


class SyncMemoryManager:
    """`deltamem.manager.MemoryManager` for code that is not asynchronous; may be used from several threads.

    It has the same methods and properties, without ``await``::

        with SyncMemoryManager(lambda: MemoryManager.open(Path("bank"), owner="ann", policy=policy)) as memory:
            memory.ingest(memory.session("monday", time, [Turn("user", "I moved to Denver.")]))
    """

    def __init__(self, make: Callable[[], MemoryManager]) -> None:
        """Start the loop and make the manager in it, so that everything bound to a loop is bound to that one."""
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            self._manager = self._portal.call(make)
            stack.callback(self._portal.call, self._manager.close)
            self._stack = stack.pop_all()

    @classmethod
    def open(cls, folder: Path, **settings: Any) -> Self:
        """Open a store for one owner; takes what `MemoryManager.open` takes."""
        return cls(lambda: MemoryManager.open(folder, **settings))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while __init__ has not made the manager, too
            raise AttributeError(name)
        found = getattr(self._manager, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **kwargs: self._portal.call(partial(found, *args, **kwargs))

    def close(self) -> None:
        """Close the manager and end the loop."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
