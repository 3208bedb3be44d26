"""What the command writes: lines for people, with colour on a terminal only, or JSON; no text can steer the terminal."""

from __future__ import annotations

import io
import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn, TextIO

from rich.console import Console
from rich.text import Text

from deltamem.errors import DeltaMemError

PIPE_CLOSED = 141
"""Exit code when the reader of our output has gone: what a shell reports of a program that SIGPIPE ended."""

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")
"""Invisible, but part of how several scripts and emoji are written."""

Line = tuple[tuple[str, str], ...]
"""Pieces of text, each with a rich style (empty for none)."""


def visible(text: str) -> str:
    """A text on one line; characters that steer a terminal or hide text are written as escapes (that of ESC ends in 1b)."""
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char) in _HIDDEN and char not in _JOINERS
        else char
        for char in text
    )


def clock(time: datetime) -> str:
    """A time as people read it, to the minute, with its offset if it has one."""
    return time.isoformat(sep=" ", timespec="minutes")


class _Console(Console):
    """Ends the command quietly when nobody reads any more, for example behind ``head``."""

    def on_broken_pipe(self) -> NoReturn:
        self.quiet = True
        # What is still buffered must not complain when the interpreter flushes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(PIPE_CLOSED)


class Output:
    """Standard output."""

    def __init__(self) -> None:
        """Look whether it is a terminal."""
        self._console = _Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._plain = not self._console.is_terminal or self._console.no_color

    def lines(self, lines: Iterable[Line]) -> None:
        """Write lines; what hides or steers in their texts is made visible."""
        if self._plain:
            self._write("".join(visible(text) for text, _ in line).rstrip() + "\n" for line in lines)
            return
        for line in lines:
            self._console.print(Text.assemble(*((visible(text), style) for text, style in line)))

    def json(self, document: Mapping[str, Any]) -> None:
        """Write one JSON document on one line. ASCII, so that it suits every terminal and every encoding."""
        self._write([json.dumps(document) + "\n"])

    @contextmanager
    def stream(self) -> Iterator[TextIO]:
        """Standard output as a UTF-8 text file, for data that goes out as it is."""
        stream = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8")
        try:
            yield stream
            stream.flush()
        except BrokenPipeError:
            self._console.on_broken_pipe()
        finally:
            stream.detach()

    def _write(self, pieces: Iterable[str]) -> None:
        try:
            sys.stdout.writelines(pieces)
            sys.stdout.flush()
        except BrokenPipeError:
            self._console.on_broken_pipe()


def note(message: str) -> None:
    """Tell something on standard error."""
    print(visible(" ".join(message.split())), file=sys.stderr, flush=True)


def utf8(text: str, what: str) -> str:
    """An argument as it was given.

    Raises:
        DeltaMemError: If it holds bytes that are no text.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DeltaMemError(f"{what} is not valid Unicode") from None
    return text
