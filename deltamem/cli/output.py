"""What the command writes: lines or JSON on standard output, progress on standard error; no text can steer the terminal."""

from __future__ import annotations

import io
import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO

from rich.console import Console
from rich.text import Text

from deltamem.errors import DeltaMemError

if TYPE_CHECKING:
    from rich.progress import TaskID

PIPE_CLOSED = 141
"""Exit code when the reader of our output has gone: what a shell reports of a program that SIGPIPE ended."""

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")
"""Invisible, but part of how several scripts and emoji are written."""

Pieces = tuple[tuple[str, str], ...]
"""Pieces of a line, each with a rich style (empty for none)."""
Line = str | Pieces


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

    def result(self, record: Mapping[str, Any], lines: Iterable[Line], *, as_json: bool) -> None:
        """Write a result in the form that was asked for."""
        if as_json:
            self.json(record)
        else:
            self.lines(lines)

    def lines(self, lines: Iterable[Line]) -> None:
        """Write lines; what hides or steers in their texts is made visible."""
        pieces = (((line, ""),) if isinstance(line, str) else line for line in lines)
        if self._plain:
            self._write("".join(visible(text) for text, _ in line).rstrip() + "\n" for line in pieces)
            return
        for line in pieces:
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
    """Write one line to standard error."""
    print(visible(" ".join(message.split())), file=sys.stderr, flush=True)


def utf8(text: str, what: str) -> str:
    """An argument as it was given."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DeltaMemError(f"{what} is not valid Unicode") from None
    return text


class Display:
    """Shows the bars of one command on a terminal; use it as a context manager."""

    def __init__(self) -> None:
        """Look whether standard error is a terminal."""
        # Only commands that may take long load it.
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Progress(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._tenths: dict[str, int] = {}

    def sessions(self, done: int, total: int) -> None:
        """Show how many sessions are done; without a terminal the lines of the sessions show it."""
        self._bar("sessions", done, total)

    def rebuilding(self, owner: str, done: int, total: int) -> None:
        """Show how far the rebuilding of an owner's index is; without a terminal a line for each tenth."""
        what, tenth = f"rebuilding the index of {owner!r}", done * 10 // max(total, 1)
        self._bar(visible(what), done, total)
        if self._bars.disable and self._tenths.get(owner) != tenth:
            self._tenths[owner] = tenth
            note(f"{what}: {done} of {total} memories")

    def _bar(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the bars off the terminal while lines are written to it."""
        self._bars.stop()
        try:
            yield
        finally:
            self._bars.start()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()
