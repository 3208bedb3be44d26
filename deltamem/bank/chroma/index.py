"""The Chroma index: one database with one collection an owner, derived from the journal and repaired from it.

Embedded (a folder) or on a Chroma server (a URL). The embedded database is safe for threads but not for processes; whoever
opens it holds a lock on the folder (see `deltamem.bank.store`). What can be wrong on opening, and what happens:

- behind the journal (the process ended with changes in memory): only the changed memories are embedded again;
- ahead, of other texts, incomplete, made with another embedder, or missing: the collection is built anew;
- damaged files: see `deltamem.bank.chroma.files`; damaged collections, or the whole database, are built anew.

Deleting a vector in Chroma leaves its bytes in several files, so erasing (`ChromaBank.purge`, `ChromaIndex.drop`) writes
the collection anew, closes the database, vacuums it and removes what is left over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import chromadb
from chromadb.api.client import Client
from chromadb.errors import NotFoundError

from deltamem.bank.chroma import files as chroma_files
from deltamem.bank.chroma.bank import ChromaBank
from deltamem.bank.chroma.collection import (
    BUILDING,
    EMBEDDER,
    POSITION,
    CommittedBank,
    IndexUnavailableError,
    client_settings,
    collection_name,
    create_collection,
    read_vectors,
    write_vectors,
)
from deltamem.bank.chroma.locking import SharedLock
from deltamem.bank.chroma.repair import Embed, Progress, Step, Target, build, catch_up
from deltamem.errors import DeltaMemError
from deltamem.memory import MemoryState

logger = logging.getLogger(__name__)

FLUSH_EVERY = 128
EXACT_UP_TO = 5_000
"""Memories, whose vectors of 384 numbers take 7.5 MB. Beyond, Chroma is as fast, and reading them would delay opening."""
_NEXT = "-next"
"""Ending of the name of a collection that will replace another."""


class IndexStatus(NamedTuple):
    """What the index holds of one owner.

    Attributes:
        position: The journal position that it stands for; -1 if it is not complete.
        embedder: The name of the embedder that made the vectors.
        memories: How many there are.
    """

    position: int
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
        # Shared by whoever uses the client; alone is who closes it to work on the files.
        self._lock = SharedLock()

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
            state: The state as the journal tells it.
            position: The journal position that it stands for.
            changed_since: The ids of memories that the journal changed, or removed, after a position.
            embed: Embeds memory texts; called only for what is missing in the index.
            embedder_name: Vectors of another embedder are not used.
            progress: Told how far the embedding is.
            flush_every: Write to Chroma when so many vectors are pending.
            exact_up_to: Up to so many memories, search a copy of the vectors in memory.

        Raises:
            ValueError: If the bank is open already.
            IndexUnavailableError: If Chroma fails.
        """
        if owner in self._banks:
            raise ValueError("the bank of this owner is open already")
        target = Target(state, position, changed_since, embed, embedder_name, progress)
        committed = CommittedBank(self.use, owner, self._name(owner), embedder_name)
        try:
            step = catch_up(committed, target) if committed.name in self.collections() else Step.LOST
        except IndexUnavailableError as error:
            logger.warning("%s: a collection cannot be read and is built anew: %s", self._place, error)
            step = Step.LOST
        if step is Step.LOST:
            committed = CommittedBank(self.use, owner, self._name(owner), embedder_name)
            for memory in state.memories[:1]:
                embed([memory.text])  # an embedder that cannot be had must not cost the index that there is
            self._delete(committed.name)
            with self._guarded() as client:
                create_collection(client, committed.name, embedder_name)
            build(committed, target)
        elif step is Step.REMOVED:
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
        with self._lock.exclusive():
            if self._client is None:
                return
            self._client.close()
            self._client = None
            self._collections.clear()
            if self._folder is not None:
                chroma_files.seal(self._folder)

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
            except Exception as error:  # Chroma, its HTTP client and its native code have no common exception
                reason = str(error) or type(error).__name__
                raise IndexUnavailableError(f"{self._place}: the vector index failed: {reason}") from error

    def _rewrite(self, committed: CommittedBank) -> None:
        """Write a collection anew from the vectors that it holds, and erase the old one."""
        following = committed.name + _NEXT
        self._delete(following)
        metadata = committed.metadata()
        with self.use(committed.name) as collection:
            ids, vectors = read_vectors(collection)
        with self._guarded() as client:
            copy = create_collection(client, following, str(metadata[EMBEDDER]))
            write_vectors(copy, ids, vectors)
        self._delete(committed.name)
        with self._guarded() as client:
            # Asked for again: the erasing of another owner may have closed the client that made `copy`.
            client.get_collection(following, embedding_function=None).modify(name=committed.name, metadata=metadata)
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
        with self._lock.exclusive():
            if self._client is None:
                raise IndexUnavailableError(f"{self._place}: the index is closed")
            # Two copies of SQLite in one process must not have one file open at once (their POSIX locks would clash).
            self._client.close()
            self._collections.clear()
            try:
                chroma_files.erase_remains(self._folder)
            finally:
                self._client = self._connect()


def _open_folder(index: type[ChromaIndex], folder: Path) -> ChromaIndex:
    def connect() -> Client:
        return cast(Client, chromadb.PersistentClient(str(folder), settings=client_settings()))

    def delete(names: list[str]) -> None:
        client = connect()
        try:
            for name in names:
                logger.warning("%s: the collection %s is damaged or incomplete and is built anew", folder, name)
                client.delete_collection(name)
        finally:
            client.close()

    try:
        folder.mkdir(parents=True, exist_ok=True)
        damaged: list[str] | None = []
        if any(folder.iterdir()) and not chroma_files.is_sealed(folder):
            damaged = chroma_files.damaged_collections(folder)
        chroma_files.break_seal(folder)
        try:
            if damaged is not None:
                delete(damaged)
                return index(connect, str(folder), folder)
        except Exception as error:  # Chroma's migrations and native code have no common exception
            logger.warning("%s: the index cannot be used: %s", folder, error)
        logger.warning("%s: the index is damaged and is built anew", folder)
        chroma_files.wipe(folder)
        return index(connect, str(folder), folder)
    except OSError as error:
        raise DeltaMemError(f"{folder}: the index cannot be opened ({error})") from error


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
        raise DeltaMemError(f"the Chroma server at {url} does not answer; start one with: chroma run") from error
