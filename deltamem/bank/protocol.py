"""What every memory bank offers: one owner's state, searched by vector and replaced as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from deltamem.embedding import Vectors
from deltamem.memory import Memory, MemoryState


class Hit(NamedTuple):
    """A memory that a search returned.

    Attributes:
        memory: The memory as it stands now.
        similarity: Cosine similarity to the query, in [-1, 1].
    """

    memory: Memory
    similarity: float


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

    def search(self, query_vectors: Vectors, k: int) -> list[list[Hit]]:
        """Find the `k` most similar memories for each query.

        Args:
            query_vectors: Unit vectors, shape ``(queries, dim)``.
            k: How many memories a query returns at most.

        Returns:
            One list a query, by falling similarity; equal similarities keep the order of the state.
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
    """Where one owner's memory state lives and is searched. There is no bank without an owner."""

    def update(self, state: MemoryState, vectors: Mapping[str, Vectors], position: int) -> None:
        """Replace the state.

        Args:
            state: The next state.
            vectors: The unit vector, shape ``(dim,)``, of every memory that is new or whose text has changed, by id.
            position: The journal position that the next state stands for.

        Raises:
            ValueError: If a vector is missing or has the wrong shape; the bank is unchanged.
        """
        ...

    def purge(self) -> None:
        """Make the vectors of removed memories and former texts unrecoverable, in memory and on disk."""
        ...


def merge_hits(rankings: Iterable[Sequence[Hit]]) -> list[Memory]:
    """Join the results of several queries as `search_memory` shows them.

    Returns:
        Memories in the order of the queries and, within a query, of its ranking; a memory that an earlier query returned is
        not repeated.
    """
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
    """The vectors of the `stale_ids` of an update.

    Args:
        before: The state that is replaced.
        after: The next state.
        vectors: Vectors by memory id; more than needed does no harm.
        dim: Length of the vectors that the bank holds; 0 if it holds none.

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
