"""Changes laid over another bank, in memory and exact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from deltamem.bank.protocol import Hit, ReadableBank, fresh_vectors
from deltamem.bank.snapshot import best_rows
from deltamem.embedding import Vectors
from deltamem.memory import MemoryState

_ROUNDING = 1e-6
"""Two computations of one cosine of float32 vectors differ by less."""


class Changes(NamedTuple):
    """What lies over the base.

    Attributes:
        state: The state as it stands.
        position: The journal position that it stands for.
        hidden: Ids of the base whose vectors no longer count: removed or rewritten memories.
        vectors: The vectors of memories that are not, or not like this, in the base.
        matrix: The same vectors, shape ``(len(vectors), dim)``.
    """

    state: MemoryState
    position: int
    hidden: frozenset[str]
    vectors: Mapping[str, Vectors]
    matrix: Vectors


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

    def search(self, query_vectors: Vectors, k: int) -> list[list[Hit]]:
        """Find the `k` most similar memories for each query, see `MemoryBank.search`. As exact as the base."""
        state, _, hidden, vectors, matrix = self._changes
        below = self._base.search(query_vectors, k + len(hidden))
        ids = list(vectors)
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
        """The unit vectors of some memories, shape ``(len(memory_ids), dim)``.

        Raises:
            KeyError: If a memory is not in the bank.
        """
        state, own = self._changes.state, self._changes.vectors
        for memory_id in memory_ids:
            if memory_id not in state:
                raise KeyError(memory_id)
        below = [memory_id for memory_id in memory_ids if memory_id not in own]
        rows = dict(zip(below, self._base.vectors(below), strict=True)) if below else {}
        found = [own[memory_id] if memory_id in own else rows[memory_id] for memory_id in memory_ids]
        return np.stack(found) if found else self._base.vectors([])

    def update(self, state: MemoryState, vectors: Mapping[str, Vectors], position: int) -> None:
        """Replace the state, see `MemoryBank.update`.

        Raises:
            ValueError: If a vector is missing or has the wrong shape; the bank is unchanged.
        """
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
    if all(one.similarity - next_one.similarity > _ROUNDING for one, next_one in pairwise(falling)):
        return falling
    result: list[Hit] = []
    tied: list[Hit] = []
    for hit in falling:
        if tied and tied[-1].similarity - hit.similarity > _ROUNDING:
            result += sorted(tied, key=lambda one: state.place(one.memory.id))
            tied = []
        tied.append(hit)
    return result + sorted(tied, key=lambda one: state.place(one.memory.id))
