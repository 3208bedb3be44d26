"""Exact search over an immutable memory state: the bank of rollouts and evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deltamem.embedding import Embedder, Vectors
from deltamem.memory import Memory, MemoryState


class SnapshotBank:
    """An owner's memory state with the embeddings of its texts.

    Nothing is written, so any number of rollouts may share one instance.
    """

    def __init__(self, owner: str, state: MemoryState, vectors: Vectors) -> None:
        """Bind a state to its embeddings.

        Args:
            owner: Whose memories these are.
            state: The memories.
            vectors: Unit vectors, shape ``(len(state), dim)``, row i for the i-th memory.

        Raises:
            ValueError: If the number of rows differs from the number of memories.
        """
        if len(vectors) != len(state):
            raise ValueError(f"{len(vectors)} vectors for {len(state)} memories")
        self.owner = owner
        self.state = state
        self._memories = state.memories
        self._vectors = vectors

    @classmethod
    def build(cls, owner: str, state: MemoryState, embedder: Embedder) -> SnapshotBank:
        """Embed the texts of a state and build the bank over it."""
        return cls(owner, state, embedder.documents([memory.text for memory in state.memories]))

    def search(self, query_vectors: Vectors, k: int) -> list[Memory]:
        """Return the `k` most similar memories for each query, duplicates merged.

        Args:
            query_vectors: Unit vectors, shape ``(queries, dim)``.
            k: How many memories a query returns at most.

        Returns:
            Memories in the order of the queries and, within a query, of falling cosine similarity; a memory that an
            earlier query returned is not repeated. Equal similarities keep the order of the state.
        """
        if not len(self._memories) or not len(query_vectors):
            return []
        similarity = query_vectors @ self._vectors.T
        ranked = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        found = dict.fromkeys(int(index) for row in ranked for index in row)
        return [self._memories[index] for index in found]

    def search_texts(self, queries: Sequence[str], k: int, embedder: Embedder) -> list[Memory]:
        """Embed the queries and `search`."""
        return self.search(embedder.queries(queries), k)
