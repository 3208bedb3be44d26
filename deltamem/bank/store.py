"""A directory of memory: one journal and one index for any number of owners, held by one process.

The journal is written first and is the truth; the index is derived from it and repaired when a bank is opened. Chroma's
embedded database must not be shared by processes, so a store takes a lock on its directory: a second process gets a clear
error (reading the journal needs no lock, see `Journal.open`). Within the process any number of threads and event loops may
use one store.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from filelock import FileLock, Timeout

from deltamem.bank.owned import OwnedBank
from deltamem.bank.protocol import MemoryBank
from deltamem.bank.snapshot import SnapshotBank
from deltamem.embedding import Embedder, Vectors
from deltamem.errors import DeltaMemError
from deltamem.journal.journal import JOURNAL_FILE, Journal
from deltamem.journal.records import Erasure

if TYPE_CHECKING:
    from deltamem.bank.chroma.index import ChromaIndex

INDEX_FOLDER = "index"
LOCK_FILE = "lock"

Progress = Callable[[str, int, int], None]
"""Called while an index is rebuilt: owner, memories done, memories in all."""


class MemoryStore:
    """The memory of any number of owners; hands out their banks one by one."""

    def __init__(
        self,
        journal: Journal,
        embedder: Embedder,
        index: ChromaIndex | None,
        lock: FileLock | None,
        progress: Progress | None = None,
    ) -> None:
        """Put a store together; use `open` or `in_memory`."""
        self.journal = journal
        self.embedder = embedder
        self._index = index
        self._lock = lock
        self._progress = progress
        self._banks: dict[str, OwnedBank] = {}
        self._opening = threading.Lock()
        self._embedding = threading.Lock()

    @classmethod
    def open(
        cls, folder: Path, embedder: Embedder, *, index_url: str | None = None, progress: Progress | None = None
    ) -> MemoryStore:
        """Open or create a store.

        Args:
            folder: Where the journal and the index live.
            embedder: Embeds memories and queries. An index made with another one is rebuilt.
            index_url: Address of a Chroma server that holds the index instead of the folder, for example
                ``http://localhost:8000``.
            progress: Told how far a rebuild is.

        Raises:
            DeltaMemError: If another process has the store open, or its files cannot be read.
        """
        from deltamem.bank.chroma.index import ChromaIndex  # half a second of imports that an in-memory store does not need

        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise DeltaMemError(f"{folder}: not a directory") from error
        lock = lock_folder(folder)
        try:
            journal = Journal.open(folder / JOURNAL_FILE)
            try:
                index = ChromaIndex.open(None if index_url else folder / INDEX_FOLDER, index_url, journal.store_id)
            except BaseException:
                journal.close()
                raise
        except BaseException:
            lock.release()
            raise
        return cls(journal, embedder, index, lock, progress)

    @classmethod
    def in_memory(cls, embedder: Embedder) -> MemoryStore:
        """A store without files: a journal in memory and exact search. For evaluation and tests."""
        return cls(Journal.open(None), embedder, None, None)

    def bank(self, owner: str) -> OwnedBank:
        """The bank of one owner, brought in step with the journal if it was not.

        Raises:
            DeltaMemError: If the name is empty or the index cannot be opened.
            EmbedderUnavailableError: If memories have to be embedded and the model is missing.
        """
        with self._opening:
            if owner not in self._banks:
                self._banks[owner] = self._open_bank(owner)
            return self._banks[owner]

    def owners(self) -> list[str]:
        """Everybody who has entries in the journal."""
        return self.journal.owners()

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Embed memory texts; embedding models are not safe to call from two threads at once."""
        with self._embedding:
            return self.embedder.documents(texts)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embed search queries, see `documents`."""
        with self._embedding:
            return self.embedder.queries(texts)

    def erase_owner(self, owner: str) -> Erasure:
        """Erase everything about one owner from journal and index; only a hash, a time and counts remain."""
        with self._opening:
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
        if self._index is not None:
            self._index.close()
        self.journal.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _open_bank(self, owner: str) -> OwnedBank:
        journal = self.journal.owner(owner)
        state, position = journal.state(), journal.head
        bank: MemoryBank
        if self._index is None:
            vectors = self.documents([memory.text for memory in state.memories])
            bank = SnapshotBank(owner, state, vectors, position)
        else:
            progress = self._progress
            bank = self._index.bank(
                owner,
                state,
                position,
                changed_since=journal.changed_since,
                embed=self.documents,
                embedder_name=self.embedder.name,
                progress=None if progress is None else lambda done, total: progress(owner, done, total),
            )
        return OwnedBank(journal, bank, self.documents)


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
        holder = _holder(folder)
        raise DeltaMemError(
            f"{folder} is in use by {holder}; one process at a time may open a memory store "
            "(share one MemoryStore within a process; commands that only read the journal need no lock)"
        ) from None
    (folder / "holder").write_text(str(os.getpid()), encoding="ascii")
    return lock


def _holder(folder: Path) -> str:
    try:
        pid = (folder / "holder").read_text(encoding="ascii").strip()
    except OSError:
        return "another process"
    return "this process" if pid == str(os.getpid()) else f"process {pid}"
