"""Memories, memory states, operations and the transition between states. Pure; standard library only."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, TypeVar, overload

from deltamem.text import shortened

Default = TypeVar("Default")


class Event(StrEnum):
    """Kind of a memory operation (paper, section 3.1; NONE repeats what is known and changes nothing)."""

    ADD = "ADD"
    UPDATE = "UPDATE"
    NONE = "NONE"


Value = str | int | float | bool | tuple[str, ...] | None
"""One value of metadata; in JSON a text, a number, true, false, null or a list of texts."""

FILTER_WORDS = ("AND", "OR", "NOT")  # What filters join conditions with, see `deltamem.filters`; no key of metadata


class Metadata(Mapping[str, Value]):
    """What an application notes on a memory: an immutable, flat mapping, ordered by its keys.

    No model sees it. Two are equal if they are written alike in JSON, so 1, 1.0 and true differ.
    """

    __slots__ = ("_values", "written")

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        """Check and copy a mapping.

        Args:
            values: Texts, numbers, bools, None and lists of texts by non-empty keys.

        Raises:
            ValueError: If there is anything else in it, in one sentence.
        """
        given = values or {}
        for key in given:
            if not isinstance(key, str) or not key or key in FILTER_WORDS:
                raise ValueError(f"metadata: {key!r} cannot be a key; it must be a text, not empty, not AND, OR or NOT")
        self._values: dict[str, Value] = {key: _value(key, given[key]) for key in sorted(given)}
        self.written = json.dumps(self._values, ensure_ascii=False)
        """As JSON."""
        try:
            self.written.encode()
        except UnicodeEncodeError:
            raise ValueError("metadata holds text that is not valid Unicode") from None

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Metadata):
            return self.written == other.written
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash(self.written)

    def __repr__(self) -> str:
        return f"Metadata({self._values!r})"


def _value(key: str, value: object) -> Value:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    # A number may have more digits than Python writes.
    found = "out of range" if isinstance(value, int) else shortened(repr(value), 60)
    raise ValueError(
        f"metadata: {key!r} must be a text, a finite number of 64 bits, true, false, null or a list of texts, which"
        f" {type(value).__name__} {found} is not"
    )


NO_METADATA = Metadata()


@dataclass(frozen=True, slots=True)
class Memory:
    """One atomic, third-person factual sentence ``(m, t, id)``."""

    id: str  # Unique within its state, short enough to be shown to a model (``m1``, ``m2``, ...)
    text: str
    time: datetime  # Time of the session that wrote the sentence as it stands now
    metadata: Metadata = NO_METADATA


Keyword = str | tuple[str, ...]
"""What a faithful memory must say: one wording, or several alternatives, any of which will do."""


def alternatives(keyword: Keyword) -> tuple[str, ...]:
    """Every wording of a keyword."""
    return (keyword,) if isinstance(keyword, str) else keyword


def wordings(keywords: Iterable[Keyword]) -> list[str]:
    """The alternatives of all of some keywords."""
    return [wording for keyword in keywords for wording in alternatives(keyword)]


@dataclass(frozen=True, slots=True)
class Operation:
    """One decision of the memory manager about one fact."""

    event: Event
    text: str  # The memory sentence; for NONE the sentence that is already known (may be empty)
    target_memory_id: str | None = None  # The memory that an UPDATE rewrites or a NONE repeats; None for ADD
    keywords: tuple[Keyword, ...] = ()  # What a faithful memory must contain. Only target operations carry them
    outdated: tuple[str, ...] = ()
    """Values that were remembered or said before and are wrong now; a reward may count them against a text."""


class MemoryState(Mapping[str, Memory]):
    """All memories of one person at one time: an immutable finite map from id to memory (paper, definition 3.1)."""

    __slots__ = ("_memories", "_places")

    def __init__(self, memories: Iterable[Memory] = ()) -> None:
        """Build a state.

        Args:
            memories: The memories, in the order in which the state iterates.

        Raises:
            ValueError: If two memories share an id.
        """
        self._memories: dict[str, Memory] = {}
        for memory in memories:
            if memory.id in self._memories:
                raise ValueError(f"memory id {memory.id!r} occurs twice in one state")
            self._memories[memory.id] = memory
        self._places: dict[str, int] | None = None

    def __getitem__(self, memory_id: str) -> Memory:
        return self._memories[memory_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._memories)

    def __len__(self) -> int:
        return len(self._memories)

    def __hash__(self) -> int:
        return hash(frozenset(self._memories.values()))

    def __repr__(self) -> str:
        # Short: asyncio.Runner writes out the result of a finished task, a state included, each time it handles signals.
        return f"<MemoryState of {len(self)} memories>"

    # The views of the dictionary itself are several times faster than those that Mapping makes.
    def __contains__(self, memory_id: object) -> bool:
        return memory_id in self._memories

    @overload
    def get(self, memory_id: str, /) -> Memory | None: ...

    @overload
    def get(self, memory_id: str, default: Default, /) -> Memory | Default: ...

    def get(self, memory_id: str, default: object = None, /) -> object:
        """The memory of an id, or a default."""
        return self._memories.get(memory_id, default)

    def keys(self) -> KeysView[str]:
        """The ids, in iteration order."""
        return self._memories.keys()

    def values(self) -> ValuesView[Memory]:
        """The memories, in iteration order."""
        return self._memories.values()

    def items(self) -> ItemsView[str, Memory]:
        """Ids and memories, in iteration order."""
        return self._memories.items()

    def place(self, memory_id: str) -> int:
        """At which place of the iteration order a memory stands, from 0."""
        if self._places is None:
            self._places = {known: place for place, known in enumerate(self._memories)}
        return self._places[memory_id]

    @property
    def memories(self) -> tuple[Memory, ...]:
        """The memories in iteration order."""
        return tuple(self._memories.values())


class OperationProblem(StrEnum):
    """Why an operation cannot be applied to a state."""

    UNKNOWN_TARGET = "unknown_target"
    MISSING_TARGET = "missing_target"
    EMPTY_TEXT = "empty_text"
    DUPLICATE_OPERATION = "duplicate_operation"
    CONFLICTING_UPDATE = "conflicting_update"


class CheckedOperations(NamedTuple):
    """Operations that can be applied, and the problems of those that cannot."""

    valid: tuple[Operation, ...]
    problems: tuple[OperationProblem, ...]


def _problem(operation: Operation, known_ids: Iterable[str]) -> OperationProblem | None:
    if operation.event is not Event.NONE and not operation.text.strip():
        return OperationProblem.EMPTY_TEXT
    if operation.event is Event.ADD:
        return None
    if not operation.target_memory_id:
        return OperationProblem.MISSING_TARGET
    if operation.target_memory_id not in known_ids:
        return OperationProblem.UNKNOWN_TARGET
    return None


def check(known_ids: Iterable[str], operations: Sequence[Operation]) -> CheckedOperations:
    """Separate the operations that can be applied to a state with these ids from those that cannot.

    The result does not depend on the order of the operations: a repeated operation counts once, and UPDATEs that give one
    memory different texts are all refused, because none of them can be preferred. There is one problem for each refused or
    repeated operation.
    """
    # The ids of a state are a set already.
    known = known_ids if isinstance(known_ids, Set) else frozenset(known_ids)
    problems: list[OperationProblem] = []
    candidates: list[Operation] = []
    seen: set[tuple[Event, str, str | None]] = set()
    update_texts: dict[str, set[str]] = {}
    for operation in operations:
        problem = _problem(operation, known)
        key = (operation.event, operation.text, operation.target_memory_id)
        if problem is None and key in seen:
            problem = OperationProblem.DUPLICATE_OPERATION
        if problem is not None:
            problems.append(problem)
            continue
        seen.add(key)
        candidates.append(operation)
        if operation.event is Event.UPDATE and operation.target_memory_id is not None:
            update_texts.setdefault(operation.target_memory_id, set()).add(operation.text)
    valid = []
    for operation in candidates:
        if operation.event is Event.UPDATE and len(update_texts[operation.target_memory_id or ""]) > 1:
            problems.append(OperationProblem.CONFLICTING_UPDATE)
        else:
            valid.append(operation)
    return CheckedOperations(tuple(valid), tuple(problems))


def fresh_ids(known_ids: Iterable[str], prefix: str = "m") -> Iterator[str]:
    """Yield ids ``<prefix>N`` that the state does not use, counting on from its largest."""
    numbers = (memory_id[len(prefix) :] for memory_id in known_ids if memory_id.startswith(prefix))
    used = [int(number) for number in numbers if number.isdecimal()]
    return (f"{prefix}{number}" for number in itertools.count(max(used, default=0) + 1))


def apply(
    state: MemoryState,
    operations: Sequence[Operation],
    time: datetime,
    *,
    new_ids: Iterator[str] | None = None,
    metadata: Metadata = NO_METADATA,
) -> MemoryState:
    """Apply operations to a state (the transition function ``f`` of paper, section 3.1).

    Args:
        state: The prior state; unchanged.
        operations: Valid operations (see `check`).
        time: Time of the session; written to every memory that is added or rewritten.
        new_ids: Ids for the added memories, none of them in the state; by default those of `fresh_ids`. A journal gives
            its own, so that the id of a forgotten memory is not used again.
        metadata: Of the session. An added memory gets it; a rewritten one gets its keys beside those it has, of which
            equal ones are replaced.

    Returns:
        The next state. Rewritten memories keep their place, added ones follow in the order of their operations.

    Raises:
        ValueError: If an operation cannot be applied.
    """
    checked = check(state, operations)
    if checked.problems:
        raise ValueError(f"operations cannot be applied: {', '.join(sorted(set(checked.problems)))}")
    memories = dict(state.items())
    unused = fresh_ids(state) if new_ids is None else new_ids
    for operation in operations:
        if operation.event is Event.ADD:
            memory_id, noted = next(unused), metadata
        elif operation.event is Event.UPDATE and operation.target_memory_id is not None:
            memory_id = operation.target_memory_id
            if memories[memory_id].text == operation.text:
                continue
            known = memories[memory_id].metadata
            noted = Metadata({**known, **metadata}) if metadata else known
        else:
            continue
        memories[memory_id] = Memory(memory_id, operation.text, time, noted)
    return MemoryState(memories.values())


class Diff(NamedTuple):
    """What separates two states, by id."""

    added: tuple[Memory, ...]
    removed: tuple[Memory, ...]
    changed: tuple[tuple[Memory, Memory], ...]


def diff(before: MemoryState, after: MemoryState) -> Diff:
    """Compare two states: memories only in `after`, only in `before`, and pairs whose text or metadata differ."""
    return Diff(
        added=tuple(memory for memory_id, memory in after.items() if memory_id not in before),
        removed=tuple(memory for memory_id, memory in before.items() if memory_id not in after),
        changed=tuple(
            (before[memory_id], memory)
            for memory_id, memory in after.items()
            if memory_id in before and (before[memory_id].text, before[memory_id].metadata) != (memory.text, memory.metadata)
        ),
    )
