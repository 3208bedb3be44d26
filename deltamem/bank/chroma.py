"""The index: memory vectors in Chroma, one collection an owner, made from the journal and repaired from it.

A collection's metadata name the journal position and the texts that its vectors stand for. A write first takes the texts
back, which marks the collection as incomplete, then writes, then names the new position. A collection that is incomplete or
behind catches up with what the journal has changed since its position; any other that does not fit is built anew. What is
built anew, or rewritten to erase, is another collection until it is complete and takes the name of the old one.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, cast
from urllib.parse import urlsplit

import chromadb
import numpy as np
from chromadb.api.client import Client
from chromadb.api.collection_configuration import CreateCollectionConfiguration, CreateHNSWConfiguration
from chromadb.errors import NotFoundError

from deltamem.bank import chroma_files
from deltamem.bank.base import Hit, OverlayBank, ReadableBank, SnapshotBank, ranked
from deltamem.bank.chroma_files import BUILDING, POSITION, batches, client_settings, read_vectors
from deltamem.embedding import Embedder, Vectors
from deltamem.errors import DeltaMemError, StorageError
from deltamem.memory import MemoryState

if TYPE_CHECKING:
    from deltamem.journal.owner import OwnerJournal

logger = logging.getLogger(__name__)

_EMBEDDER = "embedder"
_TEXTS = "texts"  # Key of the digest of the memory texts that the vectors stand for; empty while a write is under way
_NEXT = "-next"  # Ending of the name of a collection that will replace another
# Chosen by measurement, see `benchmarks/search.py`.
_HNSW = CreateHNSWConfiguration(space="ip", max_neighbors=32, ef_construction=200, ef_search=200)
_SPARE = 16  # Hits asked for beyond k: so many memories tied at the cut-off are still ordered as the state orders them
_FEW = 1_000  # So many memories, chosen by their ids, are read and compared one by one; HNSW may miss them among many others
_EMBED_BATCH = 512

Progress = Callable[[int, int], None]  # Called with the memories embedded so far, and all that have to be


class IndexUnavailableError(StorageError):
    """Chroma did not do what it was asked; memories are safe in the journal."""


def _texts_digest(state: MemoryState) -> str:
    listed = "\0".join(f"{memory.id}\0{memory.text}" for memory in state.values())
    return blake2b(listed.encode(), digest_size=16).hexdigest()


class ChromaCollection:
    """The part of a bank that Chroma holds; its methods raise `IndexUnavailableError` if Chroma fails.

    Not safe for writing and searching at once; see `ChromaBank`.
    """

    def __init__(self, owner: str, index: ChromaIndex, embedder_name: str) -> None:
        """Describe an owner's collection that is empty and incomplete."""
        self.owner = owner
        self.name = index.name_of(owner)
        self.embedder_name = embedder_name
        self.state = MemoryState()
        self.position = BUILDING
        self._use = partial(index.use, self.name)
        self._torn = False  # whether a failed write may have changed rows

    def search(self, query_vectors: Vectors, k: int, among: Set[str] | None = None) -> list[list[Hit]]:
        """Find the `k` most similar memories for each query, see `MemoryBank.search`; approximate.

        After a failed `write` rows that it was to change may be missing or changed; `ChromaBank` does not look at those.
        """
        chosen = None if among is None else [memory_id for memory_id in self.state if memory_id in among]
        size = len(self.state if chosen is None else chosen)
        wanted = min(size, k + _SPARE)
        if not wanted or not len(query_vectors):
            return [[] for _ in query_vectors]
        if not self._torn and (chosen is None or size > _FEW):
            with suppress(IndexUnavailableError):  # HNSW refuses when it cannot reach enough rows, or gives too few
                with self._use() as collection:
                    found = collection.query(
                        query_embeddings=query_vectors, n_results=wanted, ids=chosen, include=["distances"]
                    )
                rankings = [
                    [Hit(self.state[i], 1.0 - far) for i, far in zip(ids, distances, strict=True) if i in self.state]
                    for ids, distances in zip(found["ids"], found["distances"] or [], strict=True)
                ]
                if all(len(ranking) == wanted for ranking in rankings):
                    return [ranked(ranking, self.state)[:k] for ranking in rankings]
        with self._use() as collection:
            ids, vectors = read_vectors(collection, chosen)
        row = {memory_id: index for index, memory_id in enumerate(ids)}
        held = MemoryState(memory for memory in self.state.memories if memory.id in row)
        return SnapshotBank(self.owner, held, vectors[[row[memory_id] for memory_id in held]]).search(query_vectors, k)

    def vectors(self, memory_ids: Sequence[str]) -> Vectors:
        """The unit vectors of some memories, see `ReadableBank.vectors`."""
        with self._use() as collection:
            ids, vectors = read_vectors(collection, list(dict.fromkeys(memory_ids)))
        row = {memory_id: index for index, memory_id in enumerate(ids)}
        return vectors[[row[memory_id] for memory_id in memory_ids]]

    def catch_up(
        self, journal: OwnerJournal, state: MemoryState, embedded: Callable[[Sequence[str]], Mapping[str, Vectors]]
    ) -> frozenset[str] | None:
        """Bring an existing collection in step with the present state of a journal; `embedded` takes the ids of memories.

        Returns the ids whose vectors were removed from it; None if it cannot be used.
        """
        position = journal.head
        with self._use() as collection:
            metadata, count = dict(collection.metadata or {}), collection.count()
        stored = metadata.get(POSITION)
        if not isinstance(stored, int) or not 0 <= stored <= position or metadata.get(_EMBEDDER) != self.embedder_name:
            return None
        if stored == position:
            if count != len(state) or metadata.get(_TEXTS) != _texts_digest(state):
                return None
            self.state, self.position = state, stored
            return frozenset()
        with self._use() as collection:
            held = frozenset(collection.get(include=[])["ids"])
        changed, removed = journal.changed_since(stored), held - state.keys()
        if not state.keys() - changed <= held or not removed <= changed:
            return None
        self.position = stored
        self.write(state, position, embedded([memory_id for memory_id in state if memory_id in changed]), removed)
        return removed

    def write(self, state: MemoryState, position: int, vectors: Mapping[str, Vectors], removed: Collection[str]) -> None:
        """Move the collection on to the next state, given the vectors of all memories that are new or changed.

        `removed` are ids that the collection may hold and the state does not. After a failure the call may be repeated.
        """
        with self._use(writing=True) as collection:
            if self._torn:  # a row of the failed write may belong to a memory that was removed since
                removed = frozenset(collection.get(include=[])["ids"]) - state.keys()
            if vectors or removed:
                self._torn = True
                # Marked first: whoever finds it like this writes again what the journal changed since the old position.
                collection.modify(metadata=self.metadata(self.position, None))
                for gone in batches(list(removed)):
                    collection.delete(ids=gone)
                for ids in batches(list(vectors)):
                    collection.upsert(ids=ids, embeddings=np.stack([vectors[memory_id] for memory_id in ids]))
            collection.modify(metadata=self.metadata(position, state))
        self.state, self.position, self._torn = state, position, False

    def metadata(self, position: int, state: MemoryState | None) -> dict[str, str | int]:
        """What says that the vectors stand for a state at a position; without a state they are being written."""
        return {POSITION: position, _EMBEDDER: self.embedder_name, _TEXTS: "" if state is None else _texts_digest(state)}


def _embedded(state: MemoryState, embedder: Embedder, progress: Progress | None, ids: Sequence[str]) -> dict[str, Vectors]:
    """The vectors of some memories of a state, by id."""
    vectors: dict[str, Vectors] = {}
    for batch in batches(ids, _EMBED_BATCH):
        if progress is not None:
            progress(len(vectors), len(ids))
        rows = np.asarray(embedder.documents([state[memory_id].text for memory_id in batch]), dtype=np.float32)
        vectors.update(zip(batch, rows, strict=True))
    if progress is not None and ids:
        progress(len(ids), len(ids))
    return vectors


class ChromaBank:
    """One owner's memories: searched in Chroma, under an overlay of the changes not yet written there.

    Writing to Chroma costs some 15 ms a call, so changes are gathered and written together; `update` does not wait for
    Chroma otherwise. If writing fails the changes stay in memory, where searches find them, and are tried again later;
    should the process end before that, the next opening catches up from the journal. Safe for any number of threads,
    which take turns: embedding a query, which threads take turns at anyway, costs far more than a search.

    As long as the memories are few, as one person's mostly are, their vectors are kept in memory too and are searched there:
    exactly, and in a fraction of the time that Chroma needs (`benchmarks/search.py`).
    """

    def __init__(self, committed: ChromaCollection, index: ChromaIndex) -> None:
        """Begin with what Chroma holds."""
        self.owner = committed.owner
        self._committed = committed
        self._index = index
        self._flush_at = index.flush_every
        self._base: ReadableBank = committed
        state = committed.state
        if len(state) <= index.exact_up_to:
            vectors = committed.vectors(list(state)) if state else np.zeros((0, 0), dtype=np.float32)
            self._base = SnapshotBank(self.owner, state, vectors, committed.position)
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
        with self._open():
            return self._overlay.search(query_vectors, k, among)

    def vectors(self, memory_ids: Sequence[str]) -> Vectors:
        """The unit vectors of some memories, see `ReadableBank.vectors`; an `IndexUnavailableError` if Chroma fails."""
        with self._open():
            return self._overlay.vectors(memory_ids)

    def update(self, state: MemoryState, vectors: Mapping[str, Vectors], position: int) -> None:
        """Replace the state, see `MemoryBank.update`. A failure of Chroma is logged, not raised."""
        with self._open():
            self._overlay.update(state, vectors, position)
            if self.pending >= self._flush_at:
                self.flush()

    def flush(self) -> bool:
        """Write what is pending to Chroma; returns whether that succeeded. A failure is logged."""
        with self._lock:
            try:
                self._flush()
            except IndexUnavailableError as error:
                self._flush_at = self.pending + self._index.flush_every
                logger.warning("%d changes of an index stay in memory for now: %s", self.pending, error)
                return False
            return True

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
            self._index.rewrite(self._committed)

    def close(self) -> None:
        """Let go of the memories and their vectors; every later call fails."""
        with self._lock:
            self._closed = True
            self._base = SnapshotBank(self.owner, MemoryState(), np.zeros((0, 0), dtype=np.float32))
            self._overlay = OverlayBank(self._base)

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise IndexUnavailableError("the bank is closed, or its owner was erased")
            yield

    def _flush(self) -> None:
        changes = self._overlay.changes
        if changes.position == self._committed.position and not self.pending:
            return
        removed = [memory_id for memory_id in changes.hidden if memory_id not in changes.state]
        self._committed.write(changes.state, changes.position, changes.vectors, removed)
        if isinstance(self._base, SnapshotBank) and len(changes.state) <= self._index.exact_up_to:
            self._base.update(changes.state, changes.vectors, changes.position)
        else:
            self._base = self._committed
        self._overlay = OverlayBank(self._base)
        self._flush_at = self._index.flush_every


class SharedLock:
    """Any number of threads share it, or one has it alone; who waits to be alone goes before new sharers. Not reentrant."""

    def __init__(self) -> None:
        self._entry = threading.Lock()  # held by who is alone or waits for it, and for a moment by who begins to share
        self._left = threading.Condition()
        self._sharers = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Share it."""
        with self._entry, self._left:
            self._sharers += 1
        try:
            yield
        finally:
            with self._left:
                self._sharers -= 1
                self._left.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have it alone."""
        with self._entry:
            with self._left:
                self._left.wait_for(lambda: not self._sharers)
            yield


class IndexStatus(NamedTuple):
    """What the index holds of one owner."""

    position: int  # The journal position that it stands for; -1 if it is not complete
    embedder: str
    memories: int


class ChromaIndex:
    """One Chroma database; hands out the banks of owners."""

    flush_every = 128
    """When so many vectors are pending they are written to Chroma."""
    exact_up_to = 5_000
    """Up to so many memories a copy of the vectors in memory is searched, 7.5 MB with 384 numbers each. Beyond, Chroma is as
    fast, and reading them would delay opening."""

    def __init__(self, connect: Callable[[], Client], place: str, folder: Path | None, namespace: str = "") -> None:
        """Connect with a client that `connect` makes; `place` is for messages. See `open`."""
        self._connect = connect
        self._place = place
        self._folder = folder
        self._namespace = namespace
        self._client: Client | None = connect()
        self._collections: dict[str, chromadb.Collection] = {}
        self._banks: dict[str, ChromaBank] = {}
        # Searches of different owners run at once. Erasing closes the client for a moment; nobody may use it meanwhile.
        self._lock = SharedLock()
        self._write_failed = False

    @classmethod
    def open(cls, path: Path | None, url: str | None = None, namespace: str = "") -> Self:
        """Open or create a database, checking the files of an embedded one.

        Args:
            path: The folder of an embedded database; None with a URL.
            url: Address of a Chroma server, for example ``http://localhost:8000``.
            namespace: On a server, tells apart the owners of several stores; `Journal.store_id` is one.

        Raises:
            DeltaMemError: If the server does not answer, or the folder cannot be used.
        """
        if path is None:
            connect = _server(url or "")
            try:
                return cls(connect, url or "", None, namespace)
            except Exception as error:  # Chroma, its HTTP client and its native code have no common exception
                raise StorageError(f"the Chroma server at {url} does not answer; start one with: chroma run") from error

        def client() -> Client:
            return cast(Client, chromadb.PersistentClient(str(path), settings=client_settings()))

        try:
            path.mkdir(parents=True, exist_ok=True)
            sound = chroma_files.is_sound(path)
            (path / chroma_files.CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)  # before anything is written
            if sound:
                try:
                    return cls(client, str(path), path)
                except Exception as error:  # as above
                    logger.warning("%s: the index cannot be used: %s", path, error)
            logger.warning("%s: the index is damaged and is rebuilt", path)
            shutil.rmtree(path)
            path.mkdir(parents=True)
            return cls(client, str(path), path)
        except OSError as error:
            raise StorageError(f"{path}: the index cannot be opened ({error})") from error

    def bank(self, journal: OwnerJournal, embedder: Embedder, progress: Progress | None = None) -> ChromaBank:
        """The bank of an owner, brought in step with the owner's journal.

        Args:
            journal: The journal, which nobody writes meanwhile.
            embedder: Embeds memory texts that are missing in the index. Vectors of another embedder are not used.
            progress: Called while memories are embedded.

        Raises:
            ValueError: If the bank is open already.
            IndexUnavailableError: If Chroma fails.
        """
        if journal.name in self._banks:
            raise ValueError("the bank of this owner is open already")
        state = journal.state()
        embedded = partial(_embedded, state, embedder, progress)
        if self._write_failed:  # a client that met a full disk may wait for ever in a later write
            self._reconnect()
            self._write_failed = False
        committed = ChromaCollection(journal.name, self, embedder.name)
        removed: frozenset[str] | None = None
        try:
            held = self.collections()
            if committed.name + _NEXT in held:  # its writing was interrupted
                with self._session(writing=True) as client:
                    self._delete(client, committed.name + _NEXT)
            if committed.name in held:
                removed = committed.catch_up(journal, state, embedded)
        except IndexUnavailableError as error:
            logger.warning("%s: a collection cannot be read and is rebuilt: %s", self._place, error)
        if removed is None:
            vectors = embedded(list(state))  # first: a missing embedder must not cost the existing index
            committed = ChromaCollection(journal.name, self, embedder.name)
            committed.state, committed.position = state, journal.head
            self._replace(committed, vectors)
        elif removed:
            # They may have been forgotten, and the process ended before their vectors were erased.
            self.rewrite(committed)
        bank = self._banks[journal.name] = ChromaBank(committed, self)
        return bank

    def status(self, owner: str) -> IndexStatus | None:
        """What the index holds of an owner, without repairing it; None if nothing."""
        name = self.name_of(owner)
        if name not in self.collections():
            return None
        with self.use(name) as collection:
            metadata, count = collection.metadata or {}, collection.count()
        position = metadata.get(POSITION)
        return IndexStatus(position if isinstance(position, int) else BUILDING, str(metadata.get(_EMBEDDER, "")), count)

    def name_of(self, owner: str) -> str:
        """The name of an owner's collection: Chroma restricts names, and a hash does not reveal the owner."""
        return f"owner-{sha256(f'{self._namespace}/{owner}'.encode()).hexdigest()[:32]}"

    def collections(self) -> list[str]:
        """The names of all collections in the database, see `name_of`."""
        with self._session() as client:
            return sorted(collection.name for collection in client.list_collections())

    def rewrite(self, committed: ChromaCollection) -> None:
        """Write the vectors of a collection's memories into a new one, and erase the old one."""
        with self.use(committed.name) as collection:
            ids, vectors = read_vectors(collection, list(committed.state))
        self._replace(committed, dict(zip(ids, vectors, strict=True)))
        self._erase_remains()

    def drop(self, owner: str) -> None:
        """Erase everything about an owner from the index; on a server, delete the collection.

        Raises:
            IndexUnavailableError: If Chroma fails.
            DeltaMemError: If the files are in use by somebody else.
        """
        if (bank := self._banks.pop(owner, None)) is not None:
            bank.close()
        name = self.name_of(owner)
        with self._session(writing=True) as client:
            self._delete(client, name, name + _NEXT)
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
                chroma_files.mark_clean_shutdown(self._folder)

    @contextmanager
    def use(self, name: str, *, writing: bool = False) -> Iterator[chromadb.Collection]:
        """Work with a collection, which is going to be changed if `writing`.

        Raises:
            IndexUnavailableError: In place of whatever Chroma raises.
        """
        with self._session(writing) as client:
            if name not in self._collections:
                self._collections[name] = client.get_collection(name, embedding_function=None)
            yield self._collections[name]

    @contextmanager
    def _session(self, writing: bool = False) -> Iterator[Client]:
        with self._lock.shared():
            if self._client is None:
                raise IndexUnavailableError(f"{self._place}: the index is closed")
            try:
                yield self._client
            except Exception as error:  # as in `open`
                self._write_failed |= writing  # the next opening of a bank then renews the client
                reason = str(error) or type(error).__name__
                raise IndexUnavailableError(f"{self._place}: the vector index failed: {reason}") from error

    def _replace(self, committed: ChromaCollection, vectors: Mapping[str, Vectors]) -> None:
        """Put a new collection with these vectors in the place of one, or of none. It has its name once it is complete."""
        name, following = committed.name, committed.name + _NEXT
        with self._session(writing=True) as client:
            self._delete(client, following)
            configuration = CreateCollectionConfiguration(hnsw=_HNSW)
            copy = client.create_collection(following, configuration=configuration, embedding_function=None)
            for ids in batches(list(vectors)):
                copy.upsert(ids=ids, embeddings=np.stack([vectors[memory_id] for memory_id in ids]))
            self._delete(client, name)
            copy.modify(name=name, metadata=committed.metadata(committed.position, committed.state))

    def _delete(self, client: Client, *names: str) -> None:
        for name in names:
            self._collections.pop(name, None)
            with suppress(NotFoundError):
                client.delete_collection(name)

    def _erase_remains(self) -> None:
        if (folder := self._folder) is not None:
            # Two copies of SQLite in one process must not have one file open at once (their POSIX locks would clash).
            self._reconnect(lambda: chroma_files.erase_remains(folder))

    def _reconnect(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Begin with a new client; while there is none, nobody uses the database."""
        with self._lock.alone():
            if self._client is None:
                raise IndexUnavailableError(f"{self._place}: the index is closed")
            self._client.close()
            self._collections.clear()
            try:
                meanwhile()
            finally:
                try:
                    self._client = self._connect()
                except Exception as error:  # as in `open`
                    raise IndexUnavailableError(f"{self._place}: the vector index failed: {error}") from error


def _server(url: str) -> Callable[[], Client]:
    """What makes a client of a Chroma server."""
    try:
        parts = urlsplit(url)
        host, port, secure = parts.hostname or "", parts.port, parts.scheme == "https"
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise DeltaMemError(f"{url!r} is not the address of a Chroma server, expected something like http://localhost:8000")
    port_of = port or (443 if secure else 80)
    return lambda: cast(Client, chromadb.HttpClient(host, port=port_of, ssl=secure, settings=client_settings()))
