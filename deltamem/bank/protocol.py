"""What every memory bank offers: one owner's state, searched by vector and replaced as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

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


@runtime_checkable
class MemoryBank(Protocol):
    """Where one owner's memory state lives and is searched. There is no bank without an owner.

    Attributes:
        owner: Whose memories these are.
        position: The journal position that the state stands for; 0 for a state that no journal describes.
    """

    owner: str
    position: int

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
        """The unit vectors of some memories, shape ``(len(memory_ids), dim)``."""
        ...

    def update(self, state: MemoryState, vectors: Mapping[str, Vectors], position: int) -> None:
        """Replace the state.

        Args:
            state: The next state.
            vectors: The unit vector, shape ``(dim,)``, of every memory that is new or whose text has changed, by id.
            position: The journal position that the next state stands for.

        Raises:
            ValueError: If a vector is missing; the bank is unchanged.
        """
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
        if memory_id not in before or before[memory_id].text != memory.text
    ]
