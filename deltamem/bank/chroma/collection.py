"""One owner's collection in a Chroma database: ids and vectors, and what they stand for. Never texts.

The metadata of a collection say which journal position it stands for, which embedder made the vectors, and two
fingerprints: of the ids and texts of the state, and of the ids and vectors that the collection holds. The position is
written last, so an interrupted write leaves the collection behind the journal, never ahead of what it holds. Before each
write the fingerprint of the vectors is announced beside the old one: after a crash one of them must be right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any

import chromadb
import numpy as np
from chromadb.api import ClientAPI
from chromadb.api.collection_configuration import CreateCollectionConfiguration, CreateHNSWConfiguration
from chromadb.config import Settings

from deltamem.bank.chroma.fingerprint import EMPTY, combine, fingerprint, of_texts
from deltamem.bank.overlay import ranked
from deltamem.bank.protocol import Hit
from deltamem.bank.snapshot import SnapshotBank
from deltamem.embedding import Vectors
from deltamem.errors import DeltaMemError
from deltamem.memory import MemoryState

POSITION = "position"
EMBEDDER = "embedder"
TEXTS = "texts"
EMBEDDINGS = "vectors"
BUILDING = -1
"""Position of a collection that is not complete yet."""

# Chosen by measurement, see `benchmarks/search.py`.
HNSW = CreateHNSWConfiguration(space="ip", max_neighbors=32, ef_construction=200, ef_search=200)
_SPARE = 16
"""Hits asked for beyond k: so many memories tied at the cut-off are still ordered as the state orders them."""
_BATCH = 1_000
"""Rows of one request; Chroma takes some thousands at most."""


class IndexUnavailableError(DeltaMemError):
    """Chroma did not do what it was asked; memories are safe in the journal."""


Use = Callable[[str], AbstractContextManager[chromadb.Collection]]
"""Gives a collection by name; what Chroma raises meanwhile becomes an `IndexUnavailableError`."""


def client_settings() -> Settings:
    """Settings of every client: no telemetry, and a file ``.env`` in the working directory is not for us."""
    return Settings(anonymized_telemetry=False, _env_file=None)  # type: ignore[call-arg]


def collection_name(owner: str, namespace: str = "") -> str:
    """The name of an owner's collection: Chroma restricts names, and a hash does not tell whose it is.

    Args:
        owner: Whose collection.
        namespace: Tells apart the owners of several stores that share one Chroma server.
    """
    return f"owner-{sha256(f'{namespace}/{owner}'.encode()).hexdigest()[:32]}"


def create_collection(client: ClientAPI, name: str, embedder_name: str) -> chromadb.Collection:
    """Make an empty collection that counts as incomplete."""
    return client.create_collection(
        name,
        metadata={POSITION: BUILDING, EMBEDDER: embedder_name},
        configuration=CreateCollectionConfiguration(hnsw=HNSW),
        embedding_function=None,
    )


def read_vectors(collection: chromadb.Collection, memory_ids: Sequence[str] | None = None) -> tuple[list[str], Vectors]:
    """Read vectors back, byte for byte as they were written.

    Args:
        collection: The collection.
        memory_ids: Which; by default all. Ids that it does not hold are left out.

    Returns:
        Ids and vectors, shape ``(ids, dim)``, in no particular order.
    """
    wanted = collection.get(include=[])["ids"] if memory_ids is None else memory_ids
    ids: list[str] = []
    parts: list[Vectors] = []
    for batch in batches(wanted):
        found = collection.get(ids=batch, include=["embeddings"])
        if found["ids"]:
            ids += found["ids"]
            parts.append(np.asarray(found["embeddings"], dtype=np.float32))
    return ids, np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)


def write_vectors(collection: chromadb.Collection, ids: Sequence[str], vectors: Vectors) -> None:
    """Write vectors, shape ``(ids, dim)``, in batches."""
    for rows in batches(range(len(ids))):
        collection.upsert(ids=[ids[row] for row in rows], embeddings=vectors[rows])


class CommittedBank:
    """The part of a bank that Chroma holds. Not safe for writing and searching at once; see `ChromaBank`."""

    def __init__(self, use: Use, owner: str, name: str, embedder_name: str) -> None:
        """Describe an owner's collection of a certain name that is empty and incomplete; `adopt` tells what it holds."""
        self.owner = owner
        self.name = name
        self.state = MemoryState()
        self.position = BUILDING
        self._use = use
        self._embedder_name = embedder_name
        self._texts: str | None = None
        self._embeddings: str | None = EMPTY
        self._unsettled = 0  # rows that a failed write may or may not have changed

    def inspect(self) -> tuple[Mapping[str, Any], int]:
        """The collection's metadata as they are in the database, and how many vectors it holds.

        Raises:
            IndexUnavailableError: If Chroma fails.
        """
        with self._use(self.name) as collection:
            return dict(collection.metadata or {}), collection.count()

    def held_ids(self) -> frozenset[str]:
        """The ids of the vectors that the collection holds; takes a second for 100,000.

        Raises:
            IndexUnavailableError: If Chroma fails.
        """
        with self._use(self.name) as collection:
            return frozenset(collection.get(include=[])["ids"])

    def adopt(self, state: MemoryState, position: int, metadata: Mapping[str, Any]) -> None:
        """Take over what a collection already holds, as its metadata tell.

        Args:
            state: The state; empty if the collection is behind and `write` follows.
            position: The journal position that it stands for.
            metadata: Of the collection.
        """
        self.state, self.position = state, position
        self._texts = str(metadata[TEXTS]) if state else None
        # Two fingerprints are left by a crash between announcement and completion.
        announced = str(metadata[EMBEDDINGS]).split()
        self._embeddings = announced[0] if len(announced) == 1 else None

    def search(self, query_vectors: Vectors, k: int) -> list[list[Hit]]:
        """Find the `k` most similar memories for each query, see `MemoryBank.search`; approximate.

        After a failed `write` rows that it was to change may be missing or changed; `ChromaBank` does not look at those.

        Raises:
            IndexUnavailableError: If Chroma fails.
        """
        wanted = min(len(self.state), k + _SPARE)
        if not wanted or not len(query_vectors):
            return [[] for _ in query_vectors]
        asked = wanted + self._unsettled
        try:
            with self._use(self.name) as collection:
                found = collection.query(query_embeddings=query_vectors, n_results=asked, include=["distances"])
        except IndexUnavailableError:
            # HNSW refuses when it cannot reach enough rows.
            return self._search_exactly(query_vectors, k)
        rankings = []
        for ids, distances in zip(found["ids"], found["distances"] or [], strict=True):
            hits = [Hit(self.state[i], 1.0 - d) for i, d in zip(ids, distances, strict=True) if i in self.state]
            if len(hits) < min(wanted, len(self.state) - self._unsettled):
                return self._search_exactly(query_vectors, k)
            rankings.append(ranked(hits, self.state)[:k])
        return rankings

    def vectors(self, memory_ids: Sequence[str]) -> Vectors:
        """The unit vectors of some memories, shape ``(len(memory_ids), dim)``.

        Raises:
            KeyError: If a memory is not in the bank.
        """
        with self._use(self.name) as collection:
            ids, vectors = read_vectors(collection, list(dict.fromkeys(memory_ids)))
        row = {memory_id: index for index, memory_id in enumerate(ids)}
        return vectors[[row[memory_id] for memory_id in memory_ids]]

    def fill(self, ids: Sequence[str], vectors: Vectors) -> None:
        """Add vectors to a collection that is being built; `write` without changes completes it.

        Args:
            ids: Memories that it does not hold yet.
            vectors: Shape ``(len(ids), dim)``.

        Raises:
            IndexUnavailableError: If Chroma fails.
        """
        with self._use(self.name) as collection:
            write_vectors(collection, ids, vectors)
        self._embeddings = combine(self._embeddings or EMPTY, fingerprint(zip(ids, vectors, strict=True)))

    def write(self, state: MemoryState, position: int, vectors: Mapping[str, Vectors], removed: Collection[str]) -> None:
        """Move the collection on.

        Args:
            state: The next state.
            position: The journal position that it stands for.
            vectors: Of all memories that are new or changed.
            removed: Ids that the collection may hold and the state does not.

        Raises:
            IndexUnavailableError: If Chroma fails; the same call may be made again.
        """
        with self._use(self.name) as collection:
            if self._embeddings is None:
                ids, rows = read_vectors(collection)
                self._embeddings = fingerprint(zip(ids, rows, strict=True))
            # Unknown, should one of the steps fail.
            known, self._embeddings, self._unsettled = self._embeddings, None, len(vectors) + len(removed)
            for gone in batches(list(removed)):
                known = self._announce(collection, known, gone, {})
                collection.delete(ids=gone)
            for batch in batches(list(vectors)):
                known = self._announce(collection, known, batch, vectors)
                collection.upsert(ids=batch, embeddings=np.stack([vectors[memory_id] for memory_id in batch]))
            texts = self._texts_after(state, vectors, removed)
            collection.modify(metadata=self._metadata(position, texts, known))
        self.state, self.position = state, position
        self._texts, self._embeddings, self._unsettled = texts, known, 0

    def metadata(self) -> dict[str, str | int]:
        """The metadata of the collection as it stands."""
        return self._metadata(self.position, self._texts or "", self._embeddings or "")

    def _metadata(self, position: int, texts: str, embeddings: str) -> dict[str, str | int]:
        return {POSITION: position, EMBEDDER: self._embedder_name, TEXTS: texts, EMBEDDINGS: embeddings}

    def _announce(
        self, collection: chromadb.Collection, known: str, touched: Sequence[str], vectors: Mapping[str, Vectors]
    ) -> str:
        """Write down the fingerprint that the vectors will have, beside the one they have; returns the next one."""
        ids, rows = read_vectors(collection, touched)
        before = fingerprint(zip(ids, rows, strict=True))
        after = fingerprint((memory_id, vectors[memory_id]) for memory_id in touched if memory_id in vectors)
        following = combine(known, before, after)
        collection.modify(metadata=self._metadata(self.position, self._texts or "", f"{known} {following}"))
        return following

    def _texts_after(self, state: MemoryState, changed: Iterable[str], removed: Iterable[str]) -> str:
        if self._texts is None:
            return of_texts(state.memories)
        changed = list(changed)
        before = (self.state[memory_id] for memory_id in {*changed, *removed} if memory_id in self.state)
        return combine(self._texts, of_texts(before), of_texts(state[memory_id] for memory_id in changed))

    def _search_exactly(self, query_vectors: Vectors, k: int) -> list[list[Hit]]:
        with self._use(self.name) as collection:
            ids, vectors = read_vectors(collection)
        row = {memory_id: index for index, memory_id in enumerate(ids)}
        held = MemoryState(memory for memory in self.state.memories if memory.id in row)
        return SnapshotBank(self.owner, held, vectors[[row[memory_id] for memory_id in held]]).search(query_vectors, k)


def batches(items: Sequence[Any], size: int = _BATCH) -> Iterable[list[Any]]:
    """Cut a sequence into lists of at most `size`."""
    return (list(items[start : start + size]) for start in range(0, len(items), size))
