"""The Chroma index: one database for all owners, derived from the journal and repaired from it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import chromadb
from chromadb.api.client import Client
from chromadb.errors import NotFoundError

from deltamem.bank import chroma_check
from deltamem.bank.chroma_bank import ChromaBank
from deltamem.bank.chroma_check import BUILDING, POSITION, client_settings, read_vectors
from deltamem.bank.chroma_collection import (
    EMBEDDER,
    ChromaCollection,
    Embed,
    IndexUnavailableError,
    Progress,
    Target,
    build,
    catch_up,
    collection_name,
    create_collection,
    write_vectors,
)
from deltamem.errors import DeltaMemError, StorageError
from deltamem.memory import MemoryState

logger = logging.getLogger(__name__)

FLUSH_EVERY = 128
EXACT_UP_TO = 5_000
"""Memories, whose vectors of 384 numbers take 7.5 MB. Beyond, Chroma is as fast, and reading them would delay opening."""
_NEXT = "-next"
"""Ending of the name of a collection that will replace another."""


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
        self._write_failed = False

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
        self._renew_after_failed_write()
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
            with self._guarded(writing=True) as client:
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
    def use(self, name: str, *, fresh: bool = False, writing: bool = False) -> Iterator[chromadb.Collection]:
        """Work with a collection.

        Args:
            name: Its name.
            fresh: Whether its metadata must be read again.
            writing: Whether it is going to be changed; a failure then makes the next opening of a bank renew the client.

        Raises:
            IndexUnavailableError: In place of whatever Chroma raises.
        """
        with self._guarded(writing) as client:
            collection = None if fresh else self._collections.get(name)
            if collection is None:
                collection = self._collections[name] = client.get_collection(name, embedding_function=None)
            yield collection

    @contextmanager
    def _guarded(self, writing: bool = False) -> Iterator[Client]:
        with self._lock.shared():
            if self._client is None:
                raise IndexUnavailableError(f"{self._place}: the index is closed")
            try:
                yield self._client
            except IndexUnavailableError:
                raise
            except Exception as error:  # Chroma, its HTTP client and its native code have no common exception
                self._write_failed |= writing
                reason = str(error) or type(error).__name__
                raise IndexUnavailableError(f"{self._place}: the vector index failed: {reason}") from error

    def _renew_after_failed_write(self) -> None:
        """Begin with a new client: one that met a full disk may wait for ever in a later write."""
        if not self._write_failed:
            return
        with self._lock.alone():
            if self._client is not None:
                self._client.close()
                self._collections.clear()
                try:
                    self._client = self._connect()
                except Exception as error:  # as in `_guarded`; the next opening tries again
                    raise IndexUnavailableError(f"{self._place}: the vector index failed: {error}") from error
            self._write_failed = False

    def _rewrite(self, committed: ChromaCollection) -> None:
        """Write the vectors of a collection's memories into a new one, and erase the old one."""
        following = committed.name + _NEXT
        self._delete(following)
        with self.use(committed.name) as collection, self._guarded(writing=True) as client:
            ids, vectors = read_vectors(collection, list(committed.state))
            copy = create_collection(client, following, committed.embedder_name)
            write_vectors(copy, ids, vectors)
            self._delete(committed.name)
            copy.modify(name=committed.name, metadata=committed.metadata())
        self._erase_remains()

    def _delete(self, name: str) -> None:
        with self._guarded(writing=True) as client:
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
