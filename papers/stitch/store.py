"""Contextual intents in the journal's file: the steps of a collection as they were labelled, and its label spaces as a log.

A collection belongs to one owner. Erasing the owner erases it, forgetting a memory erases its steps and whatever repeats its
text, and an export holds it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from deltamem.errors import ConflictError, DeltaMemError
from deltamem.journal.records import memory_number
from deltamem.journal.sqlite import create_owner, owner_id
from deltamem.sqlite import Database
from deltamem.text import normalised
from papers.stitch.labels import Facet, LabelChange, LabelSpaces
from papers.stitch.records import Intent, ScopeNote, Snippet, Step

MEMORIES = "memories"
"""The collection of an owner's memories; a step's id is that of the memory, a slash, and which of its texts it is."""

_STEP = "step_id, role, time, text, scope, event, entity_types, resolved, summary"


@dataclass(frozen=True, slots=True)
class LabelVersion:
    """One version of the label spaces of a collection."""

    version: int
    step: int  # How many steps there were when it was made
    change: LabelChange


@dataclass(slots=True)
class IntentRecords:
    """Everything that a collection holds, in order."""

    labeller: str
    stamp: int = -1  # See `IntentLog.stamp`
    numbers: list[int] = field(default_factory=list)  # Of the steps; they grow, with gaps
    snippets: list[Snippet] = field(default_factory=list)  # With the labels that they were given
    versions: list[LabelVersion] = field(default_factory=list)
    notes: list[ScopeNote] = field(default_factory=list)
    drafts: dict[str, str] = field(default_factory=dict)


class StaleIntentsError(ConflictError):
    """Something was written to a collection, or erased, since it was read."""


class IntentLog:
    """One collection of one owner. Any number of threads may use it."""

    def __init__(self, database: Database, name: str, collection: str) -> None:
        """Bind an owner by name, who need not be in the journal yet, and a collection, which need not be there either.

        Raises:
            DeltaMemError: If the collection has no name.
        """
        if not collection:
            raise DeltaMemError("a collection of intents needs a name")
        self._database = database
        self._name = name
        self.collection = collection

    @property
    def stamp(self) -> int:
        """Grows whenever something was erased: who holds the records in memory reads them again then."""
        with self._database.read() as connection:
            return _stamp(connection, owner_id(connection, self._name), self.collection)

    @property
    def place(self) -> tuple[int, int]:
        """The stamp, and the number of the last step; 0 if there is none."""
        with self._database.read() as connection:
            owner = owner_id(connection, self._name)
            return _stamp(connection, owner, self.collection), _last(connection, owner, self.collection)

    def load(self) -> IntentRecords | None:
        """Everything that is there; None if there is nothing, or all was cleared."""
        with self._database.read() as connection:
            query = "SELECT id, labeller FROM intent_collections WHERE owner_id = ? AND name = ?"
            found = connection.execute(query, (owner_id(connection, self._name), self.collection)).fetchone()
            return None if found is None else _records(connection, *found, stamp=self.stamp)

    def begin(self, labeller: str) -> None:
        """Make the collection if it is not there.

        Raises:
            ConflictError: If another labeller made it.
        """
        with self._database.write() as connection:
            owner = create_owner(connection, self._name)
            _, made_by = create(connection, owner, self.collection, labeller)
            if made_by != labeller:
                raise ConflictError(f"the intents of {self.collection!r} are labelled by {made_by!r}, not by {labeller!r}")

    def append(
        self,
        snippet: Snippet,
        versions: Sequence[LabelVersion],
        notes: Sequence[ScopeNote],
        *,
        after: tuple[int, int],
    ) -> int:
        """Write a step, the changes of the label spaces that come before it, and its notes; drafts end with it.

        Args:
            snippet: The step.
            versions: The changes.
            notes: The notes.
            after: The `place` of the records that the step was labelled with.

        Returns:
            The number of the step.

        Raises:
            StaleIntentsError: If something was erased since, or somebody else wrote.
            ConflictError: If the step is there already, or is to be one of a memory that there is not.
        """
        with self._database.write() as connection:
            owner, collection = self._unchanged(connection, after[0])
            if self.place != after:
                raise StaleIntentsError(f"somebody else wrote to {self.collection!r}")
            if self.collection == MEMORIES and not _of_a_memory(connection, owner, snippet.step):
                raise ConflictError(f"step {snippet.step.id!r} is no memory any more")
            connection.executemany(_INSERT_VERSION, (_version_row(collection, one) for one in versions))
            try:
                number = _insert(connection, collection, snippet)
            except sqlite3.IntegrityError as error:
                raise ConflictError(f"step {snippet.step.id!r} of {self.collection!r} is there already") from error
            _insert_notes(connection, collection, notes)
            connection.execute("DELETE FROM intent_drafts WHERE collection = ?", (collection,))
            return number

    def keep_draft(self, name: str, answer: str, *, after: int) -> None:
        """Keep an answer for the step that is being labelled.

        Raises:
            StaleIntentsError: If something was erased since the collection had the stamp `after`.
        """
        with self._database.write() as connection:
            _, collection = self._unchanged(connection, after)
            row = (collection, name, answer)
            connection.execute("INSERT OR REPLACE INTO intent_drafts (collection, name, answer) VALUES (?, ?, ?)", row)

    def vectors(self, embedder: str) -> dict[int, bytes]:
        """The vectors of the summaries that an embedder made, as they were kept, by the number of the step."""
        query = (
            "SELECT number, vector FROM intent_steps JOIN intent_collections ON id = collection"
            " WHERE owner_id = ? AND name = ? AND embedder = ? ORDER BY number"
        )
        with self._database.read() as connection:
            found = connection.execute(query, (owner_id(connection, self._name), self.collection, embedder))
            return dict(found.fetchall())

    def keep_vectors(self, embedder: str, vectors: Mapping[int, bytes]) -> None:
        """Keep the vectors of steps by their numbers; those that were erased meanwhile are left out."""
        rows = ((embedder, vector, number) for number, vector in vectors.items())
        with self._database.write() as connection:
            connection.executemany("UPDATE intent_steps SET embedder = ?, vector = ? WHERE number = ?", rows)

    def clear(self) -> None:
        """Erase the collection for good."""
        with self._database.write() as connection:
            query = "DELETE FROM intent_collections WHERE owner_id = ? AND name = ?"
            if not connection.execute(query, (owner_id(connection, self._name), self.collection)).rowcount:
                return
            self._database.purge_after()

    def _unchanged(self, connection: sqlite3.Connection, stamp: int) -> tuple[int, int]:
        """The rows of owner and collection, of which nothing was erased since the collection had a stamp."""
        owner = owner_id(connection, self._name)
        if owner is None or stamp < 0 or _stamp(connection, owner, self.collection) != stamp:
            raise StaleIntentsError(f"something of {self.collection!r} was erased meanwhile")
        return owner, stamp >> 32


def _of_a_memory(connection: sqlite3.Connection, owner: int, step: Step) -> bool:
    """Whether a step has the id and a text of a memory of the owner, which need not be the latest one."""
    number = memory_number(step.id.partition("/")[0])
    query = "SELECT 1 FROM changes WHERE owner_id = ? AND memory_number = ? AND erased = 0 AND after_text = ?"
    return connection.execute(query, (owner, number, step.text)).fetchone() is not None


def _stamp(connection: sqlite3.Connection, owner: int | None, name: str) -> int:
    query = "SELECT id, erased FROM intent_collections WHERE owner_id = ? AND name = ?"
    found = connection.execute(query, (owner, name)).fetchone()
    return -1 if found is None else (int(found[0]) << 32) + int(found[1])


def _last(connection: sqlite3.Connection, owner: int | None, name: str) -> int:
    query = (
        "SELECT max(number) FROM intent_steps WHERE collection = (SELECT id FROM intent_collections"
        " WHERE owner_id = ? AND name = ?)"
    )
    return int(connection.execute(query, (owner, name)).fetchone()[0] or 0)


def create(connection: sqlite3.Connection, owner: int, name: str, labeller: str) -> tuple[int, str]:
    """The row of a collection, made if there is none, and the labeller that made it."""
    query = "SELECT id, labeller FROM intent_collections WHERE owner_id = ? AND name = ?"
    found = connection.execute(query, (owner, name)).fetchone()
    if found is None:
        query = "INSERT INTO intent_collections (owner_id, name, labeller) VALUES (?, ?, ?) RETURNING id, labeller"
        found = connection.execute(query, (owner, name, labeller)).fetchone()
    return int(found[0]), str(found[1])


def exported(connection: sqlite3.Connection, owner: int | None) -> list[tuple[str, IntentRecords]]:
    """All collections of an owner by name, in the order of their making."""
    query = "SELECT name, id, labeller FROM intent_collections WHERE owner_id = ? ORDER BY id"
    found = connection.execute(query, (owner,)).fetchall()
    return [(name, _records(connection, collection, labeller)) for name, collection, labeller in found]


def restore(connection: sqlite3.Connection, owner: int, name: str, records: IntentRecords) -> None:
    """Write a collection as another journal had it; its vectors are computed again.

    Raises:
        ValueError: If it is there already, or contradicts itself.
    """
    try:
        LabelSpaces(one.change for one in records.versions)
        numbers = [one.version for one in records.versions]
        if any(one >= other for one, other in pairwise(numbers)):
            raise DeltaMemError("the versions of its labels do not rise")
        for snippet in records.snippets if name == MEMORIES else ():
            if not _of_a_memory(connection, owner, snippet.step):
                raise DeltaMemError(f"{snippet.step.id!r} is no memory")
        collection, _ = create(connection, owner, name, records.labeller)
        connection.executemany(_INSERT_VERSION, (_version_row(collection, one) for one in records.versions))
        for snippet in records.snippets:
            _insert(connection, collection, snippet)
        _insert_notes(connection, collection, records.notes)
    except (sqlite3.IntegrityError, DeltaMemError) as error:
        raise ValueError(f"the intents of {name!r} contradict themselves ({error})") from error


def erase(connection: sqlite3.Connection, owner: int, memory_ids: Collection[str], texts: Collection[str]) -> None:
    """Erase the steps of some memories, and all steps, labels and notes that contain one of some texts, `normalised`.

    So that nothing is told by the labels that remain, those that no step has any more are erased too, with the notes of
    their scopes; the log of the label spaces is written again, of the labels that steps still have. Drafts are erased
    all, and every stamp grows: what is being labelled just now may have been read before.
    """
    wanted = [text for text in map(normalised, texts) if text]
    for name, records in exported(connection, owner):
        (collection,) = connection.execute(
            "SELECT id FROM intent_collections WHERE owner_id = ? AND name = ?", (owner, name)
        ).fetchone()

        def holds(*said: str) -> bool:
            return any(text in normalised(one) for one in said for text in wanted)

        gone = [
            (number, snippet)
            for number, snippet in zip(records.numbers, records.snippets, strict=True)
            if (name == MEMORIES and snippet.step.id.partition("/")[0] in memory_ids)
            or holds(snippet.step.text, snippet.resolved, snippet.summary)
        ]
        connection.execute("DELETE FROM intent_drafts WHERE collection = ?", (collection,))
        noted = any(holds(note.text) for note in records.notes) or any(holds(one.change.label) for one in records.versions)
        if gone or noted:
            connection.executemany("DELETE FROM intent_steps WHERE number = ?", ((number,) for number, _ in gone))
            _write_labels_again(connection, collection, records, {number for number, _ in gone}, holds)
        connection.execute("UPDATE intent_collections SET erased = erased + 1 WHERE id = ?", (collection,))


def _write_labels_again(
    connection: sqlite3.Connection,
    collection: int,
    records: IntentRecords,
    gone: Collection[int],
    holds: Callable[[str], bool],
) -> None:
    spaces = LabelSpaces(one.change for one in records.versions)
    kept = LabelSpaces()
    left_scopes = {
        spaces.current(Facet.SCOPE, snippet.intent.scope)
        for number, snippet in zip(records.numbers, records.snippets, strict=True)
        if number in gone
    }
    changes: list[LabelChange] = []
    for number, snippet in zip(records.numbers, records.snippets, strict=True):
        if number not in gone:
            intent = _without(spaces.relabelled(snippet.intent), holds)
            for change in kept.unknown(intent):
                kept.apply(change)
                changes.append(change)
            row = (intent.scope, intent.event, json.dumps(intent.entity_types, ensure_ascii=False), number)
            connection.execute("UPDATE intent_steps SET scope = ?, event = ?, entity_types = ? WHERE number = ?", row)
    last = records.versions[-1].version if records.versions else 0
    again = [
        LabelVersion(last + place, len(records.snippets) - len(gone), one) for place, one in enumerate(changes, start=1)
    ]
    connection.execute("DELETE FROM intent_labels WHERE collection = ?", (collection,))
    connection.executemany(_INSERT_VERSION, (_version_row(collection, one) for one in again))
    # A note sums up several steps, of which nobody can say which words come from which.
    notes = [
        note for note in records.notes if spaces.current(Facet.SCOPE, note.scope) not in left_scopes and not holds(note.text)
    ]
    connection.execute("DELETE FROM intent_notes WHERE collection = ?", (collection,))
    _insert_notes(connection, collection, [note for note in notes if kept.current(Facet.SCOPE, note.scope)])


def _without(intent: Intent, holds: Callable[[str], bool]) -> Intent:
    """An intent without the labels that hold something."""
    return Intent(
        "" if holds(intent.scope) else intent.scope,
        "" if holds(intent.event) else intent.event,
        tuple(label for label in intent.entity_types if not holds(label)),
    )


_INSERT_VERSION = (
    "INSERT INTO intent_labels (collection, version, step, facet, label, merged_into) VALUES (?, ?, ?, ?, ?, ?)"
)


def _version_row(collection: int, one: LabelVersion) -> tuple[object, ...]:
    return (collection, one.version, one.step, one.change.facet, one.change.label, one.change.into)


def _insert(connection: sqlite3.Connection, collection: int, snippet: Snippet) -> int:
    step, intent = snippet.step, snippet.intent
    entities = json.dumps(intent.entity_types, ensure_ascii=False)
    row = (step.id, step.role, step.time.isoformat(), step.text, intent.scope, intent.event, entities)
    query = f"INSERT INTO intent_steps (collection, {_STEP}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number"
    return int(connection.execute(query, (collection, *row, snippet.resolved, snippet.summary)).fetchone()[0])


def _insert_notes(connection: sqlite3.Connection, collection: int, notes: Iterable[ScopeNote]) -> None:
    query = "INSERT INTO intent_notes (collection, scope, text) VALUES (?, ?, ?)"
    connection.executemany(query, ((collection, note.scope, note.text) for note in notes))


def _records(connection: sqlite3.Connection, collection: int, labeller: str, *, stamp: int = -1) -> IntentRecords:
    records = IntentRecords(labeller, stamp)
    query = f"SELECT number, {_STEP} FROM intent_steps WHERE collection = ? ORDER BY number"
    for number, step_id, role, time, text, scope, event, entities, resolved, summary in connection.execute(
        query, (collection,)
    ):
        records.numbers.append(number)
        step = Step(step_id, role, text, datetime.fromisoformat(time))
        records.snippets.append(Snippet(step, Intent(scope, event, tuple(json.loads(entities))), resolved, summary))
    query = "SELECT version, step, facet, label, merged_into FROM intent_labels WHERE collection = ? ORDER BY version"
    for version, count, facet, label, into in connection.execute(query, (collection,)):
        records.versions.append(LabelVersion(version, count, LabelChange(Facet(facet), label, into)))
    query = "SELECT scope, text FROM intent_notes WHERE collection = ? ORDER BY seq"
    records.notes.extend(ScopeNote(*row) for row in connection.execute(query, (collection,)))
    query = "SELECT name, answer FROM intent_drafts WHERE collection = ?"
    records.drafts.update(connection.execute(query, (collection,)).fetchall())
    return records
