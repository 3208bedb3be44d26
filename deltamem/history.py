"""Reading an owner's journal: states at any point, the history of a memory, where it comes from, what changed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from deltamem.errors import DeltaMemError
from deltamem.journal.journal import OwnerJournal
from deltamem.journal.records import Change, ChangeEvent, Entry, EntryKind
from deltamem.memory import Diff, MemoryState, diff

Point = int | str | datetime | None
"""A point in an owner's journal: a position, a session id, a session time, or None for now."""


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """One change of one memory and the entry that made it.

    Attributes:
        entry: The journal entry.
        change: What it did to the memory.
    """

    entry: Entry
    change: Change


@dataclass(frozen=True, slots=True)
class SourceTurn:
    """A turn of a session that a memory text comes from.

    Attributes:
        number: Its number in the session, from 1.
        role: Who spoke; None if the dialogue is not stored.
        content: What was said; None if the dialogue is not stored or the turn was erased.
    """

    number: int
    role: str | None
    content: str | None


@dataclass(frozen=True, slots=True)
class Origin:
    """One step by which a memory got its present text.

    Attributes:
        event: ADD or UPDATE.
        text: The text that the step wrote.
        position: Journal position of the session.
        session_id: The session.
        session_time: The session's time.
        model: The model that decided.
        turns: The turns that the text comes from.
    """

    event: ChangeEvent
    text: str
    position: int
    session_id: str
    session_time: datetime
    model: str | None
    turns: tuple[SourceTurn, ...]


class History:
    """Answers questions about the past of one owner's memory; writes nothing."""

    def __init__(self, journal: OwnerJournal) -> None:
        """Read from an owner's journal."""
        self._journal = journal

    def resolve(self, point: Point) -> int:
        """The journal position that a point means.

        A session id means the position of that session; a time means the last session at or before it; None means the
        head; position 0 is the empty beginning.

        Raises:
            DeltaMemError: If the session is not in the journal or the position does not exist.
        """
        head = self._journal.head
        if point is None:
            return head
        if isinstance(point, datetime):
            return self._journal.position_at(point)
        if isinstance(point, str):
            position = self._journal.session_position(point)
            if position is None:
                raise DeltaMemError(f"session {point!r} is not in the journal, or was rolled back")
            return position
        if not 0 <= point <= head:
            raise DeltaMemError(f"position {point} does not exist; the journal goes from 0 to {head}")
        return point

    def state(self, point: Point = None) -> MemoryState:
        """The memory state at a point. Forgotten memories are in none."""
        return self._journal.state(self.resolve(point))

    def diff(self, before: Point, after: Point = None) -> Diff:
        """What changed between two points, memory by memory."""
        return diff(self.state(before), self.state(after))

    def history(self, memory_id: str) -> tuple[HistoryStep, ...]:
        """Everything that happened to a memory, oldest first, what was rolled back included.

        Raises:
            DeltaMemError: If there never was such a memory.
        """
        steps = tuple(HistoryStep(entry, change) for entry, change in self._journal.history(memory_id))
        if not steps:
            raise DeltaMemError(f"there is no memory {memory_id!r} and never was")
        return steps

    def blame(self, memory_id: str) -> tuple[Origin, ...]:
        """The sessions and turns that a present memory comes from, oldest first.

        Raises:
            DeltaMemError: If there is no such memory now.
        """
        if memory_id not in self.state():
            raise DeltaMemError(f"there is no memory {memory_id!r} now; see its history")
        return tuple(
            self._origin(step)
            for step in self.history(memory_id)
            if step.entry.kind is EntryKind.SESSION
            and not step.entry.undone
            and step.change.event in (ChangeEvent.ADD, ChangeEvent.UPDATE)
        )

    def _origin(self, step: HistoryStep) -> Origin:
        entry, change = step.entry, step.change
        if change.after is None or entry.session_id is None or entry.session_time is None:
            raise ValueError(f"journal entry {entry.position} writes without a session")
        dialogue = self._journal.dialogue(entry.position)
        turns = []
        for number in change.turns:
            turn = dialogue[number - 1] if dialogue is not None and number <= len(dialogue) else None
            turns.append(SourceTurn(number, turn.role if turn else None, (turn.content or None) if turn else None))
        return Origin(
            change.event, change.after.text, entry.position, entry.session_id, entry.session_time, entry.model, tuple(turns)
        )
