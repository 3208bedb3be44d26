"""What separates the predicted from the target memory state (paper, equation 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from deltamem.errors import DeltaMemError
from deltamem.memory import Event, MemoryState, Operation, apply, check

_ANY_TIME = datetime.min  # entries are compared by id and text only


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
    checked = check(prior, target)
    if checked.problems:
        raise DeltaMemError(
            f"the target operations do not fit the prior state ({', '.join(sorted(set(checked.problems)))}): every UPDATE "
            "and NONE needs an existing target_memory_id, and no operation may be empty or repeated"
        )
    predicted_state = apply(prior, check(prior, predicted).valid, _ANY_TIME)
    target_state = apply(prior, target, _ANY_TIME)
    keywords = {op.target_memory_id: op.keywords for op in target if op.event is Event.UPDATE}

    # Both states number their additions alike, but no addition is the same memory as one of the other state.
    left = [Entry(None, entry.text, Origin.ADDED) for key, entry in predicted_state.items() if key not in prior]
    right = [Entry(None, op.text, Origin.ADDED, op.keywords) for op in target if op.event is Event.ADD]
    agreed: list[Entry] = []
    for memory_id, memory in prior.items():
        before, ours, theirs = memory.text, predicted_state[memory_id].text, target_state[memory_id].text
        due = Entry(memory_id, theirs, Origin.UPDATED, keywords.get(memory_id, ()))
        if ours == theirs:
            agreed += [due] if theirs != before else []
        elif theirs == before:
            left.append(Entry(memory_id, ours, Origin.UNEXPECTED_UPDATE))
            right.append(Entry(memory_id, theirs, Origin.OVERWRITTEN, due.keywords))
        else:
            left.append(Entry(memory_id, ours, Origin.STALE if ours == before else Origin.UPDATED))
            right.append(due)
    return Complements(
        predicted=_sorted(left),
        target=_sorted(right),
        agreed=_sorted(agreed),
        predicted_changed=predicted_state.entries != prior.entries,
        target_changed=target_state.entries != prior.entries,
    )


def _sorted(entries: list[Entry]) -> tuple[Entry, ...]:
    """Order entries by what they are, so that ties in the assignment fall the same way for any order of operations."""
    return tuple(sorted(entries, key=lambda entry: (entry.text, entry.id or "", entry.keywords)))
