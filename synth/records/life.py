"""Stage 2: the plan of a life and its events."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import Field, StringConstraints

from synth.records.base import Change, Domain, Line, Name, Paragraph, Record, Track
from synth.records.profile import Fact


class PlannedChange(Record):
    """A change that an event has to make; `track` None leaves the track to the writer."""

    track: Track | None
    change: Change


class EventSlot(Record):
    """The program's plan of one event, which the writer fills.

    Attributes:
        index: Position in the person's life, from 0.
        not_before: Earliest date.
        not_after: Latest date; the next slot begins later.
        domain: Where in life.
        life_goal: Whether the event must serve the life goal.
        changes: The state deltas to make, in any order.
        reused: How many earlier memories the session repeats (NONE operations).
    """

    index: int
    not_before: date
    not_after: date
    domain: Domain
    life_goal: bool
    changes: tuple[PlannedChange, ...]
    reused: int


class Participant(Record):
    """Somebody who takes part in an event, by full name."""

    name: Name
    relationship: Name


class StateDelta(Fact):
    """What one event does to one fact (paper, appendix A).

    Attributes:
        track: The stream.
        change: The operator.
        subject: As in `TrackedFact`.
        previous_text: The fact as it was, word for word; empty for a new one.
        text: The fact as it holds after the event.
        keywords: Of `text`; at least one is also one of the previous fact's.
    """

    track: Track
    change: Change
    subject: Name
    previous_text: Line


class LifeEvent(Record):
    """Stage 2: something that happens and is talked about in one session."""

    index: Annotated[int, Field(ge=0, le=999)]
    date: date
    domain: Domain
    valence: Annotated[str, StringConstraints(pattern="^(positive|neutral|negative|bittersweet)$")]
    agency: Annotated[str, StringConstraints(pattern="^(happens_to_user|user_initiated|co_created)$")]
    title: Name
    narrative: Paragraph
    participants: Annotated[tuple[Participant, ...], Field(max_length=5)]
    grounding: Annotated[tuple[Line, ...], Field(max_length=4)]
    result: Line
    emotion: Line
    follow_ups: Annotated[tuple[Line, ...], Field(max_length=4)]
    serves_life_goal: bool
    changes: Annotated[tuple[StateDelta, ...], Field(max_length=8)]
