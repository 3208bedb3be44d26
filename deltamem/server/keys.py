"""API keys: who may call the server, for which owners, and how far. A small SQLite file beside the journal."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from deltamem.errors import DeltaMemError, NotFoundError
from deltamem.sqlite import Database, FileKind

KEYS_FILE = "keys.sqlite3"
"""Name of the file in the folder of a store."""
PREFIX = "dm_"
"""How tokens begin, so that scanners for leaked secrets can know them."""
_SCHEMA = """
CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL CHECK (name <> ''),
    token_sha256 BLOB NOT NULL UNIQUE,
    owners TEXT,
    scopes TEXT NOT NULL,
    created_at TEXT NOT NULL,
    revoked_at TEXT
);
"""
_KEYS = FileKind("a file of API keys", 0x444D6B79, 0, _SCHEMA)


class Scope(StrEnum):
    """What a key may do."""

    READ = "read"
    """Search, list, history, export."""
    WRITE = "write"
    """Sessions, and memories without a model; whatever can be taken back."""
    ADMIN = "admin"
    """Erase for good and import; with all owners also to pause the model and see metrics."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key, without its token."""

    id: str
    name: str
    """Recorded as the actor of what is written with it."""
    owners: frozenset[str] | None
    """Whose memory it opens; None for everybody's. Empty once it is revoked."""
    scopes: frozenset[Scope]
    created_at: datetime
    revoked_at: datetime | None = None

    def opens(self, owner: str) -> bool:
        """Whether it is a key to an owner's memory."""
        return self.owners is None or owner in self.owners


class Keys:
    """The keys of a store. Threads may share one instance; other processes may change the keys meanwhile."""

    def __init__(self, database: Database, path: Path) -> None:
        """Use `open`."""
        self.path = path
        self._database = database

    @classmethod
    def open(cls, path: Path) -> Keys:
        """Open or create the file.

        Raises:
            DeltaMemError: If it is no file of keys.
        """
        return cls(Database.open(path, _KEYS), path)

    def create(self, name: str, owners: Collection[str] | None, scopes: Collection[Scope]) -> tuple[Key, str]:
        """Make a key; None opens everybody's memory. Its token, beside it, is nowhere else: only a hash of it is stored.

        Raises:
            DeltaMemError: If a name is empty or no scope is given.
        """
        if not name.strip() or not scopes or (owners is not None and (not owners or not all(owners))):
            raise DeltaMemError("a key needs a name, at least one scope, and owners whose names are not empty")
        token = PREFIX + secrets.token_urlsafe(32)
        bound = None if owners is None else frozenset(owners)
        key = Key(uuid4().hex[:12], name.strip(), bound, frozenset(scopes), datetime.now(UTC))
        row = (
            key.id,
            key.name,
            _hash(token),
            None if bound is None else json.dumps(sorted(bound), ensure_ascii=False),
            " ".join(sorted(key.scopes)),
            key.created_at.isoformat(),
        )
        with self._database.write() as connection:
            connection.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, NULL)", row)
        return key, token

    def list(self) -> list[Key]:
        """All keys, revoked ones too, oldest first."""
        with self._database.read() as connection:
            return [_key(row) for row in connection.execute(f"{_SELECT} ORDER BY created_at, id")]

    def find(self, token: str) -> Key | None:
        """The key that a token belongs to; None if there is none, or it was revoked."""
        with self._database.read() as connection:
            found = connection.execute(
                f"{_SELECT} WHERE token_sha256 = ? AND revoked_at IS NULL", (_hash(token),)
            ).fetchone()
        return None if found is None else _key(found)

    def revoke(self, key_id: str) -> Key:
        """Refuse a key from now on, and forget whose memory it opened: revoking is how an owner's name leaves the file.

        Raises:
            NotFoundError: If there is no such key.
        """
        with self._database.write() as connection:
            now = datetime.now(UTC).isoformat()
            query = (
                "UPDATE keys SET revoked_at = coalesce(revoked_at, ?),"
                " owners = CASE WHEN owners IS NULL THEN NULL ELSE '[]' END WHERE id = ?"
            )
            connection.execute(query, (now, key_id))
            self._database.purge_after()
            found = connection.execute(f"{_SELECT} WHERE id = ?", (key_id,)).fetchone()
        if found is None:
            raise NotFoundError(f"there is no key {key_id!r}; `deltamem keys list` shows their ids")
        return _key(found)

    @property
    def none(self) -> bool:
        """Whether no key was ever made. Revoking the last one does not open the server again."""
        with self._database.read() as connection:
            return connection.execute("SELECT 1 FROM keys LIMIT 1").fetchone() is None

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_SELECT = "SELECT id, name, owners, scopes, created_at, revoked_at FROM keys"


def _key(row: Sequence[Any]) -> Key:
    identity, name, owners, scopes, created, revoked = row
    return Key(
        identity,
        name,
        None if owners is None else frozenset(json.loads(owners)),
        frozenset(map(Scope, scopes.split())),
        datetime.fromisoformat(created),
        None if revoked is None else datetime.fromisoformat(revoked),
    )


def _hash(token: str) -> bytes:
    # A plain hash is enough: the token is random and has 256 bits, so there is nothing to guess.
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
