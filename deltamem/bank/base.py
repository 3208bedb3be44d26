"""The interface of memory banks, exact search over a snapshot, and an overlay of changes on another bank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from deltamem.embedding import Vectors
from deltamem.memory import Memory, MemoryState


class Hit(NamedTuple):
    """A memory that a search returned."""

    memory: Memory
    similarity: float  # Cosine similarity to the query, in [-1, 1]


class ReadableBank(Protocol):
    """What searching one owner's memories needs."""

    @property
    def owner(self) -> str:
        """Whose memories these are."""
        ...

    @property
    def position(self) -> int:
        """The journal position that the state stands for; 0 for a state that no journal describes."""
        ...

    @property
    def state(self) -> MemoryState:
        """The memories."""
        ...

    def search(self, query_vectors: Vectors, k: int, among: Set[str] | None = None) -> list[list[Hit]]:
        """Find the `k` most similar memories for each of the unit vectors, shape ``(queries, dim)``.

        Only memories whose ids are `among` these are found; None for all. Returns one list a query, by falling similarity;
        equal similarities keep the order of the state.
        """
        ...

    def vectors(self, memory_ids: Sequence[str]) -> Vectors:
        """The unit vectors of some memories, shape ``(len(memory_ids), dim)``.

        Raises:
            KeyError: If a memory is not in the bank.
        """
        ...


@runtime_checkable
class MemoryBank(ReadableBank, Protocol):
    """Holds and searches one owner's memory state. There is no bank without an owner."""

    def update(self, state: MemoryState, vectors: Mapping[str, Vectors], position: int) -> None:
        """Replace the state by that of a journal position.

        `vectors` are by id the unit vectors, shape ``(dim,)``, of all memories that are new or whose text has changed.

        Raises:
            ValueError: If a vector is missing or has the wrong shape; the bank is unchanged.
        """
        ...

    def purge(self) -> None:
        """Make the vectors of removed memories and former texts unrecoverable, in memory and on disk."""
        ...


def merge_hits(rankings: Iterable[Sequence[Hit]]) -> list[Memory]:
    """Join the results of several queries as `search_memory` shows them: one after the other, each memory once."""
    return list(dict.fromkeys(hit.memory for ranking in rankings for hit in ranking))


def stale_ids(before: MemoryState, after: MemoryState) -> list[str]:
    """Ids whose vector has to be computed when `after` replaces `before`: new memories and changed texts."""
    return [
        memory_id
        for memory_id, memory in after.items()
        # Most memories are the same object before and after.
        if (old := before.get(memory_id)) is not memory and (old is None or old.text != memory.text)
    ]


def fresh_vectors(before: MemoryState, after: MemoryState, vectors: Mapping[str, Vectors], dim: int) -> dict[str, Vectors]:
    """The vectors of the `stale_ids` of an update; `dim` is the length of those that the bank holds, 0 if it holds none.

    Raises:
        ValueError: If a vector is missing, or is not of shape ``(dim,)``.
    """
    fresh: dict[str, Vectors] = {}
    for memory_id in stale_ids(before, after):
        if memory_id not in vectors:
            raise ValueError(f"memory {memory_id!r} is new or changed but has no vector")
        vector = np.asarray(vectors[memory_id], dtype=np.float32)
        dim = dim or vector.size
        if vector.shape != (dim,):
            raise ValueError(f"the vector of memory {memory_id!r} has shape {vector.shape}, expected ({dim},)")
        fresh[memory_id] = vector
    return fresh


_SORT_WHOLE = 2_048  # Up to this many memories sorting them all is faster than selecting the best first


class _View(NamedTuple):
    """What a search reads: replaced as a whole, so a search in another thread sees the old or the new one."""

    state: MemoryState
    memories: tuple[Memory, ...]
    vectors: Vectors
    position: int


class SnapshotBank:
    """An owner's memory state with the vectors of its texts.

    `update` makes new arrays and never writes into the old ones, so any number of rollouts may share one instance.
    """

    def __init__(self, owner: str, state: MemoryState, vectors: Vectors, position: int = 0) -> None:
        """Bind an owner's state to its unit vectors, shape ``(len(state), dim)``, row i for the i-th memory.

        Raises:
            ValueError: If the number of rows differs from the number of memories.
        """
        if len(vectors) != len(state):
            raise ValueError(f"{len(vectors)} vectors for {len(state)} memories")
        self.owner = owner
        self._view = _View(state, state.memories, vectors, position)

    @property
    def state(self) -> MemoryState:
        """The memories."""
        return self._view.state

    @property
    def position(self) -> int:
        """The journal position that the state stands for."""
        return self._view.position

    def search(self, query_vectors: Vectors, k: int, among: Set[str] | None = None) -> list[list[Hit]]:
        """Find the `k` most similar memories for each query, see `MemoryBank.search`. Exact."""
        _, memories, vectors, _ = self._view
        if among is not None:
            chosen = [row for row, memory in enumerate(memories) if memory.id in among]
            memories, vectors = tuple(memories[row] for row in chosen), vectors[chosen]
        if not memories or not len(query_vectors):
            return [[] for _ in query_vectors]
        similarity = query_vectors @ vectors.T
        return [[Hit(memories[row], float(values[row])) for row in best_rows(values, k)] for values in similarity]

    def vectors(self, memory_ids: Sequence[str]) -> Vectors:
        """The unit vectors of some memories, see `ReadableBank.vectors`."""
        view = self._view
        row = {memory_id: index for index, memory_id in enumerate(view.state)}
        return view.vectors[[row[memory_id] for memory_id in memory_ids]]

    def update(self, state: MemoryState, vectors: Mapping[str, Vectors], position: int) -> None:
        """Replace the state, see `MemoryBank.update`."""
        old = self._view
        fresh = fresh_vectors(old.state, state, vectors, old.vectors.shape[1] if old.memories else 0)
        row = {memory_id: index for index, memory_id in enumerate(old.state)}
        dim = next(iter(fresh.values())).size if fresh else old.vectors.shape[1]
        matrix = np.empty((len(state), dim), dtype=np.float32)
        kept = np.array([memory_id not in fresh for memory_id in state], dtype=bool)
        if kept.any():
            matrix[kept] = old.vectors[[row[memory_id] for memory_id in state if memory_id not in fresh]]
        if fresh:
            matrix[~kept] = np.stack([fresh[memory_id] for memory_id in state if memory_id in fresh])
        self._view = _View(state, state.memories, matrix, position)

    def purge(self) -> None:
        """Nothing to do: an update leaves no vector behind."""


def best_rows(similarity: Vectors, k: int) -> npt.NDArray[np.intp]:
    """Rows of the `k` largest values of shape ``(rows,)``, falling; equal values keep their order."""
    rows = len(similarity)
    if rows <= _SORT_WHOLE or not 0 < k < rows:
        return np.argsort(-similarity, kind="stable")[:k]
    least = np.partition(similarity, rows - k)[rows - k]
    candidates = np.flatnonzero(similarity >= least)
    return candidates[np.argsort(-similarity[candidates], kind="stable")[:k]]


_ROUNDING = 1e-6  # Two computations of one cosine of float32 vectors differ by less


class Changes(NamedTuple):
    """The changes of an overlay, with the state that they lead to and its journal position."""

    state: MemoryState
    position: int
    hidden: frozenset[str]  # Ids of the base whose vectors no longer count: removed or rewritten memories
    vectors: Mapping[str, Vectors]  # Of memories that the base lacks, or has with another text
    matrix: Vectors  # The same vectors, shape ``(len(vectors), dim)``


class OverlayBank:
    """A view of a bank with changes of its own; the base is only read, so many overlays may share it.

    The base must not change while overlays lie over it. Memories that both have in common must stand in the same order in
    both states, which holds for states ordered by the number of their ids.
    """

    def __init__(self, base: ReadableBank) -> None:
        """Begin with the state of `base`."""
        self.owner = base.owner
        self._base = base
        self._changes = Changes(base.state, base.position, frozenset(), {}, np.zeros((0, 0), dtype=np.float32))

    @property
    def state(self) -> MemoryState:
        """The memories."""
        return self._changes.state

    @property
    def position(self) -> int:
        """The journal position that the state stands for."""
        return self._changes.position

    @property
    def changes(self) -> Changes:
        """What lies over the base; immutable."""
        return self._changes

    def search(self, query_vectors: Vectors, k: int, among: Set[str] | None = None) -> list[list[Hit]]:
        """Find the `k` most similar memories for each query, see `MemoryBank.search`. As exact as the base."""
        state, _, hidden, vectors, matrix = self._changes
        below = self._base.search(query_vectors, k + len(hidden), among)
        ids = list(vectors)
        if among is not None:
            rows = [row for row, memory_id in enumerate(ids) if memory_id in among]
            ids, matrix = [ids[row] for row in rows], matrix[rows]
        rankings = []
        for query, found in zip(query_vectors, below, strict=True):
            # The memory comes from the overlay's state: its time may have changed although its text has not.
            hits = [Hit(state[hit.memory.id], hit.similarity) for hit in found if hit.memory.id not in hidden]
            if ids:
                similarity = matrix @ query
                hits += [Hit(state[ids[row]], float(similarity[row])) for row in best_rows(similarity, k)]
            rankings.append(ranked(hits, state)[:k])
        return rankings

    def vectors(self, memory_ids: Sequence[str]) -> Vectors:
        """The unit vectors of some memories, see `ReadableBank.vectors`."""
        state, own = self._changes.state, self._changes.vectors
        for memory_id in memory_ids:
            if memory_id not in state:
                raise KeyError(memory_id)
        below = [memory_id for memory_id in memory_ids if memory_id not in own]
        rows = dict(zip(below, self._base.vectors(below), strict=True)) if below else {}
        found = [own[memory_id] if memory_id in own else rows[memory_id] for memory_id in memory_ids]
        return np.stack(found) if found else self._base.vectors([])

    def update(self, state: MemoryState, vectors: Mapping[str, Vectors], position: int) -> None:
        """Replace the state, see `MemoryBank.update`."""
        old = self._changes
        fresh = fresh_vectors(old.state, state, vectors, old.matrix.shape[1])
        own = {memory_id: vector for memory_id, vector in old.vectors.items() if memory_id in state} | fresh
        gone = (old.state.keys() - state.keys()) | fresh.keys()
        hidden = old.hidden | {memory_id for memory_id in gone if memory_id in self._base.state}
        # In the order of the state, so that equal similarities are cut off in that order too.
        own = {memory_id: own[memory_id] for memory_id in state if memory_id in own}
        matrix = np.stack(list(own.values())) if own else old.matrix[:0]
        self._changes = Changes(state, position, frozenset(hidden), own, matrix)

    def purge(self) -> None:
        """Nothing to do: the overlay keeps no former vector, and the base is not its to change."""


def ranked(hits: Iterable[Hit], state: MemoryState) -> list[Hit]:
    """Sort hits by falling similarity, equal ones in the order of the state.

    The hits come from different sums over the same numbers, so "equal" means: no further than rounding from the one before.
    """
    falling = sorted(hits, key=lambda hit: -hit.similarity)
    gaps = [one.similarity - following.similarity > _ROUNDING for one, following in pairwise(falling)]
    if all(gaps):
        return falling
    groups = zip(accumulate(gaps, initial=0), falling, strict=True)
    return [hit for _, hit in sorted(groups, key=lambda pair: (pair[0], state.place(pair[1].memory.id)))]
