"""Sessions, and the labelled session: the record that synth writes and that training and evaluation read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from deltamem.errors import DeltaMemError
from deltamem.memory import Event, Memory, MemoryState, Operation
from deltamem.protocol import CONTROL_MARK

Role = Literal["user", "assistant"]
Split = Literal["train", "heldout"]
TIME_FORMAT = "%Y/%m/%d (%a) %H:%M"
"""How times are shown to the model, for example ``2026/04/05 (Sun) 20:01``."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance of a dialogue."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Session:
    """A dated dialogue between one person and an assistant.

    Attributes:
        person_id: Owner of the memory that the session belongs to.
        person_name: How memories name the person.
        time: When the session took place; relative dates in it are resolved against this.
        dialogue: The utterances in order.
        id: Names the session among its owner's; a journal takes each id once. Labelled sessions have an index instead.
    """

    person_id: str
    person_name: str
    time: datetime
    dialogue: tuple[Turn, ...]
    id: str = ""


@dataclass(frozen=True, slots=True)
class LabelledSession:
    """A synthetic session with its target.

    Attributes:
        session: The dialogue.
        session_index: Position among the person's sessions, from 0.
        split: Whether the person is trained on or held out.
        prior_state: The person's memories before the session.
        operations: The target operations with their keywords.
        next_state: The prior state with the operations applied.
    """

    session: Session
    session_index: int
    split: Split
    prior_state: MemoryState
    operations: tuple[Operation, ...]
    next_state: MemoryState

    @property
    def key(self) -> str:
        """Identifies the session in a data set: ``<person_id>/<session_index>``."""
        return f"{self.session.person_id}/{self.session_index}"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _TurnRecord(_Strict):
    role: Role
    content: str


class _MemoryRecord(_Strict):
    text: str
    time: datetime


class _OperationRecord(_Strict):
    event: Event
    text: str
    target_memory_id: str | None
    keywords: list[str]


class SessionRecord(_Strict):
    """One line of ``sessions.jsonl``. Times are ISO 8601; the order of ids is the order of the state."""

    person_id: str
    person_name: str
    session_index: int
    time: datetime
    split: Split
    dialogue: list[_TurnRecord]
    prior_state: dict[str, _MemoryRecord]
    operations: list[_OperationRecord]
    next_state: dict[str, _MemoryRecord]

    def to_labelled(self) -> LabelledSession:
        """Convert the validated record to the library's own types."""
        return LabelledSession(
            session=Session(
                self.person_id,
                self.person_name,
                self.time,
                tuple(Turn(turn.role, turn.content) for turn in self.dialogue),
            ),
            session_index=self.session_index,
            split=self.split,
            prior_state=_state(self.prior_state),
            operations=tuple(
                Operation(op.event, op.text, op.target_memory_id, tuple(op.keywords)) for op in self.operations
            ),
            next_state=_state(self.next_state),
        )

    @classmethod
    def from_labelled(cls, labelled: LabelledSession) -> SessionRecord:
        """Convert a labelled session to the record that is written."""
        session = labelled.session
        return cls(
            person_id=session.person_id,
            person_name=session.person_name,
            session_index=labelled.session_index,
            time=session.time,
            split=labelled.split,
            dialogue=[_TurnRecord(role=turn.role, content=turn.content) for turn in session.dialogue],
            prior_state=_state_record(labelled.prior_state),
            operations=[
                _OperationRecord(
                    event=op.event, text=op.text, target_memory_id=op.target_memory_id, keywords=list(op.keywords)
                )
                for op in labelled.operations
            ],
            next_state=_state_record(labelled.next_state),
        )


def _state(record: dict[str, _MemoryRecord]) -> MemoryState:
    return MemoryState(Memory(memory_id, memory.text, memory.time) for memory_id, memory in record.items())


def _state_record(state: MemoryState) -> dict[str, _MemoryRecord]:
    return {memory.id: _MemoryRecord(text=memory.text, time=memory.time) for memory in state.memories}


def to_json_line(labelled: LabelledSession) -> str:
    """Serialise one labelled session as one line of ``sessions.jsonl`` (without the line end)."""
    return SessionRecord.from_labelled(labelled).model_dump_json()


def from_json_line(line: str | bytes) -> LabelledSession:
    """Read one line of ``sessions.jsonl``.

    Raises:
        DeltaMemError: If the line is not a valid record; the message names the first wrong field.
    """
    try:
        return SessionRecord.model_validate_json(line).to_labelled()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the line"
        raise DeltaMemError(f"{where}: {first['msg']}") from error


def read_sessions(path: Path, *, split: Split | None = None) -> Iterator[LabelledSession]:
    """Read a ``sessions.jsonl`` file lazily.

    Args:
        path: The file.
        split: Keep only sessions of this split; None keeps all.

    Yields:
        The labelled sessions in file order.

    Raises:
        DeltaMemError: If the file is missing or a line cannot be read; the message names file and line.
    """
    if not path.is_file():
        raise DeltaMemError(f"{path}: no such file; make one with: python -m synth out={path.parent}")
    # Bytes, so that a line that is not UTF-8 is refused like any other malformed line.
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                labelled = from_json_line(line)
            except DeltaMemError as error:
                raise DeltaMemError(f"{path}, line {number}: {error}") from error
            if split is None or labelled.split == split:
                yield labelled


def format_dialogue(dialogue: Iterable[Turn]) -> str:
    """Write a dialogue as the model reads it, one utterance a line.

    Control marks within an utterance are broken visibly (``< |im_start|>``), so that it cannot pose as another message, and
    a line within it that begins like another utterance is quoted (``> user: ...``).
    """
    return "\n".join(f"{turn.role}: {_POSING.sub('> ', CONTROL_MARK.sub('< ', turn.content))}" for turn in dialogue)


_POSING = re.compile(r"(?<=[\n\r\v\f\x85\u2028\u2029])(?=[ \t]*(?:user|assistant)[ \t]*:)")
"""Where a line within an utterance begins like an utterance."""
