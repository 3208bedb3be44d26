"""One owner's memories as they are served: searched in Chroma, with what is not written there yet on top."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np

from deltamem.bank.base import Hit, OverlayBank, ReadableBank, SnapshotBank
from deltamem.bank.chroma_collection import ChromaCollection, IndexUnavailableError
from deltamem.embedding import Vectors
from deltamem.memory import MemoryState

logger = logging.getLogger(__name__)


class ChromaBank:
    """One owner's memories: searched in Chroma, under an overlay of the changes not yet written there.

    Writing to Chroma costs some 15 ms a call, so changes are gathered and written together; `update` does not wait for
    Chroma otherwise. If writing fails the changes stay in memory, where searches find them, and are tried again later;
    should the process end before that, the next opening catches up from the journal. Safe for any number of threads,
    which take turns: embedding a query, which threads take turns at anyway, costs far more than a search.

    As long as the memories are few, as one person's mostly are, their vectors are kept in memory too and are searched there:
    exactly, and in a fraction of the time that Chroma needs (`benchmarks/search.py`).
    """

    def __init__(
        self, committed: ChromaCollection, erase: Callable[[ChromaCollection], None], flush_every: int, exact_up_to: int
    ) -> None:
        """Begin with what Chroma holds.

        Args:
            committed: What Chroma holds.
            erase: Rewrites a collection and erases what was deleted from it.
            flush_every: Write to Chroma when so many vectors are pending.
            exact_up_to: Up to so many memories, search a copy of the vectors in memory.
        """
        self.owner = committed.owner
        self._committed = committed
        self._erase = erase
        self._flush_every = flush_every
        self._flush_at = flush_every
        self._exact_up_to = exact_up_to
        self._base: ReadableBank = _in_memory(committed) if len(committed.state) <= exact_up_to else committed
        self._overlay = OverlayBank(self._base)
        self._lock = threading.RLock()
        self._closed = False

    @property
    def state(self) -> MemoryState:
        """The memories."""
        return self._overlay.state

    @property
    def position(self) -> int:
        """The journal position that the state stands for."""
        return self._overlay.position

    @property
    def pending(self) -> int:
        """How many vectors are not written to, or not removed from, Chroma yet."""
        changes = self._overlay.changes
        return len(changes.hidden | changes.vectors.keys())

    def search(self, query_vectors: Vectors, k: int, among: Set[str] | None = None) -> list[list[Hit]]:
        """Find the `k` most similar memories for each query, see `MemoryBank.search`.

        Raises:
            IndexUnavailableError: If Chroma fails.
        """
        with self._lock:
            self._check_open()
            return self._overlay.search(query_vectors, k, among)

    def vectors(self, memory_ids: Sequence[str]) -> Vectors:
        """The unit vectors of some memories, see `ReadableBank.vectors`; an `IndexUnavailableError` if Chroma fails."""
        with self._lock:
            self._check_open()
            return self._overlay.vectors(memory_ids)

    def update(self, state: MemoryState, vectors: Mapping[str, Vectors], position: int) -> None:
        """Replace the state, see `MemoryBank.update`. A failure of Chroma is logged, not raised."""
        with self._lock:
            self._check_open()
            self._overlay.update(state, vectors, position)
            if self.pending >= self._flush_at:
                self._try_to_flush()

    def flush(self) -> bool:
        """Write what is pending to Chroma; returns whether that succeeded. A failure is logged."""
        with self._lock:
            return self._try_to_flush()

    def purge(self) -> None:
        """Make removed vectors unrecoverable: the collection is rewritten and the old files are erased.

        Takes as long as writing all vectors of this owner (about 0.1 s for 1,000). On a Chroma server only the collection
        is rewritten; what becomes of the files of the old one is the server's affair.

        Raises:
            IndexUnavailableError: If Chroma fails.
            DeltaMemError: If the files are in use by somebody else.
        """
        with self._lock:
            self._flush()
            self._erase(self._committed)

    def close(self) -> None:
        """Let go of the memories and their vectors; every later call fails."""
        with self._lock:
            self._closed = True
            self._base = SnapshotBank(self.owner, MemoryState(), np.zeros((0, 0), dtype=np.float32))
            self._overlay = OverlayBank(self._base)

    def _check_open(self) -> None:
        if self._closed:
            raise IndexUnavailableError("the bank is closed, or its owner was erased")

    def _try_to_flush(self) -> bool:
        try:
            self._flush()
        except IndexUnavailableError as error:
            self._flush_at = self.pending + self._flush_every
            logger.warning("%d changes of an index stay in memory for now: %s", self.pending, error)
            return False
        return True

    def _flush(self) -> None:
        changes = self._overlay.changes
        if changes.position == self._committed.position and not self.pending:
            return
        removed = [memory_id for memory_id in changes.hidden if memory_id not in changes.state]
        self._committed.write(changes.state, changes.position, changes.vectors, removed)
        if isinstance(self._base, SnapshotBank) and len(changes.state) <= self._exact_up_to:
            self._base.update(changes.state, changes.vectors, changes.position)
        else:
            self._base = self._committed
        self._overlay = OverlayBank(self._base)
        self._flush_at = self._flush_every


def _in_memory(committed: ChromaCollection) -> ReadableBank:
    state = committed.state
    vectors = committed.vectors(list(state)) if state else np.zeros((0, 0), dtype=np.float32)
    return SnapshotBank(committed.owner, state, vectors, committed.position)
