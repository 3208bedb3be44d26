"""The configuration of ``python -m synth``, typed: sizes, personas, the language model, the run."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from deltamem.config import StrictModel
from deltamem.sessions import FactKind, Provenance, Signal
from synth.records import Domain, FactChange, Track


class Range(StrictModel):
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


class FactLimits(StrictModel):
    """Of one memory sentence: its words, how many keywords it has, and the words of a keyword."""

    words: Range
    keywords: Range
    keyword_words: Range


class ProfileLimits(StrictModel):
    """Of the profile: people known at the start, categories of preferences, likes and dislikes of each, length of names."""

    relationships: Range
    categories: Range
    items: Range
    name_syllables: int = Field(default=2, ge=1, le=2)


class InitialCounts(StrictModel):
    """Facts of the initial memory state, in all, by track, and of none; the share of people who begin without any."""

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


class EventLimits(StrictModel):
    """Of an event.

    `grounding` is how often it is tied to the profile at least, `updates_per_fact` how often events may change one fact
    (None: no limit), `kept_stems` the share of the old text's content words that an EXPAND or ADJUST keeps at least,
    `subjects` whether a relationship or preference fact names its subject, `memory` whether the event itself is remembered.
    """

    narrative_words: Range
    grounding: int = Field(ge=0)
    updates_per_fact: int | None = Field(ge=1)
    kept_stems: float = Field(ge=0, le=1)
    subjects: bool
    memory: bool = False


Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]


class Lateness(StrictModel):
    """The share of sessions that come some days after their event, and how many days: fewer where the next event is near."""

    late: Share
    days_after: Range


class Quotas(Lateness):
    """Changes by quota, as the paper plans them (``configs/shape/paper.yaml``); numbers are for 25 events and are scaled."""

    kind: Literal["quotas"]
    changes: dict[Track, Range]
    balance: int = Field(ge=0)
    domains: dict[Domain, Annotated[int, Field(ge=0)]]
    life_goal_events: int = Field(ge=0)
    reused: Range


class Demands(Lateness):
    """Changes that must be told apart from news, among similar memories (``configs/shape/demanding.yaml``).

    `kinds` are the shares of what facts tell, besides those that events change; none: any will do.
    """

    kind: Literal["demanding"]
    updates: Share
    repeats: Share
    idle: Share
    changes: Range
    rivals: int = Field(ge=0, le=3)
    families: Share
    dated: Share
    temporary: Share
    provenances: dict[Provenance, Weight]
    signals: dict[Signal, Weight]
    operators: dict[FactChange, Weight]
    chains: dict[Annotated[int, Field(ge=1, le=4)], Weight]
    together: Share
    asides: Range
    kinds: dict[FactKind, Weight] = Field(default={})

    @property
    def scripted(self) -> Demands:
        """The plan without what templates cannot tell: dates, what others say, and changes that follow or do not replace."""
        told: dict[str, Collection[str]] = {
            "provenances": ("said", "assistant_confirmed", "self_corrected"),
            "signals": ("explicit", "value"),
            "operators": (FactChange.ADJUST, FactChange.RETRACT),
        }
        kept = {
            name: {key: weight for key, weight in getattr(self, name).items() if key in keys} for name, keys in told.items()
        }
        return self.model_copy(update={**kept, "dated": 0.0, "temporary": 0.0, "together": 0.0})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.updates + self.repeats > 0.8:
            raise ValueError("updates and repeats must not add up to more than 0.8")
        if self.dated + self.temporary > 1:
            raise ValueError("dated and temporary must not add up to more than 1")
        for name in ("provenances", "signals", "operators", "chains", *(("kinds",) if self.kinds else ())):
            if not any(getattr(self, name).values()):
                raise ValueError(f"{name}: one weight at least must be above 0")
        if barred := {FactChange.NEW, FactChange.EXPIRE} & self.operators.keys():
            raise ValueError(f"operators: {', '.join(sorted(barred))} cannot be drawn")
        if not all(self.signals.get(signal) for signal in ("explicit", "value")):
            raise ValueError("signals: explicit and value must have a weight above 0")
        if not self.provenances.get("said"):
            raise ValueError("provenances: said must have a weight above 0")
        return self


MOST_INTRODUCED = 36
"""With the rest of its last scene an introduction has up to the 40 facts of a `synth.records.Dialogue`."""


class Everyday(StrictModel):
    """What lives that are put together from scenes are made of (``configs/shape/demanding.yaml``)."""

    kinds: dict[FactKind, Weight]
    initial: Range
    newcomers: Share
    introductions: Share
    introduced: Range
    facts: Range
    turns: Range
    chat: Share
    in_one_breath: Share
    updates: Share
    repeats: Share
    idle: Share
    friends: Share
    guessed: Share
    stated: Share
    false_recalls: Share
    families: Share
    first_names: Share

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not any(self.kinds.values()):
            raise ValueError("kinds: one weight at least must be above 0")
        if self.introduced.max > MOST_INTRODUCED:
            raise ValueError(
                f"introduced: max is {self.introduced.max}, and an introduction has up to {MOST_INTRODUCED} facts"
            )
        return self


class DialogueLimits(StrictModel):
    """Of a dialogue; `verbatim` is whether the user may say a memory sentence word for word.

    `chat` is the share of turns without a fact that a language model aims at; 0: facts spread evenly.
    """

    turns: Range
    facts_per_turn: int = Field(ge=1)
    assistant_words: Range
    verbatim: bool
    chat: Share = 0.0


class Shape(StrictModel):
    """All sizes; `years` and `groups` are for 25 events and are scaled. Dialogues may mention the `past_events` latest."""

    profile: ProfileLimits
    initial: InitialCounts
    facts: FactLimits
    events: EventLimits
    plan: Annotated[Quotas | Demands, Field(discriminator="kind")]
    years: Range
    days_between: Range
    groups: Range
    events_per_group: Range
    events_per_call: int = Field(ge=1)
    past_events: int = Field(ge=0)
    filling: Range
    dialogue: DialogueLimits
    everyday: Everyday | None = None
    """The offline writer puts lives together from scenes by this; of the rest only `days_between` counts then."""

    @property
    def scripted(self) -> Shape:
        """The shape without what templates cannot tell (`Demands.scripted`)."""
        return self.model_copy(update={"plan": self.plan.scripted}) if isinstance(self.plan, Demands) else self


Source = Literal["generated", "file", "personahub"]

LICENCES: dict[Source, str] = {
    "generated": "The persona seeds are generated by this project, whose licence is Apache-2.0; nothing of other "
    "collections is in them, and they put no terms on data derived from them.",
    "file": "The persona seeds come from a local file; its terms are not known here and may bind derived data. Find them "
    "out before you pass the data on.",
    "personahub": "The persona seeds come from PersonaHub (proj-persona/PersonaHub), CC BY-NC-SA 4.0: name the source, no "
    "commercial use, and data derived from them inherit these terms (NC and SA).",
}
"""What a data set says of the terms of its persona seeds, by `PersonaSettings.source`."""

PERSONAHUB = "proj-persona/PersonaHub"


class PersonaSettings(StrictModel):
    """Where persona seeds come from (``configs/synth.yaml``)."""

    source: Source = "generated"
    path: str | None = Field(default=None, min_length=1)
    revision: str | None = None
    column: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.source == "file" and self.path is None:
            raise ValueError("source=file needs a path")
        if self.source == "generated" and self.path is not None:
            raise ValueError("source=generated reads no path; name source=file or source=personahub")
        return self


Structured = Literal["json_schema", "json_object", "none"]
"""What ``response_format`` a server is asked for; `none` leaves it to the prompt and the parser."""


class LLMSettings(StrictModel):
    """The language model, how it is asked, and how its answers are mended (``configs/synth.yaml``)."""

    base_urls: tuple[str, ...]
    model: Annotated[str, Field(min_length=1)]
    api_key_env: str = "OPENAI_API_KEY"
    slots: Annotated[int, Field(ge=1)] = 64
    timeout: Annotated[float, Field(gt=0)] = 1800.0
    max_retries: Annotated[int, Field(ge=0)] = 4
    temperature: Annotated[float, Field(ge=0)] | None = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = 1.0
    reasoning_effort: Literal["high", "medium", "low"] | None = "high"
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    structured: Literal["auto"] | Structured = "auto"
    repairs: Annotated[int, Field(ge=0)] = 2
    patience: Annotated[float, Field(ge=0)] = 900.0
    narrative_words: Annotated[int, Field(ge=0, le=160)] = 110
    cards: bool | None = None
    extraction: bool = False
    contradictions: bool = False
    extra_body: dict[str, Any] = Field(default={})

    @property
    def body(self) -> dict[str, Any]:
        """The fields of a request that the OpenAI client has no argument for, or that not every server knows."""
        own = {"top_p": self.top_p, "reasoning_effort": self.reasoning_effort}
        return {name: value for name, value in own.items() if value is not None} | self.extra_body

    @property
    def sampling(self) -> dict[str, Any]:
        """What answers depend on besides the messages, the schema and the seed."""
        return {"temperature": self.temperature, "max_tokens": self.max_tokens, **self.body}


class Shard(NamedTuple):
    """One of `of` equal parts of the people: those whose place in the data set leaves `number` when divided by `of`."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def folder(self) -> str:
        """Name of its folder in ``OUT/shards``; sorts by number."""
        return f"{self.number:0{len(str(self.of))}d}-of-{self.of}"


class EpisodePrompts(StrictModel):
    """Names of the prompt files whose text stands in the parquet rows."""

    system_prompt: str
    session_prompt: str


class EstimateSettings(StrictModel):
    """What ``python -m synth estimate`` assumes; nothing else reads it."""

    sample_people: int = Field(ge=1, le=20)
    characters_per_token: float = Field(gt=0)
    tokenizer: str | None
    reasoning_tokens: dict[Literal["high", "medium", "low", "none"], int]
    answer_scale: float = Field(gt=0)
    repair_rate: float = Field(ge=0, le=1)
    decode_tokens_per_second: float = Field(gt=0)
    prefill_tokens_per_second: float = Field(gt=0)
    slot_tokens_per_second: float = Field(gt=0)
    gpus: int = Field(ge=1)


class SynthSettings(StrictModel):
    """The whole configuration."""

    people: int = Field(ge=1)
    sessions: int = Field(ge=1, le=999)
    writer: Literal["offline", "llm"]
    seed: int
    out: Path
    shard: Shard
    heldout_share: float = Field(gt=0, lt=1)
    shape: Shape
    personas: PersonaSettings
    names: Literal["auto", "invented", "real"]
    embedder: str | None
    llm: LLMSettings | None
    people_at_once: int | None = Field(ge=1)
    progress_seconds: float = Field(gt=0)
    estimate: EstimateSettings
    episode: EpisodePrompts

    @field_validator("shard", mode="before")
    @classmethod
    def _shard(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", value)
        if match is None or int(match[1]) >= int(match[2]):
            raise ValueError("must be i/n with 0 <= i < n, for example 0/8")
        return Shard(int(match[1]), int(match[2]))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.writer == "llm" and self.llm is None:
            raise ValueError("writer=llm needs the group llm")
        if self.shard.of > self.people:
            raise ValueError(f"there are more shards ({self.shard.of}) than people ({self.people})")
        return self

    @property
    def real_names(self) -> bool:
        """Whether people get names that occur; those of templates are invented unless it is told otherwise."""
        return self.names == "real" or (self.names == "auto" and (self.writer == "llm" or self.shape.everyday is not None))

    @property
    def asked_shape(self) -> Shape:
        """The shape as the writer is asked for it.

        A language model draws the further facts of an event from its narrative alone, which has to be long enough to hold
        them; the offline writer draws both from its templates.
        """
        shape = self.shape
        if self.writer == "offline" or self.llm is None:
            return shape.scripted
        words = shape.events.narrative_words
        longer = Range(min=max(words.min, min(self.llm.narrative_words, words.max)), max=words.max)
        return shape.model_copy(update={"events": shape.events.model_copy(update={"narrative_words": longer})})

    @property
    def draws_cards(self) -> bool:
        """Whether topics and voices are drawn for the writer."""
        if self.writer == "offline" or self.llm is None:
            return False
        return isinstance(self.shape.plan, Demands) if self.llm.cards is None else self.llm.cards

    @property
    def slots(self) -> int:
        """Units that can be in work at once."""
        if self.writer == "offline" or self.llm is None:
            return 1
        return self.llm.slots * len(self.llm.base_urls)

    def recipe(self) -> dict[str, Any]:
        """What the records follow from, apart from the writer's own `making`; shards of one data set agree on it."""
        machine = {"out", "shard", "llm", "people_at_once", "progress_seconds", "estimate"}
        return self.model_dump(mode="json", exclude=machine)
