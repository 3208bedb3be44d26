"""What a check found."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """How bad it is: only `FAIL` keeps a run from starting."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """The result of one check: its state and one sentence for people."""

    state: State
    found: str


class MadeByRunError(Exception):
    """A check needs what does not exist yet, but the run itself will make."""


def ok(found: str) -> Finding:
    """All is well."""
    return Finding(State.OK, found)


def warn(found: str) -> Finding:
    """The run would start, but somebody should know this."""
    return Finding(State.WARN, found)


def fail(found: str) -> Finding:
    """The run would not start, or not end well."""
    return Finding(State.FAIL, found)
