"""Stage 3: linked events, memory threads, and the facts that a session has to tell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from deltamem.memory import Event
from synth.records.base import Keywords, Line, Method, Record
from synth.records.profile import Fact


class EventGroup(Record):
    """Events that are linked: the first is the source of a memory anchor (paper, section 3.2).

    Attributes:
        events: Indices, increasing.
        thread: What links them.
    """

    events: Annotated[tuple[Annotated[int, Field(ge=0, le=999)], ...], Field(max_length=8)]
    thread: Line


class Evolution(Record):
    """How one memory anchor changes over the events of its group.

    Attributes:
        method: The one method of the whole thread.
        memories: One an event; each later one subsumes the earlier.
    """

    method: Method
    memories: Annotated[tuple[Fact, ...], Field(max_length=8)]


class Origin(StrEnum):
    """Which part of memory generation a session's fact comes from."""

    DELTA = "delta"
    EVOLUTION = "evolution"
    FILLING = "filling"
    REUSE = "reuse"


class SessionFact(Record):
    """A fact that the user has to say in a session, and the operation that it asks for.

    Attributes:
        id: Unique in the session: ``f1``, ``f2``...
        event: ADD, UPDATE (both the previous and the new text are to be said) or NONE (a known memory is repeated).
        text: The memory sentence after the session.
        previous_text: The memory before the session; empty for ADD, equal to `text` for NONE.
        keywords: Of `text`.
        origin: Where it comes from.
    """

    id: Annotated[str, StringConstraints(pattern="^f[0-9]{1,3}$")]
    event: Event
    text: Line
    previous_text: Line
    keywords: Keywords
    origin: Origin
