"""One owner's journal and bank, moved on together: the journal first, because it is the truth."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakKeyDictionary

from deltamem.bank.protocol import MemoryBank, stale_ids
from deltamem.embedding import Vectors
from deltamem.errors import DeltaMemError
from deltamem.journal.journal import OwnerJournal
from deltamem.journal.records import Change, Entry, EntryKind
from deltamem.memory import MemoryState
from deltamem.sessions import Session
from deltamem.text.recall import KnownTexts

_POLL_SECONDS = 0.005
"""How often an event loop asks whether another one has finished its turn."""


class OwnedBank:
    """One owner's journal and bank, which always stand for the same state."""

    def __init__(self, journal: OwnerJournal, bank: MemoryBank, embed: Callable[[Sequence[str]], Vectors]) -> None:
        """Bind a journal and the bank that was built from it; `embed` turns memory texts into vectors."""
        self.owner = bank.owner
        self.journal = journal
        self._bank = bank
        self._embed = embed
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
            raise DeltaMemError(f"the memory of {self.owner!r} was erased; open it anew to begin again")
        return self._bank

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
        """Record a session and move the bank on; when this returns the session is durable.

        Args:
            session: The session; its dialogue is stored if `keep_dialogue`.
            changes: What the session does.
            state: The state after it.
            vectors: The vectors of new and changed texts, by id.
            started_from: The position whose state the session was read against.
            model: Who decided.
            prompt_hash: Hash of the prompts in use.
            violations: What was refused or corrected, by name.
            keep_dialogue: Whether to store the turns, which `blame` quotes and `audit` checks.

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
            entry = self._forgotten(memory_id) or self.journal.forget(memory_id)
            if entry.position > self.bank.position:
                self._move(entry, self.journal.state(), {})
            self.bank.purge()
        return entry

    def reload(self) -> None:
        """Move the bank to the journal's state after entries were written past it (an import)."""
        with self.writing():
            state = self.journal.state()
            self.bank.update(state, self._vectors(state), self.journal.head)
            self._known = None

    def _forgotten(self, memory_id: str) -> Entry | None:
        """The entry that forgot a memory, if it is forgotten already."""
        past = self.journal.history(memory_id)
        if not past or not all(change.erased for _, change in past):
            return None
        return next((entry for entry, _ in reversed(past) if entry.kind is EntryKind.FORGET), None)

    def _vectors(self, state: MemoryState) -> dict[str, Vectors]:
        stale = stale_ids(self.bank.state, state)
        return dict(zip(stale, self._embed([state[memory_id].text for memory_id in stale]), strict=True))

    def _move(self, entry: Entry, state: MemoryState, vectors: Mapping[str, Vectors]) -> None:
        self.bank.update(state, vectors, entry.position)
        self._known = None if self._known is None else self._known.updated(entry.changes)
