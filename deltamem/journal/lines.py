"""Exports line by line: what a line is, and a reader that says which one is wrong."""

from __future__ import annotations

from datetime import datetime
from typing import IO, Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, ValidationError

from deltamem.config import StrictModel, first_error
from deltamem.errors import DeltaMemError
from deltamem.memory import Metadata
from deltamem.text_files import text_lines


def _time(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        raise ValueError("a time is an ISO 8601 text")
    return datetime.fromisoformat(value)


# Written as given: pydantic's own form would turn +00:00 into Z and lose the seconds of historical offsets.
Time = Annotated[datetime, PlainValidator(_time), PlainSerializer(datetime.isoformat, return_type=str)]


def _metadata(value: object) -> Metadata:
    if isinstance(value, Metadata):
        return value
    if not isinstance(value, dict):
        raise ValueError("metadata is an object")
    return Metadata(value)


# Left out where there is none.
Noted = Annotated[
    Metadata,
    PlainValidator(_metadata),
    PlainSerializer(dict, return_type=dict[str, Any]),
    Field(exclude_if=lambda metadata: not metadata),
]
# Small enough for SQLite's signed 64 bits.
Number = Annotated[int, Field(ge=0, lt=2**53)]
Positive = Annotated[int, Field(ge=1, lt=2**53)]


class ExportLine(StrictModel):
    """One line of an export; may be made from any object with the same attributes."""

    model_config = ConfigDict(from_attributes=True)


_L = TypeVar("_L", bound=ExportLine)


class ExportLines:
    """Reads one line after the other and knows the number of the one at hand."""

    def __init__(self, stream: IO[bytes] | IO[str]) -> None:
        """Begin a stream."""
        self._lines = text_lines(stream)
        self.number = 0

    def next(self, model: type[_L]) -> _L:
        """The next line as a record.

        Raises:
            DeltaMemError: If it is none, or there is no line; names the line.
        """
        try:
            return model.model_validate_json(self._line())
        except ValidationError as error:
            what = model.__name__.removeprefix("_").removesuffix("Line").lower()
            raise self.wrong(f"expected one {what}: {first_error(error)}") from error

    def end(self) -> None:
        """Nothing may follow.

        Raises:
            DeltaMemError: If something does.
        """
        if self._line(optional=True):
            raise self.wrong("expected the end of the file, as the header counts the lines")

    def wrong(self, problem: str) -> DeltaMemError:
        """An error that names the line at hand."""
        return DeltaMemError(f"line {self.number}: {problem}")

    def _line(self, *, optional: bool = False) -> str:
        self.number += 1
        line = next(self._lines, "")
        if not line and not optional:
            raise self.wrong("the file ends here, but its header counts more lines")
        return line
