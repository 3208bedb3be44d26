"""Sessions, the labelled session that synth writes and training reads, and session files of applications."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator, core_schema

from deltamem.config import StrictModel, first_error
from deltamem.errors import DeltaMemError
from deltamem.memory import NO_METADATA, Event, Keyword, Memory, MemoryState, Metadata, Operation
from deltamem.text_files import read_lines, text_lines
from deltamem.zones import iso_time

Role = Literal["user", "assistant"]
Split = Literal["train", "heldout"]
TIME_FORMAT = "%Y/%m/%d (%a) %H:%M"  # How times are shown to the model, for example ``2026/04/05 (Sun) 20:01``
Signal = Literal["explicit", "value", "implied"]
"""How an UPDATE shows: old and new are said, only the new value is said, or the change follows from what is said.

ADD and NONE always have ``value``.
"""
Provenance = Literal["said", "third_person", "hearsay", "assistant_confirmed", "assistant_corrected", "self_corrected"]
"""How a fact comes up: the person says it of themselves, of somebody else, or has heard it; the assistant says it first
and the person confirms or corrects it; the person says something wrong first."""
Timing = Literal["same_day", "days_after", "relative"]
"""When a fact is told: on its day, days later, or with a date that has to be computed from the session's."""
CONTROL_MARK = re.compile(r"<(?=\||/?(?:think|tool_call|tool_response|outputs|s|start_of_turn|end_of_turn)>)")
"""The ``<`` of a mark that a chat server or this protocol takes for control, not for text: ``<|im_start|>``, ``<think>``.

Servers look for special tokens inside the content of messages too, so stored text must not contain them.
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance of a dialogue."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Session:
    """A dated dialogue between one person and an assistant."""

    person_id: str  # Owner of the memory that the session belongs to
    person_name: str  # How memories name the person
    time: datetime  # When the session took place; relative dates in it are resolved against this
    dialogue: tuple[Turn, ...]
    id: str = ""
    """Unique among the owner's sessions; a journal applies each id once. Labelled sessions have an index instead."""
    metadata: Metadata = NO_METADATA  # For the memories that the session adds or rewrites; no model sees it


class FactKind(StrEnum):
    """What sort of thing a fact tells (docs/synthesis.md, "Data that demand memory")."""

    EVENT = "event"
    FEELING = "feeling"
    PREFERENCE = "preference"
    OPINION = "opinion"
    PLAN = "plan"
    MOTIVATION = "motivation"
    SUPPORT = "support"
    STATUS = "status"
    ARRANGEMENT = "arrangement"
    ATTRIBUTE = "attribute"


@dataclass(frozen=True, slots=True)
class OperationDifficulty:
    """What makes one labelled operation hard to find."""

    signal: Signal
    rivals: int  # Other memories of the prior state that are close in wording to the one concerned
    provenance: Provenance
    time: Timing
    chain: int  # How many times the memory has been changed, this time included; 0 for ADD and for what never changed
    kind: Annotated[FactKind | None, Field(exclude_if=lambda value: value is None)] = None  # None where none was planned

    def cells(self) -> tuple[str, ...]:
        """Names of the cells that the operation belongs to: one for each axis that operations have."""
        axes = ("signal", "rivals", "provenance", "time", "chain", *(("kind",) if self.kind else ()))
        return tuple(_cell(axis, getattr(self, axis)) for axis in axes)


@dataclass(frozen=True, slots=True)
class Difficulty:
    """What makes a labelled session hard."""

    operations: tuple[OperationDifficulty, ...]  # One for each operation of the session, in their order
    noise: float  # Turns without any fact for each fact; in a session without facts, its turns
    bank: int  # Memories in the prior state

    def cells(self) -> tuple[str, ...]:
        """Names of the cells that the session belongs to, such as ``signal=implied``; sorted, each once."""
        found = {_cell("bank", self.bank), _cell("noise", self.noise)}
        return tuple(sorted(found.union(*(operation.cells() for operation in self.operations))))


_FEW = ((0, "0"), (1, "1"), (2, "2"), (math.inf, "3+"))
_BINS: Mapping[str, Sequence[tuple[float, str]]] = {
    "rivals": _FEW,
    "chain": _FEW,
    "noise": ((0.25, "low"), (0.75, "medium"), (math.inf, "high")),
    "bank": ((0, "0"), (20, "1-20"), (80, "21-80"), (math.inf, "81+")),
}
"""The largest value of each bin, and its name."""


def _cell(axis: str, value: Any) -> str:
    return f"{axis}={next(name for most, name in _BINS[axis] if value <= most) if axis in _BINS else value}"


AXES: Mapping[str, tuple[str, ...]] = {
    "signal": get_args(Signal),
    "rivals": (),  # as all bins, below
    "provenance": get_args(Provenance),
    "time": get_args(Timing),
    "kind": tuple(FactKind),
} | {axis: tuple(name for _, name in bins) for axis, bins in _BINS.items()}
"""Axes of difficulty with their values, in the order in which they are shown. A cell is ``axis=value``."""


def sessions_by_cell(cells: Iterable[Sequence[str]]) -> dict[str, list[int]]:
    """Which sessions belong to each cell that occurs, in the order of `AXES`; `cells` are those of each session."""
    members = [set(of_session) for of_session in cells]
    names = [f"{axis}={value}" for axis, values in AXES.items() for value in values]
    found = {name: [number for number, of_session in enumerate(members) if name in of_session] for name in names}
    return {name: numbers for name, numbers in found.items() if numbers}


@dataclass(frozen=True, slots=True)
class LabelledSession:
    """A synthetic session with the memories before it, its target operations, and the memories after them."""

    session: Session
    session_index: int  # Position among the person's sessions, from 0
    split: Split  # Of the person: trained on or held out
    prior_state: MemoryState
    operations: tuple[Operation, ...]
    next_state: MemoryState
    difficulty: Difficulty | None = None
    """None where it was not planned: in the shape ``paper`` and in files of earlier versions."""

    @property
    def key(self) -> str:
        """Identifies the session in a data set: ``<person_id>/<session_index>``."""
        return f"{self.session.person_id}/{self.session_index}"


class _Record(StrictModel):
    model_config = ConfigDict(from_attributes=True)


class _TurnRecord(_Record):
    role: Role
    content: str


class _MemoryRecord(_Record):
    text: str
    time: datetime


@dataclass(frozen=True, slots=True)
class KeywordSchema:
    """How a `Keyword` is read and written: a text, or a list of 1 to 20 alternatives, of which one alone is the text.

    To annotate a field of a record with, since a union of types would name its members in the place of every error. The
    JSON schema is that of a text, so a language model is not asked for alternatives.
    """

    wording: Any = str  # Type of each wording

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        wording = handler.generate_schema(self.wording)
        several = SchemaValidator(core_schema.tuple_variable_schema(wording, min_length=1, max_length=20))

        def read(value: Any, one: ValidatorFunctionWrapHandler) -> Any:
            if not isinstance(value, list | tuple):
                return one(value)
            found = tuple(dict.fromkeys(several.validate_python(value)))
            return found if len(found) > 1 else found[0]

        return core_schema.no_info_wrap_validator_function(read, wording, serialization=core_schema.simple_ser_schema("any"))


class _OperationRecord(_Record):
    event: Event
    text: str
    target_memory_id: str | None
    keywords: list[Annotated[Keyword, KeywordSchema()]]
    # Left out where there are none, so that data sets without them keep their bytes.
    outdated: list[str] = Field(default=[], exclude_if=lambda value: not value)


class SessionRecord(StrictModel):
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
    difficulty: Difficulty | None = Field(default=None, exclude_if=lambda value: value is None)

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
                Operation(op.event, op.text, op.target_memory_id, tuple(op.keywords), tuple(op.outdated))
                for op in self.operations
            ),
            next_state=_state(self.next_state),
            difficulty=self.difficulty,
        )

    @classmethod
    def from_labelled(cls, labelled: LabelledSession) -> SessionRecord:
        """Convert a labelled session to the record that is written."""
        session, before = labelled.session, labelled.prior_state
        prior = _state_record(before.memories)
        # Most memories stay as they are.
        changed = _state_record(memory for memory in labelled.next_state.memories if before.get(memory.id) is not memory)
        return cls(
            person_id=session.person_id,
            person_name=session.person_name,
            session_index=labelled.session_index,
            time=session.time,
            split=labelled.split,
            dialogue=[_TurnRecord.model_validate(turn) for turn in session.dialogue],
            prior_state=prior,
            operations=[_OperationRecord.model_validate(operation) for operation in labelled.operations],
            next_state={memory_id: changed.get(memory_id) or prior[memory_id] for memory_id in labelled.next_state},
            difficulty=labelled.difficulty,
        )


def _state(record: dict[str, _MemoryRecord]) -> MemoryState:
    return MemoryState(Memory(memory_id, memory.text, memory.time) for memory_id, memory in record.items())


def _state_record(memories: Iterable[Memory]) -> dict[str, _MemoryRecord]:
    return {memory.id: _MemoryRecord.model_validate(memory) for memory in memories}


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
        raise DeltaMemError(first_error(error, "the line")) from error


def read_sessions(path: Path, *, split: Split | None = None) -> Iterator[LabelledSession]:
    """Read a ``sessions.jsonl`` file lazily, all of it or one split.

    Raises:
        DeltaMemError: If the file is missing or a line cannot be read; the message names file and line.
    """
    if not path.is_file():
        raise DeltaMemError(f"{path}: no such file; make one with: python -m synth out={path.parent}")
    for number, line in enumerate(read_lines(path), start=1):
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

STDIN = "-"


class _StrictFile(StrictModel):
    model_config = ConfigDict(strict=True)


def _storable(text: str) -> str:
    """Refuse lone surrogates: JSON can smuggle them in, but no file or database takes them."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise PydanticCustomError("unicode", "not valid Unicode text") from None
    return text


StorableText = Annotated[str, AfterValidator(_storable)]  # A text that files and databases take


class _FileTurn(_StrictFile):
    role: Role
    content: StorableText

    @field_validator("role", mode="before")
    @classmethod
    def _known_role(cls, role: Any) -> Any:
        if role not in ("user", "assistant"):
            raise PydanticCustomError(
                "role",
                "a turn's role must be user or assistant, not {role}; leave out system and tool turns",
                {"role": json.dumps(role, default=str)},
            )
        return role


class _FileDialogue(_StrictFile):
    id: StorableText
    time: datetime
    turns: list[_FileTurn] = Field(min_length=1)
    metadata: dict[str, Any] | None = None

    @field_validator("id", mode="before")
    @classmethod
    def _text_id(cls, value: Any) -> Any:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not text.strip():
            raise PydanticCustomError("id", "expected a text that is not empty, or a whole number")
        return text

    @field_validator("time", mode="before")
    @classmethod
    def _iso_time(cls, value: Any) -> datetime:
        try:
            return iso_time(value)
        except (AttributeError, ValueError):
            raise PydanticCustomError("time", "expected an ISO 8601 time such as 2026-04-05T20:01") from None


def read_dialogues(source: Path | str | IO[bytes] | IO[str], owner: str, person_name: str) -> Iterator[Session]:
    """Read an owner's sessions from a file (see `json_objects`), in file order.

    One is ``{"id", "time": ISO 8601, "turns": [{"role", "content"}]}``, and may have flat ``"metadata"``.

    Raises:
        DeltaMemError: If the file cannot be read or something in it is not a session. The message names the file and the
            line, or the index in a list.
    """
    for where, value in json_objects(source, "session"):
        yield _session(value, where, owner, person_name)


def json_objects(source: Path | str | IO[bytes] | IO[str], what: str) -> Iterator[tuple[str, Any]]:
    """Read one JSON object, a JSON list of objects, or JSONL (line by line), each with where it stands, for errors.

    The source is a path, ``-`` for standard input, or an open stream (bytes or text); a byte order mark is skipped. `what`
    is the name of an object in errors.

    Raises:
        DeltaMemError: If the file cannot be read, is no JSON, or has nothing in it.
    """
    if not isinstance(source, str | Path):
        name = str(getattr(source, "name", "the stream"))
        yield from _objects(text_lines(source, f"{name}, "), name, what)
    elif str(source) == STDIN:
        yield from _objects(text_lines(sys.stdin.buffer, "standard input, "), "standard input", what)
    else:
        try:
            yield from _objects(read_lines(Path(source)), str(source), what)
        except OSError as error:
            raise DeltaMemError(f"{source}: cannot be read: {error.strerror}") from error


def _objects(decoded: Iterator[str], name: str, what: str) -> Iterator[tuple[str, Any]]:
    lines = enumerate(decoded, start=1)
    head: list[str] = []
    first: Any = None
    for _, line in lines:
        head.append(line)
        if line.strip():
            first = _line_object(line)
            break
    else:
        raise DeltaMemError(f"{name}: no {what} in it")
    if first is not None:
        # A first line that is an object by itself: JSONL, of which a single object is the shortest case.
        yield f"{name}, line {len(head)}", first
        for number, line in lines:
            if line.strip():
                where = f"{name}, line {number}"
                yield where, _parsed(line, where)
        return
    value = _parsed("".join([*head, *(line for _, line in lines)]), name, several_lines=True)
    if not isinstance(value, list):
        yield name, value
        return
    if not value:
        raise DeltaMemError(f"{name}: no {what} in it")
    for index, entry in enumerate(value):
        yield f"{name}, entry {index}", entry


def _line_object(line: str) -> Any:
    """The JSON object that a line is by itself; None if it is anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parsed(text: str, where: str, *, several_lines: bool = False) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{where}, line {error.lineno}" if several_lines else where
        raise DeltaMemError(f"{place}: not valid JSON: {error.msg} (column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise DeltaMemError(f"{where}: not valid JSON: nested too deeply or a number too long") from error


_FILE_ERRORS = {
    "missing": "this key is missing",
    "extra_forbidden": "unknown key",
    "too_short": "expected at least one turn",
}


def _session(value: Any, where: str, owner: str, person_name: str) -> Session:
    if not isinstance(value, dict):
        raise DeltaMemError(f'{where}: expected an object with "id", "time" and "turns"')
    try:
        record = _FileDialogue.model_validate(value)
    except ValidationError as error:
        raise DeltaMemError(f"{where}: {first_error(error, messages=_FILE_ERRORS)}") from error
    try:
        metadata = Metadata(record.metadata or {})
    except ValueError as error:
        raise DeltaMemError(f"{where}: {error}") from error
    turns = tuple(Turn(turn.role, turn.content) for turn in record.turns)
    return Session(owner, person_name, record.time, turns, record.id, metadata)
