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
from deltamem.journal.sqlite import CLOCK, microseconds, namespace
from deltamem.sessions import Session, Turn
from deltamem.text import normalised

# What was said later than now was said before the clock was set back.
_IDLE = "turns <> '[]' AND (touched_at <= :before OR touched_at > :never)"
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


def answer(
    connection: sqlite3.Connection, owner_id: int, name: str, person_name: str, turn: Turn, *, since: int | None = None
) -> None:
    """Keep the answer to what was kept last; empty, if a memory that it may repeat was forgotten `since` a position."""
    known, kept, began = _load(connection, owner_id, name)
    salt = namespace(connection, owner_id)
    query = "SELECT 1 FROM entries WHERE owner_id = ? AND kind = 'forget' AND position > ? LIMIT 1"
    if since is not None and connection.execute(query, (owner_id, since)).fetchone() is not None:
        # Known all the same, so that the client's history does not bring it back.
        known, turn = [*known, _digest(salt, turn)], Turn(turn.role, "")
        _save(connection, owner_id, name, person_name, known, [*kept, [turn.role, ""]], began, [], salt)
        return
    _save(connection, owner_id, name, person_name, known, kept, began, [turn], salt)


def _times(before: datetime) -> dict[str, int]:
    return {"before": microseconds(before), "never": microseconds(datetime.now(UTC) + CLOCK)}


def any_idle(connection: sqlite3.Connection, before: datetime) -> bool:
    """Whether `end_idle` may have something to do."""
    query = f"SELECT 1 FROM buffers WHERE {_IDLE} LIMIT 1"
    return connection.execute(query, _times(before)).fetchone() is not None


def end_idle(connection: sqlite3.Connection, before: datetime) -> list[Job]:
    """Make sessions, as jobs, of what was kept in conversations in which nothing was said since a time.

    A conversation that goes on afterwards becomes a further session, ``NAME/2``.
    """
    found = connection.execute(
        "SELECT owner_id, owners.name, buffers.name, person, part, turns, began_at FROM buffers"
        f" JOIN owners ON owners.id = owner_id WHERE {_IDLE} ORDER BY touched_at",
        _times(before),
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
    """Where in what is known the longest beginning of what is said lies, the last such place, and how long it is.

    In linear time (the Z algorithm): thousands of equal turns must not hold up everybody's writes.
    """
    joined = [*digests, None, *known]
    # At each place, how much of the beginning stands there; `left` to `right` is the stretch that reaches farthest.
    lengths, left, right = [0] * len(joined), 0, 0
    for place in range(1, len(joined)):
        length = min(right - place, lengths[place - left]) if place < right else 0
        while place + length < len(joined) and joined[length] == joined[place + length]:
            length += 1
        lengths[place] = length
        if place + length > right:
            left, right = place, place + length
    best = (len(known), 0)
    for place, length in enumerate(lengths[len(digests) + 1 :]):
        if length and length >= best[1]:
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
