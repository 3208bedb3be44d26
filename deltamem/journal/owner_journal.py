"""Writing to one owner's journal: append-only entries, each in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from deltamem.errors import DeltaMemError
from deltamem.journal import rows
from deltamem.journal.owner_view import OwnerView
from deltamem.journal.records import Change, ChangeEvent, Entry, EntryKind, digest_of, shape_problem
from deltamem.journal.replay import changes_between, lineage, step
from deltamem.memory import Memory
from deltamem.sessions import Session, Turn


class SessionKnownError(DeltaMemError):
    """The session was applied before, so it must not be applied again."""


class StaleJournalError(DeltaMemError):
    """Somebody else wrote to the journal since the state at hand was read."""


class OwnerJournal(OwnerView):
    """The journal of one owner. Any number of threads may use it."""

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
        restored: int | None = None,
        expected_head: int | None = None,
    ) -> Entry:
        """Write one entry in one transaction; when this returns, it is on the disk.

        Args:
            kind: SESSION, IMPORT or ROLLBACK; `rollback` and `forget` do their own writing.
            changes: What happened, in order; may be empty. Each must follow from the state that the ones before it left.
            session: The session, for SESSION entries only.
            keep_dialogue: Store the session's turns; its digest is stored in any case.
            model: The model that decided.
            prompt_hash: sha256 over the prompts in use.
            violations: What was refused or corrected, counted by name.
            restored: The position whose state the changes restore, for ROLLBACK entries only.
            expected_head: The head that the changes were made for; None accepts any.

        Raises:
            SessionKnownError: If a session with this id is applied and not undone.
            StaleJournalError: If the head is another, or a change does not follow from the state.
            DeltaMemError: If a text is not valid Unicode, or the file cannot be written.
            ValueError: If the arguments contradict each other or the kind.
        """
        if (session is not None) != (kind is EntryKind.SESSION) or (session is not None and not session.id):
            raise ValueError("an entry of a session, and no other, needs a session with an id")
        if (restored is not None) != (kind is EntryKind.ROLLBACK) or kind is EntryKind.FORGET:
            raise ValueError("a rollback, and no other entry, restores a position; forgetting has its own method")
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
            if restored is not None and changes_between(self.state(), self.state(restored)) != list(changes):
                raise ValueError(f"the changes do not lead back to the state after entry {restored}")
            memories = rows.current(connection, self._owner_id(connection), {change.memory_id for change in changes})
            for change in changes:
                if problem := step(memories, change):
                    raise StaleJournalError(f"the journal is at another state: {problem}")
            entry = Entry(
                position=head + 1,
                kind=kind,
                recorded_at=datetime.now(UTC),
                changes=tuple(changes),
                session_id=None if session is None else session.id,
                session_time=None if session is None else session.time,
                model=model,
                prompt_hash=prompt_hash,
                violations=dict(violations or {}),
                restored=restored,
                session_digest=None if session is None else digest_of(session),
            )
            self._append(connection, entry)
            if session is not None and keep_dialogue:
                rows.insert_dialogue(connection, self._create(connection), entry.position, session.dialogue)
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
        """Erase a memory for good, from every entry and every stored dialogue, and append an entry that says so.

        All changes of the id lose their texts. Stored turns that they name as sources, and stored turns that contain one
        of the texts (whatever the case and white space), become empty. Other memories stay as they are, also if they say
        the same. On return the texts are gone from the files (see `Database.purge` for the one exception).

        Raises:
            DeltaMemError: If the owner has no such memory, or it is already forgotten.
        """
        with self._database.write() as connection:
            owner_id = self._owner_id(connection)
            history = self.history(memory_id)
            sides = [memory for _, change in history if not change.erased for memory in (change.before, change.after)]
            known = [memory for memory in sides if memory is not None]
            if owner_id is None or not known:
                raise DeltaMemError(f"{memory_id}: there is no such memory to forget")
            sources = frozenset((entry.position, turn) for entry, change in history for turn in change.turns)
            rows.erase_memory(connection, owner_id, memory_id)
            rows.blank_turns(connection, owner_id, sources, {memory.text for memory in known})
            removal = Change(ChangeEvent.REMOVE, memory_id, Memory(memory_id, "", known[-1].time), None, erased=True)
            entry = Entry(self.head + 1, EntryKind.FORGET, datetime.now(UTC), (removal,))
            self._append(connection, entry)
            connection.execute("INSERT INTO pending_purges DEFAULT VALUES")
        self._database.purge()
        return entry

    @contextmanager
    def restoring(self) -> Iterator[Restorer]:
        """Write entries as another journal recorded them, in one transaction: if the block raises, nothing is written.

        Raises:
            DeltaMemError: If this owner already has entries.
        """
        with self._database.write() as connection:
            if self.head:
                raise DeltaMemError(
                    f"the journal of {self.name!r} already has {self.head} entries; import needs an empty one"
                )
            yield Restorer(connection, self._create(connection))

    def _create(self, connection: sqlite3.Connection) -> int:
        """The owner's row, made on the first entry."""
        known = self._owner_id(connection)
        if known is not None:
            return known
        return int(connection.execute("INSERT INTO owners (name) VALUES (?) RETURNING id", (self.name,)).fetchone()[0])

    def _append(self, connection: sqlite3.Connection, entry: Entry) -> None:
        owner_id = self._create(connection)
        rows.insert(connection, owner_id, entry)
        if entry.restored is not None:
            rows.mark_effective(connection, owner_id, lineage(entry.position, rows.restored(connection, owner_id)))


class Restorer:
    """Takes the entries and dialogues of another journal into an empty one."""

    def __init__(self, connection: sqlite3.Connection, owner_id: int) -> None:
        self._connection = connection
        self._owner_id = owner_id
        self._position = 0

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
