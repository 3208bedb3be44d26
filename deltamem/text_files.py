"""The one way to read a file that a person may have made or edited: UTF-8, with or without a byte order mark.

Editors and shells of Windows put the mark before a text, and pasting files together leaves it at the beginning of other
lines. It is never part of what was written. A file in another encoding is refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from deltamem.errors import DeltaMemError


def read_text(path: Path) -> str:
    r"""The text of a file; its lines end in ``\n``, however they do in the file.

    Raises:
        DeltaMemError: If it is not UTF-8; names the file.
        OSError: If it cannot be read.
    """
    text = decoded(path.read_bytes(), str(path)).replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\n\ufeff", "\n")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file one by one, with their ends; see `text_lines`.

    Raises:
        DeltaMemError: If a line is not UTF-8; names file and line.
        OSError: If it cannot be read.
    """
    with path.open("rb") as lines:
        yield from text_lines(lines, f"{path}, ")


def text_lines(stream: Iterable[bytes] | Iterable[str], name: str = "") -> Iterator[str]:
    """The lines of a stream that is open; `name` stands before the number of a line in errors.

    Raises:
        DeltaMemError: If a line is not UTF-8.
    """
    lines: Iterator[bytes | str] = iter(stream)
    number = 0
    while True:
        number += 1
        try:
            line = next(lines, None)
        except UnicodeDecodeError:  # a text stream decodes for itself
            line = b"\xff"
        if line is None:
            return
        yield decoded(line, f"{name}line {number}") if isinstance(line, bytes) else line.lstrip("\ufeff")


def decoded(data: bytes, name: str) -> str:
    """The text that bytes are in UTF-8, without the mark.

    Raises:
        DeltaMemError: If they are in another encoding; the sentence begins with `name`.
    """
    nul = b"\0" in data  # English in UTF-16 is UTF-8 too, with a NUL beside every letter
    try:
        if not nul:
            return data.decode().lstrip("\ufeff")
    except UnicodeDecodeError:
        pass
    seen = " (it has NUL bytes, as UTF-16 and archives have)" if nul else ""
    raise DeltaMemError(f"{name}: not UTF-8 text{seen}; save it as UTF-8")
