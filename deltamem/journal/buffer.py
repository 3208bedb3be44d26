"""Conversations that go on: what was said lies in the journal's file until it has been quiet for a while.

Chat completions bring the whole conversation with each request, or its end. Each turn is kept once all the same: the
turns are known by salted digests, which stay when the turns have become a session, and when they are forgotten.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from deltamem.journal import jobs
from deltamem.journal.jobs import Job, JobConflictError
from deltamem.journal.sqlite import microseconds, namespace
from deltamem.sessions import Session, Turn
from deltamem.text import normalised

_ROW = "SELECT known, turns, began_at FROM buffers WHERE owner_id = ? AND name = ?"


def keep(connection: sqlite3.Connection, owner_id: int, name: str | None, person_name: str, said: Sequence[Turn]) -> str:
    """Keep what is new in a conversation.

    Args:
        connection: The journal.
        owner_id: The owner.
        name: Of the conversation; None names it by its first turn.
        person_name: How memories name the person.
        said: The conversation as far as the request shows it, the person's last turn included.

    Returns:
        The name of the conversation.
    """
    salt = namespace(connection, owner_id)
    digests = [_digest(salt, turn) for turn in said]
    name = name or f"chat-{digests[0][1:]}"
    known, kept, began = _load(connection, owner_id, name)
    place, length = _overlap(known, digests)
    fresh, behind = list(said[length:]), known[place + length :]
    if not fresh and len(behind) == 1 and behind[0][0] == "a" and kept:
        # The same question again: the answer is made again, and the client has dropped the first one.
        known, kept = known[:-1], kept[:-1]
    elif not fresh and any(digest[0] == "u" for digest in behind):
        # Said before, but not just now: the person repeats it.
        last = max((place for place, turn in enumerate(said) if turn.role == "user"), default=len(said))
        fresh = list(said[last:])
    _save(connection, owner_id, name, person_name, known, kept, began, fresh, salt)
    return name


def answer(connection: sqlite3.Connection, owner_id: int, name: str, person_name: str, turn: Turn) -> None:
    """Keep the answer to what was kept last."""
    known, kept, began = _load(connection, owner_id, name)
    _save(connection, owner_id, name, person_name, known, kept, began, [turn], namespace(connection, owner_id))


def any_idle(connection: sqlite3.Connection, before: datetime) -> bool:
    """Whether `end_idle` may have something to do."""
    query = "SELECT 1 FROM buffers WHERE turns <> '[]' AND touched_at <= ? LIMIT 1"
    return connection.execute(query, (microseconds(before),)).fetchone() is not None


def end_idle(connection: sqlite3.Connection, before: datetime) -> list[Job]:
    """Make sessions, as jobs, of what was kept in conversations in which nothing was said since a time.

    A conversation that goes on afterwards becomes a further session, ``NAME/2``.
    """
    found = connection.execute(
        "SELECT owner_id, owners.name, buffers.name, person, part, turns, began_at FROM buffers"
        " JOIN owners ON owners.id = owner_id WHERE turns <> '[]' AND touched_at <= ? ORDER BY touched_at",
        (microseconds(before),),
    ).fetchall()
    taken = []
    for owner_id, owner, name, person, part, stored, began in found:
        turns = tuple(Turn(role, content) for role, content in json.loads(stored))
        if not any(turn.role == "user" for turn in turns):
            continue
        job = None
        while job is None:
            session_id = name if part == 1 else f"{name}/{part}"
            part += 1
            try:
                session = Session(owner, person, datetime.fromisoformat(began), turns, session_id)
                job = jobs.enqueue(connection, owner_id, session)
            except JobConflictError:
                continue  # another door has used this id
        connection.execute(
            "UPDATE buffers SET part = ?, turns = '[]', began_at = NULL WHERE owner_id = ? AND name = ?",
            (part, owner_id, name),
        )
        taken.append(job)
    return taken


def scrub(connection: sqlite3.Connection, owner_id: int, texts: Collection[str]) -> None:
    """Empty the kept turns that contain one of the texts, case and white space apart."""
    wanted = [text for text in map(normalised, texts) if text]
    for name, before in connection.execute("SELECT name, turns FROM buffers WHERE owner_id = ?", (owner_id,)).fetchall():
        turns = json.loads(before)
        for turn in turns:
            if any(text in normalised(turn[1]) for text in wanted):
                turn[1] = ""
        after = json.dumps(turns, ensure_ascii=False)
        if after != before:
            connection.execute("UPDATE buffers SET turns = ? WHERE owner_id = ? AND name = ?", (after, owner_id, name))


def _digest(salt: str, turn: Turn) -> str:
    """16 digits that stand for a turn, behind the first letter of its role."""
    content = json.dumps([salt, turn.role, turn.content]).encode()
    return turn.role[0] + hashlib.sha256(content).hexdigest()[:16]


def _overlap(known: Sequence[str], digests: Sequence[str]) -> tuple[int, int]:
    """Where in what is known the longest beginning of what is said lies, the last such place, and how long it is."""
    best = (len(known), 0)
    for place, digest in enumerate(known):
        if not digests or digest != digests[0]:
            continue
        pairs = zip(known[place:], digests, strict=False)
        length = next((count for count, (one, other) in enumerate(pairs) if one != other), None)
        length = min(len(known) - place, len(digests)) if length is None else length
        if length >= best[1]:
            best = (place, length)
    return best


def _load(connection: sqlite3.Connection, owner_id: int, name: str) -> tuple[list[str], list[list[str]], str | None]:
    found = connection.execute(_ROW, (owner_id, name)).fetchone()
    return ([], [], None) if found is None else (json.loads(found[0]), json.loads(found[1]), found[2])


def _save(
    connection: sqlite3.Connection,
    owner_id: int,
    name: str,
    person_name: str,
    known: list[str],
    kept: list[list[str]],
    began: str | None,
    fresh: Sequence[Turn],
    salt: str,
) -> None:
    now = datetime.now(UTC)
    turns = [*kept, *([turn.role, turn.content] for turn in fresh)]
    digests = [*known, *(_digest(salt, turn) for turn in fresh)]
    connection.execute(
        "INSERT INTO buffers (owner_id, name, person, part, began_at, touched_at, known, turns)"
        " VALUES (?, ?, ?, 1, ?, ?, ?, ?) ON CONFLICT (owner_id, name) DO UPDATE SET person = excluded.person,"
        " began_at = excluded.began_at, touched_at = excluded.touched_at, known = excluded.known, turns = excluded.turns",
        (
            owner_id,
            name,
            person_name,
            (began or now.isoformat()) if turns else None,
            microseconds(now),
            json.dumps(digests),
            json.dumps(turns, ensure_ascii=False),
        ),
    )
