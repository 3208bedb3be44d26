"""What the journal records: changes of single memories, and the entries that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from deltamem.memory import Memory


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
