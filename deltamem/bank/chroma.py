"""The Chroma index: one collection an owner, derived from the journal and repaired from it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import chromadb
import numpy as np
from chromadb.api import ClientAPI
from chromadb.api.client import Client
from chromadb.api.collection_configuration import CreateCollectionConfiguration, CreateHNSWConfiguration
from chromadb.errors import NotFoundError

from deltamem.bank import chroma_check
from deltamem.bank.base import Hit, OverlayBank, ReadableBank, SnapshotBank, ranked
from deltamem.bank.chroma_check import BUILDING, POSITION, batches, client_settings, read_vectors
from deltamem.embedding import Vectors
from deltamem.errors import DeltaMemError, StorageError
from deltamem.memory import MemoryState

logger = logging.getLogger(__name__)

EMBEDDER = "embedder"
TEXTS = "texts"
"""Digest of the memory texts that the vectors stand for; empty while a write is under way."""

# Chosen by measurement, see `benchmarks/search.py`.
HNSW = CreateHNSWConfiguration(space="ip", max_neighbors=32, ef_construction=200, ef_search=200)
_SPARE = 16
"""Hits asked for beyond k: so many memories tied at the cut-off are still ordered as the state orders them."""
_FEW = 1_000
"""So many memories, chosen by their ids, are read and compared one by one; HNSW may miss them among many others."""
FLUSH_EVERY = 128
EXACT_UP_TO = 5_000
"""Memories, whose vectors of 384 numbers take 7.5 MB. Beyond, Chroma is as fast, and reading them would delay opening."""
_NEXT = "-next"
"""Ending of the name of a collection that will replace another."""
_EMBED_BATCH = 512


class IndexUnavailableError(StorageError):
    """Chroma did not do what it was asked; memories are safe in the journal."""


Use = Callable[[str], AbstractContextManager[chromadb.Collection]]
"""Gives a collection by name; what Chroma raises meanwhile becomes an `IndexUnavailableError`."""


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
        with self._use(self.name) as collection:
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
        with self._use(self.name) as collection:
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


class SharedLock:
    """Any number of threads share it, or one has it alone; who waits to be alone goes before new sharers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharers: Counter[int] = Counter()
        self._alone = False
        self._waiting = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Share it; a thread that does may share it again."""
        thread = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: thread in self._sharers or not (self._alone or self._waiting))
            self._sharers[thread] += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharers[thread] -= 1
                if not self._sharers[thread]:
                    del self._sharers[thread]
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have it alone; not for a thread that shares it."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not (self._alone or self._sharers))
                self._alone = True
            finally:  # an interrupted wait must not keep the others waiting
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


class IndexStatus(NamedTuple):
    """What the index holds of one owner."""

    position: int
    """The journal position that it stands for; -1 if it is not complete."""
    embedder: str
    memories: int


class ChromaIndex:
    """One Chroma database; hands out the banks of owners."""

    def __init__(self, connect: Callable[[], Client], place: str, folder: Path | None, namespace: str = "") -> None:
        """Connect; use `open`.

        Args:
            connect: Makes a client.
            place: The folder or the URL, for messages.
            folder: The database's folder; None for a server.
            namespace: Tells apart the owners of several stores that share one server.
        """
        self._connect = connect
        self._place = place
        self._folder = folder
        self._namespace = namespace
        self._client: Client | None = connect()
        self._collections: dict[str, chromadb.Collection] = {}
        self._banks: dict[str, ChromaBank] = {}
        # Searches of different owners run at once. Erasing closes the client for a moment; nobody may use it meanwhile.
        self._lock = SharedLock()
        self._failed = False

    @classmethod
    def open(cls, path: Path | None, url: str | None = None, namespace: str = "") -> ChromaIndex:
        """Open or create a database, checking the files of an embedded one.

        Args:
            path: The folder of an embedded database; None with a URL.
            url: Address of a Chroma server, for example ``http://localhost:8000``.
            namespace: On a server, tells apart the owners of several stores; `Journal.store_id` is one.

        Raises:
            DeltaMemError: If the server does not answer, or the folder cannot be used.
        """
        if path is not None:
            return _open_folder(cls, path)
        return _open_url(cls, url or "", namespace)

    def bank(
        self,
        owner: str,
        state: MemoryState,
        position: int,
        *,
        changed_since: Callable[[int], Collection[str]],
        embed: Embed,
        embedder_name: str,
        progress: Progress | None = None,
        flush_every: int = FLUSH_EVERY,
        exact_up_to: int = EXACT_UP_TO,
    ) -> ChromaBank:
        """The bank of an owner, brought in step with the journal.

        Args:
            owner: Whose memories these are.
            state: The state according to the journal.
            position: The journal position that it stands for.
            changed_since: The ids of memories that the journal changed, or removed, after a position.
            embed: Embeds memory texts; called only for what is missing in the index.
            embedder_name: Vectors of another embedder are not used.
            progress: Called while memories are embedded.
            flush_every: Write to Chroma when so many vectors are pending.
            exact_up_to: Up to so many memories, search a copy of the vectors in memory.

        Raises:
            ValueError: If the bank is open already.
            IndexUnavailableError: If Chroma fails.
        """
        if owner in self._banks:
            raise ValueError("the bank of this owner is open already")
        self._renew_after_failure()
        target = Target(state, position, changed_since, embed, embedder_name, progress)
        committed = ChromaCollection(self.use, owner, self._name(owner), embedder_name)
        try:
            removed = catch_up(committed, target) if committed.name in self.collections() else None
        except IndexUnavailableError as error:
            logger.warning("%s: a collection cannot be read and is rebuilt: %s", self._place, error)
            removed = None
        if removed is None:
            committed = ChromaCollection(self.use, owner, self._name(owner), embedder_name)
            for memory in state.memories[:1]:
                embed([memory.text])  # a missing embedder must not cost the existing index
            self._delete(committed.name)
            with self._guarded() as client:
                create_collection(client, committed.name, embedder_name)
            build(committed, target)
        elif removed:
            # They may have been forgotten, and the process ended before their vectors were erased.
            self._rewrite(committed)
        bank = self._banks[owner] = ChromaBank(committed, self._rewrite, flush_every, exact_up_to)
        return bank

    def status(self, owner: str) -> IndexStatus | None:
        """What the index holds of an owner, without repairing it; None if nothing."""
        name = self._name(owner)
        if name not in self.collections():
            return None
        with self.use(name, fresh=True) as collection:
            metadata = collection.metadata or {}
            position = metadata.get(POSITION)
            return IndexStatus(
                position if isinstance(position, int) else BUILDING, str(metadata.get(EMBEDDER, "")), collection.count()
            )

    def collections(self) -> list[str]:
        """The names of all collections in the database, see `collection_name`."""
        with self._guarded() as client:
            return sorted(collection.name for collection in client.list_collections())

    def drop(self, owner: str) -> None:
        """Erase everything about an owner from the index; on a server, delete the collection.

        Raises:
            IndexUnavailableError: If Chroma fails.
            DeltaMemError: If the files are in use by somebody else.
        """
        if (bank := self._banks.pop(owner, None)) is not None:
            bank.close()
        for ending in ("", _NEXT):
            self._delete(self._name(owner) + ending)
        self._erase_remains()

    def close(self) -> None:
        """Write what is pending and let go of the database. Does nothing the second time."""
        for bank in self._banks.values():
            bank.flush()
            bank.close()
        self._banks.clear()
        with self._lock.alone():
            if self._client is None:
                return
            self._client.close()
            self._client = None
            self._collections.clear()
            if self._folder is not None:
                chroma_check.mark_clean_shutdown(self._folder)

    def _name(self, owner: str) -> str:
        return collection_name(owner, self._namespace)

    @contextmanager
    def use(self, name: str, *, fresh: bool = False) -> Iterator[chromadb.Collection]:
        """Work with a collection.

        Args:
            name: Its name.
            fresh: Whether its metadata must be read again.

        Raises:
            IndexUnavailableError: In place of whatever Chroma raises.
        """
        with self._guarded() as client:
            collection = None if fresh else self._collections.get(name)
            if collection is None:
                collection = self._collections[name] = client.get_collection(name, embedding_function=None)
            yield collection

    @contextmanager
    def _guarded(self) -> Iterator[Client]:
        with self._lock.shared():
            if self._client is None:
                raise IndexUnavailableError(f"{self._place}: the index is closed")
            try:
                yield self._client
            except IndexUnavailableError:
                raise
            except Exception as error:  # Chroma, its HTTP client and its native code have no common exception
                self._failed = True
                reason = str(error) or type(error).__name__
                raise IndexUnavailableError(f"{self._place}: the vector index failed: {reason}") from error

    def _renew_after_failure(self) -> None:
        """Begin with a new client: one that met a full disk may wait for ever in a later write."""
        if not self._failed:
            return
        with self._lock.alone():
            if self._client is not None:
                self._client.close()
                self._collections.clear()
                try:
                    self._client = self._connect()
                except Exception as error:  # as in `_guarded`; the next opening tries again
                    raise IndexUnavailableError(f"{self._place}: the vector index failed: {error}") from error
            self._failed = False

    def _rewrite(self, committed: ChromaCollection) -> None:
        """Write the vectors of a collection's memories into a new one, and erase the old one."""
        following = committed.name + _NEXT
        self._delete(following)
        with self.use(committed.name) as collection, self._guarded() as client:
            ids, vectors = read_vectors(collection, list(committed.state))
            copy = create_collection(client, following, committed.embedder_name)
            write_vectors(copy, ids, vectors)
            self._delete(committed.name)
            copy.modify(name=committed.name, metadata=committed.metadata())
        self._erase_remains()

    def _delete(self, name: str) -> None:
        with self._guarded() as client:
            self._collections.pop(name, None)
            try:
                client.delete_collection(name)
            except NotFoundError:
                return

    def _erase_remains(self) -> None:
        if self._folder is None:
            return
        with self._lock.alone():
            if self._client is None:
                raise IndexUnavailableError(f"{self._place}: the index is closed")
            # Two copies of SQLite in one process must not have one file open at once (their POSIX locks would clash).
            self._client.close()
            self._collections.clear()
            try:
                chroma_check.erase_remains(self._folder)
            finally:
                self._client = self._connect()


def _open_folder(index: type[ChromaIndex], folder: Path) -> ChromaIndex:
    def connect() -> Client:
        return cast(Client, chromadb.PersistentClient(str(folder), settings=client_settings()))

    def delete(names: list[str]) -> None:
        client = connect()
        try:
            for name in names:
                logger.warning("%s: the collection %s is damaged or incomplete and is rebuilt", folder, name)
                client.delete_collection(name)
        finally:
            client.close()

    try:
        folder.mkdir(parents=True, exist_ok=True)
        damaged: list[str] | None = []
        if any(folder.iterdir()) and not chroma_check.was_shut_down_cleanly(folder):
            damaged = chroma_check.damaged_collections(folder)
        chroma_check.clear_clean_shutdown(folder)
        try:
            if damaged is not None:
                delete(damaged)
                return index(connect, str(folder), folder)
        except Exception as error:  # Chroma's migrations and native code have no common exception
            logger.warning("%s: the index cannot be used: %s", folder, error)
        logger.warning("%s: the index is damaged and is rebuilt", folder)
        chroma_check.wipe(folder)
        return index(connect, str(folder), folder)
    except OSError as error:
        raise StorageError(f"{folder}: the index cannot be opened ({error})") from error


def _open_url(index: type[ChromaIndex], url: str, namespace: str) -> ChromaIndex:
    try:
        parts = urlsplit(url)
        host, port, secure = parts.hostname or "", parts.port, parts.scheme == "https"
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise DeltaMemError(f"{url!r} is not the address of a Chroma server, expected something like http://localhost:8000")

    def connect() -> Client:
        return cast(
            Client,
            chromadb.HttpClient(host, port=port or (443 if secure else 80), ssl=secure, settings=client_settings()),
        )

    try:
        return index(connect, url, None, namespace)
    except Exception as error:  # as above
        raise StorageError(f"the Chroma server at {url} does not answer; start one with: chroma run") from error
