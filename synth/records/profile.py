"""Stage 1: who a person is, and what is remembered of them at the start."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from synth.records.base import Keywords, Line, Name, Paragraph, Persona, Record, Track


class Family(Record):
    """Parents, partner and children, in words."""

    parents: Line
    partner: Line
    children: Line


class LifeGoal(Record):
    """What the person wants to reach in life."""

    kind: Name
    statement: Line
    motivation: Line
    target: Line


class FixedPart(Record):
    """What does not change over the sessions (HaluMem, stage 1)."""

    name: Name
    gender: Name
    birth_date: date
    location: Name
    degree: Name
    major: Name
    mbti: Annotated[str, StringConstraints(pattern="^[EI][SN][TF][JP]$")]
    traits: Annotated[tuple[Name, ...], Field(min_length=1, max_length=6)]
    family: Family
    life_goal: LifeGoal


class Career(Record):
    """Work at the time of the first memories; amounts in the currency of the place, per month and in all."""

    status: Name
    industry: Name
    employer: Name
    job: Name
    monthly_income: Annotated[int, Field(ge=0, le=10_000_000)]
    savings: Annotated[int, Field(ge=0, le=1_000_000_000)]
    description: Paragraph


class Health(Record):
    """Health at the time of the first memories; conditions are empty if there are none."""

    physical: Name
    physical_conditions: Line
    mental: Name
    mental_conditions: Line
    reason: Paragraph


class Relationship(Record):
    """Somebody whom the person knows, by full name."""

    name: Name
    kind: Name
    description: Line


class DynamicPart(Record):
    """What events may change (HaluMem, stage 1)."""

    career: Career
    health: Health
    relationships: Annotated[tuple[Relationship, ...], Field(max_length=6)]


class Preference(Record):
    """Something that is liked or disliked, and why."""

    item: Line
    reason: Line


class PreferenceGroup(Record):
    """Likes and dislikes of one kind, for example ``music``."""

    category: Name
    likes: Annotated[tuple[Preference, ...], Field(max_length=5)]
    dislikes: Annotated[tuple[Preference, ...], Field(max_length=5)]


class Preferences(Record):
    """The preference part (HaluMem, stage 1)."""

    groups: Annotated[tuple[PreferenceGroup, ...], Field(max_length=10)]


class Fact(Record):
    """One atomic fact about the person.

    Attributes:
        text: The memory sentence, in the third person; begins with the person's name.
        keywords: What a faithful memory must contain; each occurs in `text`.
    """

    text: Line
    keywords: Keywords


class TrackedFact(Fact):
    """A fact that an event may change.

    Attributes:
        track: Its stream; None for a fact of no stream (family, education), which events leave alone.
        subject: The full name (relationship) or the category (preference) that it is about; empty in other tracks.
    """

    track: Track | None
    subject: Name


class Profile(Record):
    """Stage 1: who the person is, and what is remembered of them before the first session.

    Attributes:
        persona: The seed.
        fixed: What does not change.
        dynamic: What may change.
        preferences: Likes and dislikes.
        start: Time that the initial memories carry; every event is later.
        initial: The facts of the initial memory state S0.
    """

    persona: Persona
    fixed: FixedPart
    dynamic: DynamicPart
    preferences: Preferences
    start: datetime
    initial: tuple[TrackedFact, ...]

    @property
    def name(self) -> str:
        """How memories name the person."""
        return self.fixed.name
