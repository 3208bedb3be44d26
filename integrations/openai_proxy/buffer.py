"""Conversations that go on: what was said lies beside the journal until it has been quiet for a while.

Chat completions bring the whole conversation with each request, or its end. Each turn is kept once all the same (`history`):
the turns are known by salted keys, which stay when the turns have become a session, and when they are forgotten. Each
request opens a place for its answer, which stays empty if the answer breaks off.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import NamedTuple

from deltamem import zones
from deltamem.errors import DeltaMemError
from deltamem.journal import jobs, rows
from deltamem.journal.beside import JournalFiles, PluginStore, file_kind
from deltamem.journal.jobs import Job, JobConflictError
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import EntryKind, Forgotten, digest_of
from deltamem.sessions import Session, Turn
from deltamem.sqlite import Database
from integrations.openai_proxy.history import WINDOW, Continuation, Kept, SentHistory, key_of, letters_of, said

_SCHEMA = """
CREATE TABLE conversations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL REFERENCES owners (id) ON DELETE CASCADE,
    name TEXT NOT NULL CHECK (name <> ''),
    named INTEGER NOT NULL,
    person TEXT NOT NULL,
    part INTEGER NOT NULL DEFAULT 1,
    questions INTEGER NOT NULL DEFAULT 0,
    taken INTEGER NOT NULL DEFAULT 0,
    began_at TEXT,
    touched_at INTEGER NOT NULL,
    UNIQUE (owner_id, name)
);
CREATE INDEX waiting ON conversations (touched_at) WHERE began_at IS NOT NULL;
CREATE TABLE turns (
    conversation_id INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    role TEXT NOT NULL,
    key TEXT NOT NULL,
    content TEXT,
    PRIMARY KEY (conversation_id, place)
) WITHOUT ROWID;
CREATE INDEX turns_by_key ON turns (key);
"""
# `questions`: turns of the person so far. `taken`: of the turns before this place, which are in sessions, only the keys are
# left. `began_at`: when the first turn of the person that waits was said; answers alone wait for the person.
_WAITING = (
    "SELECT conversations.*, owners.name AS owner FROM conversations JOIN owners ON owners.id = owner_id"
    " WHERE began_at IS NOT NULL"
)
# What was said later than now was said before the clock was set back.
_IDLE = "(touched_at <= :before OR touched_at > :never)"
_CANDIDATES = 8
"""Conversations without a name that a history is laid beside, for each role at most."""


_QUOTED = 200
"""Letters of a turn by which a quotation is known; transcripts are cut."""


class AnswerPlace(NamedTuple):
    """Where the answer to a request belongs."""

    name: str
    """Of the conversation."""
    conversation: int
    number: int


class Conversations(PluginStore):
    """The conversations of all owners."""

    name = "openai_proxy"
    kind = file_kind("openai_proxy", 2, _SCHEMA)

    def __init__(self, files: JournalFiles, database: Database) -> None:
        """Bind a file; empties the conversations of which an earlier process made sessions when it was killed."""
        super().__init__(files, database)
        if files.read_only:
            return
        with files.journal.read() as journal, database.read() as connection:
            waiting = [(row, *_session(connection, row)) for row in connection.execute(_WAITING).fetchall()]
            made = [(row, end, _part_made(journal, row, session)) for row, session, end in waiting]
        for row, end, part in made:
            if part is not None:
                self._take(row, end, part)

    def keep(
        self,
        journal: OwnerJournal,
        name: str | None,
        turns: Sequence[Turn],
        person_name: str,
        now: datetime,
        *,
        tools: bool = False,
    ) -> AnswerPlace | None:
        """Keep what is new in a conversation; when this returns, it is on the disk.

        Args:
            journal: Of the owner.
            name: The conversation, which its session's id is made of; without one, it is the conversation that the turns
                continue, or a new one.
            turns: What was said so far, or the end of it, the person's last turn included. Those of the assistant may be
                empty, such as calls of tools.
            person_name: How memories name the person.
            now: The person's local time, which is the session's if it begins with this.
            tools: Whether the request ends with what a tool found for the answer.

        Returns:
            Where the answer belongs; None if the client asks about a conversation, for a title perhaps, which is not kept.

        Raises:
            DeltaMemError: If nothing is said in the turns.
        """
        with self.write() as connection:
            owner_id = rows.create_owner(connection, journal.name)
            history = SentHistory(rows.namespace(connection, owner_id), turns, tools=tools)
            if not any(turn.content.strip() for turn in history.turns):
                raise DeltaMemError("a conversation without turns cannot be kept")
            if len(history.turns) == 1 and _quotes(connection, owner_id, history.turns[0].content):
                return None
            conversation = connection.execute(
                "INSERT INTO conversations (owner_id, name, named, person, touched_at) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET person = excluded.person, touched_at = excluded.touched_at RETURNING *",
                (
                    owner_id,
                    name or _continued(connection, owner_id, history) or f"chat-{secrets.token_hex(8)}",
                    bool(name),
                    person_name,
                    rows.microseconds(zones.utc_now()),
                ),
            ).fetchone()
            return AnswerPlace(conversation["name"], conversation["id"], _enter(connection, conversation, history, now))

    def answer(self, journal: OwnerJournal, place: AnswerPlace, text: str, *, since: int | None = None) -> None:
        """Keep an answer in its place; one that is made again replaces the first.

        Should a memory have been forgotten since the position of the journal at which memories were recalled for it, the
        answer may repeat it, and is kept empty. Nothing is kept of it if the conversation was erased meanwhile.
        """
        turn = said(Turn("assistant", text))
        if not turn.content:
            return
        with self.write() as connection:
            owner_id = rows.owner_id(connection, journal.name)
            query = "UPDATE conversations SET touched_at = ? WHERE id = ? AND owner_id = ? RETURNING taken"
            now = rows.microseconds(zones.utc_now())
            conversation = connection.execute(query, (now, place.conversation, owner_id)).fetchone()
            if conversation is None:
                return
            later = () if since is None else journal.entries(since)
            gone = any(entry.kind is EntryKind.FORGET for entry in later)
            content = None if place.number < conversation["taken"] else "" if gone else turn.content
            key = key_of(rows.namespace(connection, owner_id), turn)
            query = "UPDATE turns SET key = ?, content = ? WHERE conversation_id = ? AND place = ? AND role = 'assistant'"
            connection.execute(query, (key, content, place.conversation, place.number))

    def end_idle(self, idle: timedelta) -> list[Job]:
        """Make sessions, as jobs, of what was kept in conversations in which nothing was said for a while.

        A conversation that goes on afterwards becomes a further session, ``NAME/2``.
        """
        now = zones.utc_now()
        times = {"before": rows.microseconds(now - idle), "never": rows.microseconds(now + rows.CLOCK)}
        query = f"{_WAITING} AND {_IDLE} ORDER BY touched_at"
        # A look first: writers take turns.
        with self.database.read() as connection:
            if connection.execute(f"{query} LIMIT 1", times).fetchone() is None:
                return []
        taken = []
        # The job first: should the process end before the conversation is emptied, opening the file finds it (see above).
        # Read inside, so that nothing is forgotten between reading and writing.
        with self.files.journal.write() as journal:
            with self.database.read() as connection:
                found = [(row, *_session(connection, row)) for row in connection.execute(query, times).fetchall()]
            for row, session, end in found:
                owner_id = rows.create_owner(journal, row["owner"])
                for part in count(row["part"]):
                    try:
                        job = jobs.enqueue(journal, owner_id, replace(session, id=_id(row, part)))
                    except JobConflictError:
                        continue  # another way in has used this id
                    taken.append((row, end, part, job))
                    break
        for row, end, part, _ in taken:
            self._take(row, end, part)
        return [job for _, _, _, job in taken]

    def _take(self, row: sqlite3.Row, end: int, part: int) -> None:
        """Take the turns before a place, which became a session, out of a conversation; later ones stay."""
        # Where the person was when the conversation began; what came since was said there, too.
        now = zones.utc_now().astimezone(datetime.fromisoformat(row["began_at"]).tzinfo)
        with self.database.write() as connection:
            query = "UPDATE turns SET content = NULL WHERE conversation_id = ? AND place < ? AND content IS NOT NULL"
            connection.execute(query, (row["id"], end))
            query = "SELECT 1 FROM turns WHERE conversation_id = ? AND place >= ? AND role = 'user' AND content IS NOT NULL"
            further = connection.execute(query, (row["id"], end)).fetchone() is not None
            query = "UPDATE conversations SET part = ?, taken = ?, began_at = ? WHERE id = ?"
            connection.execute(query, (part + 1, end, now.isoformat() if further else None, row["id"]))

    def forget(self, owner: str, forgotten: Forgotten) -> None:
        """Empty the kept turns that repeat what is forgotten."""
        query = (
            "SELECT turns.* FROM turns JOIN conversations ON conversations.id = conversation_id"
            " JOIN owners ON owners.id = owner_id WHERE owners.name = ? AND content <> ''"
        )
        with self.database.write() as connection:
            for row in connection.execute(query, (owner,)).fetchall():
                if forgotten.repeated_in(row["content"]):
                    empty = "UPDATE turns SET content = '' WHERE conversation_id = ? AND place = ?"
                    connection.execute(empty, (row["conversation_id"], row["place"]))
                    self.database.purge_after()


def _quotes(connection: sqlite3.Connection, owner_id: int, text: str) -> bool:
    """Whether a text repeats the last exchange of a conversation that goes on, question and answer, as transcripts do."""
    query = "SELECT id FROM conversations WHERE owner_id = ? AND began_at IS NOT NULL ORDER BY touched_at DESC LIMIT ?"
    letters = letters_of(text.replace("\\n", "\n"))  # some write them as JSON
    for (conversation,) in connection.execute(query, (owner_id, _CANDIDATES)).fetchall():
        query = "SELECT content FROM turns WHERE conversation_id = ? AND content <> '' ORDER BY place DESC LIMIT 2"
        last = [letters_of(row[0]) for row in connection.execute(query, (conversation,)).fetchall()]
        if len(last) == 2 and all(last):
            answer, question = re.escape(last[0][:_QUOTED]), re.escape(last[1][-_QUOTED:])
            asked = "(?:user|human)(?:content)?" if len(last[1]) <= _QUOTED else ""
            if re.search(f"{asked}{question}(?:role)?(?:assistant|ai|bot|model)(?:content)?{answer}", letters):
                return True
    return False


def _continued(connection: sqlite3.Connection, owner_id: int, history: SentHistory) -> str | None:
    """The conversation without a name that a history continues; None if it begins one."""
    keys = history.keys()
    # What the person says tells conversations apart better than "You're welcome!" does.
    for role in "ua":
        some = sorted({key for key in keys if key.startswith(role)})
        query = (
            "SELECT conversations.* FROM turns JOIN conversations ON conversations.id = conversation_id"
            f" WHERE owner_id = ? AND NOT named AND key IN ({', '.join('?' * len(some))})"
            " GROUP BY conversations.id ORDER BY count(DISTINCT key) DESC, touched_at DESC LIMIT ?"
        )
        candidates = connection.execute(query, (owner_id, *some, _CANDIDATES)).fetchall() if some else ()
        readings = [(_read(connection, row, history, thorough=True)[0], row) for row in candidates]
        met = [
            (reading.meeting.turns, reading.at_end, row["touched_at"], row["name"])
            for reading, row in readings
            if reading.meeting is not None and (reading.at_end or reading.meeting.turns > 1)
        ]
        if met:
            return str(max(met)[-1])
    return None


def _read(
    connection: sqlite3.Connection, conversation: sqlite3.Row, history: SentHistory, *, thorough: bool = False
) -> tuple[Continuation, int]:
    """What is new to a conversation, and how many places it has so far."""
    query = "SELECT place, role, key FROM turns WHERE conversation_id = ? ORDER BY place DESC LIMIT ?"
    kept = [Kept(*row) for row in connection.execute(query, (conversation["id"], 2 * WINDOW)).fetchall()][::-1]
    if kept and all(turn.role != "user" for turn in kept):  # the question that so many calls of tools follow
        query = "SELECT place, role, key FROM turns WHERE conversation_id = ? AND role = 'user' ORDER BY place DESC LIMIT 1"
        kept[:0] = [Kept(*row) for row in connection.execute(query, (conversation["id"],)).fetchall()]
    reading = history.read(kept, conversation["questions"], conversation["taken"], thorough=thorough)
    return reading, kept[-1].place + 1 if kept else 0


def _enter(connection: sqlite3.Connection, conversation: sqlite3.Row, history: SentHistory, now: datetime) -> int:
    """Write what is new to a conversation, and open a place for the answer; returns its number."""
    (reading, end), conversation_id = _read(connection, conversation, history), conversation["id"]
    if reading.question is not None:
        number = reading.question + 1 + history.rounds
        if conversation["taken"] <= number < end:
            # The answer is made again: the first one stays until then, what followed it goes.
            connection.execute("DELETE FROM turns WHERE conversation_id = ? AND place > ?", (conversation_id, number))
            return number
    entered = [(turn.role, history.key(turn), said(turn).content or None) for turn in reading.fresh]
    entered.append(("assistant", "", None))
    connection.executemany(
        "INSERT INTO turns (conversation_id, place, role, key, content) VALUES (?, ?, ?, ?, ?)",
        [(conversation_id, place, *turn) for place, turn in enumerate(entered, start=end)],
    )
    if questions := sum(turn.role == "user" for turn in reading.fresh):
        query = "UPDATE conversations SET questions = questions + ?, began_at = coalesce(began_at, ?) WHERE id = ?"
        connection.execute(query, (questions, now.isoformat(), conversation_id))
    return end + len(entered) - 1


def _id(conversation: sqlite3.Row, part: int) -> str:
    return str(conversation["name"]) if part == 1 else f"{conversation['name']}/{part}"


def _session(connection: sqlite3.Connection, row: sqlite3.Row) -> tuple[Session, int]:
    """The next session of a conversation, and the place at which what follows it begins."""
    query = "SELECT * FROM turns WHERE conversation_id = ? AND place >= ? AND content IS NOT NULL ORDER BY place"
    kept = connection.execute(query, (row["id"], row["taken"])).fetchall()
    turns = tuple(Turn(turn["role"], turn["content"]) for turn in kept)
    began = datetime.fromisoformat(row["began_at"])
    return Session(row["owner"], row["person"], began, turns, _id(row, row["part"])), kept[-1]["place"] + 1


def _part_made(journal: sqlite3.Connection, row: sqlite3.Row, session: Session) -> int | None:
    """Which part of its conversation a session is in the journal already; None if it is not there."""
    owner_id = rows.owner_id(journal, row["owner"])
    for part in count(int(row["part"])):
        standing = jobs.digests(journal, owner_id, _id(row, part))
        if digest_of(session) in standing:
            return part
        if not standing:
            break
    return None
