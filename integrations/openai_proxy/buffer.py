"""Conversations that go on: what was said lies beside the journal until it has been quiet for a while.

Chat completions bring the whole conversation with each request, or its end. Each turn is kept once all the same: the
turns are known by salted digests, which stay when the turns have become a session, and when they are forgotten.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count

from deltamem import zones
from deltamem.errors import DeltaMemError
from deltamem.journal import jobs, rows
from deltamem.journal.beside import JournalFiles, PluginStore, file_kind
from deltamem.journal.jobs import Job, JobConflictError
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import EntryKind, Forgotten, digest_of
from deltamem.sessions import Session, Turn
from deltamem.sqlite import Database

_SCHEMA = """
CREATE TABLE conversations (
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
CREATE INDEX kept_turns ON conversations (touched_at) WHERE turns <> '[]';
"""
_KEPT = (
    "SELECT conversations.*, owners.name AS owner FROM conversations JOIN owners ON owners.id = owner_id WHERE turns <> '[]'"
)
# What was said later than now was said before the clock was set back.
_IDLE = "(touched_at <= :before OR touched_at > :never)"


@dataclass(slots=True)
class _Kept:
    """A row."""

    known: list[str] = field(default_factory=list)
    """Digests of the turns that were said so far."""
    turns: list[list[str]] = field(default_factory=list)
    """Role and content of those that are in no session yet."""
    began_at: str | None = None


class Conversations(PluginStore):
    """The conversations of all owners."""

    name = "openai_proxy"
    kind = file_kind("openai_proxy", 1, _SCHEMA)

    def __init__(self, files: JournalFiles, database: Database) -> None:
        """Bind a file; empties the conversations of which an earlier process made sessions when it was killed."""
        super().__init__(files, database)
        if files.read_only:
            return
        with files.journal.read() as journal, database.read() as connection:
            kept = connection.execute(_KEPT).fetchall()
            made = [(row, part) for row in kept if (part := _part_made(journal, row)) is not None]
        for row, part in made:
            self._empty(row, part)

    def keep(self, journal: OwnerJournal, name: str | None, turns: Sequence[Turn], person_name: str, now: datetime) -> str:
        """Keep what is new in a conversation; when this returns, it is on the disk.

        The turns are what was said so far, or the end of it, the person's last turn included. `now` is the person's local
        time, which is the session's if it begins with this.

        Returns:
            The name of the conversation, which its session's id is made of; without one, its first turn names it.

        Raises:
            DeltaMemError: If there are no turns.
        """
        if not turns:
            raise DeltaMemError("a conversation without turns cannot be kept")
        with self.write() as connection:
            owner_id = rows.create_owner(connection, journal.name)
            salt = rows.namespace(connection, owner_id)
            digests = [_digest(salt, turn) for turn in turns]
            name = name or f"chat-{digests[0][1:]}"
            kept = _load(connection, owner_id, name)
            place, length = _overlap(kept.known, digests)
            fresh, behind = list(turns[length:]), kept.known[place + length :]
            if not fresh and len(behind) == 1 and behind[0][0] == "a" and kept.turns:
                # The same question again: the answer is made again, and the client has dropped the first one.
                kept.known.pop()
                kept.turns.pop()
            elif not fresh and any(digest[0] == "u" for digest in behind):
                # Said before, but not just now: the person repeats it.
                last = max((place for place, turn in enumerate(turns) if turn.role == "user"), default=len(turns))
                fresh = list(turns[last:])
            kept.known += (_digest(salt, turn) for turn in fresh)
            kept.turns += ([turn.role, turn.content] for turn in fresh)
            _save(connection, owner_id, name, person_name, kept, now)
        return name

    def answer(
        self,
        journal: OwnerJournal,
        name: str,
        turn: Turn,
        person_name: str,
        now: datetime,
        *,
        since: int | None = None,
    ) -> None:
        """Keep the answer to what was kept last in a conversation.

        Should a memory have been forgotten since the position of the journal at which memories were recalled for it, the
        answer may repeat it, and is kept empty.
        """
        with self.write() as connection:
            owner_id = rows.create_owner(connection, journal.name)
            kept = _load(connection, owner_id, name)
            # Known even if it is empty, so that the client's history does not bring it back.
            kept.known.append(_digest(rows.namespace(connection, owner_id), turn))
            later = () if since is None else journal.entries(since)
            gone = any(entry.kind is EntryKind.FORGET for entry in later)
            kept.turns.append([turn.role, "" if gone else turn.content])
            _save(connection, owner_id, name, person_name, kept, now)

    def end_idle(self, idle: timedelta) -> list[Job]:
        """Make sessions, as jobs, of what was kept in conversations in which nothing was said for a while.

        A conversation that goes on afterwards becomes a further session, ``NAME/2``.
        """
        now = zones.utc_now()
        times = {"before": rows.microseconds(now - idle), "never": rows.microseconds(now + rows.CLOCK)}
        query = f"{_KEPT} AND {_IDLE} ORDER BY touched_at"
        # A look first: writers take turns.
        with self.database.read() as connection:
            if connection.execute(f"{query} LIMIT 1", times).fetchone() is None:
                return []
        taken = []
        # The job first: should the process end before the conversation is emptied, opening the file finds it (see above).
        # Read inside, so that nothing is forgotten between reading and writing.
        with self.files.journal.write() as journal:
            with self.database.read() as connection:
                found = connection.execute(query, times).fetchall()
            for row in found:
                if not any(role == "user" for role, _ in json.loads(row["turns"])):
                    continue
                owner_id = rows.create_owner(journal, row["owner"])
                for part in count(row["part"]):
                    try:
                        taken.append((row, part, jobs.enqueue(journal, owner_id, _session(row, part))))
                    except JobConflictError:
                        continue  # another way in has used this id
                    break
        for row, part, _ in taken:
            self._empty(row, part)
        return [job for _, _, job in taken]

    def _empty(self, row: sqlite3.Row, part: int) -> None:
        """Take the turns of a row, which became a session, out of its conversation; later ones stay."""
        # Where the person was when the conversation began; what came since was said there, too.
        now = zones.utc_now().astimezone(datetime.fromisoformat(row["began_at"]).tzinfo)
        with self.database.write() as connection:
            kept = _load(connection, row["owner_id"], row["name"])
            kept.turns = kept.turns[len(json.loads(row["turns"])) :]
            connection.execute(
                "UPDATE conversations SET part = ?, turns = ?, began_at = ? WHERE owner_id = ? AND name = ?",
                (
                    part + 1,
                    json.dumps(kept.turns, ensure_ascii=False),
                    now.isoformat() if kept.turns else None,
                    row["owner_id"],
                    row["name"],
                ),
            )

    def forget(self, owner: str, forgotten: Forgotten) -> None:
        """Empty the kept turns that repeat what is forgotten."""
        with self.database.write() as connection:
            for row in connection.execute(f"{_KEPT} AND owner = ?", (owner,)).fetchall():
                turns = json.loads(row["turns"])
                if forgotten.blank(turns):
                    connection.execute(
                        "UPDATE conversations SET turns = ? WHERE owner_id = ? AND name = ?",
                        (json.dumps(turns, ensure_ascii=False), row["owner_id"], row["name"]),
                    )
                    self.database.purge_after()


def _session(row: sqlite3.Row, part: int) -> Session:
    turns = tuple(Turn(role, content) for role, content in json.loads(row["turns"]))
    session_id = row["name"] if part == 1 else f"{row['name']}/{part}"
    return Session(row["owner"], row["person"], datetime.fromisoformat(row["began_at"]), turns, session_id)


def _part_made(journal: sqlite3.Connection, row: sqlite3.Row) -> int | None:
    """Which part of its conversation the kept turns are in the journal already; None if they are in none."""
    owner_id = rows.owner_id(journal, row["owner"])
    part = int(row["part"])
    while True:
        session = _session(row, part)
        standing = jobs.digests(journal, owner_id, session.id)
        if digest_of(session) in standing:
            return part
        if not standing:
            return None
        part += 1


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


def _load(connection: sqlite3.Connection, owner_id: int, name: str) -> _Kept:
    query = "SELECT known, turns, began_at FROM conversations WHERE owner_id = ? AND name = ?"
    row = connection.execute(query, (owner_id, name)).fetchone()
    if row is None:
        return _Kept()
    return _Kept(json.loads(row["known"]), json.loads(row["turns"]), row["began_at"])


def _save(connection: sqlite3.Connection, owner_id: int, name: str, person_name: str, kept: _Kept, now: datetime) -> None:
    connection.execute(
        "INSERT INTO conversations (owner_id, name, person, part, began_at, touched_at, known, turns)"
        " VALUES (?, ?, ?, 1, ?, ?, ?, ?) ON CONFLICT (owner_id, name) DO UPDATE SET person = excluded.person,"
        " began_at = excluded.began_at, touched_at = excluded.touched_at, known = excluded.known, turns = excluded.turns",
        (
            owner_id,
            name,
            person_name,
            (kept.began_at or now.isoformat()) if kept.turns else None,
            rows.microseconds(zones.utc_now()),
            json.dumps(kept.known),
            json.dumps(kept.turns, ensure_ascii=False),
        ),
    )
