"""A file of records, one JSON object a line, written as they are made."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from deltamem.errors import DeltaMemError

Record = TypeVar("Record", bound=BaseModel)


class RecordFile(Generic[Record]):
    """Records by key; a later record replaces an earlier one of the same key. One run at a time may have it open."""

    def __init__(self, path: Path, model: type[Record], key: Callable[[Record], str]) -> None:
        """Open the file, or begin one.

        Args:
            path: The file; its folder is made. A last line that a killed process left incomplete is removed.
            model: What a line holds.
            key: Names a record.

        Raises:
            DeltaMemError: If a line is not a record (names file and line), or another run has the file open.
            OSError: If the file cannot be read or written.
        """
        self.path = path
        self._key = key
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel ends it with the process
            self._records, whole = _read(path, model, key)
            if whole < path.stat().st_size:
                self._file.truncate(whole)
        except BlockingIOError:
            self._file.close()
            raise DeltaMemError(
                f"{path}: another run is writing it; wait for it, end it, or choose another out=..."
            ) from None
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def __contains__(self, key: str) -> bool:
        return key in self._records

    def get(self, key: str) -> Record | None:
        """The last record of a key."""
        return self._records.get(key)

    def add(self, record: Record) -> None:
        """Append a record; when this returns the operating system has it."""
        self._file.write(record.model_dump_json(exclude_defaults=True) + "\n")
        self._file.flush()
        self._records[self._key(record)] = record

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> RecordFile[Record]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_records(path: Path, model: type[Record], key: Callable[[Record], str]) -> dict[str, Record]:
    """Read a file of records and leave it as it is; a run may still be writing it.

    Args:
        path: The file. An incomplete last line is passed over.
        model: What a line holds.
        key: Names a record.

    Returns:
        The last record of each key, keys in the order in which they first occur.

    Raises:
        DeltaMemError: If a line is not a record; names file and line.
        OSError: If the file cannot be read.
    """
    return _read(path, model, key)[0]


def _read(path: Path, model: type[Record], key: Callable[[Record], str]) -> tuple[dict[str, Record], int]:
    """The records, and how many bytes the whole lines have."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    records: dict[str, Record] = {}
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            record = model.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            why = f"{where}: {first['msg']}" if where else first["msg"]
            raise DeltaMemError(f"{path}, line {number}: cannot be read as a record of a run ({why})") from error
        records[key(record)] = record
    return records, len(whole)
