"""What one session did to one person's memory: the pure step from operations to recorded changes, and its report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from deltamem.journal.records import Change, ChangeEvent
from deltamem.memory import Event, Memory, MemoryState, Operation, apply


class Outcome(StrEnum):
    """What became of a session that was given to the manager."""

    APPLIED = "applied"
    KNOWN = "known"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a session cost.

    Attributes:
        calls: Requests to the model.
        cached: How many of them the response cache answered.
        prompt_tokens: Tokens read by the model, as the server counts them (0 if it does not tell).
        completion_tokens: Tokens written by the model.
        searches: Calls of `search_memory`.
    """

    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    searches: int = 0


@dataclass(frozen=True, slots=True)
class Transition:
    """The step from one memory state to the next.

    Attributes:
        owner: Whose memory.
        session_id: The session.
        time: The session's time.
        outcome: ``applied``; ``known`` if the session had been applied before, which changes nothing; ``unreadable`` if no
            answer of the model could be read, in which case nothing is recorded and the session may be given again.
        before: The state before the session.
        after: The state after it; the same as `before` unless applied.
        changes: What was recorded, in order.
        position: The journal position of the session; None if it is not in the journal.
        violations: Departures from the protocol and corrections, counted by name.
        notes: What the caller should know, as sentences (a split session, other content under a known id).
        parts: Into how many episodes the session was split.
        usage: What it cost.
        seconds: Wall time.
    """

    owner: str
    session_id: str
    time: datetime
    outcome: Outcome
    before: MemoryState
    after: MemoryState
    changes: tuple[Change, ...] = ()
    position: int | None = None
    violations: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    parts: int = 1
    usage: Usage = Usage()
    seconds: float = 0.0


class Step(NamedTuple):
    """The next state, and the changes that lead to it."""

    state: MemoryState
    changes: tuple[Change, ...]


def take_step(
    state: MemoryState,
    operations: Sequence[Operation],
    time: datetime,
    new_ids: Iterator[str],
    turns: Sequence[tuple[int, ...]],
) -> Step:
    """Apply operations and describe what they did to each memory.

    Args:
        state: The prior state.
        operations: Valid operations (see `deltamem.memory.check`).
        time: The session's time.
        new_ids: Ids for the added memories.
        turns: For each operation the numbers of its source turns.

    Returns:
        The next state, and one change an operation. An UPDATE that repeats the stored text is recorded as NONE.

    Raises:
        ValueError: If an operation cannot be applied.
    """
    added = [next(new_ids) for operation in operations if operation.event is Event.ADD]
    after = apply(state, operations, time, new_ids=iter(added))
    fresh = iter(added)
    changes = []
    rewritten: dict[str, Memory] = {}  # an answer may both rewrite and repeat one memory
    for operation, sources in zip(operations, turns, strict=True):
        if operation.event is Event.ADD:
            memory_id = next(fresh)
            changes.append(Change(ChangeEvent.ADD, memory_id, None, after[memory_id], sources))
            continue
        target = operation.target_memory_id or ""
        known = rewritten.get(target, state[target])
        if operation.event is Event.UPDATE and known != after[target]:
            rewritten[target] = after[target]
            changes.append(Change(ChangeEvent.UPDATE, target, known, after[target], sources))
        else:
            changes.append(Change(ChangeEvent.NONE, target, known, known, sources))
    return Step(after, tuple(changes))
