"""Writing an owner's journal as another one recorded it: what `deltamem.journal.transfer` does, and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from uuid import UUID

from deltamem.journal import sqlite as rows
from deltamem.journal.records import Entry, memory_number, shape_problem
from deltamem.sessions import Turn
from papers.stitch import store as intent_rows

_LARGEST_IMPORTED = 2**53


class Restorer:
    """Takes the entries and dialogues of another journal into an empty one."""

    def __init__(self, connection: sqlite3.Connection, owner_id: int) -> None:
        self._connection = connection
        self._owner_id = owner_id
        self._position = 0

    def namespace(self, namespace: UUID) -> None:
        """Derive UUIDs as the other journal did; before the first entry."""
        query = "UPDATE owners SET namespace = ? WHERE id = ?"
        self._connection.execute(query, (str(namespace), self._owner_id))

    def entry(self, entry: Entry) -> None:
        """Write the next entry, marks and all.

        Raises:
            ValueError: If it cannot stand in a journal, or not at this place.
        """
        if entry.position != self._position + 1:
            raise ValueError(f"entry {entry.position} where {self._position + 1} was expected")
        for change in entry.changes:
            if problem := shape_problem(change):
                raise ValueError(problem)
            if (memory_number(change.memory_id) or 0) > _LARGEST_IMPORTED:
                raise ValueError(f"{change.memory_id} leaves no ids for further memories")
        try:
            rows.insert(self._connection, self._owner_id, entry)
        except sqlite3.IntegrityError as error:
            raise ValueError(f"entry {entry.position} contradicts itself or an earlier one ({error})") from error
        self._position = entry.position

    def dialogue(self, position: int, turns: Sequence[Turn]) -> None:
        """Write the dialogue of an entry.

        Raises:
            ValueError: If there is no such entry, or it has one already.
        """
        try:
            rows.insert_dialogue(self._connection, self._owner_id, position, turns)
        except sqlite3.IntegrityError as error:
            raise ValueError(f"a dialogue of entry {position}, which is unknown or has one already") from error

    def intents(self, collection: str, records: intent_rows.IntentRecords) -> None:
        """Write a collection of intents.

        Raises:
            ValueError: If it is there already, or contradicts itself.
        """
        intent_rows.restore(self._connection, self._owner_id, collection, records)
