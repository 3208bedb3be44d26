"""A directory of memory: one journal and one index for any number of owners, held by one process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self
from weakref import WeakKeyDictionary

from filelock import FileLock, Timeout

from deltamem import plugins
from deltamem.bank.base import Hit, MemoryBank, SnapshotBank, stale_ids
from deltamem.dedup import KnownTexts
from deltamem.edits import Add, Edit, take_edits
from deltamem.embedding import Embedder, Vectors
from deltamem.errors import DeltaMemError, NotFoundError
from deltamem.filters import check_queries, meeting
from deltamem.journal.jobs import Job
from deltamem.journal.journal import JOURNAL_FILE, Journal
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import Change, Entry, EntryKind, Erasure, memory_number
from deltamem.memory import Memory, MemoryState
from deltamem.sessions import Session
from deltamem.zones import LocalTime, Zone, local_now, process_zone

if TYPE_CHECKING:
    from deltamem.bank.chroma import ChromaIndex


_POLL_SECONDS = 0.005  # How often an event loop asks whether another one has finished its turn


class UserStore:
    """One owner's journal and bank, which always stand for the same state."""

    def __init__(
        self, journal: OwnerJournal, bank: MemoryBank, embed: Callable[[Sequence[str]], Vectors], zone: Zone
    ) -> None:
        """Bind a journal and the bank that was built from it; `embed` turns memory texts into vectors.

        `zone` is that of owners who have set none.
        """
        self.owner = bank.owner
        self.journal = journal
        self._bank = bank
        self._embed = embed
        self._zone = zone
        self._write = threading.RLock()
        self._known: KnownTexts | None = None
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._turn = threading.Lock()
        self._erased = False

    @property
    def bank(self) -> MemoryBank:
        """The bank.

        Raises:
            DeltaMemError: If the owner was erased.
        """
        if self._erased:
            raise NotFoundError(f"the memory of {self.owner!r} was erased; open it again to start over")
        return self._bank

    @property
    def erased(self) -> bool:
        """Whether the owner was erased, or is being erased just now; then this is of no use any more."""
        return self._erased

    def now(self, requested: str | None = None) -> LocalTime:
        """The owner's present time, to date what comes without a time; see `deltamem.zones`.

        Raises:
            DeltaMemError: If there is no zone by the name that is `requested`.
        """
        return local_now(requested, None if requested else self.journal.timezone, self._zone)

    def set_timezone(self, zone: str | None) -> None:
        """Set the owner's time zone, see `OwnerJournal.set_timezone`."""
        with self.writing():
            self.journal.set_timezone(zone)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other threads from writing.

        Raises:
            DeltaMemError: If the owner was erased meanwhile.
        """
        with self._write:
            _ = self.bank  # raises
            yield

    def retire(self) -> None:
        """Refuse everything from now on, because the owner is being erased."""
        with self._write:
            self._erased = True

    @property
    def known_texts(self) -> KnownTexts:
        """The texts of the present state, for recognising what was recalled from it. Made when it is first needed."""
        with self._write:
            if self._known is None:
                self._known = KnownTexts(self.bank.state)
            return self._known

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Let those who change this owner's memory take turns, whatever event loop they run in.

        Reading a session lays changes over the bank, which must not move meanwhile. Writers without a turn are kept apart
        by `commit`, which refuses a step that started from an older state.
        """
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            # Polled, because a cancelled wait in a thread would take the lock after all and never give it back.
            while not self._turn.acquire(blocking=False):
                await asyncio.sleep(_POLL_SECONDS)
            try:
                yield
            finally:
                self._turn.release()

    @contextmanager
    def blocking_turn(self) -> Iterator[None]:
        """`turn` for code that is not asynchronous.

        Raises:
            DeltaMemError: If somebody else has the turn, who may need the event loop that runs in this thread.
        """
        if not self._turn.acquire(blocking=False):
            with suppress(RuntimeError):  # no event loop runs here
                asyncio.get_running_loop()
                raise DeltaMemError(f"the memory of {self.owner!r} is being written; await the asynchronous method instead")
            self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()

    def search(
        self,
        embed: Callable[[Sequence[str]], Vectors],
        queries: Sequence[str],
        k: int,
        filters: Mapping[str, object] | None = None,
        among: Set[str] | None = None,
    ) -> list[list[Hit]]:
        """Find the `k` most similar memories for each query, which `embed` turns into vectors.

        Their metadata must meet the `filters` (see `deltamem.filters`), and their ids be `among` these, if given.

        Raises:
            FilterError: If the filters cannot be understood, or name a key that no memory has but one like it.
            DeltaMemError: If a query is blank.
        """
        check_queries(queries)
        bank = self.bank
        if filters is not None:
            found = {memory.id for memory in meeting(bank.state.memories, filters)}
            among = found if among is None else found & among
        return bank.search(embed(queries), k, among) if queries else []

    def page(self, state: MemoryState, filters: Mapping[str, object], after: str | None) -> list[Memory]:
        """The memories of a state of this owner whose metadata meet the filters, behind an id if one is given."""
        memories = meeting(state.memories, filters)
        if after is None:
            return memories
        last = memory_number(self.journal.memory_id(after))
        if last is None:
            raise DeltaMemError(f"{after!r} is not the id of a memory")
        return [memory for memory in memories if (memory_number(memory.id) or 0) > last]

    def commit(
        self,
        session: Session,
        changes: Sequence[Change],
        state: MemoryState,
        vectors: Mapping[str, Vectors],
        *,
        started_from: int,
        model: str,
        prompt_hash: str,
        violations: Mapping[str, int],
        keep_dialogue: bool,
    ) -> Entry:
        """Record a session, see `OwnerJournal.append`, and move the bank on; when this returns the session is durable.

        The bank moves to `state`, with the `vectors` of new and changed texts by id. `started_from` is the position whose
        state the session was read against.

        Raises:
            SessionKnownError: If the session id has been applied before.
            StaleJournalError: If something else was recorded since `started_from`.
        """
        with self.writing():
            entry = self.journal.append(
                EntryKind.SESSION,
                changes,
                session=session,
                keep_dialogue=keep_dialogue,
                model=model,
                prompt_hash=prompt_hash,
                violations=violations,
                expected_head=started_from,
            )
            self._move(entry, state, vectors)
        return entry

    def enqueue(self, session: Session) -> Job:
        """Take a session on, see `OwnerJournal.enqueue`."""
        with self.writing():
            return self.journal.enqueue(session)

    def edit(self, edits: Sequence[Edit], actor: str) -> Entry:
        """Write, correct and retract memories in order, all of it or nothing; durable when this returns.

        Raises:
            DeltaMemError: If `actor` is empty, there are no edits, a memory is not in the state, or a text is empty.
        """
        if not actor:
            raise DeltaMemError("who writes? the name of the actor is empty")
        with self.writing():
            before = self.bank.state
            named = [e if isinstance(e, Add) else replace(e, id=self.journal.memory_id(e.id)) for e in edits]
            state, changes = take_edits(before, named, self.journal.new_ids())
            vectors = self._vectors(state)  # can fail, so before the journal
            entry = self.journal.append(EntryKind.EDIT, changes, actor=actor, expected_head=self.bank.position)
            self._move(entry, state, vectors)
        return entry

    def rollback(self, position: int) -> Entry:
        """Restore the state of an earlier position by a new entry; nothing is lost from the journal."""
        with self.writing():
            # Embedding can fail, the journal cannot be undone: so it comes first.
            restored = self.journal.state(position)
            vectors = self._vectors(restored)
            entry = self.journal.rollback(position)
            self._move(entry, restored, vectors)
        return entry

    def forget(self, memory_id: str) -> Entry:
        """Erase a memory for good: its texts in the journal, the turns it came from, its vector.

        May be repeated, should an earlier call have ended between journal and index.
        """
        with self.writing():
            past = self.journal.history(memory_id)  # raises if there never was such a memory
            if entries := self.forget_all([memory_id]):
                return entries[0]
            forgotten = [entry for entry, _ in past if entry.kind is EntryKind.FORGET]
            return forgotten[-1] if forgotten else self.journal.forget(memory_id)

    def forget_all(self, memory_ids: Sequence[str]) -> list[Entry]:
        """Erase several memories at the cost of one, see `OwnerJournal.forget_all`."""
        with self.writing():
            entries = self.journal.forget_all(memory_ids)
            if self.journal.head > self.bank.position:
                self.bank.update(self.journal.state(), {}, self.journal.head)
                self._known = None
            self.bank.purge()
        return entries

    def reload(self) -> None:
        """Move the bank to the journal's state after entries were written past it (an import)."""
        with self.writing():
            state = self.journal.state()
            self.bank.update(state, self._vectors(state), self.journal.head)
            self._known = None

    def _vectors(self, state: MemoryState) -> dict[str, Vectors]:
        stale = stale_ids(self.bank.state, state)
        return dict(zip(stale, self._embed([state[memory_id].text for memory_id in stale]), strict=True))

    def _move(self, entry: Entry, state: MemoryState, vectors: Mapping[str, Vectors]) -> None:
        self.bank.update(state, vectors, entry.position)
        self._known = None if self._known is None else self._known.updated(entry.changes)


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a search found, best first, and in a line each why."""

    hits: tuple[Hit, ...] = ()
    reasons: tuple[str, ...] = ()


class Searcher(Protocol):
    """Ranks an owner's memories by something other than similarity."""

    async def catch_up(self) -> int:
        """Prepare the memories that are not prepared yet, as far as that takes long; returns how many there were.

        Raises:
            DeltaMemError: If one cannot be prepared.
        """
        ...

    async def search(
        self, query: str, k: int, filters: Mapping[str, object] | None = None, among: Set[str] | None = None
    ) -> Ranking:
        """The `k` best memories; the arguments are those of `UserStore.search`.

        Raises:
            FilterError: If the filters cannot be understood.
            DeltaMemError: If it cannot be searched.
        """
        ...

    def forget_answers(self) -> None:
        """Remove the owner's answers of models from caches."""
        ...


class SearcherKind(Protocol):
    """A plug-in of the group ``deltamem.searchers``."""

    def __call__(self, owned: UserStore, embedder: Embedder, person_name: str, *, relabel: bool = False) -> Searcher:
        """Bind an owner's store.

        Args:
            owned: The store.
            embedder: Embeds memories and queries.
            person_name: How memories name the person.
            relabel: Prepare all memories again if they were prepared in another way; else that is refused.
        """
        ...


def searcher_kind(name: str) -> SearcherKind:
    """The plug-in of this name.

    Raises:
        DeltaMemError: If there is none.
    """
    kind: SearcherKind = plugins.load("searchers", name)
    return kind


INDEX_FOLDER = "index"
LOCK_FILE = "lock"

Progress = Callable[[str, int, int], None]  # Called while an index is rebuilt: owner, memories done, memories in all


class MemoryStore:
    """The memory of any number of owners; hands out their banks one by one."""

    def __init__(
        self,
        journal: Journal,
        embedder: Embedder,
        index: ChromaIndex | None,
        progress: Progress | None,
        resources: ExitStack,
        zone: Zone | None = None,
    ) -> None:
        """Put a store together; use `open` or `in_memory`."""
        self.journal = journal
        self.embedder = embedder
        self._index = index
        self._progress = progress
        self._resources = resources
        self._zone = zone or process_zone(None, serves=True)
        self._banks: dict[str, UserStore] = {}
        self._opening = threading.Lock()

    @classmethod
    def open(
        cls,
        folder: Path,
        embedder: Embedder,
        *,
        index_url: str | None = None,
        progress: Progress | None = None,
        zone: Zone | None = None,
    ) -> MemoryStore:
        """Open or create a store.

        Args:
            folder: Holds the journal and the index.
            embedder: Embeds memories and queries. An index made with another one is rebuilt.
            index_url: Address of a Chroma server that holds the index instead of the folder, for example
                ``http://localhost:8000``.
            progress: Called while an index is rebuilt.
            zone: Of owners who have set none, for what comes without a time; by default UTC, see
                `deltamem.zones.process_zone`.

        Raises:
            DeltaMemError: If another process has the store open, or its files cannot be read.
        """
        from deltamem.bank.chroma import ChromaIndex  # half a second of imports that an in-memory store does not need

        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise DeltaMemError(f"{folder}: not a directory") from error
        with ExitStack() as resources:
            resources.callback(lock_folder(folder).release)
            journal = resources.enter_context(Journal.open(folder / JOURNAL_FILE))
            journal.queue.recover()  # nobody else is at work: the folder is locked
            index = ChromaIndex.open(None if index_url else folder / INDEX_FOLDER, index_url, journal.store_id)
            resources.callback(index.close)
            return cls(journal, embedder, index, progress, resources.pop_all(), zone)

    @classmethod
    def in_memory(cls, embedder: Embedder) -> MemoryStore:
        """A store without files: a journal in memory and exact search. For evaluation and tests."""
        resources = ExitStack()
        return cls(resources.enter_context(Journal.open(None)), embedder, None, None, resources)

    def bank(self, owner: str) -> UserStore:
        """The bank of one owner, brought in step with the journal if it was not.

        Raises:
            DeltaMemError: If the name is empty or the index cannot be opened.
            EmbedderUnavailableError: If memories have to be embedded and the model is missing.
        """
        with self._opening:
            if owner not in self._banks:
                journal = self.journal.owner(owner)
                bank: MemoryBank
                if self._index is None:
                    state = journal.state()
                    vectors = self.embedder.documents([memory.text for memory in state.memories])
                    bank = SnapshotBank(owner, state, vectors, journal.head)
                else:
                    progress = None if self._progress is None else partial(self._progress, owner)
                    bank = self._index.bank(journal, self.embedder, progress)
                self._banks[owner] = UserStore(journal, bank, self.embedder.documents, self._zone)
            return self._banks[owner]

    def owners(self) -> list[str]:
        """Everybody whom the journal knows, or a plug-in."""
        return self.journal.owners()

    def erase_owner(self, owner: str) -> Erasure:
        """Erase everything about one owner from journal and index; only a hash, a time and counts remain."""
        with self._opening:
            self.journal.stores_to_erase()  # refuses before anything is dropped
            owned = self._banks.pop(owner, None)
            if owned is not None:
                owned.retire()
            # The index first: should this end half-way, the journal still knows the owner and it can be repeated.
            if self._index is not None:
                self._index.drop(owner)
            return self.journal.erase_owner(owner)

    def close(self) -> None:
        """Write what is pending and release the directory."""
        self._banks.clear()
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def lock_folder(folder: Path) -> FileLock:
    """Lock a bank for this process.

    Raises:
        DeltaMemError: If another process holds it; names that process.
    """
    path = folder / LOCK_FILE
    lock = FileLock(path, thread_local=False)  # a store may be closed in another thread than it was opened in
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = "another process"
        with suppress(OSError):
            pid = (folder / "holder").read_text(encoding="ascii").strip()
            holder = "this process" if pid == str(os.getpid()) else f"process {pid}"
        raise DeltaMemError(
            f"{folder} is in use by {holder}; one process at a time may open a memory store "
            "(share one MemoryStore within a process; commands that only read the journal need no lock)"
        ) from None
    (folder / "holder").write_text(str(os.getpid()), encoding="ascii")
    return lock
