"""One owner's part of the journal: entries, states, history, blame and jobs."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID

from deltamem.errors import ConflictError, DeltaMemError, NotFoundError
from deltamem.journal import jobs, rows
from deltamem.journal.beside import JournalFiles
from deltamem.journal.jobs import Job, JobState
from deltamem.journal.records import (
    Change,
    ChangeEvent,
    Entry,
    EntryKind,
    Forgotten,
    HistoryStep,
    Origin,
    changes_between,
    digest_of,
    lineage,
    memory_number,
    problems_of,
    shape_problem,
    step,
)
from deltamem.memory import Diff, Memory, MemoryState, diff
from deltamem.sessions import Session, Turn
from deltamem.zones import iso_time, named_zone

Point = int | str | datetime | None
"""A point in an owner's journal: a position, a session id, a session time, or None for now."""


class SessionKnownError(ConflictError):
    """The session was applied before, so it must not be applied again."""


class StaleJournalError(ConflictError):
    """Somebody else wrote to the journal since the state at hand was read."""


_CHANGES = "changes CROSS JOIN entries USING (owner_id, position)"
_REMEMBERED = "event <> 'NONE' AND erased = 0"  # Changes whose result is part of the state
_APPLIED = "WHERE owner_id = ? AND session_id = ? AND undone = 0"
_WALL_CLOCK = "substr(session_time, 1, CASE substr(session_time, 20, 1) WHEN '.' THEN 26 ELSE 19 END)"
"""A session time as ISO 8601 without its offset; as texts these are ordered as the times are."""
_PAGE = 500
"""Entries read at once, so that no reader holds up a writer for long."""


class OwnerJournal:
    """The journal of one owner. Any number of threads may use it."""

    def __init__(self, files: JournalFiles, name: str) -> None:
        """Bind an owner by name, who need not have any entry yet.

        Raises:
            DeltaMemError: If the name is empty or not valid Unicode.
        """
        if not name:
            raise DeltaMemError("the owner's name is empty")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DeltaMemError("the owner's name is not valid Unicode") from error
        self.name = name
        self.files = files
        self._database = files.journal

    def snapshot(self) -> AbstractContextManager[object]:
        """Make everything read inside the block belong to one moment. Other threads wait meanwhile; keep it short."""
        return self._database.read()

    @property
    def head(self) -> int:
        """The last position; 0 if there is no entry."""
        return int(self._value("SELECT max(position) FROM entries WHERE owner_id = ?") or 0)

    def resolve(self, point: Point) -> int:
        """The journal position that a point means.

        A session id means the position of that session; a time means the last session at or before it; None means the
        head; position 0 is the empty beginning.

        Raises:
            DeltaMemError: If the session is not in the journal or the position does not exist.
        """
        if isinstance(point, datetime):
            return self.position_at(point)
        if isinstance(point, str):
            position = self.session_position(point)
            if position is None:
                raise NotFoundError(f"session {point!r} is not in the journal, or was rolled back")
            return position
        head = self.head
        if point is None:
            return head
        if not 0 <= point <= head:
            raise NotFoundError(f"position {point} does not exist; the journal goes from 0 to {head}")
        return point

    def point(self, text: str) -> Point:
        """A point as people write it: a session id, ``@N`` for a position, or an ISO 8601 time.

        Raises:
            NotFoundError: If it is none of these.
        """
        # First, so that no session can take the place of a position by its id.
        if text.startswith("@") and text[1:].isascii() and text[1:].isdigit() and len(text) <= 18:
            return int(text[1:])
        if self.session_position(text) is not None:
            return text
        try:
            return iso_time(text)
        except ValueError:
            raise NotFoundError(
                f"{text!r} is no session in the memory of {self.name!r}, no position such as @3 and no ISO 8601 time"
            ) from None

    def state(self, point: Point = None) -> MemoryState:
        """The memories at a point, ordered by the number of the id. Forgotten memories are in no state.

        Raises:
            DeltaMemError: If the journal has no such point, see `resolve`.
        """
        # With max(), SQLite takes the bare columns from the row that has the maximum.
        query = (
            "SELECT memory_number, after_text, after_time, after_metadata, max(seq) FROM changes WHERE owner_id = ?"
            f" AND position <= ? AND {_REMEMBERED} GROUP BY memory_number ORDER BY memory_number"
        )
        with self._database.read():
            found = self._rows(query, self.resolve(point))
        return MemoryState(memory for row in found if (memory := rows.side(row, "after")) is not None)

    def diff(self, before: Point, after: Point = None) -> Diff:
        """What changed between two points, memory by memory."""
        return diff(self.state(before), self.state(after))

    def entries(self, after: int = 0, until: int | None = None) -> Iterator[Entry]:
        """The entries of positions `after` + 1 to `until` (default: the last at the time of the call), oldest first.

        They are read a few hundred at a time; use `snapshot` if other threads may change marks or erase in between.
        """
        last = self.head if until is None else until
        span = "WHERE owner_id = ? AND position > ? AND position <= ? ORDER BY position"
        while after < last:
            with self._database.read():
                page = self._rows(f"SELECT * FROM entries {span} LIMIT ?", after, last, _PAGE)
                if not page:
                    return
                before, after = after, page[-1]["position"]
                changes = rows.by_position(self._rows(f"SELECT * FROM changes {span}, seq", before, after))
            yield from (rows.entry(row, changes.get(row["position"], ())) for row in page)

    def entry(self, position: int) -> Entry:
        """One entry.

        Raises:
            DeltaMemError: If there is none at this position.
        """
        for entry in self.entries(position - 1, position):
            return entry
        raise NotFoundError(f"there is no entry {position}: the journal ends at {self.head}")

    def session_position(self, session_id: str) -> int | None:
        """Where a session is applied; None if it never was or is undone."""
        position: int | None = self._value(f"SELECT position FROM entries {_APPLIED}", session_id)
        return position

    def session_digest(self, session_id: str) -> str | None:
        """The digest (see `digest_of`) of a session that is applied and not undone."""
        digest: str | None = self._value(f"SELECT session_digest FROM entries {_APPLIED}", session_id)
        return digest

    def dialogue(self, session: str | int) -> tuple[Turn, ...] | None:
        """The stored turns of a session, named by its id or the position of its entry; empty where `forget` erased one.

        None if the dialogue was not kept, if the position is not a session's, or if no session of this id is applied and not
        undone.
        """
        with self._database.read():
            position = self.session_position(session) if isinstance(session, str) else session
            stored = self._value("SELECT turns FROM dialogues WHERE owner_id = ? AND position = ?", position)
        return None if stored is None else tuple(Turn(role, content) for role, content in json.loads(stored))

    @property
    def dialogue_count(self) -> int:
        """How many dialogues are stored."""
        return int(self._value("SELECT count(*) FROM dialogues WHERE owner_id = ?") or 0)

    def dialogues(self) -> Iterator[tuple[int, tuple[Turn, ...]]]:
        """All stored dialogues with the positions of their entries, oldest first."""
        for (position,) in self._rows("SELECT position FROM dialogues WHERE owner_id = ? ORDER BY position"):
            turns = self.dialogue(position)
            if turns is not None:
                yield position, turns

    def position_at(self, time: datetime) -> int:
        """The position that stood at a time of the sessions' own calendar.

        A time with an offset is an instant, as which session times without one count as if in UTC; a time without an offset
        is compared with the wall clocks of the sessions, wherever these were. What stood then is the last session, or edit
        that has a time, that is not undone and not later than `time`, or the last other entry between it and the next one if
        it is not undone either; 0 if there is no such session.
        """
        entries = "FROM entries WHERE owner_id = ?"
        with self._database.read():
            naive = time.utcoffset() is None
            dated = f"SELECT max(position) {entries} AND undone = 0 AND {_WALL_CLOCK if naive else 'session_utc'} <= ?"
            found = self._value(dated, time.isoformat() if naive else rows.microseconds(time))
            if found is None:
                return 0
            following = self._value(f"SELECT min(position) {entries} AND session_utc IS NOT NULL AND position > ?", found)
            end = following or self.head + 1
            last = f"SELECT max(position) {entries} AND position >= ? AND position < ? AND undone = 0"
            return int(self._value(last, found, end))  # `found` itself qualifies

    @property
    def timezone(self) -> str | None:
        """The owner's time zone, an IANA name; None if none was set. It is in no entry, so no rollback changes it."""
        name: str | None = self._value("SELECT name FROM zones WHERE owner_id = ?")
        return name

    def set_timezone(self, zone: str | None) -> None:
        """Set the owner's time zone, or with None forget it.

        Raises:
            DeltaMemError: If there is no zone by this name.
        """
        if zone is not None:
            named_zone(zone, "owner")
        with self._database.write() as connection:
            if zone is not None or self._owner_id(connection) is not None:
                rows.set_zone(connection, rows.create_owner(connection, self.name), zone)

    @property
    def namespace(self) -> UUID | None:
        """The random UUID that those of the owner's memories are derived from; None if there is no entry yet.

        Who knows it can compute them all, so it is as private as the memories.
        """
        with self._database.read():
            # Importing an export without entries leaves a row of the owner, which must not show in the next export.
            return UUID(self._value("SELECT namespace FROM owners WHERE id = ?")) if self.head else None

    def uuids(self, point: Point = None) -> dict[str, UUID]:
        """By id, the UUIDs of the memories that the state at a point descends from; retracted and forgotten ones too.

        Unlike an id, which may be given away again after a rollback, a UUID always means the same memory: through
        updates, retraction, rollback and its undoing, export and import. It is known within its owner only.
        """
        return {memory_id: UUID(row["uuid"]) for memory_id, row in self._additions(point).items()}

    def added(self, point: Point = None) -> dict[str, datetime]:
        """By id, the times that the memories had when they were added; of the same memories as `uuids`."""
        return {memory_id: datetime.fromisoformat(row["after_time"]) for memory_id, row in self._additions(point).items()}

    def _additions(self, point: Point) -> dict[str, sqlite3.Row]:
        """By id, the changes that made the memories that the state at a point descends from."""
        query = "SELECT * FROM changes WHERE owner_id = ? AND position BETWEEN ? AND ? AND uuid IS NOT NULL ORDER BY seq"
        with self._database.read():
            ranges = lineage(self.resolve(point), self._restored())
            found = [row for one in ranges for row in self._rows(query, one[0], one[-1])]
        return {f"m{row['memory_number']}": row for row in found}

    def memory_id(self, given: str) -> str:
        """The id of a memory that is given by its UUID; anything else as it is.

        The UUID of a memory whose making was rolled back is no memory's, whoever has its id now.
        """
        if memory_number(given) is not None:
            return given
        query = f"SELECT memory_number FROM {_CHANGES} WHERE owner_id = ? AND uuid = ? AND undone = 0"
        number = self._value(query, given.lower())
        return given if number is None else f"m{number}"

    def history(self, memory_id: str) -> tuple[HistoryStep, ...]:
        """Everything that happened to a memory, oldest first, what was rolled back included (see `Entry.undone`).

        The entries carry the changes of this memory only. An id that an undone session had given away may have been given
        away again; then both memories are listed.

        Raises:
            DeltaMemError: If there never was such a memory.
        """
        if steps := self._steps(self.memory_id(memory_id)):
            return steps
        raise NotFoundError(f"there is no memory {memory_id!r} and never was")

    def blame(self, memory_id: str) -> tuple[Origin, ...]:
        """The sessions with their turns, and the edits, that a present memory comes from, oldest first.

        Raises:
            DeltaMemError: If there is no such memory now.
        """
        with self._database.read():
            memory_id = self.memory_id(memory_id)
            if memory_id not in self.state():
                raise NotFoundError(f"there is no memory {memory_id!r} now; see its history")
            return tuple(
                Origin.of(entry, change, self.dialogue(entry.position) or ())
                for entry, change in self._steps(memory_id)
                if entry.kind in (EntryKind.SESSION, EntryKind.EDIT)
                and not entry.undone
                and change.event in (ChangeEvent.ADD, ChangeEvent.UPDATE)
            )

    def changed_since(self, position: int) -> frozenset[str]:
        """Ids of the memories that entries after a position added, updated or removed."""
        query = "SELECT DISTINCT memory_number FROM changes WHERE owner_id = ? AND position > ? AND event <> 'NONE'"
        return frozenset(f"m{number}" for (number,) in self._rows(query, position))

    def next_id_number(self) -> int:
        """The number of the next new memory.

        One more than the largest that an effective entry gave away or that was forgotten: the id of a forgotten memory is
        not used again, and sessions that are undone and applied again give the same ids.
        """
        # From the largest number downwards, which meets an effective entry soon.
        query = (
            f"SELECT memory_number FROM {_CHANGES}"
            " WHERE owner_id = ? AND event = 'ADD' AND (undone = 0 OR erased = 1) ORDER BY memory_number DESC LIMIT 1"
        )
        return int(self._value(query) or 0) + 1

    def new_ids(self) -> Iterator[str]:
        """Ids for new memories without end, from `next_id_number` on."""
        return (f"m{number}" for number in count(self.next_id_number()))

    def text_owner(self, text: str) -> str | None:
        """Id of the memory that a text was an earlier version of, or had when it was retracted; None if there is none.

        Texts are compared `normalised`. Changes that are undone or erased do not count. The newest one wins. The text may
        have become current again since.
        """
        query = (
            f"SELECT memory_number FROM {_CHANGES}"
            " WHERE owner_id = ? AND before_hash = ? AND undone = 0 ORDER BY seq DESC LIMIT 1"
        )
        number = self._value(query, rows.text_hash(text))
        return None if number is None else f"m{number}"

    def enqueue(self, session: Session) -> Job:
        """Take a session on, to be read later; when this returns, it is on the disk.

        A session that was taken on or applied before is not taken on again; its job is returned. One that failed is, and
        one that was rolled back.

        Raises:
            JobConflictError: If the session's id stands for another one, that waits or is applied.
            DeltaMemError: If a text is not valid Unicode, or the file cannot be written.
        """
        with self._database.write() as connection:
            return jobs.enqueue(connection, rows.create_owner(connection, self.name), session)

    def job(self, job_id: str) -> Job:
        """A job of this owner.

        Raises:
            DeltaMemError: If there is none.
        """
        with self._database.read() as connection:
            for job in jobs.find(connection, self._owner_id(connection), "jobs.id = ?", job_id):
                return job
        raise NotFoundError(f"there is no job {job_id!r}")

    def jobs(self, *states: JobState) -> list[Job]:
        """The jobs of this owner, of some states or of all, in the order in which they were taken on."""
        with self._database.read() as connection:
            wanted = ", ".join(f"'{state}'" for state in states or JobState)
            return jobs.find(connection, self._owner_id(connection), f"state IN ({wanted})")

    def job_counts(self) -> dict[JobState, int]:
        """How many jobs of this owner are in each state."""
        with self._database.read() as connection:
            return jobs.counts(connection, "owner_id = ?", self._owner_id(connection))

    def session_time(self, session_id: str) -> datetime | None:
        """The time of a session that is applied or was taken on; None if there is none of this id."""
        with self._database.read() as connection:
            applied = self._value(f"SELECT session_time FROM entries {_APPLIED}", session_id)
            if applied is not None:
                return datetime.fromisoformat(applied)
            taken = jobs.session_of(connection, self.name, self._owner_id(connection), "session_id = ?", session_id)
            return None if taken is None else taken.time

    def job_session(self, job_id: str) -> Session | None:
        """The session of a job as `forget` left it; None if there is no such job or it is done."""
        with self._database.read() as connection:
            return jobs.session_of(connection, self.name, self._owner_id(connection), "id = ?", job_id)

    def verify(self) -> list[str]:
        """Replay the entries in Python and compare with what the queries say; the problems, a sentence each."""
        with self._database.read():
            try:
                return problems_of(self.entries(), self._restored(), self.state)
            except (ValueError, TypeError) as error:
                return [f"an entry cannot be read: {error}"]

    def append(
        self,
        kind: EntryKind,
        changes: Sequence[Change],
        *,
        session: Session | None = None,
        keep_dialogue: bool = True,
        model: str | None = None,
        prompt_hash: str | None = None,
        violations: Mapping[str, int] | None = None,
        actor: str | None = None,
        expected_head: int | None = None,
    ) -> Entry:
        """Write one entry in one transaction; when this returns, it is on the disk.

        Args:
            kind: SESSION, EDIT or IMPORT; `rollback` and `forget` do their own writing.
            changes: What happened, in order; may be empty. Each must follow from the state that the ones before it left.
            session: The session, for SESSION entries only.
            keep_dialogue: Store the session's turns; its digest is stored in any case.
            model: The model that decided.
            prompt_hash: sha256 over the prompts in use.
            violations: What was refused or corrected, counted by name.
            actor: Who made the changes, for EDIT entries only.
            expected_head: The head that the changes were made for; None accepts any.

        Raises:
            SessionKnownError: If a session with this id is applied and not undone.
            StaleJournalError: If the head is another, or a change does not follow from the state.
            DeltaMemError: If a text is not valid Unicode, or the file cannot be written.
            ValueError: If the arguments contradict each other or the kind.
        """
        if (session is not None) != (kind is EntryKind.SESSION) or (session is not None and not session.id):
            raise ValueError("an entry of a session, and no other, needs a session with an id")
        if bool(actor) != (kind is EntryKind.EDIT):
            raise ValueError("an edit, and nothing else, needs an actor")
        if kind in (EntryKind.ROLLBACK, EntryKind.FORGET):
            raise ValueError("rolling back and forgetting have their own methods")
        for change in changes:
            if problem := shape_problem(change):
                raise ValueError(problem)
            if session is not None and any(turn > len(session.dialogue) for turn in change.turns):
                raise ValueError(f"{change.memory_id} names a turn that session {session.id!r} does not have")
        with self._database.write() as connection:
            head = self.head
            if expected_head is not None and head != expected_head:
                raise StaleJournalError(f"the journal is at position {head}, not {expected_head}: somebody else wrote to it")
            if session is not None and (known := self.session_position(session.id)) is not None:
                raise SessionKnownError(f"session {session.id!r} is already applied (entry {known})")
            memories = self._newest({change.memory_id for change in changes})
            for change in changes:
                if problem := step(memories, change):
                    raise StaleJournalError(f"the journal is at another state: {problem}")
            time = self._time_of(changes) if kind is EntryKind.EDIT else None if session is None else session.time
            entry = Entry(
                position=head + 1,
                kind=kind,
                recorded_at=datetime.now(UTC),
                changes=tuple(changes),
                session_id=None if session is None else session.id,
                session_time=time,
                model=model,
                prompt_hash=prompt_hash,
                violations=dict(violations or {}),
                session_digest=None if session is None else digest_of(session),
                actor=actor,
            )
            owner_id = self._append(connection, entry)
            if session is not None:
                # In the same transaction, so that a job is never applied and yet to be done.
                jobs.complete(connection, owner_id, session.id, entry.position)
                if keep_dialogue:
                    rows.insert_dialogue(connection, owner_id, entry.position, session.dialogue)
        return entry

    def rollback(self, to: int) -> Entry:
        """Append an entry that takes the state back to the one after position `to`, and mark what it undoes.

        An entry is effective if the present state descends from it. So going back into a stretch that was undone makes
        its entries effective again. What was forgotten does not come back.

        Raises:
            DeltaMemError: If the journal has no such position.
        """
        with self._database.write() as connection:
            changes = changes_between(self.state(), self.state(to))
            entry = Entry(self.head + 1, EntryKind.ROLLBACK, datetime.now(UTC), tuple(changes), restored=to)
            self._append(connection, entry)
        return entry

    def forget(self, memory_id: str) -> Entry:
        """Erase a memory for good, from every entry, stored dialogue and waiting job, and append an entry that says so.

        All changes of the id lose their texts and metadata. Stored turns that they name as sources, and stored turns that
        contain one of the texts (whatever the case and white space), become empty; plug-ins erase what they keep of them.
        Other memories stay as they are, also if they say the same. On return the texts are gone from the files (see
        `deltamem.sqlite.Database.purge` for the one exception).

        Raises:
            DeltaMemError: If the owner has no such memory, it is already forgotten, or a plug-in that is not installed
                keeps something.
        """
        if entries := self.forget_all([memory_id]):
            return entries[0]
        raise NotFoundError(f"{memory_id}: there is no such memory to forget")

    def forget_all(self, memory_ids: Sequence[str]) -> list[Entry]:
        """Forget several memories at the cost of one, in one transaction; see `forget`.

        Memories that there are not, or that are forgotten already, have none of the entries that are returned.
        """
        entries: list[Entry] = []
        texts: set[str] = set()
        by_position: defaultdict[int, set[int]] = defaultdict(set)
        by_session: defaultdict[str, set[int]] = defaultdict(set)
        with self._database.write() as connection:
            stores = self.files.stores(erasing=True)  # refuses before anything is done
            owner_id = self._owner_id(connection)
            if owner_id is None:
                return []
            for memory_id in map(self.memory_id, memory_ids):
                history = self._steps(memory_id)
                sides = [memory for _, change in history if not change.erased for memory in (change.before, change.after)]
                known = [memory for memory in sides if memory is not None]
                if not known:
                    continue
                for entry, change in history:
                    by_position[entry.position].update(change.turns)
                    if entry.session_id is not None:
                        by_session[entry.session_id].update(change.turns)
                texts.update(memory.text for memory in known)
                rows.erase_memory(connection, owner_id, memory_id)
                removal = Change(ChangeEvent.REMOVE, memory_id, Memory(memory_id, "", known[-1].time), None, erased=True)
                entries.append(Entry(self.head + 1, EntryKind.FORGET, datetime.now(UTC), (removal,)))
                self._append(connection, entries[-1])
            if not entries:
                return []
            forgotten = Forgotten.of((entry.changes[0].memory_id for entry in entries), texts)
            rows.blank_turns(connection, owner_id, by_position, forgotten)
            jobs.scrub(connection, owner_id, by_session, forgotten)
            # Before this transaction is committed: what is acknowledged is erased everywhere.
            for store in stores:
                store.forget(self.name, forgotten)
            self._database.purge_after()
        return entries

    def _owner_id(self, connection: sqlite3.Connection) -> int | None:
        return rows.owner_id(connection, self.name)

    def _value(self, query: str, *values: object) -> Any:
        """The only value of a query whose first parameter is the owner; None if it finds nothing."""
        found = self._rows(query, *values)
        return found[0][0] if found else None

    def _rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        """What a query finds whose first parameter is the owner."""
        with self._database.read() as connection:
            return connection.execute(query, (self._owner_id(connection), *values)).fetchall()

    def _restored(self) -> dict[int, int]:
        """For the position of each rollback, the position that it restored."""
        found = self._rows("SELECT position, restored FROM entries WHERE owner_id = ? AND restored IS NOT NULL")
        return {row["position"]: row["restored"] for row in found}

    def _newest(self, memory_ids: Collection[str]) -> dict[str, Memory]:
        """Some memories of the last state; those that are not in it are left out."""
        query = f"SELECT * FROM changes WHERE owner_id = ? AND memory_number = ? AND {_REMEMBERED} ORDER BY seq DESC LIMIT 1"
        found = [row for memory_id in memory_ids for row in self._rows(query, memory_number(memory_id))]
        return {memory.id: memory for row in found if (memory := rows.side(row, "after")) is not None}

    def _steps(self, memory_id: str) -> tuple[HistoryStep, ...]:
        number = memory_number(memory_id)
        if number is None:
            return ()
        with self._database.read():
            query = "SELECT * FROM changes WHERE owner_id = ? AND memory_number = ? ORDER BY seq"
            changes = rows.by_position(self._rows(query, number))
            query = "SELECT * FROM entries WHERE owner_id = ? AND position = ?"
            entries = [rows.entry(self._rows(query, position)[0], found) for position, found in changes.items()]
        return tuple(HistoryStep(entry, change) for entry in entries for change in entry.changes)

    def _time_of(self, changes: Sequence[Change]) -> datetime | None:
        """The `Entry.session_time` of an edit."""
        written = [
            change.after.time
            for change in changes
            if change.after is not None and (change.before is None or change.before.time != change.after.time)
        ]
        latest = max(written, key=rows.microseconds, default=None)
        later = "SELECT 1 FROM entries WHERE owner_id = ? AND undone = 0 AND session_utc > ? LIMIT 1"
        return None if latest is None or self._value(later, rows.microseconds(latest)) is not None else latest

    def _append(self, connection: sqlite3.Connection, entry: Entry) -> int:
        owner_id = rows.create_owner(connection, self.name)
        rows.insert(connection, owner_id, entry)
        if entry.restored is not None:
            rows.mark_effective(connection, owner_id, lineage(entry.position, self._restored()))
        return owner_id
