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
        return _STAGES[self]


_STAGES = {
    Unit.FIXED: "profile",
    Unit.DYNAMIC: "profile",
    Unit.PREFERENCES: "profile",
    Unit.INITIAL: "profile",
    Unit.EVENTS: "events",
    Unit.LINKS: "memories",
    Unit.EVOLUTION: "memories",
    Unit.FILLING: "memories",
    Unit.REVISION: "memories",
    Unit.DIALOGUE: "dialogue",
    Unit.EXTRACTION: "dialogue",
    Unit.CONTRADICTIONS: "dialogue",
}

REVIEWS = (Unit.EXTRACTION, Unit.CONTRADICTIONS)
"""Units that a writer does by itself for a dialogue that keeps all other rules."""

AnswerT = TypeVar("AnswerT", bound=Record)


class Task(Record, Generic[AnswerT]):
    """What a writer is told; ``prompts/<unit>.md`` explains every field.

    Attributes:
        unit: The kind; names the prompt file and the rules.
        answer: The type of the answer.
    """

    unit: ClassVar[Unit]
    answer: ClassVar[type[Record]]


# --- answers that are not records of their own -----------------------------------------------------------------------------


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


# --- tasks -----------------------------------------------------------------------------------------------------------------


class FixedTask(Task[FixedPart]):
    """Enrich and correct a drafted fixed part against the persona seed; name, gender and birth date stay."""

    unit: ClassVar = Unit.FIXED
    answer: ClassVar = FixedPart

    persona: Line
    draft: FixedPart


class DynamicTask(Task[DynamicPart]):
    """Enrich and correct a drafted dynamic part; the number of relationships and their names stay."""

    unit: ClassVar = Unit.DYNAMIC
    answer: ClassVar = DynamicPart

    persona: Line
    fixed: FixedPart
    today: date
    draft: DynamicPart
    limits: ProfileLimits


class PreferencesTask(Task[Preferences]):
    """Find likes and dislikes in the given categories."""

    unit: ClassVar = Unit.PREFERENCES
    answer: ClassVar = Preferences

    persona: Line
    fixed: FixedPart
    dynamic: DynamicPart
    categories: tuple[str, ...]
    limits: ProfileLimits


class InitialTask(Task[InitialFacts]):
    """State what is remembered of the person before the first session (the initial memory state S0).

    Attributes:
        plans: One for each fact, in their order; empty leaves them to the writer.
    """

    unit: ClassVar = Unit.INITIAL
    answer: ClassVar = InitialFacts

    fixed: FixedPart
    dynamic: DynamicPart
    preferences: Preferences
    counts: InitialCounts
    limits: FactLimits
    plans: tuple[FactPlan, ...] = ()


class KnownFact(TrackedFact):
    """A fact as it holds before the events of a task, and how often events have changed it so far."""

    updates: int


class EventsTask(Task[Events]):
    """Write the events of the given slots, in order."""

    unit: ClassVar = Unit.EVENTS
    answer: ClassVar = Events

    fixed: FixedPart
    dynamic: DynamicPart
    preferences: Preferences
    facts: tuple[KnownFact, ...]
    past: tuple[PastEvent, ...]
    names: tuple[str, ...]
    slots: tuple[EventSlot, ...]
    limits: EventLimits
    fact_limits: FactLimits


class LinksTask(Task[Links]):
    """Find groups of semantically related events; an event belongs to one group at most."""

    unit: ClassVar = Unit.LINKS
    answer: ClassVar = Links

    name: str
    events: tuple[PastEvent, ...]
    groups: Range
    events_per_group: Range


class EvolutionTask(Task[Evolution]):
    """Let one memory anchor evolve over the events of a group."""

    unit: ClassVar = Unit.EVOLUTION
    answer: ClassVar = Evolution

    fixed: FixedPart
    thread: Line
    events: tuple[PastEvent, ...]
    known: tuple[str, ...]
    limits: FactLimits


class FillingTask(Task[Filling]):
    """State the further facts of an event that its deltas and memory threads leave out.

    Attributes:
        today: Date of the session.
        plans: One for each fact, in their order; empty leaves them to the writer.
    """

    unit: ClassVar = Unit.FILLING
    answer: ClassVar = Filling

    fixed: FixedPart
    past: tuple[PastEvent, ...]
    event: LifeEvent
    existing: tuple[str, ...]
    count: Range
    limits: FactLimits
    today: date
    plans: tuple[FactPlan, ...] = ()


class RevisionTask(Task[Revision]):
    """Let memories change over later sessions; several of them change together, by one statement.

    Attributes:
        memories: As they were before.
        steps: The plan, in order of time.
        known: What is remembered besides, first of all what is close to the memories; it stays as it is.
    """

    unit: ClassVar = Unit.REVISION
    answer: ClassVar = Revision

    fixed: FixedPart
    memories: tuple[Fact, ...]
    steps: tuple[PlannedRevision, ...]
    known: tuple[str, ...]
    limits: FactLimits


class DialogueTask(Task[Dialogue]):
    """Write the session in which the user tells an assistant about an event, or about nothing in particular.

    Attributes:
        facts: In the order of the story, which is not that of the operations.
        asides: What else comes up; it states no fact.
        known: What is remembered before the session, as far as it is close to it and the session leaves it alone.
        voice: How the user writes, and what else turns up.
    """

    unit: ClassVar = Unit.DIALOGUE
    answer: ClassVar = Dialogue

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


class ExtractionTask(Task[Extraction]):
    """List everything that the user of a dialogue states about their life, without knowing what is to be remembered."""

    unit: ClassVar = Unit.EXTRACTION
    answer: ClassVar = Extraction

    name: Name
    today: date
    turns: tuple[Exchange, ...]


class ContradictionsTask(Task[Contradictions]):
    """Find what the user of a dialogue says against themselves, or against what is remembered.

    Attributes:
        remembered: Texts that hold before and after.
        changed: Texts and values that the session replaces on purpose.
    """

    unit: ClassVar = Unit.CONTRADICTIONS
    answer: ClassVar = Contradictions

    name: Name
    today: date
    remembered: tuple[str, ...]
    changed: tuple[str, ...]
    turns: tuple[Exchange, ...]


TASKS: tuple[type[Task[Record]], ...] = (
    FixedTask,
    DynamicTask,
    PreferencesTask,
    InitialTask,
    EventsTask,
    LinksTask,
    EvolutionTask,
    FillingTask,
    RevisionTask,
    DialogueTask,
    ExtractionTask,
    ContradictionsTask,
)  # type: ignore[assignment]
"""All kinds of tasks, in the order of `Unit`."""

# --- what a writer is ------------------------------------------------------------------------------------------------------


class Violation(NamedTuple):
    """A broken rule and what exactly is wrong."""

    rule: str
    message: str


class Verdict(NamedTuple):
    """What the rules say of one answer: which were checked, and what is wrong."""

    checked: tuple[str, ...]
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class UnitId:
    """Where in the data set a unit belongs.

    Attributes:
        person: Number of the person; the lower, the earlier its units are asked for.
        step: How far the unit is in the person's life; the higher, the earlier, so that people get finished.
        name: Unique in the data set, for example ``p000012/dialogue/7``; draws depend on it.
    """

    person: int
    step: int
    name: str


@dataclass(frozen=True, slots=True)
class UnitResult(Generic[AnswerT]):
    """What became of a unit.

    Attributes:
        answer: None if every attempt broke rules.
        verdicts: Of each attempt, the last one's violations being empty if there is an answer.
        prompt_tokens: Of all attempts, now or in an earlier run.
        completion_tokens: Likewise, thinking included.
        reasoning_tokens: Likewise, of thinking alone, as far as the server says.
        spent_tokens: Completion tokens that were paid for in this run; 0 if every attempt was found on disk.
        partial: If every attempt broke rules, the one that broke the fewest of those that could be read.
        reviews: Units that the writer did for this one (`REVIEWS`); their tokens are not among this one's.
    """

    answer: AnswerT | None
    verdicts: tuple[Verdict, ...]
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

        Raises:
            DeltaMemError: If no answer can be got at all, for example because the endpoint does not answer.
        """
        ...
