"""Rules of stage 2: events against their plan, and how they are told (paper, appendix A)."""

# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date

from deltamem.text.words import content_stems
from synth.records import Change, EventSlot, LifeEvent, Participant, PlannedChange, Track
from synth.rules.base import Case, Rule, rule
from synth.rules.deltas import DELTAS
from synth.rules.wording import folded, occurs, repeated
from synth.tasks import Events, EventsTask, PastEvent, Unit

EventsCase = Case[EventsTask, Events]


def new_people(names: Iterable[str], events: Iterable[LifeEvent]) -> Iterator[tuple[LifeEvent, Participant]]:
    """The participants who are named for the first time, with their event."""
    known = set(names)
    for event in events:
        for participant in event.participants:
            if participant.name not in known:
                known.add(participant.name)
                yield event, participant


def introduces(event: LifeEvent, name: str) -> bool:
    """Whether an event has a new relationship fact about somebody, who is its subject if it has one."""
    return any(
        delta.subject == name if delta.subject else occurs(name, delta.text)
        for delta in event.changes
        if delta.track is Track.RELATIONSHIP and delta.change is Change.NEW
    )


def _planned(case: EventsCase) -> Iterator[tuple[EventSlot, LifeEvent]]:
    slots = {slot.index: slot for slot in case.task.slots}
    return ((slots[event.index], event) for event in case.answer.events if event.index in slots)


# --- the plan --------------------------------------------------------------------------------------------------------------


@rule(Unit.EVENTS, "There is one event a slot, in order, with the slot's index.")
def one_per_slot(case: EventsCase) -> Iterator[str]:
    expected = [slot.index for slot in case.task.slots]
    found = [event.index for event in case.answer.events]
    if found != expected:
        yield f"the events must have the indices {expected}, one each and in this order, but have {found}"


@rule(Unit.EVENTS, "Each event takes place in its slot's time.")
def date_in_slot(case: EventsCase) -> Iterator[str]:
    for slot, event in _planned(case):
        if not slot.not_before <= event.date <= slot.not_after:
            yield f"event {event.index} must be from {slot.not_before} to {slot.not_after}, but is on {event.date}"


@rule(Unit.EVENTS, "Each event is later than the one before.")
def dates_increase(case: EventsCase) -> Iterator[str]:
    before = max((past.date for past in case.task.past), default=date.min)
    for event in case.answer.events:
        if event.date <= before:
            yield f"event {event.index} must be later than {before}, the date of the event before, but is on {event.date}"
        before = event.date


@rule(Unit.EVENTS, "Each event is of its slot's domain.")
def domain(case: EventsCase) -> Iterator[str]:
    for slot, event in _planned(case):
        if event.domain is not slot.domain:
            yield f"event {event.index} must be of the domain {slot.domain}, but is of {event.domain}"


@rule(Unit.EVENTS, "Events that are planned to serve the life goal do.")
def life_goal(case: EventsCase) -> Iterator[str]:
    for slot, event in _planned(case):
        if slot.life_goal and not event.serves_life_goal:
            yield f"event {event.index} must serve the life goal and say so in serves_life_goal"


@rule(Unit.EVENTS, "An event that serves the life goal takes up its words.")
def life_goal_told(case: EventsCase) -> Iterator[str]:
    wanted = [event for event in case.answer.events if event.serves_life_goal]
    if not wanted:
        return
    goal = case.task.fixed.life_goal
    stems = content_stems(f"{goal.kind} {goal.statement} {goal.target}") - content_stems(case.task.fixed.name)
    for event in wanted:
        told = " ".join((event.title, event.narrative, event.result, *event.grounding, *event.follow_ups))
        if stems and not stems & content_stems(told):
            yield f"event {event.index} must tell what it has to do with the life goal {goal.statement!r}"


@rule(Unit.EVENTS, "Each event makes exactly the changes that are planned for it.")
def planned_changes(case: EventsCase) -> Iterator[str]:
    for slot, event in _planned(case):
        found = Counter((delta.track, delta.change) for delta in event.changes)
        fixed = Counter((planned.track, planned.change) for planned in slot.changes if planned.track is not None)
        free = Counter(planned.change for planned in slot.changes if planned.track is None)
        rest = found - fixed
        if fixed - found or Counter(change for _, change in rest.elements()) != free:
            made = ", ".join(f"{delta.track} {delta.change}" for delta in event.changes) or "none"
            yield f"event {event.index} must make these changes: {_plan(slot.changes)}; but makes: {made}"


def _plan(changes: Iterable[PlannedChange]) -> str:
    return ", ".join(f"{planned.track or 'any track'} {planned.change}" for planned in changes) or "none"


# --- the telling -----------------------------------------------------------------------------------------------------------


@rule(Unit.EVENTS, "Each narrative keeps to the length asked for.")
def narrative_words(case: EventsCase) -> Iterator[str]:
    expected = case.task.limits.narrative_words
    for event in case.answer.events:
        found = len(event.narrative.split())
        if found not in expected:
            yield f"the narrative of event {event.index} must have {expected} words, but has {found}"


@rule(Unit.EVENTS, "An event with a narrative has a title, a result and an emotion.")
def outcome_told(case: EventsCase) -> Iterator[str]:
    for event in case.answer.events:
        for field in ("title", "result", "emotion"):
            if event.narrative and not getattr(event, field):
                yield f"event {event.index}: {field} must not be empty"


@rule(Unit.EVENTS, "Each event is tied to the profile as often as asked for.")
def grounding(case: EventsCase) -> Iterator[str]:
    expected = case.task.limits.grounding
    for event in case.answer.events:
        found = sum(1 for text in event.grounding if text)
        if found < expected:
            yield f"event {event.index} must have at least {expected} grounding texts, but has {found}"


@rule(Unit.EVENTS, "No two events of a life have the same title or narrative.")
def events_distinct(case: EventsCase) -> Iterator[str]:
    told: list[PastEvent | LifeEvent] = [*case.task.past, *case.answer.events]
    for title in repeated(event.title for event in told if event.title):
        yield f"the title {title!r} is that of an earlier event"
    for narrative in repeated(event.narrative for event in told if event.narrative):
        yield f"the narrative {narrative[:60]!r}... is that of an earlier event"


@rule(Unit.EVENTS, "Known facts are not copied into the telling of an event.")
def told_anew(case: EventsCase) -> Iterator[str]:
    known = [(fact.text, folded(fact.text).rstrip(".!?")) for fact in case.task.facts]
    for event in case.answer.events:
        told = folded("\n".join((event.title, event.narrative, event.result, event.emotion, *event.grounding)))
        for text, wording in known:
            if wording in told:
                yield f"event {event.index} must tell in its own words, but copies the known fact {text!r}"


# --- participants ----------------------------------------------------------------------------------------------------------


@rule(Unit.EVENTS, "Participants are other people, each named once an event, with their relationship to the person.")
def participants(case: EventsCase) -> Iterator[str]:
    for event in case.answer.events:
        for name in repeated((case.task.fixed.name, *(participant.name for participant in event.participants))):
            yield f"event {event.index}: participant {name!r} must be somebody else than the person and be named once"
        for participant in event.participants:
            if not participant.relationship:
                yield f"event {event.index}: the relationship of participant {participant.name!r} must not be empty"


@rule(Unit.EVENTS, "Somebody who is named for the first time is introduced by a new relationship fact of the same event.")
def newcomers_introduced(case: EventsCase) -> Iterator[str]:
    for event, participant in new_people(case.task.names, case.answer.events):
        if not introduces(event, participant.name):
            yield (
                f"event {event.index}: participant {participant.name!r} is named for the first time, which takes a new"
                " relationship change about them in the same event, if one is planned; else leave them out"
            )


EVENTS: tuple[Rule, ...] = (
    one_per_slot,
    date_in_slot,
    dates_increase,
    domain,
    life_goal,
    life_goal_told,
    planned_changes,
    narrative_words,
    outcome_told,
    grounding,
    events_distinct,
    told_anew,
    participants,
    newcomers_introduced,
    *DELTAS,
)
