"""What a journal's entries mean, worked out entry by entry: the check on the SQL that answers the same questions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from deltamem.journal.records import Change, ChangeEvent, Entry, EntryKind, memory_number, shape_problem
from deltamem.memory import Memory, MemoryState


def lineage(head: int, restored: Mapping[int, int]) -> list[range]:
    """The positions that the state at `head` descends from: ``L(p) = {p} + L(restored[p] if p is a rollback else p - 1)``.

    Args:
        head: The last position.
        restored: For the position of each rollback, the position that it restored, which is smaller.

    Returns:
        Ranges of positions, ascending and disjoint.
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
    if one is None or other is None:
        return one is other
    return (one.id, one.text, one.time.isoformat()) == (other.id, other.text, other.time.isoformat())


def step(memories: dict[str, Memory], change: Change) -> str | None:
    """Apply one change to the memories of a state, in place.

    Returns:
        Why it does not follow from them; None if it does. Erased changes are part of no state and do nothing.
    """
    if problem := shape_problem(change):
        return problem
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
    """Replay a journal and compare.

    Args:
        entries: All entries in order.
        restored: For the position of each rollback, the position that it restored.
        state_at: The state after a position, as the journal answers it.

    Returns:
        What is wrong, a sentence each: positions with gaps, changes that do not follow from the state before them,
        rollbacks that restored something else, wrong `undone` marks, sessions applied twice, and states that differ
        from the replay.
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
            if problem := step(memories, change):
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
