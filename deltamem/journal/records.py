"""What the journal records, and what its entries mean when replayed one by one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from deltamem.memory import Memory, MemoryState, Metadata
from deltamem.sessions import Session, Turn
from deltamem.text import contains, normalised, plain

# At most 18 digits, so that every number fits SQLite's signed 64 bits.
_MEMORY_ID = re.compile(r"m(0|[1-9][0-9]{0,17})")


class ChangeEvent(StrEnum):
    """What happened to one memory. Sessions add, update and repeat; only edits, rollback and forgetting remove."""

    ADD = "ADD"
    UPDATE = "UPDATE"
    NONE = "NONE"
    REMOVE = "REMOVE"


class EntryKind(StrEnum):
    """Why an entry was written."""

    SESSION = "session"
    EDIT = "edit"
    """Somebody wrote, corrected or retracted memories without a model."""
    ROLLBACK = "rollback"
    FORGET = "forget"
    IMPORT = "import"


@dataclass(frozen=True, slots=True)
class Change:
    """What an entry did to one memory."""

    event: ChangeEvent
    memory_id: str
    before: Memory | None  # None for ADD
    after: Memory | None  # None for REMOVE
    turns: tuple[int, ...] = ()
    """Numbers of the session's turns that the text comes from, counted from 1; empty if none was found."""
    erased: bool = False
    """The texts were erased by `forget`; `before` and `after` then hold empty texts and no metadata."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction of an owner's journal. Only entries of sessions have a session id, a model and a prompt hash."""

    position: int  # 1, 2, 3, ... without gaps within an owner's journal
    kind: EntryKind
    recorded_at: datetime  # In UTC
    changes: tuple[Change, ...]  # In order. Empty for a session without anything worth remembering
    session_id: str | None = None
    session_time: datetime | None = None
    """Of an edit the latest time that it writes; None if it writes none, or an effective entry before it is later."""
    model: str | None = None
    prompt_hash: str | None = None  # sha256 over the prompts in use
    violations: Mapping[str, int] = field(default_factory=dict)  # What was refused or corrected, counted by name
    restored: int | None = None  # The position whose state a rollback restored
    actor: str | None = None  # Who made an edit; None for every other kind
    undone: bool = False  # Whether a later rollback took this entry back
    session_digest: str | None = None  # See `digest_of`


class HistoryStep(NamedTuple):
    """One change of one memory and the entry that made it."""

    entry: Entry
    change: Change


@dataclass(frozen=True, slots=True)
class SourceTurn:
    """A turn of a session that a memory text comes from, numbered from 1.

    Role and content are None if the dialogue is not stored; the content also if the turn was erased.
    """

    number: int
    role: str | None
    content: str | None


@dataclass(frozen=True, slots=True)
class Origin:
    """One step, ADD or UPDATE, by which a memory got its present text, and where the text comes from.

    That is some turns of a session that a model read, or somebody who wrote it, see `actor`.
    """

    event: ChangeEvent
    text: str
    metadata: Metadata
    position: int
    session_id: str | None
    session_time: datetime | None
    model: str | None
    actor: str | None
    recorded_at: datetime
    turns: tuple[SourceTurn, ...]

    @classmethod
    def of(cls, entry: Entry, change: Change, dialogue: Sequence[Turn]) -> Origin:
        """The origin that a change of an entry is; `dialogue` are the stored turns of its session."""
        assert change.after is not None, "what removes a memory is no origin"
        turns = tuple(
            SourceTurn(number, dialogue[number - 1].role, dialogue[number - 1].content or None)
            if number <= len(dialogue)
            else SourceTurn(number, None, None)
            for number in change.turns
        )
        of_entry = {name: getattr(entry, name) for name in _OF_ENTRY}
        return cls(change.event, change.after.text, change.after.metadata, turns=turns, **of_entry)


_OF_ENTRY = ("position", "session_id", "session_time", "model", "actor", "recorded_at")


@dataclass(frozen=True, slots=True)
class Erasure:
    """What remains of an erased owner: the time (UTC), a hash of the name, and counts of what was erased. No text."""

    owner_sha256: str
    erased_at: datetime
    entries: int
    memories: int
    dialogues: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What is erased for good: some memories of one owner, and whatever repeats one of their texts."""

    memory_ids: frozenset[str]
    texts: frozenset[str]
    """All that the memories ever said, as it stands and `plain`, `normalised`."""

    @classmethod
    def of(cls, memory_ids: Iterable[str], texts: Iterable[str]) -> Forgotten:
        """Memories by their ids, and their texts as they were written."""
        return cls(frozenset(memory_ids), _readings(texts))

    def repeated_in(self, *texts: str) -> bool:
        """Whether one of some other texts `contains` one of the memories', as it stands or `plain`."""
        return any(contains(other, text) for other in _readings(texts) for text in self.texts)

    def blank(self, turns: Sequence[list[str]], numbers: Collection[int] = ()) -> bool:
        """Empty, in place, the turns (role and content) that repeat a text or have one of some numbers, from 1.

        Returns whether there were any.
        """
        found = False
        for number, turn in enumerate(turns, start=1):
            if turn[1] and (number in numbers or self.repeated_in(turn[1])):
                turn[1], found = "", True
        return found


def _readings(texts: Iterable[str]) -> frozenset[str]:
    # Of US and us too: a text is forgotten however it was shouted or typed.
    return frozenset(normalised(one).lower() for text in texts for one in {text, plain(text)}) - {""}


def memory_number(memory_id: str) -> int | None:
    """The N of an id ``mN``; None for anything else."""
    match = _MEMORY_ID.fullmatch(memory_id)
    return int(match[1]) if match else None


def digest_of(session: Session) -> str:
    """sha256 over a session's time, turns and metadata: shows whether an id comes back with the same content."""
    turns = [[turn.role, turn.content] for turn in session.dialogue]
    content = [session.time.isoformat(), turns, *([session.metadata.written] if session.metadata else [])]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def shape_problem(change: Change) -> str | None:
    """Why a change cannot be recorded whatever the state is; None if it can."""
    if memory_number(change.memory_id) is None:
        return f"{change.memory_id!r} is not a memory id (m1, m2, ...)"
    if (change.before is None) != (change.event is ChangeEvent.ADD):
        return f"{change.event} of {change.memory_id}: only an ADD has no memory before"
    if (change.after is None) != (change.event is ChangeEvent.REMOVE):
        return f"{change.event} of {change.memory_id}: only a REMOVE has no memory after"
    sides = [memory for memory in (change.before, change.after) if memory is not None]
    if any(memory.id != change.memory_id for memory in sides):
        return f"{change.event} of {change.memory_id} holds a memory with another id"
    if change.event is ChangeEvent.NONE and change.before != change.after:
        return f"NONE of {change.memory_id} changes it"
    if any(turn < 1 for turn in change.turns):
        return f"{change.event} of {change.memory_id}: turns are counted from 1"
    if change.erased and any(memory.text or memory.metadata for memory in sides):
        return f"{change.event} of {change.memory_id} is erased but holds a text or metadata"
    return None


def lineage(head: int, restored: Mapping[int, int]) -> list[range]:
    """The positions that the state at `head` descends from: ``L(p) = {p} + L(restored[p] if p is a rollback else p - 1)``.

    `restored` holds for the position of each rollback the smaller one that it restored. The ranges are ascending and
    disjoint.
    """
    ranges: list[range] = []
    end = head
    for position in sorted(restored, reverse=True):
        if position <= end:
            ranges.append(range(position, end + 1))
            end = restored[position]
    if end > 0:
        ranges.append(range(1, end + 1))
    return [*reversed(ranges)]


def changes_between(before: MemoryState, after: MemoryState) -> list[Change]:
    """The changes that turn one state into another, ordered by the number of the memory."""
    changes = []
    for memory_id in sorted(before.keys() | after.keys(), key=_order):
        old, new = before.get(memory_id), after.get(memory_id)
        if old is None:
            changes.append(Change(ChangeEvent.ADD, memory_id, None, new))
        elif new is None:
            changes.append(Change(ChangeEvent.REMOVE, memory_id, old, None))
        elif not same(old, new):
            changes.append(Change(ChangeEvent.UPDATE, memory_id, old, new))
    return changes


def same(one: Memory | None, other: Memory | None) -> bool:
    """Whether two memories are stored alike. Written times are compared: equal instants may be written differently."""
    left, right = ((m.id, m.text, m.time.isoformat(), m.metadata) if m is not None else None for m in (one, other))
    return left == right


def step(memories: dict[str, Memory], change: Change) -> str | None:
    """Apply one change to the memories of a state, in place; returns why it does not follow from them, None if it does.

    Erased changes are part of no state and do nothing.
    """
    if change.erased:
        return None
    known = memories.get(change.memory_id)
    problem = None if same(known, change.before) else f"{change.event} of {change.memory_id} expects another memory before"
    if change.after is None:
        memories.pop(change.memory_id, None)
    else:
        memories[change.memory_id] = change.after
    return problem


def problems_of(entries: Iterable[Entry], restored: Mapping[int, int], state_at: Callable[[int], MemoryState]) -> list[str]:
    """Replay a journal and compare with the states after its positions that it answers itself.

    Returns what is wrong, a sentence each: positions with gaps, changes that do not follow from the state before them,
    rollbacks that restored something else, wrong `undone` marks, sessions applied twice, and states that differ from the
    replay. See `lineage` for `restored`.
    """
    problems: list[str] = []
    undone: dict[int, bool] = {}
    applied: dict[str, list[int]] = {}
    memories: dict[str, Memory] = {}
    kept: dict[int, dict[str, Memory]] = {0: {}}
    targets = frozenset(restored.values())
    position = 0
    for entry in entries:
        if entry.position != position + 1:
            problems.append(f"entry {entry.position} follows entry {position}")
        position = entry.position
        undone[position] = entry.undone
        if entry.kind is EntryKind.SESSION and entry.session_id is not None:
            applied.setdefault(entry.session_id, []).append(position)
        for change in entry.changes:
            if problem := shape_problem(change) or step(memories, change):
                problems.append(f"entry {position}: {problem}")
        if entry.restored is not None and not _alike(memories, kept.get(entry.restored, {})):
            problems.append(f"entry {position}: the rollback did not restore the state after entry {entry.restored}")
        if position in targets:
            kept[position] = dict(memories)
    kept[position] = memories
    effective = {number for numbers in lineage(position, restored) for number in numbers}
    for number, marked in undone.items():
        if marked is (number in effective):
            problems.append(f"entry {number} is marked as {'undone' if marked else 'effective'}, but it is not")
    for session_id, positions in applied.items():
        if len(effective.intersection(positions)) > 1:
            problems.append(f"session {session_id!r} is applied more than once: entries {positions}")
    for number, expected in kept.items():
        state = state_at(number)
        if list(state) != sorted(state, key=_order):
            problems.append(f"the state after entry {number} is out of order")
        if not _alike(dict(state), expected):
            problems.append(f"the state after entry {number} is not what its entries add up to")
    return problems


def _alike(one: Mapping[str, Memory], other: Mapping[str, Memory]) -> bool:
    return one.keys() == other.keys() and all(same(memory, other[memory_id]) for memory_id, memory in one.items())


def _order(memory_id: str) -> int:
    number = memory_number(memory_id)
    return -1 if number is None else number
