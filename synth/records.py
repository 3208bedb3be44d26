"""What the four stages hand to each other, and the record of a finished person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from deltamem.sessions import LabelledSession, Split


class Change(StrEnum):
    """What an event does to a fact (paper, section 3.2; the offline writer knows three of the mechanisms)."""

    NEW = "new"
    ADJUST = "adjust"
    REPEAT = "repeat"


@dataclass(frozen=True, slots=True)
class Persona:
    """The seed of one synthetic person.

    Attributes:
        person_id: Unique in the data set.
        seed: A short description to start from.
        split: Whether the person is trained on or held out.
    """

    person_id: str
    seed: str
    split: Split


@dataclass(frozen=True, slots=True)
class Fact:
    """One atomic fact about a person.

    Attributes:
        topic: What the fact is about, for example ``job``.
        text: The memory sentence.
        keywords: Words a faithful memory must contain; each occurs in `text`.
        values: The words that a template was filled with, by slot; empty when a language model wrote the text.
    """

    topic: str
    text: str
    keywords: tuple[str, ...]
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profile:
    """Stage 1: who the person is, and what is remembered of them before the first session.

    Attributes:
        persona: The seed.
        name: How memories name the person.
        start: Time that the initial memories carry; every event is later.
        initial_facts: The facts of the initial memory state.
    """

    persona: Persona
    name: str
    start: datetime
    initial_facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class StateDelta:
    """What one event does to one fact.

    Attributes:
        change: New, adjusted or merely repeated.
        fact: The fact as it holds after the event.
        previous: The fact that is adjusted or repeated, its text exactly as before; None for a new one.
    """

    change: Change
    fact: Fact
    previous: Fact | None = None


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """Stage 2: something that happens in the person's life and is talked about in one session."""

    index: int
    time: datetime
    deltas: tuple[StateDelta, ...]


@dataclass(frozen=True, slots=True)
class Person:
    """A finished person: profile, events and one labelled session an event."""

    profile: Profile
    events: tuple[LifeEvent, ...]
    sessions: tuple[LabelledSession, ...]
