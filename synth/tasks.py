"""The kinds of units that writers do: what each is told (a task), what it answers, and what a writer is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from pydantic import Field

from synth.config import DialogueLimits, EventLimits, FactLimits, InitialCounts, ProfileLimits, Range
from synth.records import (
    Aside,
    Dialogue,
    DynamicPart,
    EventGroup,
    EventSlot,
    Evolution,
    Exchange,
    Fact,
    FactPlan,
    FixedPart,
    LifeEvent,
    Line,
    Name,
    Paragraph,
    PastEvent,
    PlannedRevision,
    Preferences,
    Record,
    Revision,
    SaidFact,
    SessionFact,
    TrackedFact,
    Voice,
)


class Unit(StrEnum):
    """The kinds of units, in the order of a person's life; the last two (`REVIEWS`) are done only where asked for."""

    FIXED = "fixed"
    DYNAMIC = "dynamic"
    PREFERENCES = "preferences"
    INITIAL = "initial"
    EVENTS = "events"
    LINKS = "links"
    EVOLUTION = "evolution"
    FILLING = "filling"
    REVISION = "revision"
    DIALOGUE = "dialogue"
    EXTRACTION = "extraction"
    CONTRADICTIONS = "contradictions"

    @property
    def stage(self) -> str:
        """The stage of the paper that it belongs to: ``profile``, ``events``, ``memories`` or ``dialogue``."""
        order = list(Unit)
        return next(stage for stage, last in _LAST_OF_STAGE.items() if order.index(self) <= order.index(last))


_LAST_OF_STAGE = {
    "profile": Unit.INITIAL, "events": Unit.EVENTS, "memories": Unit.REVISION, "dialogue": Unit.CONTRADICTIONS,
}  # fmt: skip


REVIEWS = (Unit.EXTRACTION, Unit.CONTRADICTIONS)
"""Units that a writer does by itself for a dialogue that keeps all other rules."""

AnswerT = TypeVar("AnswerT", bound=Record)


class Task(Record, Generic[AnswerT]):
    """What a writer is told; ``prompts/<unit>.md`` explains every field. `unit` names the prompt file and the rules."""

    unit: ClassVar[Unit]
    answer: ClassVar[type[Record]]

    def __init_subclass__(cls, *, unit: Unit | None = None, answer: type[Record] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if unit is not None and answer is not None:
            cls.unit, cls.answer = unit, answer
            TASKS[unit] = cls


TASKS: dict[Unit, type[Task[Any]]] = {}
"""All kinds of tasks, in the order of `Unit`."""


class InitialFacts(Record):
    """Answer of `InitialTask`."""

    facts: Annotated[tuple[TrackedFact, ...], Field(max_length=60)]


class Events(Record):
    """Answer of `EventsTask`."""

    events: Annotated[tuple[LifeEvent, ...], Field(max_length=60)]


class Links(Record):
    """Answer of `LinksTask`."""

    groups: Annotated[tuple[EventGroup, ...], Field(max_length=10)]


class Filling(Record):
    """Answer of `FillingTask`: further facts of an event, and what the user wants from talking about it."""

    goal: Line
    summary: Paragraph
    facts: Annotated[tuple[SaidFact, ...], Field(max_length=20)]


Turn = Annotated[int, Field(ge=1, le=99)]


class StatedFact(Record):
    """What the user states in one turn, in a memory's words."""

    turn: Turn
    text: Line


class Extraction(Record):
    """Answer of `ExtractionTask`."""

    facts: Annotated[tuple[StatedFact, ...], Field(max_length=80)]


class Contradiction(Record):
    """Two statements that cannot both be true, and the turn that is to be changed."""

    turn: Turn
    reason: Line


class Contradictions(Record):
    """Answer of `ContradictionsTask`."""

    found: Annotated[tuple[Contradiction, ...], Field(max_length=20)]


class FixedTask(Task[FixedPart], unit=Unit.FIXED, answer=FixedPart):
    """Enrich and correct a drafted fixed part against the persona seed; name, gender and birth date stay."""

    persona: Line
    draft: FixedPart


class DynamicTask(Task[DynamicPart], unit=Unit.DYNAMIC, answer=DynamicPart):
    """Enrich and correct a drafted dynamic part; the number of relationships and their names stay."""

    persona: Line
    fixed: FixedPart
    today: date
    draft: DynamicPart
    limits: ProfileLimits


class PreferencesTask(Task[Preferences], unit=Unit.PREFERENCES, answer=Preferences):
    """Find likes and dislikes in the given categories."""

    persona: Line
    fixed: FixedPart
    dynamic: DynamicPart
    categories: tuple[str, ...]
    limits: ProfileLimits


class InitialTask(Task[InitialFacts], unit=Unit.INITIAL, answer=InitialFacts):
    """State what is remembered before the first session (S0); `plans`, if any, are one for each fact, in order."""

    fixed: FixedPart
    dynamic: DynamicPart
    preferences: Preferences
    counts: InitialCounts
    limits: FactLimits
    plans: tuple[FactPlan, ...] = ()


class KnownFact(TrackedFact):
    """A fact as it holds before the events of a task, and how often events have changed it so far."""

    updates: int


class EventsTask(Task[Events], unit=Unit.EVENTS, answer=Events):
    """Write the events of the given slots, in order."""

    fixed: FixedPart
    dynamic: DynamicPart
    preferences: Preferences
    facts: tuple[KnownFact, ...]
    past: tuple[PastEvent, ...]
    names: tuple[str, ...]
    slots: tuple[EventSlot, ...]
    limits: EventLimits
    fact_limits: FactLimits


class LinksTask(Task[Links], unit=Unit.LINKS, answer=Links):
    """Find groups of semantically related events; an event belongs to one group at most."""

    name: str
    events: tuple[PastEvent, ...]
    groups: Range
    events_per_group: Range


class EvolutionTask(Task[Evolution], unit=Unit.EVOLUTION, answer=Evolution):
    """Let one memory anchor evolve over the events of a group."""

    fixed: FixedPart
    thread: Line
    events: tuple[PastEvent, ...]
    known: tuple[str, ...]
    limits: FactLimits


class FillingTask(Task[Filling], unit=Unit.FILLING, answer=Filling):
    """State the further facts of an event, told on `today`; `plans`, if any, are one for each fact, in order."""

    fixed: FixedPart
    past: tuple[PastEvent, ...]
    event: LifeEvent
    existing: tuple[str, ...]
    count: Range
    limits: FactLimits
    today: date
    plans: tuple[FactPlan, ...] = ()


class RevisionTask(Task[Revision], unit=Unit.REVISION, answer=Revision):
    """Let memories change over later sessions, by a plan in order of time; several change together, by one statement.

    `known` is what is remembered besides, first of all what is close to the memories; it stays as it is.
    """

    fixed: FixedPart
    memories: tuple[Fact, ...]
    steps: tuple[PlannedRevision, ...]
    known: tuple[str, ...]
    limits: FactLimits


class DialogueTask(Task[Dialogue], unit=Unit.DIALOGUE, answer=Dialogue):
    """Write the session in which the user tells an assistant about an event, or about nothing in particular.

    Facts are in the order of the story, which is not that of the operations; asides state none. `known` is remembered before
    the session, as far as it is close to it and the session leaves it alone.
    """

    fixed: FixedPart
    today: date
    goal: Line
    summary: Paragraph
    past: tuple[PastEvent, ...]
    event: LifeEvent
    facts: tuple[SessionFact, ...]
    limits: DialogueLimits
    asides: tuple[Aside, ...] = ()
    known: tuple[str, ...] = ()
    voice: Voice = Voice()


class ExtractionTask(Task[Extraction], unit=Unit.EXTRACTION, answer=Extraction):
    """List everything that the user of a dialogue states about their life, without knowing what is to be remembered."""

    name: Name
    today: date
    turns: tuple[Exchange, ...]


class ContradictionsTask(Task[Contradictions], unit=Unit.CONTRADICTIONS, answer=Contradictions):
    """Find what the user of a dialogue says against themselves, or against what is `remembered` before and after.

    `changed` are texts and values that the session replaces on purpose.
    """

    name: Name
    today: date
    remembered: tuple[str, ...]
    changed: tuple[str, ...]
    turns: tuple[Exchange, ...]


class RuleViolation(NamedTuple):
    """A broken rule and what exactly is wrong."""

    rule: str
    message: str


class RuleVerdict(NamedTuple):
    """What the rules say of one answer: which were checked, and what is wrong."""

    checked: tuple[str, ...]
    violations: tuple[RuleViolation, ...]


@dataclass(frozen=True, slots=True)
class UnitId:
    """Where a unit belongs: people of lower number, then units of higher step, are asked for first.

    `name` is unique in the data set, for example ``p000012/dialogue/7``; draws depend on it.
    """

    person: int
    step: int
    name: str


@dataclass(frozen=True, slots=True)
class UnitResult(Generic[AnswerT]):
    """What became of a unit.

    There is no answer if every attempt broke rules; `partial` is then the readable one that broke the fewest. Tokens are of
    all attempts, now or in an earlier run; `spent_tokens` are completion tokens that were paid for in this run. `reviews`
    are units that the writer did for this one (`REVIEWS`), with tokens of their own.
    """

    answer: AnswerT | None
    verdicts: tuple[RuleVerdict, ...]
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    spent_tokens: int = 0
    partial: AnswerT | None = None
    reviews: tuple[tuple[Unit, UnitResult[Any]], ...] = ()


Observer = Callable[[Unit, UnitResult[Any]], None]
"""Told of each unit when it is done."""


class Writer(Protocol):
    """Answers tasks. The same task at the same place gets the same answer from the same writer."""

    @property
    def making(self) -> Mapping[str, Any]:
        """What answers depend on besides the task: kind of writer, prompt hashes, model, sampling, seed. Plain JSON."""
        ...

    async def write(self, task: Task[AnswerT], place: UnitId) -> UnitResult[AnswerT]:
        """Answer a task.

        Raises `DeltaMemError` if no answer can be got at all, for example because the endpoint does not answer.
        """
        ...
