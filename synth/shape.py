"""The sizes of a data set: how many facts, events, changes and turns. Writers are told them, rules hold answers to them.

``configs/shape/paper.yaml`` has the paper's values and, where it is silent, ours; ``configs/shape/tiny.yaml`` has sessions
that a model of a million parameters can learn.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from synth.records import Domain, Track


class Limits(BaseModel):
    """Base of the groups: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Range(Limits):
    """From `min` to `max`, both included."""

    min: int = Field(ge=0)
    max: int = Field(ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) must not be larger than max ({self.max})")
        return self

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.min <= value <= self.max

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min} to {self.max}"


class FactLimits(Limits):
    """Of one memory sentence.

    Attributes:
        words: Words of the sentence.
        keywords: How many keywords.
        keyword_words: Words of a keyword.
    """

    words: Range
    keywords: Range
    keyword_words: Range


class ProfileLimits(Limits):
    """Of the profile.

    Attributes:
        relationships: People that the person knows at the start.
        categories: Categories of preferences.
        items: Likes and dislikes of a category, together.
    """

    relationships: Range
    categories: Range
    items: Range


class InitialCounts(Limits):
    """Facts of the initial memory state: in all, by track, and of no track (`other`).

    `newcomers` is the share of people with none at all, whose first session meets an empty memory bank.
    """

    total: Range
    career: Range
    health: Range
    relationship: Range
    preference: Range
    other: Range
    newcomers: float = Field(ge=0, le=1)

    def of(self, track: Track | None) -> Range:
        """The range of one track; of None, of the facts of no track."""
        found: Range = getattr(self, track or "other")
        return found


class EventLimits(Limits):
    """Of an event.

    Attributes:
        narrative_words: Words of the narrative.
        grounding: Items that tie the event to the profile, at least.
        updates_per_fact: How often events may change one fact over the whole life; None sets no limit.
        kept_stems: Share of the previous text's content words that an EXPAND or ADJUST keeps, at least.
        subjects: Whether a relationship or preference fact names its subject and keeps it.
    """

    narrative_words: Range
    grounding: int = Field(ge=0)
    updates_per_fact: int | None = Field(ge=1)
    kept_stems: float = Field(ge=0, le=1)
    subjects: bool


class Quotas(Limits):
    """Changes by quota, as the paper plans them. The numbers are for 25 events and are scaled to other lengths.

    Attributes:
        changes: Entries a track over the whole life.
        balance: No operator occurs more often than another by more than this.
        domains: Events of a domain, at least.
        life_goal_events: Events that serve the life goal, at least.
        reused: Earlier memories that a session repeats.
    """

    kind: Literal["quotas"]
    changes: dict[Track, Range]
    balance: int = Field(ge=0)
    domains: dict[Domain, Annotated[int, Field(ge=0)]]
    life_goal_events: int = Field(ge=0)
    reused: Range


class Shares(Limits):
    """Changes by chance, each session for itself.

    Attributes:
        facts: Facts of a session.
        update_share: Chance that a fact of a session adjusts a known one.
        repeat_share: Chance that it only repeats a known one.
    """

    kind: Literal["shares"]
    facts: Range
    update_share: float = Field(ge=0, le=1)
    repeat_share: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.update_share + self.repeat_share > 1:
            raise ValueError("update_share and repeat_share must not add up to more than 1")
        return self


class DialogueLimits(Limits):
    """Of a dialogue.

    Attributes:
        turns: Exchanges of a user utterance and an answer (the paper's N_min and N_max).
        facts_per_turn: Facts that the user first says in one turn, at most.
        largest_gap: Turns in a row in which the user says no required fact, at most.
        assistant_words: Words of an answer.
        small_talk: Chance of each of two turns without any fact; only the offline writer heeds it.
        verbatim: Whether the user may say a memory sentence word for word.
    """

    turns: Range
    facts_per_turn: int = Field(ge=1)
    largest_gap: int = Field(ge=0)
    assistant_words: Range
    small_talk: float = Field(ge=0, le=1)
    verbatim: bool


class Shape(Limits):
    """All sizes.

    Attributes:
        years: Length of a life in years, for 25 events; scaled to other numbers.
        days_between: Days from one event to the next.
        groups: Groups of linked events, for 25 events; scaled.
        events_per_group: Events of a group.
        events_per_call: Events that are asked for in one call.
        past_events: Earlier events that memory and dialogue units are told of, the latest ones.
        filling: Further facts of an event; none if both ends are 0.
        profile, initial, facts, events, plan, dialogue: See the groups.
    """

    profile: ProfileLimits
    initial: InitialCounts
    facts: FactLimits
    events: EventLimits
    plan: Annotated[Quotas | Shares, Field(discriminator="kind")]
    years: Range
    days_between: Range
    groups: Range
    events_per_group: Range
    events_per_call: int = Field(ge=1)
    past_events: int = Field(ge=0)
    filling: Range
    dialogue: DialogueLimits
