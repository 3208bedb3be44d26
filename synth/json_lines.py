"""Finished work on disk: a file of JSON lines that is only ever appended to.

A line is ``{"key": KEY, "value": {...}}`` and is written in one piece, its newline last. So a process that is killed at any
moment loses at most the value that it was writing: what it left of that line is cut off at the next opening. Values stay on
disk; only keys and positions are held in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from filelock import FileLock, Timeout

from deltamem.errors import DeltaMemError

_BEGIN = b'{"key": '
_DECODER = json.JSONDecoder()


class _Span(NamedTuple):
    """Where a line lies in the file."""

    start: int
    length: int


class JsonLinesStore:
    """Values by key, one process at a time; of several values of one key the last one counts."""

    def __init__(self, path: Path) -> None:
        """Open the store, or make it and its folder.

        Args:
            path: The file; ``<path>.lock`` lies next to it.

        Raises:
            DeltaMemError: If another process has it open, or the file is no such store.
            OSError: If it cannot be read or written.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(f"{path}.lock", thread_local=False)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise DeltaMemError(f"{path}: in use by another process; wait until it ends or stop it") from None
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError:
            self._lock.release()
            raise
        self._open = True
        try:
            self._spans, self._end = self._read_keys()
            os.ftruncate(self._file, self._end)
        except BaseException:
            self.close()
            raise

    def get(self, key: str) -> dict[str, Any] | None:
        """The value of a key, or None."""
        span = self._spans.get(key)
        if span is None:
            return None
        value: dict[str, Any] = json.loads(os.pread(self._file, span.length, span.start))["value"]
        return value

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Append a value; JSON types only.

        Raises:
            OSError: If it cannot be written whole, for example because the disk is full; nothing of it then remains.
        """
        text = f'{{"key": {json.dumps(key, ensure_ascii=False)}, "value": {json.dumps(value, ensure_ascii=False)}}}\n'
        # Lone surrogates occur in answers of language models; `json.loads` reads them back in the same way.
        line = text.encode("utf-8", "surrogatepass")
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            os.ftruncate(self._file, self._end)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._spans[key] = _Span(self._end, len(line))
        self._end += len(line)

    def __contains__(self, key: object) -> bool:
        return key in self._spans

    def __len__(self) -> int:
        return len(self._spans)

    def keys(self) -> tuple[str, ...]:
        """All keys, in the order in which they were first put."""
        return tuple(self._spans)

    def close(self) -> None:
        """Bring everything to the disk and let other processes open the store; closing twice does nothing."""
        if not self._open:
            return
        self._open = False
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _read_keys(self) -> tuple[dict[str, _Span], int]:
        spans: dict[str, _Span] = {}
        end = 0
        for number, line in enumerate(self._lines(), start=1):
            if not line.endswith(b"\n"):
                if not (line.startswith(_BEGIN) or _BEGIN.startswith(line)):
                    raise self._foreign(number)
                break
            spans[self._key(line, number)] = _Span(end, len(line))
            end += len(line)
        return spans, end

    def _lines(self) -> Iterator[bytes]:
        with open(self._file, "rb", closefd=False) as file:
            yield from file

    def _key(self, line: bytes, number: int) -> str:
        if not line.startswith(_BEGIN) or not line.endswith(b"}\n"):
            raise self._foreign(number)
        try:
            key, _ = _DECODER.raw_decode(line.decode("utf-8", "surrogatepass"), len(_BEGIN))
        except ValueError:
            raise self._foreign(number) from None
        if not isinstance(key, str):
            raise self._foreign(number)
        return key

    def _foreign(self, number: int) -> DeltaMemError:
        return DeltaMemError(f"{self.path}: line {number} is not a line of such a store; move the file away or repair it")
