"""Answers of language models on disk, so that the same request is not paid for twice.

One SQLite file in WAL mode; the values are JSON. Several threads and processes may use one file at the same time.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from deltamem.errors import DeltaMemError

_BUSY_SECONDS = 30.0
"""How long to wait for another process that writes."""


class ResponseCache:
    """Answers by scope and request. A scope is the owner whose data the request holds; scopes share nothing."""

    def __init__(self, path: Path) -> None:
        """Open the cache, or make it.

        Args:
            path: The SQLite file; ``-wal`` and ``-shm`` files lie next to it while it is open, and a ``.lock`` file.

        Raises:
            DeltaMemError: If the file cannot be opened or is not such a cache.
        """
        self._path = path
        self._lock = threading.Lock()
        with self._told():
            self._database = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False, isolation_level=None)
        try:
            # SQLite does not wait when two connections put a new file into WAL mode at the same time: one of them fails.
            with self._told(), FileLock(f"{path}.lock", timeout=_BUSY_SECONDS):
                # What is deleted is overwritten, not only unlinked. Holds for this connection only.
                self._database.execute("PRAGMA secure_delete = ON")
                self._database.execute("PRAGMA journal_mode = WAL")
                # A cache may lose its last answers with the power; it is never inconsistent.
                self._database.execute("PRAGMA synchronous = NORMAL")
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS answers"
                    " (scope TEXT, request TEXT, value TEXT NOT NULL, PRIMARY KEY (scope, request)) WITHOUT ROWID"
                )
        except DeltaMemError:
            self._database.close()
            raise

    def get(self, scope: str, request: Mapping[str, object]) -> dict[str, Any] | None:
        """The answer to a request, or None.

        Args:
            scope: For whom it was cached.
            request: All that decides the answer, JSON values only.

        Raises:
            DeltaMemError: If the file cannot be read.
        """
        with self._lock, self._told():
            # fetchall ends the statement; an open one would keep `forget` from emptying the WAL.
            rows = self._database.execute(
                "SELECT value FROM answers WHERE scope = ? AND request = ?", (scope, _digest(request))
            ).fetchall()
        if not rows:
            return None
        value: dict[str, Any] = json.loads(rows[0][0])
        return value

    def put(self, scope: str, request: Mapping[str, object], value: Mapping[str, object]) -> None:
        """Keep an answer.

        Raises:
            DeltaMemError: If the file cannot be written.
        """
        text = json.dumps(value)
        with self._lock, self._told():
            self._database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (scope, _digest(request), text))

    def forget(self, scope: str) -> int:
        """Erase all answers of a scope, so that neither the file nor its WAL holds a byte of them.

        Requests of the scope must have ended before; what comes in afterwards is cached again.

        Returns:
            How many answers there were.

        Raises:
            DeltaMemError: If the file cannot be written, or another process reads for so long that its WAL cannot be
                emptied; the answers are then deleted but traces may remain, so try again.
        """
        with self._lock, self._told():
            count = self._database.execute("DELETE FROM answers WHERE scope = ?", (scope,)).rowcount
            # Copies of cells that earlier moves within the tree left behind go with the old file contents.
            self._database.execute("VACUUM")
            ((busy, _, _),) = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if busy:
            raise DeltaMemError(f"{self._path}: in use by another process, so traces of erased answers remain; try again")
        return count

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise DeltaMemError(f"{self._path}: the response cache cannot be used: {error}") from error


def _digest(request: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
