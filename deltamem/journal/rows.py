"""The tables of a journal's file, and its entries as rows."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID, uuid4, uuid5

from deltamem.journal.records import Change, ChangeEvent, Entry, EntryKind, Forgotten, memory_number
from deltamem.memory import NO_METADATA, Memory, Metadata
from deltamem.sessions import Turn
from deltamem.sqlite import FileKind, insert_row
from deltamem.text import normalised

CLOCK = timedelta(days=1)
"""No wait and no lease reaches farther into the future; one that does was made before the clock was set back."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(time: datetime) -> int:
    """Microseconds since 1970 in UTC; naive times count as UTC."""
    aware = time if time.utcoffset() is not None else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def time_at(microseconds: int) -> datetime:
    """The time, in UTC, that `microseconds` stands for."""
    return _EPOCH + timedelta(microseconds=microseconds)


def text_hash(text: str) -> bytes:
    """16 bytes that stand for a normalised text in the index of earlier texts."""
    return hashlib.sha256(normalised(text).encode(errors="surrogatepass")).digest()[:16]


def owner_id(connection: sqlite3.Connection, name: str) -> int | None:
    """The row of an owner; None if there is none."""
    found = connection.execute("SELECT id FROM owners WHERE name = ?", (name,)).fetchone()
    return None if found is None else int(found["id"])


def create_owner(connection: sqlite3.Connection, name: str) -> int:
    """The row of an owner, made if there is none."""
    if (known := owner_id(connection, name)) is not None:
        return known
    query = "INSERT INTO owners (name, namespace) VALUES (?, ?) RETURNING id"
    return int(connection.execute(query, (name, str(uuid4()))).fetchone()["id"])


def namespace(connection: sqlite3.Connection, owner_id: int | None) -> str:
    """The random UUID that the memories of a known owner have theirs from."""
    return str(connection.execute("SELECT namespace FROM owners WHERE id = ?", (owner_id,)).fetchone()["namespace"])


def set_zone(connection: sqlite3.Connection, owner_id: int, name: str | None) -> None:
    """Note the time zone of an owner, or that none is known."""
    connection.execute("DELETE FROM zones WHERE owner_id = ?", (owner_id,))
    if name is not None:
        insert_row(connection, "zones", {"owner_id": owner_id, "name": name})


def insert(connection: sqlite3.Connection, owner_id: int, entry: Entry) -> None:
    """Write an entry as it is, marks and all."""
    time = entry.session_time
    plain = {one.name: getattr(entry, one.name) for one in fields(entry) if one.name != "changes"}
    row = plain | {
        "owner_id": owner_id,
        "recorded_at": entry.recorded_at.isoformat(),
        "session_time": None if time is None else time.isoformat(),
        "session_utc": None if time is None else microseconds(time),
        "violations": json.dumps(dict(entry.violations), ensure_ascii=False),
    }
    insert_row(connection, "entries", row)
    # Only what a session or an edit replaced is an earlier version: a rollback replaces texts that never should have been.
    # Likewise a rollback restores memories and makes none.
    original = entry.kind is not EntryKind.ROLLBACK
    space = UUID(namespace(connection, owner_id))
    for change in entry.changes:
        before, after = change.before, change.after
        ended = original and not change.erased and change.event in (ChangeEvent.UPDATE, ChangeEvent.REMOVE)
        added = original and change.event is ChangeEvent.ADD
        change_row = {
            "owner_id": owner_id,
            "position": entry.position,
            "memory_number": memory_number(change.memory_id),
            "event": change.event,
            **_side_row("before", before),
            **_side_row("after", after),
            "turns": json.dumps(change.turns),
            "erased": change.erased,
            "before_hash": text_hash(before.text) if ended and before is not None else None,
            # The position tells apart two memories that had one id, because the first was undone.
            "uuid": str(uuid5(space, f"{change.memory_id}@{entry.position}")) if added else None,
        }
        insert_row(connection, "changes", change_row)


def _side_row(side: str, memory: Memory | None) -> dict[str, str | None]:
    if memory is None:
        return {}
    metadata = memory.metadata.written if memory.metadata else None
    return {f"{side}_text": memory.text, f"{side}_time": memory.time.isoformat(), f"{side}_metadata": metadata}


def side(row: sqlite3.Row, side: str) -> Memory | None:
    """The memory before or after the change that a row stands for."""
    text, metadata = row[f"{side}_text"], row[f"{side}_metadata"]
    if text is None:
        return None
    noted = NO_METADATA if metadata is None else Metadata(json.loads(metadata))
    return Memory(f"m{row['memory_number']}", text, datetime.fromisoformat(row[f"{side}_time"]), noted)


def by_position(changes: Iterable[sqlite3.Row]) -> dict[int, tuple[Change, ...]]:
    """The changes that rows stand for, by the position of their entry, which the rows are ordered by."""
    return {position: tuple(map(_change, rows)) for position, rows in groupby(changes, key=lambda row: row["position"])}


def entry(row: sqlite3.Row, changes: tuple[Change, ...]) -> Entry:
    """The entry that a row stands for, with its changes."""
    plain = {one.name: row[one.name] for one in fields(Entry) if one.name != "changes"}
    read: dict[str, Any] = {
        "kind": EntryKind(row["kind"]),
        "recorded_at": datetime.fromisoformat(row["recorded_at"]),
        "session_time": None if row["session_time"] is None else datetime.fromisoformat(row["session_time"]),
        "violations": json.loads(row["violations"]),
        "undone": bool(row["undone"]),
    }
    return Entry(**plain | read, changes=changes)


def _change(row: sqlite3.Row) -> Change:
    return Change(
        event=ChangeEvent(row["event"]),
        memory_id=f"m{row['memory_number']}",
        before=side(row, "before"),
        after=side(row, "after"),
        turns=tuple(json.loads(row["turns"])),
        erased=bool(row["erased"]),
    )


def mark_effective(connection: sqlite3.Connection, owner_id: int, effective: Sequence[range]) -> None:
    """Mark the entries of some ranges (ascending) as effective and all others as undone."""
    update = "UPDATE entries SET undone = ? WHERE owner_id = ? AND position >= ? AND position < ? AND undone <> ?"
    starts = [0, *(positions.stop for positions in effective)]
    stops = [positions.start for positions in effective]
    # First what is undone: a session id may be effective only once at any moment.
    gaps = zip(starts, stops, strict=False)
    connection.executemany(update, [(1, owner_id, start, stop, 1) for start, stop in gaps])
    connection.executemany(update, [(0, owner_id, positions.start, positions.stop, 0) for positions in effective])


def insert_dialogue(connection: sqlite3.Connection, owner_id: int, position: int, turns: Sequence[Turn]) -> None:
    """Store the turns of a session."""
    stored = json.dumps([[turn.role, turn.content] for turn in turns], ensure_ascii=False)
    connection.execute("INSERT INTO dialogues (owner_id, position, turns) VALUES (?, ?, ?)", (owner_id, position, stored))


def erase_memory(connection: sqlite3.Connection, owner_id: int, memory_id: str) -> None:
    """Empty the texts in all changes of a memory and take away its metadata."""
    connection.execute(
        "UPDATE changes SET erased = 1, before_hash = NULL, before_metadata = NULL, after_metadata = NULL,"
        " before_text = CASE WHEN before_text IS NULL THEN NULL ELSE '' END,"
        " after_text = CASE WHEN after_text IS NULL THEN NULL ELSE '' END"
        " WHERE owner_id = ? AND memory_number = ?",
        (owner_id, memory_number(memory_id)),
    )


def blank_turns(
    connection: sqlite3.Connection, owner_id: int, sources: Mapping[int, Collection[int]], forgotten: Forgotten
) -> None:
    """Empty stored turns: by position the numbers (from 1) of some, and all that repeat what is forgotten."""
    stored = connection.execute("SELECT position, turns FROM dialogues WHERE owner_id = ?", (owner_id,)).fetchall()
    for row in stored:
        turns = json.loads(row["turns"])
        if forgotten.blank(turns, sources.get(row["position"], ())):
            connection.execute(
                "UPDATE dialogues SET turns = ? WHERE owner_id = ? AND position = ?",
                (json.dumps(turns, ensure_ascii=False), owner_id, row["position"]),
            )


OWNERS = """
CREATE TABLE owners (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (name <> ''),
    namespace TEXT NOT NULL
);
"""
"""Everything else hangs on these rows, here and in the files beside: deleting one erases an owner."""
SCHEMA_VERSION = 7

# `seq` grows along an owner's journal, so the largest one of a memory is its newest change. Times are kept as they were
# given (ISO 8601); `session_utc` (microseconds since 1970) is what they are compared by.
_SCHEMA = """
CREATE TABLE entries (
    owner_id INTEGER NOT NULL REFERENCES owners (id) ON DELETE CASCADE,
    position INTEGER NOT NULL CHECK (position >= 1),
    kind TEXT NOT NULL CHECK (kind IN ('session', 'edit', 'rollback', 'forget', 'import')),
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
    actor TEXT CHECK (actor <> ''),
    PRIMARY KEY (owner_id, position),
    CHECK ((kind = 'session') = (session_id IS NOT NULL)),
    CHECK (session_id IS NULL OR session_time IS NOT NULL),
    CHECK (session_time IS NULL OR kind IN ('session', 'edit')),
    CHECK ((session_time IS NULL) = (session_utc IS NULL)),
    CHECK ((session_id IS NULL) = (session_digest IS NULL)),
    CHECK ((kind = 'rollback') = (restored IS NOT NULL)),
    CHECK ((kind = 'edit') = (actor IS NOT NULL))
) WITHOUT ROWID;
CREATE UNIQUE INDEX applied_sessions ON entries (owner_id, session_id) WHERE session_id IS NOT NULL AND undone = 0;
CREATE INDEX dated_entries ON entries (owner_id, session_utc) WHERE session_utc IS NOT NULL AND undone = 0;
CREATE TABLE changes (
    seq INTEGER PRIMARY KEY,
    owner_id INTEGER NOT NULL,
    position INTEGER NOT NULL,
    memory_number INTEGER NOT NULL,
    event TEXT NOT NULL CHECK (event IN ('ADD', 'UPDATE', 'NONE', 'REMOVE')),
    before_text TEXT,
    before_time TEXT,
    before_metadata TEXT,
    after_text TEXT,
    after_time TEXT,
    after_metadata TEXT,
    turns TEXT NOT NULL,
    erased INTEGER NOT NULL CHECK (erased IN (0, 1)),
    before_hash BLOB,
    uuid TEXT,
    FOREIGN KEY (owner_id, position) REFERENCES entries (owner_id, position) ON DELETE CASCADE,
    CHECK ((event = 'ADD') = (before_text IS NULL)),
    CHECK ((event = 'REMOVE') = (after_text IS NULL)),
    CHECK ((before_text IS NULL) = (before_time IS NULL)),
    CHECK ((after_text IS NULL) = (after_time IS NULL)),
    CHECK (before_metadata IS NULL OR before_text IS NOT NULL),
    CHECK (after_metadata IS NULL OR after_text IS NOT NULL),
    CHECK (erased = 0 OR coalesce(before_text, '') || coalesce(after_text, '') = ''),
    CHECK (erased = 0 OR coalesce(before_metadata, after_metadata) IS NULL)
);
CREATE INDEX changes_of_a_memory ON changes (owner_id, memory_number, seq);
CREATE INDEX changes_of_an_entry ON changes (owner_id, position);
CREATE INDEX earlier_texts ON changes (owner_id, before_hash) WHERE before_hash IS NOT NULL;
CREATE UNIQUE INDEX uuids ON changes (uuid, owner_id) WHERE uuid IS NOT NULL;
CREATE TABLE dialogues (
    owner_id INTEGER NOT NULL,
    position INTEGER NOT NULL,
    turns TEXT NOT NULL,
    PRIMARY KEY (owner_id, position),
    FOREIGN KEY (owner_id, position) REFERENCES entries (owner_id, position) ON DELETE CASCADE
);
CREATE TABLE zones (
    owner_id INTEGER PRIMARY KEY REFERENCES owners (id) ON DELETE CASCADE,
    name TEXT NOT NULL
);
CREATE TABLE erasures (
    id INTEGER PRIMARY KEY,
    owner_sha256 TEXT NOT NULL,
    erased_at TEXT NOT NULL,
    entries INTEGER NOT NULL,
    memories INTEGER NOT NULL,
    dialogues INTEGER NOT NULL
);
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner_id INTEGER NOT NULL REFERENCES owners (id) ON DELETE CASCADE,
    session_id TEXT NOT NULL CHECK (session_id <> ''),
    digest TEXT NOT NULL,
    body TEXT,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed')),
    attempts INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    lease_until INTEGER,
    retry_at INTEGER,
    last_error TEXT,
    position INTEGER,
    UNIQUE (owner_id, session_id),
    CHECK ((state = 'done') = (body IS NULL)),
    CHECK ((state = 'done') = (position IS NOT NULL)),
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK (retry_at IS NULL OR state = 'queued')
);
CREATE INDEX waiting_jobs ON jobs (owner_id, seq) WHERE state IN ('queued', 'running');
CREATE TABLE store (id TEXT NOT NULL, paused INTEGER NOT NULL DEFAULT 0);
INSERT INTO store (id) VALUES (lower(hex(randomblob(16))));
"""


JOURNAL = FileKind("the journal of a memory bank", 0x444D656D, SCHEMA_VERSION, OWNERS + _SCHEMA)  # "DMem"
