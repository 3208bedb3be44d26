"""Edits: what somebody writes into a memory, corrects or retracts without a model. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from deltamem.blank import is_blank
from deltamem.errors import DeltaMemError, NotFoundError
from deltamem.journal.records import Change, ChangeEvent, same
from deltamem.memory import NO_METADATA, Memory, MemoryState, Metadata


@dataclass(frozen=True, slots=True)
class Add:
    """Write a new memory."""

    text: str
    time: datetime  # When the sentence became known; as everywhere, relative dates in it refer to this time
    metadata: Mapping[str, object] = NO_METADATA  # See `deltamem.memory.Metadata`


@dataclass(frozen=True, slots=True)
class Update:
    """Rewrite a memory; what is None stays as it is."""

    id: str
    text: str | None = None
    time: datetime | None = None
    metadata: Mapping[str, object] | None = None  # Replaces all that the memory has; an empty mapping takes it away
    merge: bool = False  # Write the metadata over what the memory has, key by key, instead of replacing it


@dataclass(frozen=True, slots=True)
class Retract:
    """Take a memory out of the state. Its history stays, and a rollback brings it back; to erase it, forget it."""

    id: str


Edit = Add | Update | Retract


def take_edits(state: MemoryState, edits: Sequence[Edit], new_ids: Iterator[str]) -> tuple[MemoryState, tuple[Change, ...]]:
    """Apply edits one after the other; a later one sees what the earlier ones did.

    Returns the next state, and one change an edit. An Update that changes nothing is recorded as NONE.

    Raises:
        DeltaMemError: If there are no edits, a memory is not in the state, a text is empty, or metadata is not flat.
    """
    if not edits:
        raise DeltaMemError("there is nothing to write: no edit was given")
    memories = dict(state.items())
    changes = []
    for edit in edits:
        change = _change(memories, edit, new_ids)
        changes.append(change)
        if change.after is None:
            del memories[change.memory_id]
        else:
            memories[change.memory_id] = change.after
    return MemoryState(memories.values()), tuple(changes)


def _change(memories: Mapping[str, Memory], edit: Edit, new_ids: Iterator[str]) -> Change:
    if isinstance(edit, Add):
        added = Memory(next(new_ids), _text(edit.text), edit.time, noted(edit.metadata))
        return Change(ChangeEvent.ADD, added.id, None, added)
    before = memories.get(edit.id)
    if before is None:
        raise NotFoundError(f"there is no memory {edit.id!r} now; see its history")
    if isinstance(edit, Retract):
        return Change(ChangeEvent.REMOVE, before.id, before, None)
    after = Memory(
        before.id,
        before.text if edit.text is None else _text(edit.text),
        before.time if edit.time is None else edit.time,
        before.metadata
        if edit.metadata is None
        else noted({**before.metadata, **edit.metadata} if edit.merge else edit.metadata),
    )
    if same(before, after):
        return Change(ChangeEvent.NONE, before.id, before, before)
    return Change(ChangeEvent.UPDATE, before.id, before, after)


def noted(values: Mapping[str, object] | None) -> Metadata:
    """Metadata as somebody gives it.

    Raises:
        DeltaMemError: If it is not flat, see `deltamem.memory.Metadata`.
    """
    try:
        return Metadata(values)
    except ValueError as error:
        raise DeltaMemError(str(error)) from error


def _text(text: str) -> str:
    if is_blank(text):
        raise DeltaMemError("the text of a memory is empty")
    return text
