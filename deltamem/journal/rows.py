"""Entries, changes and dialogues as rows of the journal's tables. Every function works on one owner's rows only.

`owner_id` is None for an owner without entries: then no row is found.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any

from deltamem.journal.records import Change, ChangeEvent, Entry, EntryKind, memory_number
from deltamem.memory import Memory, MemoryState
from deltamem.sessions import Turn
from deltamem.text.words import normalised

_ENTRY = (
    "position, kind, recorded_at, session_id, session_time, model, prompt_hash, violations, restored, undone, session_digest"
)
_CHANGE = "position, event, memory_number, before_text, before_time, after_text, after_time, turns, erased"


def microseconds(time: datetime) -> int:
    """Microseconds since 1970 in UTC; naive times count as UTC."""
    aware = time if time.utcoffset() is not None else time.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def text_hash(text: str) -> bytes:
    """16 bytes that stand for a normalised text in the index of earlier texts."""
    return hashlib.sha256(normalised(text).encode(errors="surrogatepass")).digest()[:16]


def insert(connection: sqlite3.Connection, owner_id: int, entry: Entry) -> None:
    """Write an entry as it is, marks and all."""
    connection.execute(
        f"INSERT INTO entries (owner_id, session_utc, {_ENTRY}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
        ),
    )
    # Only what a session replaced is an earlier version: a rollback replaces texts that never should have been.
    replaces = entry.kind is not EntryKind.ROLLBACK
    connection.executemany(
        f"INSERT INTO changes (owner_id, before_hash, {_CHANGE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        ((owner_id, *_change_row(entry.position, change, replaces)) for change in entry.changes),
    )


def _change_row(position: int, change: Change, replaces: bool) -> tuple[object, ...]:
    before, after = change.before, change.after
    hashed = replaces and change.event is ChangeEvent.UPDATE and not change.erased and before is not None
    return (
        text_hash(before.text) if hashed and before is not None else None,
        position,
        change.event,
        memory_number(change.memory_id),
        None if before is None else before.text,
        None if before is None else before.time.isoformat(),
        None if after is None else after.text,
        None if after is None else after.time.isoformat(),
        json.dumps(change.turns),
        change.erased,
    )


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
    position, kind, recorded_at, session_id, session_time, model, prompt_hash, violations, restored, undone, digest = row
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
    )


def _change(row: Sequence[Any]) -> Change:
    _, event, number, before_text, before_time, after_text, after_time, turns, erased = row
    memory_id = f"m{number}"
    return Change(
        event=ChangeEvent(event),
        memory_id=memory_id,
        before=None if before_text is None else Memory(memory_id, before_text, datetime.fromisoformat(before_time)),
        after=None if after_text is None else Memory(memory_id, after_text, datetime.fromisoformat(after_time)),
        turns=tuple(json.loads(turns)),
        erased=bool(erased),
    )


def state(connection: sqlite3.Connection, owner_id: int | None, position: int) -> MemoryState:
    """The state after a position: what the newest change of each memory up to it left."""
    # With max(), SQLite takes the bare columns from the row that has the maximum.
    found = connection.execute(
        "SELECT memory_number, event, after_text, after_time, max(seq) FROM changes"
        " WHERE owner_id = ? AND position <= ? AND event <> 'NONE' AND erased = 0"
        " GROUP BY memory_number ORDER BY memory_number",
        (owner_id, position),
    )
    return MemoryState(
        Memory(f"m{number}", text, datetime.fromisoformat(time))
        for number, event, text, time, _ in found
        if event != ChangeEvent.REMOVE
    )


def current(connection: sqlite3.Connection, owner_id: int | None, memory_ids: Collection[str]) -> dict[str, Memory]:
    """Some memories of the last state; those that are not in it are left out."""
    query = (
        "SELECT after_text, after_time FROM changes"
        " WHERE owner_id = ? AND memory_number = ? AND event <> 'NONE' AND erased = 0 ORDER BY seq DESC LIMIT 1"
    )
    memories = {}
    for memory_id in memory_ids:
        found = connection.execute(query, (owner_id, memory_number(memory_id))).fetchone()
        if found is not None and found[0] is not None:
            memories[memory_id] = Memory(memory_id, found[0], datetime.fromisoformat(found[1]))
    return memories


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
    """Empty the texts in all changes of a memory."""
    connection.execute(
        "UPDATE changes SET erased = 1, before_hash = NULL,"
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
