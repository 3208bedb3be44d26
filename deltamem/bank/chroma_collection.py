"""One owner's collection in Chroma: made, filled, searched, and brought in step with the journal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any, Protocol

import chromadb
import numpy as np
from chromadb.api import ClientAPI
from chromadb.api.collection_configuration import CreateCollectionConfiguration, CreateHNSWConfiguration

from deltamem.bank.base import Hit, SnapshotBank, ranked
from deltamem.bank.chroma_check import BUILDING, POSITION, batches, read_vectors
from deltamem.embedding import Vectors
from deltamem.errors import StorageError
from deltamem.memory import MemoryState

EMBEDDER = "embedder"
TEXTS = "texts"
"""Digest of the memory texts that the vectors stand for; empty while a write is under way."""

# Chosen by measurement, see `benchmarks/search.py`.
HNSW = CreateHNSWConfiguration(space="ip", max_neighbors=32, ef_construction=200, ef_search=200)
_SPARE = 16
"""Hits asked for beyond k: so many memories tied at the cut-off are still ordered as the state orders them."""
_FEW = 1_000
"""So many memories, chosen by their ids, are read and compared one by one; HNSW may miss them among many others."""
_EMBED_BATCH = 512


class IndexUnavailableError(StorageError):
    """Chroma did not do what it was asked; memories are safe in the journal."""


class Use(Protocol):
    """Gives a collection by name; what Chroma raises meanwhile becomes an `IndexUnavailableError`."""

    def __call__(self, name: str, *, writing: bool = False) -> AbstractContextManager[chromadb.Collection]:
        """See `deltamem.bank.chroma_index.ChromaIndex.use`."""
        ...


def collection_name(owner: str, namespace: str = "") -> str:
    """The name of an owner's collection: Chroma restricts names, and a hash does not reveal the owner.

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


def texts_digest(state: MemoryState) -> str:
    """Digest of the ids and texts of a state, in its order."""
    listed = "\0".join(f"{memory.id}\0{memory.text}" for memory in state.values())
    return blake2b(listed.encode(), digest_size=16).hexdigest()


def write_vectors(collection: chromadb.Collection, ids: Sequence[str], vectors: Vectors) -> None:
    """Write vectors, shape ``(ids, dim)``, in batches."""
    for rows in batches(range(len(ids))):
        collection.upsert(ids=[ids[row] for row in rows], embeddings=vectors[rows])


class ChromaCollection:
    """The part of a bank that Chroma holds; its methods raise `IndexUnavailableError` if Chroma fails.

    Not safe for writing and searching at once; see `ChromaBank`.
    """

    def __init__(self, use: Use, owner: str, name: str, embedder_name: str) -> None:
        """Describe an owner's collection that is empty and incomplete; `catch_up` and `build` bring it up to date."""
        self.owner = owner
        self.name = name
        self.embedder_name = embedder_name
        self.state = MemoryState()
        self.position = BUILDING
        self._use = use
        self._uncertain = 0  # rows that a failed write may or may not have changed

    def inspect(self) -> tuple[Mapping[str, Any], int]:
        """The collection's metadata as they are in the database, and how many vectors it holds."""
        with self._use(self.name) as collection:
            return dict(collection.metadata or {}), collection.count()

    def held_ids(self) -> frozenset[str]:
        """The ids of the vectors that the collection holds; takes a second for 100,000."""
        with self._use(self.name) as collection:
            return frozenset(collection.get(include=[])["ids"])

    def search(self, query_vectors: Vectors, k: int, among: Set[str] | None = None) -> list[list[Hit]]:
        """Find the `k` most similar memories for each query, see `MemoryBank.search`; approximate.

        After a failed `write` rows that it was to change may be missing or changed; `ChromaBank` does not look at those.
        """
        chosen = None if among is None else [memory_id for memory_id in self.state if memory_id in among]
        size = len(self.state if chosen is None else chosen)
        wanted = min(size, k + _SPARE)
        if not wanted or not len(query_vectors):
            return [[] for _ in query_vectors]
        if chosen is not None and size <= _FEW:
            return self._search_exactly(query_vectors, k, chosen)
        asked = wanted + self._uncertain
        try:
            with self._use(self.name) as collection:
                found = collection.query(query_embeddings=query_vectors, n_results=asked, ids=chosen, include=["distances"])
        except IndexUnavailableError:
            # HNSW refuses when it cannot reach enough rows.
            return self._search_exactly(query_vectors, k, chosen)
        rankings = []
        for ids, distances in zip(found["ids"], found["distances"] or [], strict=True):
            hits = [Hit(self.state[i], 1.0 - d) for i, d in zip(ids, distances, strict=True) if i in self.state]
            if len(hits) < min(wanted, size - self._uncertain):
                return self._search_exactly(query_vectors, k, chosen)
            rankings.append(ranked(hits, self.state)[:k])
        return rankings

    def vectors(self, memory_ids: Sequence[str]) -> Vectors:
        """The unit vectors of some memories, see `ReadableBank.vectors`."""
        with self._use(self.name) as collection:
            ids, vectors = read_vectors(collection, list(dict.fromkeys(memory_ids)))
        row = {memory_id: index for index, memory_id in enumerate(ids)}
        return vectors[[row[memory_id] for memory_id in memory_ids]]

    def fill(self, ids: Sequence[str], vectors: Vectors) -> None:
        """Add vectors, shape ``(len(ids), dim)``, to a collection that is being built; `write` completes it."""
        with self._use(self.name, writing=True) as collection:
            write_vectors(collection, ids, vectors)

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
        with self._use(self.name, writing=True) as collection:
            if self._uncertain:
                # A row of the failed write may belong to a memory that was removed since.
                removed = frozenset(collection.get(include=[])["ids"]) - state.keys()
            if vectors or removed:
                self._uncertain += len(vectors) + len(removed)
                # Marked first: whoever finds it like this writes again what the journal changed since the old position.
                collection.modify(metadata=self._metadata(self.position, ""))
                for gone in batches(list(removed)):
                    collection.delete(ids=gone)
                if vectors:
                    write_vectors(collection, list(vectors), np.stack(list(vectors.values())))
            collection.modify(metadata=self._metadata(position, texts_digest(state)))
        self.state, self.position, self._uncertain = state, position, 0

    def metadata(self) -> dict[str, str | int]:
        """The metadata of the complete collection."""
        return self._metadata(self.position, texts_digest(self.state))

    def _metadata(self, position: int, texts: str) -> dict[str, str | int]:
        return {POSITION: position, EMBEDDER: self.embedder_name, TEXTS: texts}

    def _search_exactly(self, query_vectors: Vectors, k: int, chosen: Sequence[str] | None) -> list[list[Hit]]:
        with self._use(self.name) as collection:
            ids, vectors = read_vectors(collection, chosen)
        row = {memory_id: index for index, memory_id in enumerate(ids)}
        held = MemoryState(memory for memory in self.state.memories if memory.id in row)
        return SnapshotBank(self.owner, held, vectors[[row[memory_id] for memory_id in held]]).search(query_vectors, k)


Embed = Callable[[Sequence[str]], Vectors]
Progress = Callable[[int, int], None]
"""Called with the memories embedded so far, and all that have to be."""


@dataclass(frozen=True, slots=True)
class Target:
    """The state that a collection must reach; see `ChromaIndex.bank`."""

    state: MemoryState
    position: int
    changed_since: Callable[[int], Collection[str]]
    embed: Embed
    embedder_name: str
    progress: Progress | None


def catch_up(committed: ChromaCollection, target: Target) -> frozenset[str] | None:
    """Bring an existing collection in step; the ids whose vectors were removed from it, or None if it cannot be used."""
    metadata, count = committed.inspect()
    stored = metadata.get(POSITION)
    if not isinstance(stored, int) or not 0 <= stored <= target.position:
        return None
    if metadata.get(EMBEDDER) != target.embedder_name:
        return None
    if stored == target.position:
        if count != len(target.state) or metadata.get(TEXTS) != texts_digest(target.state):
            return None
        committed.state, committed.position = target.state, stored
        return frozenset()
    held = committed.held_ids()
    changed = frozenset(target.changed_since(stored))
    removed = held - target.state.keys()
    if not target.state.keys() - changed <= held or not removed <= changed:
        return None
    committed.position = stored
    vectors: dict[str, Vectors] = {}
    for ids, rows in _embedded(target, [memory_id for memory_id in target.state if memory_id in changed]):
        vectors.update(zip(ids, rows, strict=True))
    committed.write(target.state, target.position, vectors, removed)
    return removed


def build(committed: ChromaCollection, target: Target) -> None:
    """Fill an empty collection; until the end it counts as incomplete."""
    for ids, rows in _embedded(target, list(target.state)):
        committed.fill(ids, rows)
    committed.write(target.state, target.position, {}, ())


def _embedded(target: Target, memory_ids: Sequence[str]) -> Iterator[tuple[list[str], Vectors]]:
    """Embed memories batch by batch and report progress."""
    done = 0
    for batch in batches(memory_ids, _EMBED_BATCH):
        if target.progress is not None:
            target.progress(done, len(memory_ids))
        vectors = target.embed([target.state[memory_id].text for memory_id in batch])
        yield batch, np.asarray(vectors, dtype=np.float32)
        done += len(batch)
    if target.progress is not None and memory_ids:
        target.progress(done, len(memory_ids))
