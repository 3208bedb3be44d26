"""Sessions of a benchmark as the memory manager reads them, and the way back from its memories to the benchmark's turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from deltamem.journal.records import Change, ChangeEvent
from deltamem.sessions import Turn
from eval.results.record_file import RecordFile
from eval.systems.protocol import DialogueSession

PROFILE_MARK = "About me, written down before we talk: "
"""Before the text of a system turn. The manager knows only the user and the assistant, so the user says it."""

TURNS_FILE = "turns.jsonl"


class Reading(NamedTuple):
    """A session as the manager reads it.

    Attributes:
        turns: System turns come first, as the user's; their text has the `PROFILE_MARK`.
        ids: Of the benchmark's turns, in the same order.
    """

    turns: tuple[Turn, ...]
    ids: tuple[str, ...]


def reading(session: DialogueSession) -> Reading:
    """Turn a session into what the manager reads. The times of single turns are left out: it has one time a session."""
    ordered = sorted(session.turns, key=lambda turn: turn.role != "system")
    turns = tuple(
        Turn(
            "assistant" if turn.role == "assistant" else "user",
            (PROFILE_MARK if turn.role == "system" else "") + turn.spoken,
        )
        for turn in ordered
    )
    return Reading(turns, tuple(turn.id for turn in ordered))


class _Turns(BaseModel):
    """The turn ids of a session, in the order in which the manager reads them; one line of ``turns.jsonl``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    session: str
    turns: tuple[str, ...]


class Sources:
    """The turns that each memory comes from, as `deltamem.manager.MemoryManager.blame` tells them.

    The journal names turns by number. The ids lie beside it, because a later run searches a store without giving it the
    sessions again.
    """

    def __init__(self, folder: Path) -> None:
        """Open the list of ids in the folder of a store, or begin one.

        Raises:
            DeltaMemError: If a line cannot be read; names file and line.
        """
        self._file = RecordFile(folder / TURNS_FILE, _Turns, lambda record: record.session)
        self._found: dict[str, dict[str, None]] = {}

    def expect(self, session: str, ids: Sequence[str]) -> None:
        """Note the ids of a session before it is read, so that the journal never holds one whose ids are not known."""
        record = _Turns(session=session, turns=tuple(ids))
        if self._file.get(session) != record:
            self._file.add(record)

    def add(self, session: str, changes: Sequence[Change]) -> None:
        """Note what a session did. A memory comes from the turns of its addition and of every update since."""
        record = self._file.get(session)
        ids = () if record is None else record.turns
        for change in changes:
            if change.event in (ChangeEvent.ADD, ChangeEvent.UPDATE):
                named = self._found.setdefault(change.memory_id, {})
                named.update((ids[number - 1], None) for number in change.turns if number <= len(ids))

    def __getitem__(self, memory_id: str) -> tuple[str, ...]:
        """Ids of the turns, oldest first; empty if they are not known."""
        return tuple(self._found.get(memory_id, ()))

    def clear(self) -> None:
        """Forget what sessions did; the ids of their turns stay."""
        self._found.clear()

    def close(self) -> None:
        """Close the list."""
        self._file.close()
