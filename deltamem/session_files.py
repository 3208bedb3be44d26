"""Session files of applications: JSON or JSONL with id, time and turns."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from deltamem.errors import DeltaMemError
from deltamem.sessions import Role, Session, Turn

STDIN = "-"
_BOM = b"\xef\xbb\xbf"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _storable(text: str) -> str:
    """Refuse lone surrogates: JSON can smuggle them in, but no file or database takes them."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise PydanticCustomError("unicode", "not valid Unicode text") from None
    return text


_Text = Annotated[str, AfterValidator(_storable)]


class _TurnRecord(_Strict):
    role: Role
    content: _Text

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


class _DialogueRecord(_Strict):
    id: _Text
    time: datetime
    turns: list[_TurnRecord]

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
            return datetime.fromisoformat(value)
        except (TypeError, ValueError):
            raise PydanticCustomError("time", "expected an ISO 8601 time such as 2026-04-05T20:01") from None

    @field_validator("turns", mode="after")
    @classmethod
    def _some_turns(cls, turns: list[_TurnRecord]) -> list[_TurnRecord]:
        if not turns:
            raise PydanticCustomError("turns", "expected at least one turn")
        return turns


def read_dialogues(source: Path | str | IO[bytes] | IO[str], owner: str, person_name: str) -> Iterator[Session]:
    """Read the sessions of a file: one JSON object, a JSON list of objects, or JSONL.

    An object is ``{"id", "time": ISO 8601, "turns": [{"role", "content"}]}``. JSONL is read line by line.

    Args:
        source: A path, ``-`` for standard input, or an open stream (bytes or text). A byte order mark is skipped.
        owner: Whose sessions these are.
        person_name: How memories name the person.

    Yields:
        The sessions in file order.

    Raises:
        DeltaMemError: If the file cannot be read or something in it is not a session. The message names the file and the
            line, or the index in a list.
    """
    if not isinstance(source, str | Path):
        yield from _read(source, str(getattr(source, "name", "the stream")), owner, person_name)
    elif str(source) == STDIN:
        yield from _read(sys.stdin.buffer, "standard input", owner, person_name)
    else:
        try:
            stream = Path(source).open("rb")  # noqa: SIM115 - closed by the next statement
        except OSError as error:
            raise DeltaMemError(f"{source}: cannot be read: {error.strerror}") from error
        with stream:
            yield from _read(stream, str(source), owner, person_name)


def _read(stream: IO[bytes] | IO[str], name: str, owner: str, person_name: str) -> Iterator[Session]:
    lines = ((number, line) for number, line in enumerate(_decoded(stream, name), start=1))
    head: list[str] = []
    first: Any = None
    for _, line in lines:
        head.append(line)
        if line.strip():
            first = _line_object(line)
            break
    else:
        raise DeltaMemError(f"{name}: no session in it")
    if first is not None:
        # A first line that is an object by itself: JSONL, of which a single object is the shortest case.
        yield _session(first, f"{name}, line {len(head)}", owner, person_name)
        for number, line in lines:
            if line.strip():
                where = f"{name}, line {number}"
                yield _session(_parsed(line, where), where, owner, person_name)
        return
    text = "".join([*head, *(line for _, line in lines)])
    value = _parsed(text, name, several_lines=True)
    if not isinstance(value, list):
        yield _session(value, name, owner, person_name)
        return
    if not value:
        raise DeltaMemError(f"{name}: no session in it")
    for index, entry in enumerate(value):
        yield _session(entry, f"{name}, entry {index}", owner, person_name)


def _decoded(stream: IO[bytes] | IO[str], name: str) -> Iterator[str]:
    lines: Iterable[bytes | str] = stream
    for number, line in enumerate(lines, start=1):
        if isinstance(line, bytes):
            try:
                yield (line.removeprefix(_BOM) if number == 1 else line).decode("utf-8")
            except UnicodeDecodeError as error:
                raise DeltaMemError(f"{name}, line {number}: not UTF-8 text") from error
        else:
            yield line.removeprefix("\ufeff") if number == 1 else line


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


def _session(value: Any, where: str, owner: str, person_name: str) -> Session:
    if not isinstance(value, dict):
        raise DeltaMemError(f'{where}: expected an object with "id", "time" and "turns"')
    try:
        record = _DialogueRecord.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        messages = {"missing": "this key is missing", "extra_forbidden": "unknown key"}
        message = messages.get(first["type"], first["msg"])
        raise DeltaMemError(f"{where}: {key}: {message}") from error
    return Session(
        owner, person_name, record.time, tuple(Turn(turn.role, turn.content) for turn in record.turns), id=record.id
    )
