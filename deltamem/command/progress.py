"""How far long work is, on standard error: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from deltamem.command.output import note, visible

_SHARES = 10
"""Lines about one piece of work where there is no bar."""


class Display:
    """Shows the bars of one command; use it as a context manager."""

    def __init__(self) -> None:
        """Look whether standard error is a terminal."""
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(
            *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._live = self._progress.console.is_terminal
        self._tasks: dict[str, TaskID] = {}
        self._told: dict[str, int] = {}

    def sessions(self, done: int, total: int) -> None:
        """Show how many sessions are done; without a terminal their own lines say so."""
        if self._live:
            self._bar("sessions", done, total)

    def rebuilding(self, owner: str, done: int, total: int) -> None:
        """Show how far the rebuilding of an owner's index is."""
        what = f"rebuilding the index of {owner!r}"
        if self._live:
            self._bar(visible(what), done, total)
            return
        share = done * _SHARES // max(total, 1)
        if self._told.get(owner) != share:
            self._told[owner] = share
            note(f"{what}: {done} of {total} memories")

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the bars off the terminal while lines are written to it."""
        if self._live:
            self._progress.stop()
        try:
            yield
        finally:
            if self._live:
                self._progress.start()

    def _bar(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done)

    def __enter__(self) -> Self:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._progress.stop()
