"""The SQLite file of a journal: its schema, how it is opened, its transactions, and erasing for good."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltamem.errors import DeltaMemError

APPLICATION_ID = 0x444D656D
"""Marks the file as a journal of deltamem in its header ("DMem")."""
SCHEMA_VERSION = 1
_BUSY_TIMEOUT_MS = 5_000

# `seq` grows along an owner's journal, so the largest one of a memory is its newest change. Times are kept as they were
# given (ISO 8601); `session_utc` (microseconds since 1970) is what they are compared by.
_SCHEMA = """
CREATE TABLE owners (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (name <> '')
);
CREATE TABLE entries (
    owner_id INTEGER NOT NULL REFERENCES owners (id) ON DELETE CASCADE,
    position INTEGER NOT NULL CHECK (position >= 1),
    kind TEXT NOT NULL CHECK (kind IN ('session', 'rollback', 'forget', 'import')),
    recorded_at TEXT NOT NULL,
    session_id TEXT CHECK (session_id <> ''),
    session_time TEXT,
    session_utc INTEGER,
    session_digest TEXT,
    model TEXT,
    prompt_hash TEXT,
    violations TEXT NOT NULL,
    restored INTEGER CHECK (restored >= 0 AND restored < position),
    undone INTEGER NOT NULL CHECK (undone IN (0, 1)),
    PRIMARY KEY (owner_id, position),
    CHECK ((kind = 'session') = (session_id IS NOT NULL)),
    CHECK ((session_id IS NULL) = (session_time IS NULL)),
    CHECK ((session_id IS NULL) = (session_utc IS NULL)),
    CHECK ((session_id IS NULL) = (session_digest IS NULL)),
    CHECK ((kind = 'rollback') = (restored IS NOT NULL))
) WITHOUT ROWID;
CREATE UNIQUE INDEX applied_sessions ON entries (owner_id, session_id) WHERE session_id IS NOT NULL AND undone = 0;
CREATE TABLE changes (
    seq INTEGER PRIMARY KEY,
    owner_id INTEGER NOT NULL,
    position INTEGER NOT NULL,
    memory_number INTEGER NOT NULL,
    event TEXT NOT NULL CHECK (event IN ('ADD', 'UPDATE', 'NONE', 'REMOVE')),
    before_text TEXT,
    before_time TEXT,
    after_text TEXT,
    after_time TEXT,
    turns TEXT NOT NULL,
    erased INTEGER NOT NULL CHECK (erased IN (0, 1)),
    before_hash BLOB,
    FOREIGN KEY (owner_id, position) REFERENCES entries (owner_id, position) ON DELETE CASCADE,
    CHECK ((event = 'ADD') = (before_text IS NULL)),
    CHECK ((event = 'REMOVE') = (after_text IS NULL)),
    CHECK ((before_text IS NULL) = (before_time IS NULL)),
    CHECK ((after_text IS NULL) = (after_time IS NULL)),
    CHECK (erased = 0 OR coalesce(before_text, '') || coalesce(after_text, '') = '')
);
CREATE INDEX changes_of_a_memory ON changes (owner_id, memory_number, seq);
CREATE INDEX changes_of_an_entry ON changes (owner_id, position);
CREATE INDEX earlier_texts ON changes (owner_id, before_hash) WHERE before_hash IS NOT NULL;
CREATE TABLE dialogues (
    owner_id INTEGER NOT NULL,
    position INTEGER NOT NULL,
    turns TEXT NOT NULL,
    PRIMARY KEY (owner_id, position),
    FOREIGN KEY (owner_id, position) REFERENCES entries (owner_id, position) ON DELETE CASCADE
);
CREATE TABLE erasures (
    id INTEGER PRIMARY KEY,
    owner_sha256 TEXT NOT NULL,
    erased_at TEXT NOT NULL,
    entries INTEGER NOT NULL,
    memories INTEGER NOT NULL,
    dialogues INTEGER NOT NULL
);
CREATE TABLE pending_purges (id INTEGER PRIMARY KEY);
CREATE TABLE store (id TEXT NOT NULL);
INSERT INTO store VALUES (lower(hex(randomblob(16))));
"""


class Database:
    """One connection that all threads of a process share, one at a time.

    Other processes may read while this one writes (WAL); a second writer waits for at most five seconds.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: Path | None, *, read_only: bool = False) -> Database:
        """Open a journal's file, or create it.

        Args:
            path: The file; None keeps the journal in memory.
            read_only: Do not create or change anything.

        Raises:
            DeltaMemError: If the file is missing and may not be created, is no SQLite database, is one of another
                application, or was written by another version.
        """
        if path is None:
            name = ":memory:"
        elif read_only and not path.is_file():
            raise DeltaMemError(f"{path}: no such file, expected the journal of a memory bank")
        else:
            name = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        database: Database | None = None
        try:
            if path is not None and not path.exists():
                # Memories are private; SQLite gives its side files the permissions of this one.
                path.touch(mode=0o600)
            connection = sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False)
            database = cls(connection, path)
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
            database._prepare(read_only)
        except BaseException as error:
            if database is not None:
                database.close()
            if isinstance(error, sqlite3.DatabaseError | OSError):
                raise DeltaMemError(f"{path}: cannot be opened as the journal of a memory bank: {error}") from error
            raise
        return database

    def _prepare(self, read_only: bool) -> None:
        connection = self._connection
        if self._is_new():
            if read_only:
                raise DeltaMemError(f"{self.path}: an empty file, expected the journal of a memory bank")
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")
        # VACUUM copies everything through temporary storage, which must not be a file outside the bank's folder.
        connection.execute("PRAGMA temp_store = MEMORY")
        if not read_only:
            connection.execute("BEGIN IMMEDIATE")
            if self._is_new():
                # One statement after the other: `executescript` would commit first.
                for statement in _SCHEMA.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
            if self.purge_pending:
                self.purge()

    def _is_new(self) -> bool:
        application = self._pragma("application_id")
        version = self._pragma("user_version")
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if (application, version, tables) == (0, 0, 0):
            return True
        if application != APPLICATION_ID:
            raise DeltaMemError(f"{self.path}: an SQLite database of another application, expected a memory bank's journal")
        if version != SCHEMA_VERSION:
            raise DeltaMemError(
                f"{self.path}: written by another version of deltamem (schema {version}, this one reads {SCHEMA_VERSION})"
            )
        return False

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

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
                raise RuntimeError("a journal cannot be written while the same thread reads it")
            with self._transaction("BEGIN IMMEDIATE"):
                yield self._connection

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
            # Bugs of ours (broken constraints, wrong use) are no bad input and keep their own type.
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(
                error, sqlite3.IntegrityError | sqlite3.ProgrammingError
            ):
                raise DeltaMemError(f"{self.path or 'journal'}: {error}") from error
            raise

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
            purge, at the latest when the journal is opened again, removes them.
        """
        with self._lock:
            try:
                if self.path is not None:
                    self._connection.execute("VACUUM")
                    blocked = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                    if blocked:
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
