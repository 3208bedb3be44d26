"""How commands reach the memory: the journal alone, for reading, or the whole store; and points in a journal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from deltamem.command.options import Options
from deltamem.command.output import note, utf8
from deltamem.errors import DeltaMemError
from deltamem.history import Point
from deltamem.journal.journal import JOURNAL_FILE, Journal, OwnerJournal

if TYPE_CHECKING:
    from deltamem.bank.store import MemoryStore, Progress


def check_bank(options: Options) -> None:
    """Make sure that there is a bank, so that reading never makes one.

    Raises:
        DeltaMemError: If there is none.
    """
    if not (options.bank / JOURNAL_FILE).is_file():
        raise DeltaMemError(f"{options.bank}: no memory bank there; `deltamem add` or `deltamem import` makes one")


@contextmanager
def past(options: Options) -> Iterator[OwnerJournal]:
    """The owner's journal, read only: no lock, no vectors, so it works while an application holds the bank.

    Raises:
        DeltaMemError: If there is no bank, or it cannot be read.
    """
    owner = options.required_owner
    check_bank(options)
    with Journal.open(options.bank / JOURNAL_FILE, read_only=True) as journal:
        yield journal.owner(owner)


def tell_if_empty(options: Options, journal: OwnerJournal) -> bool:
    """Say so on standard error if nothing is known of the owner, whose name may be mistyped; returns whether it is so."""
    if journal.head:
        return False
    note(f"note: {options.bank} holds nothing of {journal.name!r}")
    return True


def require_entries(options: Options, journal: OwnerJournal) -> None:
    """Make sure that something is known of the owner.

    Raises:
        DeltaMemError: If nothing is.
    """
    if not journal.head:
        raise DeltaMemError(f"{options.bank} holds nothing of {journal.name!r}")


@contextmanager
def store(options: Options, *, create: bool = False, progress: Progress | None = None) -> Iterator[MemoryStore]:
    """The store, locked for this process.

    Args:
        options: Name the bank and the embedder.
        create: Make the bank if there is none.
        progress: Told how far the rebuilding of an index is.

    Raises:
        DeltaMemError: If there is no bank, another process holds it, or it cannot be read.
    """
    from deltamem.bank.store import MemoryStore
    from deltamem.embedding import LazyEmbedder

    if not create:
        check_bank(options)
    embedder = LazyEmbedder(options.embedder)
    with MemoryStore.open(options.bank, embedder, index_url=options.index_url, progress=progress) as opened:
        yield opened


def parse_point(text: str, journal: OwnerJournal) -> Point:
    """A point as it is given on the command line: a session id, ``@N`` for a position, or an ISO 8601 time.

    Raises:
        DeltaMemError: If it is none of these.
    """
    if journal.session_position(utf8(text, "the point")) is not None:
        return text
    if text.startswith("@") and text[1:].isascii() and text[1:].isdigit():
        return int(text[1:])
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise DeltaMemError(
            f"{text!r} is no session in the memory of {journal.name!r}, no position such as @3 and no ISO 8601 time"
        ) from None


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal whether to go on.

    Args:
        question: What is about to happen.
        yes: The answer was given beforehand.

    Raises:
        DeltaMemError: If there is no terminal to ask on.
        typer.Exit: If the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise DeltaMemError("this needs a confirmation and there is no terminal to ask on; repeat with --yes")
    if not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(1)
