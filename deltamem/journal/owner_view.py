"""What one owner's journal answers. Nothing here writes, and no method takes or returns another owner."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime

from deltamem.errors import DeltaMemError
from deltamem.journal import rows
from deltamem.journal.database import Database
from deltamem.journal.records import Change, Entry, memory_number
from deltamem.journal.replay import problems_of
from deltamem.memory import MemoryState
from deltamem.sessions import Turn

_PAGE = 500
"""Entries read at once, so that no reader holds up a writer for long."""


class OwnerView:
    """The questions to one owner's journal.

    Attributes:
        name: The owner.
    """

    def __init__(self, database: Database, name: str) -> None:
        if not name:
            raise DeltaMemError("the owner's name is empty")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DeltaMemError("the owner's name is not valid Unicode") from error
        self.name = name
        self._database = database

    def snapshot(self) -> AbstractContextManager[object]:
        """Make everything read inside the block belong to one moment. Other threads wait meanwhile; keep it short."""
        return self._database.read()

    @property
    def head(self) -> int:
        """The last position; 0 if there is no entry."""
        return int(self._one("TRUE", (), "max(position)") or 0)

    def state(self, position: int | None = None) -> MemoryState:
        """The memories after a position (default: the last), ordered by the number of the id.

        Raises:
            DeltaMemError: If the journal has no such position.
        """
        with self._database.read() as connection:
            head = self.head
            if position is not None and not 0 <= position <= head:
                raise DeltaMemError(f"position {position} does not exist: the journal holds 0 to {head}")
            return rows.state(connection, self._owner_id(connection), head if position is None else position)

    def entries(self, after: int = 0, until: int | None = None) -> Iterator[Entry]:
        """The entries of positions `after` + 1 to `until` (default: the last at the time of the call), oldest first.

        They are read a few hundred at a time; use `snapshot` if other threads may change marks or erase in between.
        """
        last = self.head if until is None else until
        while after < last:
            with self._database.read() as connection:
                page = rows.entries(connection, self._owner_id(connection), after, last, _PAGE)
            if not page:
                return
            yield from page
            after = page[-1].position

    def entry(self, position: int) -> Entry:
        """One entry.

        Raises:
            DeltaMemError: If there is none at this position.
        """
        for entry in self.entries(position - 1, position):
            return entry
        raise DeltaMemError(f"there is no entry {position}: the journal ends at {self.head}")

    def session_position(self, session_id: str) -> int | None:
        """Where a session is applied; None if it never was or is undone."""
        found = self._one("session_id = ? AND undone = 0", (session_id,), "position")
        return None if found is None else int(found)

    def session_digest(self, session_id: str) -> str | None:
        """The digest (see `digest_of`) of a session that is applied and not undone."""
        found = self._one("session_id = ? AND undone = 0", (session_id,), "session_digest")
        return None if found is None else str(found)

    def dialogue(self, session: str | int) -> tuple[Turn, ...] | None:
        """The stored turns of a session, named by its id or the position of its entry.

        Returns:
            The turns, with an empty content where `forget` erased one. None if the dialogue was not kept, if the position
            is not a session's, or if no session of this id is applied and not undone.
        """
        with self._database.read() as connection:
            position = self.session_position(session) if isinstance(session, str) else session
            return None if position is None else rows.dialogue(connection, self._owner_id(connection), position)

    @property
    def dialogue_count(self) -> int:
        """How many dialogues are stored."""
        with self._database.read() as connection:
            query = "SELECT count(*) FROM dialogues WHERE owner_id = ?"
            return int(connection.execute(query, (self._owner_id(connection),)).fetchone()[0])

    def dialogues(self) -> Iterator[tuple[int, tuple[Turn, ...]]]:
        """All stored dialogues with the positions of their entries, oldest first."""
        with self._database.read() as connection:
            query = "SELECT position FROM dialogues WHERE owner_id = ? ORDER BY position"
            positions = [int(row[0]) for row in connection.execute(query, (self._owner_id(connection),))]
        for position in positions:
            turns = self.dialogue(position)
            if turns is not None:
                yield position, turns

    def position_at(self, time: datetime) -> int:
        """The position that stood at a time of the sessions' own calendar.

        Args:
            time: Naive times count as UTC.

        Returns:
            The last session that is not undone and not later than `time`, or the last administrative entry between it
            and the next session if it is not undone either; 0 if there is no such session.
        """
        with self._database.read():
            found = self._one(
                "kind = 'session' AND undone = 0 AND session_utc <= ?", (rows.microseconds(time),), "max(position)"
            )
            if found is None:
                return 0
            following = self._one("kind = 'session' AND position > ?", (found,), "min(position)")
            end = self.head + 1 if following is None else following
            last = self._one("position >= ? AND position < ? AND undone = 0", (found, end), "max(position)")
            assert last is not None  # `found` itself qualifies
            return int(last)

    def history(self, memory_id: str) -> list[tuple[Entry, Change]]:
        """All changes of one memory, oldest first, those of undone entries too (see `Entry.undone`).

        The entries carry the changes of this memory only. An id that an undone session had given away may have been given
        away again; then both memories are listed.
        """
        number = memory_number(memory_id)
        if number is None:
            return []
        with self._database.read() as connection:
            found = rows.entries_of(connection, self._owner_id(connection), number)
        return [(entry, change) for entry in found for change in entry.changes]

    def changed_since(self, position: int) -> frozenset[str]:
        """Ids of the memories that entries after a position added, updated or removed."""
        query = "SELECT DISTINCT memory_number FROM changes WHERE owner_id = ? AND position > ? AND event <> 'NONE'"
        with self._database.read() as connection:
            return frozenset(f"m{row[0]}" for row in connection.execute(query, (self._owner_id(connection), position)))

    def next_id_number(self) -> int:
        """The number of the next new memory.

        One more than the largest that an effective entry gave away or that was forgotten: the id of a forgotten memory is
        not used again, and sessions that are undone and applied again give the same ids.
        """
        # From the largest number downwards, which meets an effective entry soon.
        query = (
            "SELECT memory_number FROM changes CROSS JOIN entries USING (owner_id, position)"
            " WHERE owner_id = ? AND event = 'ADD' AND (undone = 0 OR erased = 1) ORDER BY memory_number DESC LIMIT 1"
        )
        with self._database.read() as connection:
            found = connection.execute(query, (self._owner_id(connection),)).fetchone()
        return 1 if found is None else int(found[0]) + 1

    def text_owner(self, text: str) -> str | None:
        """Id of the memory that a text was an earlier version of; None if it was none.

        Case and white space do not count, nor do updates that are undone or erased. The newest update wins. The text may
        have become current again since.
        """
        query = (
            "SELECT memory_number FROM changes CROSS JOIN entries USING (owner_id, position)"
            " WHERE owner_id = ? AND before_hash = ? AND undone = 0 ORDER BY seq DESC LIMIT 1"
        )
        with self._database.read() as connection:
            found = connection.execute(query, (self._owner_id(connection), rows.text_hash(text))).fetchone()
        return None if found is None else f"m{found[0]}"

    def verify(self) -> list[str]:
        """Replay the entries in Python and compare with what the queries say; the problems, a sentence each."""
        with self._database.read() as connection:
            try:
                return problems_of(self.entries(), rows.restored(connection, self._owner_id(connection)), self.state)
            except (ValueError, TypeError) as error:
                return [f"an entry cannot be read: {error}"]

    def _owner_id(self, connection: sqlite3.Connection) -> int | None:
        found = connection.execute("SELECT id FROM owners WHERE name = ?", (self.name,)).fetchone()
        return None if found is None else int(found[0])

    def _one(self, condition: str, values: tuple[object, ...], column: str) -> int | str | None:
        """One value of the owner's only entry that meets a condition; None if none does."""
        with self._database.read() as connection:
            query = f"SELECT {column} FROM entries WHERE owner_id = ? AND {condition}"
            found = connection.execute(query, (self._owner_id(connection), *values)).fetchone()
        return None if found is None else found[0]
