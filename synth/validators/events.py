"""Rules of stage 2: events against their plan, and the events of a whole life against the quotas of the shape."""
# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date
from itertools import pairwise

from deltamem.text import content_stems
from synth.config import Quotas, Range, Shape, Shares
from synth.planning import scaled, scaled_maximum, scaled_minimum, span_days
from synth.records import Change, EventSlot, LifeEvent, Participant, Person, PlannedChange, Track
from synth.tasks import Events, EventsTask, PastEvent, Unit
from synth.validators.base import Case, Rule, folded, occurs, repeated, rule
from synth.validators.memories import DELTAS, Step, replay

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

LifeCase = Case[Shape, Person]

EARLIEST = date(2026, 1, 1)
"""Every event is later (paper, prompt appendix, "time model")."""


def _steps(case: LifeCase) -> Iterator[Step]:
    profile = case.answer.profile
    return replay(((fact, 0) for fact in profile.initial) if profile else (), case.answer.events)


@rule("life", "There is one event a slot, in order, with the slot's index.", name="one_per_slot")
def life_one_per_slot(case: LifeCase) -> Iterator[str]:
    expected = [slot.index for slot in case.answer.slots]
    found = [event.index for event in case.answer.events]
    if found != expected:
        yield f"the events must have the indices {expected}, one each and in this order, but have {found}"


@rule("life", "Each event is later than the one before.", name="dates_increase")
def life_dates_increase(case: LifeCase) -> Iterator[str]:
    for before, event in pairwise(case.answer.events):
        if event.date <= before.date:
            yield f"event {event.index} must be later than {before.date}, as the event before, but is on {event.date}"


@rule("life", "Events are later than the first of January 2026 and than the initial memories.")
def dates_after_start(case: LifeCase) -> Iterator[str]:
    profile = case.answer.profile
    start = max(EARLIEST, profile.start.date()) if profile else EARLIEST
    for event in case.answer.events:
        if event.date <= start:
            yield f"event {event.index} must be later than {start}, but is on {event.date}"


@rule("life", "The events span the years asked for, as far as their number goes.")
def span(case: LifeCase) -> Iterator[str]:
    events = case.answer.events
    expected, found = span_days(case.task.years, len(events)), (events[-1].date - events[0].date).days
    if found not in expected:
        yield f"the {len(events)} events must span {expected} days, but span {found}"


@rule("life", "Each track has as many changes as its quota.")
def track_quotas(case: LifeCase) -> Iterator[str]:
    plan, events = case.task.plan, case.answer.events
    if isinstance(plan, Quotas):
        found = Counter(delta.track for event in events for delta in event.changes)
        for track in Track:
            expected = scaled(plan.changes.get(track, Range(min=0, max=0)), len(events))
            if found[track] not in expected:
                yield f"track {track} must have {expected} changes in {len(events)} events, but has {found[track]}"


@rule("life", "No kind of change is much more frequent than another.")
def operator_balance(case: LifeCase) -> Iterator[str]:
    plan, events = case.task.plan, case.answer.events
    if isinstance(plan, Quotas):
        found = Counter(delta.change for event in events for delta in event.changes)
        counts = {str(change): found[change] for change in Change}
        limit = scaled_maximum(plan.balance, len(events))
        if max(counts.values()) - min(counts.values()) > limit:
            yield f"the numbers of each kind of change may differ by {limit} at most, but are {counts}"


@rule("life", "Each domain has at least as many events as its quota.")
def domain_quotas(case: LifeCase) -> Iterator[str]:
    plan, events = case.task.plan, case.answer.events
    if isinstance(plan, Quotas):
        found = Counter(event.domain for event in events)
        for domain, count in plan.domains.items():
            expected = scaled_minimum(count, len(events))
            if found[domain] < expected:
                yield f"domain {domain} must have at least {expected} of {len(events)} events, but has {found[domain]}"


@rule("life", "Enough events serve the life goal.")
def life_goal_quota(case: LifeCase) -> Iterator[str]:
    plan, events = case.task.plan, case.answer.events
    if isinstance(plan, Quotas):
        expected = scaled_minimum(plan.life_goal_events, len(events))
        found = sum(event.serves_life_goal for event in events)
        if found < expected:
            yield f"at least {expected} of {len(events)} events must serve the life goal, but {found} do"


@rule("life", "Where changes are drawn by chance, each session has as many facts as asked for.")
def facts_per_session(case: LifeCase) -> Iterator[str]:
    plan = case.task.plan
    if isinstance(plan, Shares):
        for slot, event in zip(case.answer.slots, case.answer.events, strict=False):
            found = len(event.changes) + slot.reused
            if found not in plan.facts:
                yield f"event {event.index} must have {plan.facts} facts, changed or repeated, but has {found}"


@rule("life", "Each update names, word for word, a fact that held before its event, over all calls.")
def previous_text_exact(case: LifeCase) -> Iterator[str]:
    for step in _steps(case):
        if (step.delta.change is Change.NEW) != (step.delta.previous_text == ""):
            yield f"{step.label}: previous_text must be empty for a new fact only, but is {step.delta.previous_text!r}"
        elif step.delta.previous_text and step.previous is None:
            yield f"{step.label}: the previous text was no fact at that time: {step.delta.previous_text!r}"


@rule("life", "No fact is changed more often than allowed over the whole life.")
def updates_per_fact(case: LifeCase) -> Iterator[str]:
    limit = case.task.events.updates_per_fact
    if limit is not None:
        for step in _steps(case):
            if step.previous is not None and step.updates > limit:
                yield f"{step.label}: change {step.updates} of one fact, but {limit} is the limit: {step.previous.text!r}"


@rule(
    "life",
    "Somebody who is named for the first time is introduced by a new relationship fact of the same event.",
    name="newcomers_introduced",
)
def life_newcomers_introduced(case: LifeCase) -> Iterator[str]:
    known = set()
    if profile := case.answer.profile:
        known = {profile.name, *(other.name for other in profile.dynamic.relationships)}
        known |= {fact.subject for fact in profile.initial if fact.track is Track.RELATIONSHIP}
    for event, participant in new_people(known, case.answer.events):
        if not introduces(event, participant.name):
            yield f"event {event.index}: participant {participant.name!r} is new, but no new relationship fact says so"


LIFE: tuple[Rule, ...] = (
    life_one_per_slot,
    life_dates_increase,
    dates_after_start,
    span,
    track_quotas,
    operator_balance,
    domain_quotas,
    life_goal_quota,
    facts_per_session,
    previous_text_exact,
    updates_per_fact,
    life_newcomers_introduced,
)
