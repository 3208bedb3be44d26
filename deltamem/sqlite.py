"""SQLite files of ours: opened and checked in one way, changed as a whole or not at all, and erased for good."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deltamem.errors import DeltaMemError, StorageError

# Erased rows whose bytes may still be in the file or its write-ahead log. Made in every file.
_PENDING = "CREATE TABLE IF NOT EXISTS pending_purges (id INTEGER PRIMARY KEY)"


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of SQLite file: how errors name it, how its header is known, and its tables."""

    what: str  # With its article, for example ``the journal of a memory bank``
    application_id: int  # Marks files of this kind in their header; 0 marks nothing
    version: int
    schema: str  # Statements, each ended by a semicolon at the end of a line
    durable: bool = True
    """Whether what is written must outlast a power failure; else the last transactions may be lost, never half of one."""


class Database:
    """One connection to a file, or to a database in memory, that all threads of a process share, one at a time.

    Other processes may read while this one writes (WAL); a second writer waits. Rows are `sqlite3.Row`.
    """

    def __init__(self, connection: sqlite3.Connection, kind: FileKind, path: Path | None) -> None:
        """Use `open`."""
        self.path = path
        self._kind = kind
        self._connection = connection
        self._lock = threading.RLock()
        self._purging = False

    @classmethod
    def open(cls, path: Path | None, kind: FileKind, *, read_only: bool = False, busy_seconds: float = 5.0) -> Database:
        """Open a file or create it; an erasure that an earlier process could not complete is completed.

        Args:
            path: The file, whose folder must exist; None keeps everything in memory.
            kind: What it is, or is to be.
            read_only: Do not create or change anything.
            busy_seconds: How long to wait for another process that writes.

        Raises:
            DeltaMemError: If the file is missing and may not be created, is no SQLite database, is one of another kind, or
                was written by another version.
        """
        if path is None:
            name = ":memory:"
        elif read_only and not path.is_file():
            raise DeltaMemError(f"{path}: no such file, expected {kind.what}")
        else:
            name = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        database: Database | None = None
        try:
            if path is not None and not path.exists():
                # What we keep is private; SQLite gives its side files the permissions of this one.
                path.touch(mode=0o600)
            connection = sqlite3.connect(name, busy_seconds, isolation_level=None, check_same_thread=False, uri=True)
            database = cls(connection, kind, path)
            database._prepare(read_only, busy_seconds)
        except BaseException as error:
            if database is not None:
                database.close()
            if isinstance(error, sqlite3.DatabaseError | OSError):
                reason = error.strerror if isinstance(error, OSError) else error
                raise DeltaMemError(f"{path}: cannot be opened as {kind.what}: {reason}") from error
            raise
        return database

    def _prepare(self, read_only: bool, busy_seconds: float) -> None:
        connection = self._connection
        connection.row_factory = sqlite3.Row
        if self._is_new():
            if read_only:
                raise DeltaMemError(f"{self.path}: an empty file, expected {self._kind.what}")
            self._enter_wal(time.monotonic() + busy_seconds)
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._kind.durable else 'NORMAL'}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")
        # VACUUM copies everything through temporary storage, which must not be a file in some other folder.
        connection.execute("PRAGMA temp_store = MEMORY")
        if not read_only:
            connection.execute("BEGIN IMMEDIATE")
            if self._is_new():
                # One statement after the other: `executescript` would commit first.
                for statement in self._kind.schema.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {self._kind.application_id}")
                connection.execute(f"PRAGMA user_version = {self._kind.version}")
            connection.execute(_PENDING)
            connection.execute("COMMIT")
            if self.purge_pending:
                self.purge()

    def _enter_wal(self, deadline: float) -> None:
        # SQLite does not wait where two connections put a new file into WAL mode at the same time: one of them fails.
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _is_new(self) -> bool:
        application, version, tables = (
            self._connection.execute(query).fetchone()[0]
            for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if (application, version, tables) == (0, 0, 0):
            return True
        if application != self._kind.application_id:
            raise DeltaMemError(f"{self.path}: an SQLite database of another application, expected {self._kind.what}")
        if version != self._kind.version:
            raise DeltaMemError(
                f"{self.path}: written by another version of deltamem"
                f" (schema {version}, this one reads {self._kind.version})"
            )
        return False

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Hold one consistent view of the file; may be nested, also in `write`.

        Raises:
            DeltaMemError: If the file cannot be read.
        """
        with self._lock:
            if self._connection.in_transaction:
                yield self._connection
                return
            with self._transaction("BEGIN"):
                yield self._connection

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Change the file as a whole or not at all; what is written is on the disk when the block has ended.

        Raises:
            DeltaMemError: If the file cannot be written, or a text is not valid Unicode.
            RuntimeError: If this thread already holds a transaction.
        """
        with self._lock:
            if self._connection.in_transaction:
                raise RuntimeError("a file cannot be written while the same thread reads it")
            self._purging = False
            with self._transaction("BEGIN IMMEDIATE"):
                yield self._connection
            if self._purging:
                self.purge()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        try:
            self._connection.execute(begin)
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if isinstance(error, UnicodeEncodeError):
                raise DeltaMemError("a text that is to be stored holds characters that are not valid Unicode") from error
            if isinstance(error, sqlite3.DataError):
                raise DeltaMemError(f"a text is too long to be stored: {error}") from error
            # Bugs of ours (broken constraints, wrong use) are no bad input and keep their own type.
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(
                error, sqlite3.IntegrityError | sqlite3.ProgrammingError
            ):
                raise StorageError(f"{self.path or self._kind.what}: {error}") from error
            raise

    def purge_after(self) -> None:
        """Remove what the transaction at hand erases from the bytes of the files too, once it is committed."""
        self._connection.execute("INSERT INTO pending_purges DEFAULT VALUES")
        self._purging = True

    @property
    def purge_pending(self) -> bool:
        """Whether something was erased whose bytes may still be in the files."""
        with self.read() as connection:
            return connection.execute("SELECT 1 FROM pending_purges").fetchone() is not None

    def purge(self) -> bool:
        """Rebuild the file and empty the write-ahead log, so that nothing erased remains in either.

        `secure_delete` alone is not enough: while tables grow, SQLite moves rows between pages and may leave a copy in
        the free space of the old page.

        Returns:
            False if another process reads an older state of the file just now, so that some bytes had to stay. The next
            purge, at the latest when the file is opened again, removes them.
        """
        with self._lock:
            try:
                if self.path is not None:
                    self._connection.execute("VACUUM")
                    if self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                        return False
                self._connection.execute("DELETE FROM pending_purges")
            except sqlite3.OperationalError:
                # Locked by another writer, or no room for the copy: the mark stays.
                return False
            return True

    def close(self) -> None:
        """Close the connection; closing twice is fine."""
        with self._lock:
            self._connection.close()


def insert_row(connection: sqlite3.Connection, table: str, row: Mapping[str, object]) -> None:
    """Insert a row that is given by column; columns that are left out become NULL or their default."""
    columns = ", ".join(row)
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({', '.join(f':{name}' for name in row)})", row)
