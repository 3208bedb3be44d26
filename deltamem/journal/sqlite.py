"""The SQLite file of a journal: its schema, and entries as rows."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import UUID, uuid4, uuid5

from deltamem.journal.records import Change, ChangeEvent, Entry, EntryKind, memory_number
from deltamem.memory import NO_METADATA, Memory, MemoryState, Metadata
from deltamem.sessions import Turn
from deltamem.sqlite import FileKind
from deltamem.text import normalised

_ENTRY = (
    "position, kind, recorded_at, session_id, session_time, model, prompt_hash, violations, restored, undone,"
    " session_digest, actor"
)
_CHANGE = (
    "position, event, memory_number, before_text, before_time, before_metadata, after_text, after_time, after_metadata,"
    " turns, erased"
)


def microseconds(time: datetime) -> int:
    """Microseconds since 1970 in UTC; naive times count as UTC."""
    aware = time if time.utcoffset() is not None else time.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


CLOCK = timedelta(days=1)
"""No wait and no lease reaches farther into the future; one that does was made before the clock was set back."""


def text_hash(text: str) -> bytes:
    """16 bytes that stand for a normalised text in the index of earlier texts."""
    return hashlib.sha256(normalised(text).encode(errors="surrogatepass")).digest()[:16]


def insert(connection: sqlite3.Connection, owner_id: int, entry: Entry) -> None:
    """Write an entry as it is, marks and all."""
    connection.execute(
        f"INSERT INTO entries (owner_id, session_utc, {_ENTRY}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            owner_id,
            None if entry.session_time is None else microseconds(entry.session_time),
            entry.position,
            entry.kind,
            entry.recorded_at.isoformat(),
            entry.session_id,
            None if entry.session_time is None else entry.session_time.isoformat(),
            entry.model,
            entry.prompt_hash,
            json.dumps(dict(entry.violations), ensure_ascii=False),
            entry.restored,
            entry.undone,
            entry.session_digest,
            entry.actor,
        ),
    )
    # Only what a session or an edit replaced is an earlier version: a rollback replaces texts that never should have been.
    # Likewise a rollback restores memories and makes none.
    original = entry.kind is not EntryKind.ROLLBACK
    space = UUID(namespace(connection, owner_id))
    connection.executemany(
        f"INSERT INTO changes (owner_id, before_hash, uuid, {_CHANGE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        ((owner_id, *_change_row(entry.position, change, original, space)) for change in entry.changes),
    )


def owner_id(connection: sqlite3.Connection, name: str) -> int | None:
    """The row of an owner; None if there is none."""
    found = connection.execute("SELECT id FROM owners WHERE name = ?", (name,)).fetchone()
    return None if found is None else int(found[0])


def create_owner(connection: sqlite3.Connection, name: str) -> int:
    """The row of an owner, made if there is none."""
    if (known := owner_id(connection, name)) is not None:
        return known
    query = "INSERT INTO owners (name, namespace) VALUES (?, ?) RETURNING id"
    return int(connection.execute(query, (name, str(uuid4()))).fetchone()[0])


def namespace(connection: sqlite3.Connection, owner_id: int | None) -> str:
    """The random UUID that the memories of a known owner have theirs from."""
    return str(connection.execute("SELECT namespace FROM owners WHERE id = ?", (owner_id,)).fetchone()[0])


def _change_row(position: int, change: Change, original: bool, space: UUID) -> tuple[object, ...]:
    before, after = change.before, change.after
    ended = change.event in (ChangeEvent.UPDATE, ChangeEvent.REMOVE)
    hashed = original and ended and not change.erased and before is not None
    return (
        text_hash(before.text) if hashed and before is not None else None,
        # The position tells apart two memories that had one id, because the first was undone.
        str(uuid5(space, f"{change.memory_id}@{position}")) if original and change.event is ChangeEvent.ADD else None,
        position,
        change.event,
        memory_number(change.memory_id),
        *_side_row(before),
        *_side_row(after),
        json.dumps(change.turns),
        change.erased,
    )


def _side_row(memory: Memory | None) -> tuple[str | None, str | None, str | None]:
    if memory is None:
        return None, None, None
    return memory.text, memory.time.isoformat(), memory.metadata.written if memory.metadata else None


def _memory(memory_id: str, text: str, time: str, metadata: str | None) -> Memory:
    noted = NO_METADATA if metadata is None else Metadata(json.loads(metadata))
    return Memory(memory_id, text, datetime.fromisoformat(time), noted)


def entries(connection: sqlite3.Connection, owner_id: int | None, after: int, until: int, limit: int) -> list[Entry]:
    """The first `limit` entries of positions `after` + 1 to `until` with all their changes."""
    found = connection.execute(
        f"SELECT {_ENTRY} FROM entries WHERE owner_id = ? AND position > ? AND position <= ? ORDER BY position LIMIT ?",
        (owner_id, after, until, limit),
    ).fetchall()
    if not found:
        return []
    changes = connection.execute(
        f"SELECT {_CHANGE} FROM changes WHERE owner_id = ? AND position BETWEEN ? AND ? ORDER BY position, seq",
        (owner_id, found[0][0], found[-1][0]),
    )
    of_position = _by_position(changes)
    return [_entry(row, of_position.get(row[0], ())) for row in found]


def entries_of(connection: sqlite3.Connection, owner_id: int | None, number: int) -> list[Entry]:
    """The entries that concern one memory, each with the changes of this memory only."""
    of_position = _by_position(
        connection.execute(
            f"SELECT {_CHANGE} FROM changes WHERE owner_id = ? AND memory_number = ? ORDER BY seq", (owner_id, number)
        )
    )
    query = f"SELECT {_ENTRY} FROM entries WHERE owner_id = ? AND position = ?"
    found = (connection.execute(query, (owner_id, position)).fetchone() for position in of_position)
    return [_entry(row, of_position[row[0]]) for row in found]


def _by_position(changes: Iterable[tuple[Any, ...]]) -> dict[int, tuple[Change, ...]]:
    return {position: tuple(map(_change, rows)) for position, rows in groupby(changes, key=itemgetter(0))}


def _entry(row: Sequence[Any], changes: tuple[Change, ...]) -> Entry:
    (
        position,
        kind,
        recorded_at,
        session_id,
        session_time,
        model,
        prompt_hash,
        violations,
        restored,
        undone,
        digest,
        actor,
    ) = row
    return Entry(
        position=position,
        kind=EntryKind(kind),
        recorded_at=datetime.fromisoformat(recorded_at),
        changes=changes,
        session_id=session_id,
        session_time=None if session_time is None else datetime.fromisoformat(session_time),
        model=model,
        prompt_hash=prompt_hash,
        violations=json.loads(violations),
        restored=restored,
        undone=bool(undone),
        session_digest=digest,
        actor=actor,
    )


def _change(row: Sequence[Any]) -> Change:
    _, event, number, before_text, before_time, before_metadata, after_text, after_time, after_metadata, turns, erased = row
    memory_id = f"m{number}"
    return Change(
        event=ChangeEvent(event),
        memory_id=memory_id,
        before=None if before_text is None else _memory(memory_id, before_text, before_time, before_metadata),
        after=None if after_text is None else _memory(memory_id, after_text, after_time, after_metadata),
        turns=tuple(json.loads(turns)),
        erased=bool(erased),
    )


def state(connection: sqlite3.Connection, owner_id: int | None, position: int) -> MemoryState:
    """The state after a position: what the newest change of each memory up to it left."""
    # With max(), SQLite takes the bare columns from the row that has the maximum.
    found = connection.execute(
        "SELECT memory_number, event, after_text, after_time, after_metadata, max(seq) FROM changes"
        " WHERE owner_id = ? AND position <= ? AND event <> 'NONE' AND erased = 0"
        " GROUP BY memory_number ORDER BY memory_number",
        (owner_id, position),
    )
    return MemoryState(
        _memory(f"m{number}", text, time, metadata)
        for number, event, text, time, metadata, _ in found
        if event != ChangeEvent.REMOVE
    )


def current(connection: sqlite3.Connection, owner_id: int | None, memory_ids: Collection[str]) -> dict[str, Memory]:
    """Some memories of the last state; those that are not in it are left out."""
    query = (
        "SELECT after_text, after_time, after_metadata FROM changes"
        " WHERE owner_id = ? AND memory_number = ? AND event <> 'NONE' AND erased = 0 ORDER BY seq DESC LIMIT 1"
    )
    memories = {}
    for memory_id in memory_ids:
        found = connection.execute(query, (owner_id, memory_number(memory_id))).fetchone()
        if found is not None and found[0] is not None:
            memories[memory_id] = _memory(memory_id, *found)
    return memories


def uuids(connection: sqlite3.Connection, owner_id: int | None, effective: Sequence[range]) -> dict[str, UUID]:
    """The UUIDs of the memories that the entries of some ranges made, by id."""
    query = (
        "SELECT memory_number, uuid FROM changes"
        " WHERE owner_id = ? AND position >= ? AND position < ? AND uuid IS NOT NULL ORDER BY seq"
    )
    return {
        f"m{number}": UUID(text)
        for positions in effective
        for number, text in connection.execute(query, (owner_id, positions.start, positions.stop))
    }


def added(connection: sqlite3.Connection, owner_id: int | None, effective: Sequence[range]) -> dict[str, datetime]:
    """The first times of the memories that the entries of some ranges made, by id."""
    query = (
        "SELECT memory_number, after_time FROM changes"
        " WHERE owner_id = ? AND position >= ? AND position < ? AND uuid IS NOT NULL ORDER BY seq"
    )
    return {
        f"m{number}": datetime.fromisoformat(text)
        for positions in effective
        for number, text in connection.execute(query, (owner_id, positions.start, positions.stop))
    }


def number_of(connection: sqlite3.Connection, owner_id: int | None, uuid: str) -> int | None:
    """The number of the memory with a UUID; None if no effective entry made one."""
    query = (
        "SELECT memory_number FROM changes CROSS JOIN entries USING (owner_id, position)"
        " WHERE owner_id = ? AND uuid = ? AND undone = 0"
    )
    found = connection.execute(query, (owner_id, uuid)).fetchone()
    return None if found is None else int(found[0])


def restored(connection: sqlite3.Connection, owner_id: int | None) -> dict[int, int]:
    """For the position of each rollback, the position that it restored."""
    query = "SELECT position, restored FROM entries WHERE owner_id = ? AND restored IS NOT NULL"
    return dict(connection.execute(query, (owner_id,)).fetchall())


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


def dialogue(connection: sqlite3.Connection, owner_id: int | None, position: int) -> tuple[Turn, ...] | None:
    """The stored turns of one entry; None if there are none."""
    query = "SELECT turns FROM dialogues WHERE owner_id = ? AND position = ?"
    found = connection.execute(query, (owner_id, position)).fetchone()
    return None if found is None else tuple(Turn(role, content) for role, content in json.loads(found[0]))


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
    connection: sqlite3.Connection, owner_id: int, sources: Collection[tuple[int, int]], texts: Collection[str]
) -> None:
    """Empty stored turns.

    Args:
        connection: The journal.
        owner_id: The owner.
        sources: Position and number (from 1) of turns to empty.
        texts: Turns that contain one of these, both normalised, are emptied too.
    """
    wanted = [text for text in map(normalised, texts) if text]
    stored = connection.execute("SELECT position, turns FROM dialogues WHERE owner_id = ?", (owner_id,)).fetchall()
    for position, before in stored:
        turns = json.loads(before)
        for number, turn in enumerate(turns, start=1):
            content = normalised(turn[1])
            if (position, number) in sources or any(text in content for text in wanted):
                turn[1] = ""
        after = json.dumps(turns, ensure_ascii=False)
        if after != before:
            connection.execute(
                "UPDATE dialogues SET turns = ? WHERE owner_id = ? AND position = ?", (after, owner_id, position)
            )


SCHEMA_VERSION = 5

# `seq` grows along an owner's journal, so the largest one of a memory is its newest change. Times are kept as they were
# given (ISO 8601); `session_utc` (microseconds since 1970) is what they are compared by.
_SCHEMA = """
CREATE TABLE owners (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (name <> ''),
    namespace TEXT NOT NULL
);
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
CREATE TABLE buffers (
    owner_id INTEGER NOT NULL REFERENCES owners (id) ON DELETE CASCADE,
    name TEXT NOT NULL CHECK (name <> ''),
    person TEXT NOT NULL,
    part INTEGER NOT NULL,
    began_at TEXT,
    touched_at INTEGER NOT NULL,
    known TEXT NOT NULL,
    turns TEXT NOT NULL,
    PRIMARY KEY (owner_id, name),
    CHECK ((turns = '[]') = (began_at IS NULL))
);
CREATE INDEX kept_turns ON buffers (touched_at) WHERE turns <> '[]';
CREATE TABLE intent_collections (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: it is part of the stamp
    owner_id INTEGER NOT NULL REFERENCES owners (id) ON DELETE CASCADE,
    name TEXT NOT NULL CHECK (name <> ''),
    labeller TEXT NOT NULL,
    erased INTEGER NOT NULL DEFAULT 0,
    UNIQUE (owner_id, name)
);
CREATE TABLE intent_steps (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    collection INTEGER NOT NULL REFERENCES intent_collections (id) ON DELETE CASCADE,
    step_id TEXT NOT NULL,
    role TEXT NOT NULL,
    time TEXT NOT NULL,
    text TEXT NOT NULL,
    scope TEXT NOT NULL,
    event TEXT NOT NULL,
    entity_types TEXT NOT NULL,
    resolved TEXT NOT NULL,
    summary TEXT NOT NULL,
    embedder TEXT,
    vector BLOB,
    UNIQUE (collection, step_id)
);
CREATE INDEX steps_of_a_collection ON intent_steps (collection, number);
CREATE TABLE intent_labels (
    collection INTEGER NOT NULL REFERENCES intent_collections (id) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    step INTEGER NOT NULL,
    facet TEXT NOT NULL,
    label TEXT NOT NULL,
    merged_into TEXT,
    PRIMARY KEY (collection, version)
);
CREATE TABLE intent_notes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    collection INTEGER NOT NULL REFERENCES intent_collections (id) ON DELETE CASCADE,
    scope TEXT NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX notes_of_a_collection ON intent_notes (collection, seq);
CREATE TABLE intent_drafts (
    collection INTEGER NOT NULL REFERENCES intent_collections (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (collection, name)
);
CREATE TABLE store (id TEXT NOT NULL, paused INTEGER NOT NULL DEFAULT 0);
INSERT INTO store (id) VALUES (lower(hex(randomblob(16))));
"""


JOURNAL = FileKind("the journal of a memory bank", 0x444D656D, SCHEMA_VERSION, _SCHEMA)  # "DMem"
