"""An owner's journal as JSON Lines: a header, entries, stored dialogues, the memories they add up to, lines of plug-ins."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from typing import IO, Literal, NamedTuple, TextIO
from uuid import UUID

from pydantic import Field

from deltamem import plugins
from deltamem.config import StrictModel
from deltamem.errors import ConflictError, DeltaMemError
from deltamem.journal import rows
from deltamem.journal.beside import PluginStore
from deltamem.journal.lines import ExportLine, ExportLines, Noted, Number, Positive, Time
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import Change, ChangeEvent, Entry, EntryKind, memory_number, same, shape_problem
from deltamem.memory import NO_METADATA, Memory
from deltamem.sessions import Role, Turn
from deltamem.zones import named_zone

_LARGEST_IMPORTED = 2**53


class Counts(NamedTuple):
    """What an export holds."""

    entries: int
    memories: int
    dialogues: int
    plugins: Mapping[str, int] = {}
    """Lines of each plug-in, by its name; those without any are left out."""


class _Header(ExportLine):
    format: Literal["deltamem-bank"]
    version: Literal[5]
    owner: str
    namespace: UUID | None
    entries: Number
    memories: Number
    dialogues: Number
    plugins: dict[str, Number] = Field(default_factory=dict)
    timezone: str | None = Field(None, exclude_if=lambda name: name is None)


class _Side(ExportLine):
    text: str
    time: Time
    metadata: Noted = NO_METADATA

    def record(self, memory_id: str) -> Memory:
        return Memory(memory_id, self.text, self.time, self.metadata)


class _Change(ExportLine):
    event: ChangeEvent
    memory_id: str
    before: _Side | None
    after: _Side | None
    turns: list[Positive]
    erased: bool

    def record(self) -> Change:
        before, after = (None if side is None else side.record(self.memory_id) for side in (self.before, self.after))
        return Change(self.event, self.memory_id, before, after, tuple(self.turns), self.erased)


class _Entry(ExportLine):
    position: Positive
    kind: EntryKind
    recorded_at: Time
    session_id: str | None
    session_time: Time | None
    session_digest: str | None
    actor: str | None
    model: str | None
    prompt_hash: str | None
    violations: dict[str, Number]
    restored: Number | None
    undone: bool
    changes: list[_Change]

    def record(self) -> Entry:
        plain = {name: getattr(self, name) for name in type(self).model_fields if name != "changes"}
        return Entry(**plain, changes=tuple(change.record() for change in self.changes))


class _DialogueTurn(ExportLine):
    role: Role
    content: str


class _Dialogue(ExportLine):
    position: Positive
    turns: list[_DialogueTurn]


class _MemoryLine(_Side):
    id: str


def export_owner(journal: OwnerJournal, stream: TextIO) -> Counts:
    """Write one owner's journal and state as JSON Lines to a stream, which should be UTF-8.

    Entries and dialogues are written as they are read, all of one moment; other threads wait for the journal meanwhile.

    Raises:
        DeltaMemError: If the journal cannot be read.
    """
    with journal.snapshot():
        memories = journal.state().memories
        beside = {store.name: store.exported(journal.name) for store in journal.files.stores()}
        beside = {name: lines for name, lines in sorted(beside.items()) if lines}
        plugin_counts = {name: len(lines) for name, lines in beside.items()}
        counts = Counts(journal.head, len(memories), journal.dialogue_count, plugin_counts)
        for line in _lines(journal, counts, memories):
            stream.write(line.model_dump_json() + "\n")
        for lines in beside.values():
            stream.writelines(line.model_dump_json() + "\n" for line in lines)
    return counts


def _lines(journal: OwnerJournal, counts: Counts, memories: tuple[Memory, ...]) -> Iterator[StrictModel]:
    zone, namespace = journal.timezone, journal.namespace
    yield _Header(
        format="deltamem-bank", version=5, owner=journal.name, namespace=namespace, timezone=zone, **counts._asdict()
    )
    for entry in journal.entries():
        yield _Entry.model_validate(entry)
    for position, turns in journal.dialogues():
        yield _Dialogue(position=position, turns=[_DialogueTurn.model_validate(turn) for turn in turns])
    for memory in memories:
        yield _MemoryLine.model_validate(memory)


def import_owner(journal: OwnerJournal, stream: IO[bytes] | IO[str], *, rename: bool = False) -> Counts:
    """Read what `export_owner` wrote into the journal of an owner without entries, as a whole or not at all.

    Entries keep their positions, times and marks. The replay of the entries must be clean and give the memories that the
    file lists. With `rename` the file of another owner is accepted.

    Raises:
        DeltaMemError: If the owner has entries, or the file is of another owner, cut short, damaged, inconsistent, or holds
            lines of a plug-in that is not installed; the message names the line. Nothing is written then.
    """
    lines = ExportLines(stream)
    with journal.files.journal.write() as connection:
        if journal.head:
            raise ConflictError(
                f"the journal of {journal.name!r} already has {journal.head} entries; import needs an empty one"
            )
        header = lines.next(_Header)
        if header.owner != journal.name and not rename:
            raise lines.wrong(f"the file holds the memory of {header.owner!r}, not of {journal.name!r}")
        stores = [_store(journal, lines, name) for name in header.plugins]
        owner_id = rows.create_owner(connection, journal.name)
        if header.namespace is not None:
            # Before the first entry: UUIDs of memories derive from it.
            connection.execute("UPDATE owners SET namespace = ? WHERE id = ?", (str(header.namespace), owner_id))
        if header.timezone is not None:
            try:
                named_zone(header.timezone, "owner")
            except DeltaMemError as error:
                raise lines.wrong(str(error)) from error
            rows.set_zone(connection, owner_id, header.timezone)
        for position in range(1, header.entries + 1):
            _restore_entry(connection, owner_id, position, lines)
        for _ in range(header.dialogues):
            dialogue = lines.next(_Dialogue)
            turns = [Turn(turn.role, turn.content) for turn in dialogue.turns]
            try:
                rows.insert_dialogue(connection, owner_id, dialogue.position, turns)
            except sqlite3.IntegrityError as error:
                problem = f"a dialogue of entry {dialogue.position}, which is unknown or has one already"
                raise lines.wrong(problem) from error
        if problems := journal.verify():
            raise DeltaMemError(f"the entries of the file contradict each other: {problems[0]}")
        state = journal.state()
        for memory in state.memories[: header.memories]:
            listed = lines.next(_MemoryLine)
            if not same(listed.record(listed.id), memory):
                raise lines.wrong(f"the file lists another {memory.id} than its entries add up to")
        if len(state) != header.memories:
            raise DeltaMemError(f"the file lists {header.memories} memories, but its entries add up to {len(state)}")
        records = [store.read(lines, header.plugins[store.name]) for store in stores]
        lines.end()
        # Nothing of the file can be wrong any more but what the plug-ins say of it.
        for store, record in zip(stores, records, strict=True):
            store.restore(journal.name, record)
    return Counts(header.entries, header.memories, header.dialogues, header.plugins)


def _store(journal: OwnerJournal, lines: ExportLines, name: str) -> PluginStore:
    try:
        kind: type[PluginStore] = plugins.load("stores", name)
    except DeltaMemError as error:
        raise lines.wrong(f"the file holds lines of a plug-in that is not here: {error}") from error
    return journal.files.beside(kind)


def _restore_entry(connection: sqlite3.Connection, owner_id: int, position: int, lines: ExportLines) -> None:
    """Write the next entry as another journal recorded it, marks and all."""
    entry = lines.next(_Entry).record()
    if entry.position != position:
        raise lines.wrong(f"entry {entry.position} where {position} was expected")
    for change in entry.changes:
        if problem := shape_problem(change):
            raise lines.wrong(problem)
        if (memory_number(change.memory_id) or 0) > _LARGEST_IMPORTED:
            raise lines.wrong(f"{change.memory_id} leaves no ids for further memories")
    try:
        rows.insert(connection, owner_id, entry)
    except sqlite3.IntegrityError as error:
        raise lines.wrong(f"entry {entry.position} contradicts itself or an earlier one ({error})") from error
