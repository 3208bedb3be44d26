"""An owner's journal as JSON Lines: a header, entries, stored dialogues, the memories they add up to, and intents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TextIO, TypeVar
from uuid import UUID

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, ValidationError

from deltamem.config import StrictModel, first_error
from deltamem.errors import DeltaMemError
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import Change, ChangeEvent, Entry, EntryKind, same
from deltamem.journal.restorer import Restorer
from deltamem.memory import NO_METADATA, Memory, Metadata
from deltamem.sessions import Role, Turn
from papers.stitch.labels import Facet, LabelChange
from papers.stitch.records import Intent, ScopeNote, Snippet, Step
from papers.stitch.store import IntentRecords, LabelVersion


def _time(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        raise ValueError("a time is an ISO 8601 text")
    return datetime.fromisoformat(value)


# Written as given: pydantic's own form would turn +00:00 into Z and lose the seconds of historical offsets.
_Time = Annotated[datetime, PlainValidator(_time), PlainSerializer(datetime.isoformat, return_type=str)]


def _noted(value: object) -> Metadata:
    if isinstance(value, Metadata):
        return value
    if not isinstance(value, dict):
        raise ValueError("metadata is an object")
    return Metadata(value)


# Left out where there is none.
_Noted = Annotated[
    Metadata,
    PlainValidator(_noted),
    PlainSerializer(dict, return_type=dict[str, Any]),
    Field(exclude_if=lambda metadata: not metadata),
]
# Small enough for SQLite's signed 64 bits.
_Number = Annotated[int, Field(ge=0, lt=2**53)]
_Positive = Annotated[int, Field(ge=1, lt=2**53)]


class Counts(NamedTuple):
    """What an export holds."""

    entries: int
    memories: int
    dialogues: int
    intents: int = 0  # Steps with an intent, of all collections


class _Line(StrictModel):
    model_config = ConfigDict(from_attributes=True)


class _Header(_Line):
    format: Literal["deltamem-bank"]
    version: Literal[4]
    owner: str
    namespace: UUID | None
    entries: _Number
    memories: _Number
    dialogues: _Number
    intents: _Number
    collections: _Number


class _Side(_Line):
    text: str
    time: _Time
    metadata: _Noted = NO_METADATA

    def record(self, memory_id: str) -> Memory:
        return Memory(memory_id, self.text, self.time, self.metadata)


class _Change(_Line):
    event: ChangeEvent
    memory_id: str
    before: _Side | None
    after: _Side | None
    turns: list[_Positive]
    erased: bool

    def record(self) -> Change:
        sides = [None if side is None else side.record(self.memory_id) for side in (self.before, self.after)]
        return Change(self.event, self.memory_id, sides[0], sides[1], tuple(self.turns), self.erased)


class _Entry(_Line):
    position: _Positive
    kind: EntryKind
    recorded_at: _Time
    session_id: str | None
    session_time: _Time | None
    session_digest: str | None
    actor: str | None
    model: str | None
    prompt_hash: str | None
    violations: dict[str, _Number]
    restored: _Number | None
    undone: bool
    changes: list[_Change]

    def record(self) -> Entry:
        plain = {name: getattr(self, name) for name in type(self).model_fields if name != "changes"}
        return Entry(**plain, changes=tuple(change.record() for change in self.changes))


class _Turn(_Line):
    role: Role
    content: str


class _Dialogue(_Line):
    position: _Positive
    turns: list[_Turn]


class _Memory(_Side):
    id: str


class _Label(_Line):
    version: _Positive
    step: _Number
    facet: Facet
    label: str
    into: str | None


class _Note(_Line):
    scope: str
    text: str


class _Collection(_Line):
    name: str
    labeller: str
    intents: _Number
    labels: list[_Label]
    notes: list[_Note]

    def records(self) -> IntentRecords:
        versions = [LabelVersion(one.version, one.step, LabelChange(one.facet, one.label, one.into)) for one in self.labels]
        return IntentRecords(
            self.labeller, versions=versions, notes=[ScopeNote(note.scope, note.text) for note in self.notes]
        )


class _Intent(_Line):
    id: str
    role: str
    time: _Time
    text: str
    scope: str
    event: str
    entity_types: list[str]
    resolved: str
    summary: str

    def record(self) -> Snippet:
        intent = Intent(self.scope, self.event, tuple(self.entity_types))
        return Snippet(Step(self.id, self.role, self.text, self.time), intent, self.resolved, self.summary)


_L = TypeVar("_L", bound=_Line)


class _Lines:
    """Reads one line after the other and knows the number of the one at hand."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.number = 0

    def next(self, model: type[_L]) -> _L:
        """The next line as a record."""
        try:
            return model.model_validate_json(self._line())
        except ValidationError as error:
            what = model.__name__.removeprefix("_").lower()
            raise self.wrong(f"expected one {what}: {first_error(error)}") from error

    def end(self) -> None:
        """Nothing may follow."""
        if self._line(optional=True):
            raise self.wrong("expected the end of the file, as the header counts the lines")

    def _line(self, *, optional: bool = False) -> str:
        self.number += 1
        try:
            line = self._stream.readline()
        except UnicodeDecodeError as error:
            raise self.wrong("not UTF-8 text") from error
        if not line and not optional:
            raise self.wrong("the file ends here, but its header counts more lines")
        return line

    def wrong(self, problem: str) -> DeltaMemError:
        return DeltaMemError(f"line {self.number}: {problem}")


def export_owner(journal: OwnerJournal, stream: TextIO) -> Counts:
    """Write one owner's journal and state as JSON Lines.

    Entries and dialogues are written as they are read, all of one moment; other threads wait for the journal meanwhile.

    Args:
        journal: The owner's journal.
        stream: Where to; should be UTF-8.

    Raises:
        DeltaMemError: If the journal cannot be read.
    """
    with journal.snapshot():
        memories = journal.state().memories
        collections = journal.intent_collections()
        steps = sum(len(records.snippets) for _, records in collections)
        counts = Counts(journal.head, len(memories), journal.dialogue_count, steps)
        for line in _lines(journal, counts, memories, collections):
            stream.write(line.model_dump_json() + "\n")
    return counts


def _lines(
    journal: OwnerJournal,
    counts: Counts,
    memories: tuple[Memory, ...],
    collections: Sequence[tuple[str, IntentRecords]],
) -> Iterator[_Line]:
    yield _Header(
        format="deltamem-bank",
        version=4,
        owner=journal.name,
        namespace=journal.namespace,
        collections=len(collections),
        **counts._asdict(),
    )
    for entry in journal.entries():
        yield _Entry.model_validate(entry)
    for position, turns in journal.dialogues():
        yield _Dialogue(position=position, turns=[_Turn.model_validate(turn) for turn in turns])
    for memory in memories:
        yield _Memory.model_validate(memory)
    for name, records in collections:
        yield _Collection(
            name=name,
            labeller=records.labeller,
            intents=len(records.snippets),
            labels=[_label(one) for one in records.versions],
            notes=[_Note.model_validate(note) for note in records.notes],
        )
        for snippet in records.snippets:
            yield _intent(snippet)


def _label(one: LabelVersion) -> _Label:
    change = one.change
    return _Label(version=one.version, step=one.step, facet=change.facet, label=change.label, into=change.into)


def _intent(snippet: Snippet) -> _Intent:
    step, intent = snippet.step, snippet.intent
    return _Intent(
        id=step.id,
        role=step.role,
        time=step.time,
        text=step.text,
        scope=intent.scope,
        event=intent.event,
        entity_types=list(intent.entity_types),
        resolved=snippet.resolved,
        summary=snippet.summary,
    )


def import_owner(journal: OwnerJournal, stream: TextIO, *, rename: bool = False) -> Counts:
    """Read what `export_owner` wrote into the journal of an owner without entries, as a whole or not at all.

    Entries keep their positions, times and marks. The replay of the entries must be clean and give the memories that the
    file lists.

    Args:
        journal: The owner's journal.
        stream: Where from, as UTF-8 text.
        rename: Accept a file of another owner.

    Raises:
        DeltaMemError: If the owner has entries, or the file is of another owner, cut short, damaged or inconsistent; the
            message names the line. Nothing is written then.
    """
    lines = _Lines(stream)
    with journal.restoring() as restorer:
        header = lines.next(_Header)
        if header.owner != journal.name and not rename:
            raise lines.wrong(f"the file holds the memory of {header.owner!r}, not of {journal.name!r}")
        if header.namespace is not None:
            restorer.namespace(header.namespace)
        try:
            for _ in range(header.entries):
                restorer.entry(lines.next(_Entry).record())
            for _ in range(header.dialogues):
                dialogue = lines.next(_Dialogue)
                restorer.dialogue(dialogue.position, [Turn(turn.role, turn.content) for turn in dialogue.turns])
        except ValueError as error:
            raise lines.wrong(str(error)) from error
        if problems := journal.verify():
            raise DeltaMemError(f"the entries of the file contradict each other: {problems[0]}")
        state = journal.state()
        for memory in state.memories[: header.memories]:
            listed = lines.next(_Memory)
            if not same(listed.record(listed.id), memory):
                raise lines.wrong(f"the file lists another {memory.id} than its entries add up to")
        if len(state) != header.memories:
            raise DeltaMemError(f"the file lists {header.memories} memories, but its entries add up to {len(state)}")
        _read_intents(lines, header, restorer)
        lines.end()
    return Counts(header.entries, header.memories, header.dialogues, header.intents)


def _read_intents(lines: _Lines, header: _Header, restorer: Restorer) -> None:
    steps = 0
    for _ in range(header.collections):
        collection = lines.next(_Collection)
        records = collection.records()
        steps += collection.intents
        if steps > header.intents:
            raise lines.wrong(f"the collections list more than the {header.intents} intents that the header counts")
        records.snippets += [lines.next(_Intent).record() for _ in range(collection.intents)]
        try:
            restorer.intents(collection.name, records)
        except ValueError as error:
            raise lines.wrong(str(error)) from error
    if steps != header.intents:
        raise lines.wrong(f"the header counts {header.intents} intents, but the collections list {steps}")
