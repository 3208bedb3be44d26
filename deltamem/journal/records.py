"""What the journal records: changes of single memories, and the entries that hold them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from deltamem.memory import Memory
from deltamem.sessions import Session

# At most 18 digits, so that every number fits SQLite's signed 64 bits.
_MEMORY_ID = re.compile(r"m(0|[1-9][0-9]{0,17})")


class ChangeEvent(StrEnum):
    """What happened to one memory. Sessions add, update and repeat; only rollback and forgetting remove."""

    ADD = "ADD"
    UPDATE = "UPDATE"
    NONE = "NONE"
    REMOVE = "REMOVE"


class EntryKind(StrEnum):
    """Why an entry was written."""

    SESSION = "session"
    ROLLBACK = "rollback"
    FORGET = "forget"
    IMPORT = "import"


@dataclass(frozen=True, slots=True)
class Change:
    """What an entry did to one memory.

    Attributes:
        event: ADD, UPDATE, NONE (repeated, unchanged) or REMOVE.
        memory_id: The memory.
        before: The memory before; None for ADD.
        after: The memory after; None for REMOVE.
        turns: Numbers of the session's turns that the text comes from, counted from 1; empty if none was found.
        erased: The texts were erased by `forget`; `before` and `after` then hold empty texts.
    """

    event: ChangeEvent
    memory_id: str
    before: Memory | None
    after: Memory | None
    turns: tuple[int, ...] = ()
    erased: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction of an owner's journal.

    Attributes:
        position: 1, 2, 3, ... without gaps within an owner's journal.
        kind: Why it was written.
        recorded_at: When, in UTC.
        changes: What it did, in order. May be empty: a session without anything worth remembering is recorded too.
        session_id: The session's id, for entries of sessions.
        session_time: The session's time, for entries of sessions.
        model: The model that decided, for entries of sessions.
        prompt_hash: sha256 over the prompts in use, for entries of sessions.
        violations: What was refused or corrected, counted by name.
        restored: The position whose state a rollback restored.
        undone: Whether a later rollback took this entry back.
        session_digest: sha256 over the session's time and turns, for entries of sessions (see `digest_of`).
    """

    position: int
    kind: EntryKind
    recorded_at: datetime
    changes: tuple[Change, ...]
    session_id: str | None = None
    session_time: datetime | None = None
    model: str | None = None
    prompt_hash: str | None = None
    violations: Mapping[str, int] = field(default_factory=dict)
    restored: int | None = None
    undone: bool = False
    session_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Erasure:
    """What remains of an erased owner: that it happened, and how much it was. Neither the name nor any text.

    Attributes:
        owner_sha256: sha256 of the owner's name.
        erased_at: When, in UTC.
        entries: How many journal entries were erased.
        memories: How many memories the owner had at that moment.
        dialogues: How many stored dialogues were erased.
    """

    owner_sha256: str
    erased_at: datetime
    entries: int
    memories: int
    dialogues: int


def memory_number(memory_id: str) -> int | None:
    """The N of an id ``mN``; None for anything else."""
    match = _MEMORY_ID.fullmatch(memory_id)
    return int(match[1]) if match else None


def digest_of(session: Session) -> str:
    """sha256 over a session's time and turns: tells whether an id comes back with the same content."""
    turns = [[turn.role, turn.content] for turn in session.dialogue]
    return hashlib.sha256(json.dumps([session.time.isoformat(), turns]).encode()).hexdigest()


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
    if change.erased and any(memory.text for memory in sides):
        return f"{change.event} of {change.memory_id} is erased but holds a text"
    return None
