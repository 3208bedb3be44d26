"""What separates the predicted from the target memory state (paper, equation 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from deltamem.errors import DeltaMemError
from deltamem.memory import Event, MemoryState, Operation, check


class Origin(StrEnum):
    """How an entry came to be in one state and not in the other."""

    ADDED = "added"
    UPDATED = "updated"
    """Rewritten memory that is due to be rewritten."""
    UNEXPECTED_UPDATE = "unexpected_update"
    """Predicted state: a rewritten memory that the target leaves alone."""
    STALE = "stale"
    """Predicted state: a memory left untouched that the target rewrites."""
    OVERWRITTEN = "overwritten"
    """Target state: the old text of a memory that an unexpected update rewrote."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One memory of a relative complement.

    Attributes:
        id: Id of the prior memory; None for an added one.
        text: The sentence.
        origin: How it got there.
        keywords: Of a target entry, what a faithful memory must contain.
    """

    id: str | None
    text: str
    origin: Origin
    keywords: tuple[str, ...] = ()


class Complements(NamedTuple):
    """Two states, compared.

    Attributes:
        predicted: ``P minus T``.
        target: ``T minus P``.
        agreed: Memories that both states rewrote to the same text; they are in neither complement.
        predicted_changed: Whether P differs from the prior state.
        target_changed: Whether T differs from the prior state.
    """

    predicted: tuple[Entry, ...]
    target: tuple[Entry, ...]
    agreed: tuple[Entry, ...]
    predicted_changed: bool
    target_changed: bool


def compare(prior: MemoryState, predicted: Sequence[Operation], target: Sequence[Operation]) -> Complements:
    """Apply both lists of operations to the prior state and compare the results.

    Args:
        prior: The state before the session.
        predicted: The manager's operations; those that are not valid for the state are ignored.
        target: The labelled operations.

    Returns:
        The complements. Their order depends on the entries only, not on the order of the operations.

    Raises:
        DeltaMemError: If a target operation is not valid for the state.
    """
    known = prior.keys()
    checked = check(known, target)
    if checked.problems:
        raise DeltaMemError(
            f"the target operations do not fit the prior state ({', '.join(sorted(set(checked.problems)))}): every UPDATE "
            "and NONE needs an existing target_memory_id, and no operation may be empty or repeated"
        )
    valid = check(known, predicted).valid
    # The states are compared without being made: they can differ only in additions and in the memories that are rewritten.
    # No addition is the same memory as one of the other state.
    left = [Entry(None, op.text, Origin.ADDED) for op in valid if op.event is Event.ADD]
    right = [Entry(None, op.text, Origin.ADDED, op.keywords) for op in target if op.event is Event.ADD]
    predicted_changed, target_changed = bool(left), bool(right)
    agreed: list[Entry] = []
    our_updates, their_updates = _updates(valid), _updates(target)
    for memory_id in our_updates | their_updates:
        before = prior[memory_id].text
        ours = our_updates[memory_id].text if memory_id in our_updates else before
        update = their_updates.get(memory_id)
        theirs, keywords = (update.text, update.keywords) if update else (before, ())
        predicted_changed |= ours != before
        target_changed |= theirs != before
        if ours == theirs:
            agreed += [Entry(memory_id, theirs, Origin.UPDATED, keywords)] if theirs != before else []
        elif theirs == before:
            left.append(Entry(memory_id, ours, Origin.UNEXPECTED_UPDATE))
            right.append(Entry(memory_id, theirs, Origin.OVERWRITTEN, keywords))
        else:
            left.append(Entry(memory_id, ours, Origin.STALE if ours == before else Origin.UPDATED))
            right.append(Entry(memory_id, theirs, Origin.UPDATED, keywords))
    return Complements(
        predicted=_sorted(left),
        target=_sorted(right),
        agreed=_sorted(agreed),
        predicted_changed=predicted_changed,
        target_changed=target_changed,
    )


def _updates(operations: Sequence[Operation]) -> dict[str, Operation]:
    """The UPDATEs by the id of their memory."""
    return {op.target_memory_id: op for op in operations if op.event is Event.UPDATE and op.target_memory_id is not None}


def _sorted(entries: list[Entry]) -> tuple[Entry, ...]:
    """Order entries by what they are, so that ties in the assignment fall the same way for any order of operations."""
    return tuple(sorted(entries, key=lambda entry: (entry.text, entry.id or "", entry.keywords)))
