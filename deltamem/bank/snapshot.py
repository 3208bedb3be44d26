"""Exact search over a memory state in memory: the bank of rollouts, evaluation and stores without files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deltamem.bank.protocol import Hit, fresh_vectors
from deltamem.embedding import Embedder, Vectors
from deltamem.memory import Memory, MemoryState

_SORT_WHOLE = 2_048
"""Up to this many memories sorting them all is faster than selecting the best first."""


class _View(NamedTuple):
    """What a search reads: replaced as a whole, so a search in another thread sees the old or the new one."""

    state: MemoryState
    memories: tuple[Memory, ...]
    vectors: Vectors
    position: int


class SnapshotBank:
    """An owner's memory state with the vectors of its texts.

    `update` makes new arrays and never writes into the old ones, so any number of rollouts may share one instance, and
    forks share their arrays until one of them is updated.
    """

    def __init__(self, owner: str, state: MemoryState, vectors: Vectors, position: int = 0) -> None:
        """Bind a state to its vectors.

        Args:
            owner: Whose memories these are.
            state: The memories.
            vectors: Unit vectors, shape ``(len(state), dim)``, row i for the i-th memory.
            position: The journal position that the state stands for.

        Raises:
            ValueError: If the number of rows differs from the number of memories.
        """
        if len(vectors) != len(state):
            raise ValueError(f"{len(vectors)} vectors for {len(state)} memories")
        self.owner = owner
        self._view = _View(state, state.memories, vectors, position)

    @classmethod
    def build(cls, owner: str, state: MemoryState, embedder: Embedder) -> SnapshotBank:
        """Embed the texts of a state and build the bank over it."""
        return cls(owner, state, embedder.documents([memory.text for memory in state.memories]))

    @property
    def state(self) -> MemoryState:
        """The memories."""
        return self._view.state

    @property
    def position(self) -> int:
        """The journal position that the state stands for."""
        return self._view.position

    def fork(self) -> SnapshotBank:
        """A bank of its own over the same arrays; updating one does not show in the other."""
        return SnapshotBank(self.owner, self._view.state, self._view.vectors, self._view.position)

    def search(self, query_vectors: Vectors, k: int) -> list[list[Hit]]:
        """Find the `k` most similar memories for each query, see `MemoryBank.search`. Exact."""
        _, memories, vectors, _ = self._view
        if not memories or not len(query_vectors):
            return [[] for _ in query_vectors]
        similarity = query_vectors @ vectors.T
        return [[Hit(memories[row], float(values[row])) for row in best_rows(values, k)] for values in similarity]

    def vectors(self, memory_ids: Sequence[str]) -> Vectors:
        """The unit vectors of some memories, shape ``(len(memory_ids), dim)``."""
        view = self._view
        row = {memory_id: index for index, memory_id in enumerate(view.state)}
        return view.vectors[[row[memory_id] for memory_id in memory_ids]]

    def update(self, state: MemoryState, vectors: Mapping[str, Vectors], position: int) -> None:
        """Replace the state, see `MemoryBank.update`.

        Raises:
            ValueError: If a vector is missing or has the wrong shape; the bank is unchanged.
        """
        old = self._view
        fresh = fresh_vectors(old.state, state, vectors, old.vectors.shape[1] if old.memories else 0)
        row = {memory_id: index for index, memory_id in enumerate(old.state)}
        dim = next(iter(fresh.values())).size if fresh else old.vectors.shape[1]
        matrix = np.empty((len(state), dim), dtype=np.float32)
        kept = [(index, row[memory_id]) for index, memory_id in enumerate(state) if memory_id not in fresh]
        if kept:
            targets, sources = zip(*kept, strict=True)
            matrix[list(targets)] = old.vectors[list(sources)]
        for index, memory_id in enumerate(state):
            if memory_id in fresh:
                matrix[index] = fresh[memory_id]
        self._view = _View(state, state.memories, matrix, position)

    def purge(self) -> None:
        """Nothing to do: an update leaves no vector behind."""


def best_rows(similarity: Vectors, k: int) -> npt.NDArray[np.intp]:
    """Rows of the `k` largest values, falling; equal values keep their order.

    Args:
        similarity: Shape ``(rows,)``.
        k: How many rows at most.
    """
    rows = len(similarity)
    if rows <= _SORT_WHOLE or not 0 < k < rows:
        return np.argsort(-similarity, kind="stable")[:k]
    least = np.partition(similarity, rows - k)[rows - k]
    candidates = np.flatnonzero(similarity >= least)
    return candidates[np.argsort(-similarity[candidates], kind="stable")[:k]]
