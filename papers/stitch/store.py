"""Contextual intents beside the journal: the steps of a collection as they were labelled, and its label spaces as a log.

A collection belongs to one owner. Erasing the owner erases it, forgetting a memory erases its steps and whatever repeats its
text, and an export holds it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import NamedTuple

from deltamem.errors import ConflictError, DeltaMemError, NotFoundError
from deltamem.journal.beside import PluginStore, file_kind
from deltamem.journal.lines import ExportLine, ExportLines, Number, Positive, Time
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import Forgotten
from deltamem.journal.rows import create_owner, owner_id
from deltamem.sqlite import insert_row
from papers.stitch.labels import Facet, LabelChange, LabelSpaces
from papers.stitch.records import Intent, ScopeNote, Snippet, Stamp, Step

MEMORIES = "memories"
"""The collection of an owner's memories; a step's id is that of the memory, a slash, and which of its texts it is."""

_SCHEMA = """
CREATE TABLE collections (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: it is part of the stamp
    owner_id INTEGER NOT NULL REFERENCES owners (id) ON DELETE CASCADE,
    name TEXT NOT NULL CHECK (name <> ''),
    labeller TEXT NOT NULL,
    erasures INTEGER NOT NULL DEFAULT 0,
    UNIQUE (owner_id, name)
);
CREATE TABLE steps (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    collection INTEGER NOT NULL REFERENCES collections (id) ON DELETE CASCADE,
    step_id TEXT NOT NULL,
    role TEXT NOT NULL,
    time TEXT NOT NULL,
    text TEXT NOT NULL,
    scope TEXT NOT NULL,
    event TEXT NOT NULL,
    entity_types TEXT NOT NULL,
    resolved TEXT NOT NULL,
    summary TEXT NOT NULL,
    embedder TEXT,
    vector BLOB,
    UNIQUE (collection, step_id)
);
CREATE INDEX steps_of_a_collection ON steps (collection, number);
CREATE TABLE labels (
    collection INTEGER NOT NULL REFERENCES collections (id) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    step INTEGER NOT NULL,
    facet TEXT NOT NULL,
    label TEXT NOT NULL,
    merged_into TEXT,
    PRIMARY KEY (collection, version)
);
CREATE TABLE notes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    collection INTEGER NOT NULL REFERENCES collections (id) ON DELETE CASCADE,
    scope TEXT NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX notes_of_a_collection ON notes (collection, seq);
CREATE TABLE drafts (
    collection INTEGER NOT NULL REFERENCES collections (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (collection, name)
);
"""


class LabelVersion(NamedTuple):
    """One version of the label spaces of a collection."""

    version: int
    step: int  # How many steps there were when it was made
    facet: Facet
    label: str
    into: str | None

    @property
    def change(self) -> LabelChange:
        """What it changed."""
        return LabelChange(self.facet, self.label, self.into)


@dataclass(slots=True)
class IntentRecords:
    """Everything that a collection holds, in order."""

    labeller: str
    stamp: Stamp | None = field(default=None, compare=False)
    numbers: list[int] = field(default_factory=list, compare=False)  # Of the steps; they grow, with gaps
    snippets: list[Snippet] = field(default_factory=list)  # With the labels that they were given
    versions: list[LabelVersion] = field(default_factory=list)
    notes: list[ScopeNote] = field(default_factory=list)
    drafts: dict[str, str] = field(default_factory=dict, compare=False)


class StaleIntentsError(ConflictError):
    """Something was written to a collection, or erased, since it was read."""


class _Label(ExportLine):
    version: Positive
    step: Number
    facet: Facet
    label: str
    into: str | None


class _NoteLine(ExportLine):
    scope: str
    text: str


class _Collection(ExportLine):
    """A collection in an export; the lines of its steps follow."""

    name: str
    labeller: str
    intents: Number
    labels: list[_Label]
    notes: list[_NoteLine]


class _Intent(ExportLine):
    """A step in an export, and by the same names in its table."""

    id: str
    role: str
    time: Time
    text: str
    scope: str
    event: str
    entity_types: tuple[str, ...]
    resolved: str
    summary: str

    @classmethod
    def of(cls, snippet: Snippet) -> _Intent:
        values = asdict(snippet.step) | asdict(snippet.intent) | {"resolved": snippet.resolved, "summary": snippet.summary}
        return cls.model_validate({name: values[name] for name in cls.model_fields})

    def snippet(self) -> Snippet:
        intent = Intent(self.scope, self.event, self.entity_types)
        return Snippet(Step(self.id, self.role, self.text, self.time), intent, self.resolved, self.summary)


class IntentStore(PluginStore):
    """The collections of all owners."""

    name = "stitch"
    kind = file_kind("stitch", 1, _SCHEMA)

    def collections(self, owner: str) -> dict[str, IntentRecords]:
        """All collections with everything they hold, by name, in the order of their making."""
        with self.database.read() as connection:
            query = "SELECT * FROM collections WHERE owner_id = ? ORDER BY id"
            found = connection.execute(query, (owner_id(connection, owner),)).fetchall()
            return {row["name"]: _records(connection, row) for row in found}

    def forget(self, owner: str, forgotten: Forgotten) -> None:
        """Erase the steps of some memories, and all steps, labels and notes that repeat what they said.

        So that nothing is told by the labels that remain, those that no step has any more are erased too, with the notes of
        their scopes; the log of the label spaces is written again, of the labels that steps still have. Drafts are erased
        all, and every stamp changes: what is being labelled just now may have been read before.
        """
        collections = self.collections(owner)
        if not collections:
            return
        with self.database.write() as connection:
            for name, records in collections.items():
                assert records.stamp is not None
                collection = records.stamp.collection
                gone = {
                    number
                    for number, snippet in zip(records.numbers, records.snippets, strict=True)
                    if (name == MEMORIES and snippet.step.id.partition("/")[0] in forgotten.memory_ids)
                    or forgotten.repeated_in(snippet.step.text, snippet.resolved, snippet.summary)
                }
                labels = (one.change.label for one in records.versions)
                if gone or forgotten.repeated_in(*labels, *(note.text for note in records.notes)):
                    connection.executemany("DELETE FROM steps WHERE number = ?", ((number,) for number in gone))
                    _write_labels_again(connection, collection, records, gone, forgotten)
                connection.execute("DELETE FROM drafts WHERE collection = ?", (collection,))
                connection.execute("UPDATE collections SET erasures = erasures + 1 WHERE id = ?", (collection,))
            self.database.purge_after()

    def exported(self, owner: str) -> list[ExportLine]:
        """A line for each collection, with its labels and notes, and behind it one for each step."""
        lines: list[ExportLine] = []
        for name, records in self.collections(owner).items():
            lines.append(
                _Collection(
                    name=name,
                    labeller=records.labeller,
                    intents=len(records.snippets),
                    labels=[_Label.model_validate(one) for one in records.versions],
                    notes=[_NoteLine.model_validate(note) for note in records.notes],
                )
            )
            lines += map(_Intent.of, records.snippets)
        return lines

    def read(self, lines: ExportLines, count: int) -> dict[str, IntentRecords]:
        """The collections that `count` lines hold."""
        collections: dict[str, IntentRecords] = {}
        while count > 0:
            collection = lines.next(_Collection)
            count -= 1 + collection.intents
            if count < 0:
                raise lines.wrong(f"{collection.name!r} counts more intents than the header counts lines")
            if collection.name in collections:
                raise lines.wrong(f"the intents of {collection.name!r} are there twice")
            collections[collection.name] = IntentRecords(
                collection.labeller,
                versions=[LabelVersion(**dict(one)) for one in collection.labels],
                notes=[ScopeNote(**dict(note)) for note in collection.notes],
                snippets=[lines.next(_Intent).snippet() for _ in range(collection.intents)],
            )
        return collections

    def restore(self, owner: str, records: dict[str, IntentRecords]) -> None:
        """Keep collections as another journal had them; their vectors are computed again.

        Raises:
            DeltaMemError: If others are there already, or one contradicts itself.
        """
        there = self.collections(owner)
        if there and there != records:
            raise ConflictError(f"the journal of {owner!r} already has intents; import needs an empty one")
        if there or not records:
            return
        with self.database.write() as connection:
            for name, one in records.items():
                try:
                    self._restore(connection, OwnerJournal(self.files, owner), name, one)
                except (sqlite3.IntegrityError, DeltaMemError) as error:
                    raise DeltaMemError(f"the intents of {name!r} contradict themselves ({error})") from error

    def _restore(self, connection: sqlite3.Connection, journal: OwnerJournal, name: str, records: IntentRecords) -> None:
        LabelSpaces(one.change for one in records.versions)
        if any(one.version >= other.version for one, other in pairwise(records.versions)):
            raise DeltaMemError("the versions of its labels do not rise")
        for snippet in records.snippets if name == MEMORIES else ():
            if not _is_of_a_memory(journal, snippet.step):
                raise DeltaMemError(f"{snippet.step.id!r} is no memory")
        collection = _create(connection, journal.name, name, records.labeller)["id"]
        _insert_versions(connection, collection, records.versions)
        for snippet in records.snippets:
            _insert(connection, collection, snippet)
        _insert_notes(connection, collection, records.notes)


class IntentLog:
    """One collection of one owner. Any number of threads may use it."""

    def __init__(self, journal: OwnerJournal, collection: str) -> None:
        """Bind an owner and a collection, neither of which need be there yet.

        Raises:
            DeltaMemError: If the collection has no name.
        """
        if not collection:
            raise DeltaMemError("a collection of intents needs a name")
        self._store = journal.files.beside(IntentStore)
        self._database = self._store.database
        self._journal = journal
        self.collection = collection

    @property
    def stamp(self) -> Stamp | None:
        """Changes whenever something was erased: who holds the records in memory reads them again then.

        None if the collection is not there.
        """
        with self._database.read() as connection:
            found = self._row(connection)
            return None if found is None else Stamp(found["id"], found["erasures"])

    @property
    def place(self) -> tuple[Stamp | None, int]:
        """The stamp, and the number of the last step; 0 if there is none."""
        with self._database.read() as connection:
            stamp = self.stamp
            query = "SELECT max(number) AS last FROM steps WHERE collection = ?"
            last = None if stamp is None else connection.execute(query, (stamp.collection,)).fetchone()["last"]
            return stamp, last or 0

    def load(self) -> IntentRecords | None:
        """Everything that is there; None if there is nothing, or all was cleared."""
        with self._database.read() as connection:
            found = self._row(connection)
            return None if found is None else _records(connection, found)

    def begin(self, labeller: str) -> None:
        """Make the collection if it is not there.

        Raises:
            ConflictError: If another labeller made it.
        """
        with self._store.write() as connection:
            made_by = _create(connection, self._journal.name, self.collection, labeller)["labeller"]
            if made_by != labeller:
                raise ConflictError(f"the intents of {self.collection!r} are labelled by {made_by!r}, not by {labeller!r}")

    def append(
        self,
        snippet: Snippet,
        versions: Sequence[LabelVersion],
        notes: Sequence[ScopeNote],
        *,
        after: tuple[Stamp | None, int],
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
        with self._store.write() as connection:
            collection = self._unchanged(after[0])
            if self.place != after:
                raise StaleIntentsError(f"somebody else wrote to {self.collection!r}")
            if self.collection == MEMORIES and not _is_of_a_memory(self._journal, snippet.step):
                raise ConflictError(f"step {snippet.step.id!r} is no memory any more")
            _insert_versions(connection, collection, versions)
            try:
                number = _insert(connection, collection, snippet)
            except sqlite3.IntegrityError as error:
                raise ConflictError(f"step {snippet.step.id!r} of {self.collection!r} is there already") from error
            _insert_notes(connection, collection, notes)
            connection.execute("DELETE FROM drafts WHERE collection = ?", (collection,))
            return number

    def keep_draft(self, name: str, answer: str, *, after: Stamp | None) -> None:
        """Keep an answer for the step that is being labelled.

        Raises:
            StaleIntentsError: If something was erased since the collection had the stamp `after`.
        """
        with self._store.write() as connection:
            row = (self._unchanged(after), name, answer)
            connection.execute("INSERT OR REPLACE INTO drafts (collection, name, answer) VALUES (?, ?, ?)", row)

    def vectors(self, embedder: str) -> dict[int, bytes]:
        """The vectors of the summaries that an embedder made, as they were kept, by the number of the step."""
        query = "SELECT number, vector FROM steps WHERE collection = ? AND embedder = ? ORDER BY number"
        with self._database.read() as connection:
            found = self._row(connection)
            return {} if found is None else dict(connection.execute(query, (found["id"], embedder)).fetchall())

    def keep_vectors(self, embedder: str, vectors: Mapping[int, bytes]) -> None:
        """Keep the vectors of steps by their numbers; those that were erased meanwhile are left out."""
        rows = ((embedder, vector, number) for number, vector in vectors.items())
        with self._database.write() as connection:
            connection.executemany("UPDATE steps SET embedder = ?, vector = ? WHERE number = ?", rows)

    def clear(self) -> None:
        """Erase the collection for good."""
        with self._database.write() as connection:
            if (found := self._row(connection)) is not None:
                connection.execute("DELETE FROM collections WHERE id = ?", (found["id"],))
                self._database.purge_after()

    def _row(self, connection: sqlite3.Connection) -> sqlite3.Row | None:
        return _collection(connection, owner_id(connection, self._journal.name), self.collection)

    def _unchanged(self, stamp: Stamp | None) -> int:
        """The row of the collection, of which nothing was erased since it had a stamp."""
        if stamp is None or self.stamp != stamp:
            raise StaleIntentsError(f"something of {self.collection!r} was erased meanwhile")
        return stamp.collection


def _is_of_a_memory(journal: OwnerJournal, step: Step) -> bool:
    """Whether a step has the id and a text of a memory of the owner, which need not be the latest one."""
    try:
        history = journal.history(step.id.partition("/")[0])
    except NotFoundError:
        return False
    return any(change.after is not None and change.after.text == step.text and not change.erased for _, change in history)


def _collection(connection: sqlite3.Connection, owner: int | None, name: str) -> sqlite3.Row | None:
    query = "SELECT * FROM collections WHERE owner_id = ? AND name = ?"
    found: sqlite3.Row | None = connection.execute(query, (owner, name)).fetchone()
    return found


def _create(connection: sqlite3.Connection, owner: str, name: str, labeller: str) -> sqlite3.Row:
    """The row of a collection, made if there is none."""
    number = create_owner(connection, owner)
    if _collection(connection, number, name) is None:
        insert_row(connection, "collections", {"owner_id": number, "name": name, "labeller": labeller})
    made = _collection(connection, number, name)
    assert made is not None
    return made


def _write_labels_again(
    connection: sqlite3.Connection, collection: int, records: IntentRecords, gone: Collection[int], forgotten: Forgotten
) -> None:
    spaces = LabelSpaces(one.change for one in records.versions)
    kept = LabelSpaces()
    left_scopes = set()
    changes: list[LabelChange] = []
    for number, snippet in zip(records.numbers, records.snippets, strict=True):
        if number in gone:
            left_scopes.add(spaces.current(Facet.SCOPE, snippet.intent.scope))
            continue
        intent = _without(spaces.relabelled(snippet.intent), forgotten)
        for change in kept.unknown(intent):
            kept.apply(change)
            changes.append(change)
        row = (intent.scope, intent.event, json.dumps(intent.entity_types, ensure_ascii=False), number)
        connection.execute("UPDATE steps SET scope = ?, event = ?, entity_types = ? WHERE number = ?", row)
    last = records.versions[-1].version if records.versions else 0
    steps = len(records.snippets) - len(gone)
    connection.execute("DELETE FROM labels WHERE collection = ?", (collection,))
    versions = [LabelVersion(last + place, steps, *one) for place, one in enumerate(changes, start=1)]
    _insert_versions(connection, collection, versions)
    # A note sums up several steps, of which nobody can say which words come from which.
    connection.execute("DELETE FROM notes WHERE collection = ?", (collection,))
    notes = (
        note
        for note in records.notes
        if spaces.current(Facet.SCOPE, note.scope) not in left_scopes
        and not forgotten.repeated_in(note.text)
        and kept.current(Facet.SCOPE, note.scope)
    )
    _insert_notes(connection, collection, notes)


def _without(intent: Intent, forgotten: Forgotten) -> Intent:
    """An intent without the labels that repeat something."""
    return Intent(
        "" if forgotten.repeated_in(intent.scope) else intent.scope,
        "" if forgotten.repeated_in(intent.event) else intent.event,
        tuple(label for label in intent.entity_types if not forgotten.repeated_in(label)),
    )


def _insert_versions(connection: sqlite3.Connection, collection: int, versions: Iterable[LabelVersion]) -> None:
    query = "INSERT INTO labels (collection, version, step, facet, label, merged_into) VALUES (?, ?, ?, ?, ?, ?)"
    connection.executemany(query, ((collection, *one) for one in versions))


def _insert(connection: sqlite3.Connection, collection: int, snippet: Snippet) -> int:
    row = _Intent.of(snippet).model_dump() | {"collection": collection}
    row["step_id"] = row.pop("id")
    row["entity_types"] = json.dumps(snippet.intent.entity_types, ensure_ascii=False)
    insert_row(connection, "steps", row)
    return int(connection.execute("SELECT last_insert_rowid()").fetchone()[0])


def _insert_notes(connection: sqlite3.Connection, collection: int, notes: Iterable[ScopeNote]) -> None:
    query = "INSERT INTO notes (collection, scope, text) VALUES (?, ?, ?)"
    connection.executemany(query, ((collection, note.scope, note.text) for note in notes))


def _records(connection: sqlite3.Connection, collection: sqlite3.Row) -> IntentRecords:
    records = IntentRecords(collection["labeller"], Stamp(collection["id"], collection["erasures"]))
    of_it = (collection["id"],)
    for row in connection.execute("SELECT step_id AS id, * FROM steps WHERE collection = ? ORDER BY number", of_it):
        values = {name: row[name] for name in _Intent.model_fields} | {
            "entity_types": tuple(json.loads(row["entity_types"]))
        }
        records.numbers.append(row["number"])
        records.snippets.append(_Intent.model_validate(values).snippet())
    query = "SELECT version, step, facet, label, merged_into FROM labels WHERE collection = ? ORDER BY version"
    for version, step, facet, *change in connection.execute(query, of_it):
        records.versions.append(LabelVersion(version, step, Facet(facet), *change))
    query = "SELECT scope, text FROM notes WHERE collection = ? ORDER BY seq"
    records.notes += (ScopeNote(*row) for row in connection.execute(query, of_it))
    records.drafts.update(connection.execute("SELECT name, answer FROM drafts WHERE collection = ?", of_it).fetchall())
    return records
