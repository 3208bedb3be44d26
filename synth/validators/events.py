"""Rules of stage 2: events against their plan, what they change, and a whole life against the quotas of the shape."""
# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date

from deltamem.memory import alternatives, wordings
from deltamem.text import contains, content_stems, normalised
from rewards.fidelity import folded
from synth.config import Quotas, Range, Shape
from synth.planning import UPDATES, scaled, scaled_maximum, scaled_minimum, span_days
from synth.records import (
    EventSlot,
    FactChange,
    LifeEvent,
    PastEvent,
    Person,
    PlannedChange,
    StateDelta,
    Track,
    TrackedFact,
)
from synth.tasks import Events, EventsTask, Unit
from synth.validators.base import Case, RuleSet, Worded, occurs, repeated, stands_in

EVENTS, LIFE = RuleSet(Unit.EVENTS), RuleSet("life")
EventsCase = Case[EventsTask, Events]
LifeCase = Case[Shape, Person]


def _one_per_slot(slots: Iterable[EventSlot], events: Iterable[LifeEvent]) -> Iterator[str]:
    expected, found = [slot.index for slot in slots], [event.index for event in events]
    if found != expected:
        yield f"the events must have the indices {expected}, one each and in this order, but have {found}"


def _dates_increase(before: date, events: Iterable[LifeEvent]) -> Iterator[str]:
    for event in events:
        if event.date <= before:
            yield f"event {event.index} must be later than {before}, the date of the event before, but is on {event.date}"
        before = event.date


def _newcomers_introduced(names: Iterable[str], events: Iterable[LifeEvent]) -> Iterator[str]:
    known = set(names)
    for event in events:
        new = [d for d in event.changes if d.track is Track.RELATIONSHIP and d.change is FactChange.NEW]
        for name in (participant.name for participant in event.participants):
            # A new relationship fact is about its subject, if it has one.
            if name not in known and not any(d.subject == name if d.subject else occurs(name, d.text) for d in new):
                yield (
                    f"event {event.index}: participant {name!r} is named for the first time, which takes a new relationship "
                    "change about them in the same event, if one is planned; else leave them out"
                )
            known.add(name)


def _planned(case: EventsCase) -> Iterator[tuple[EventSlot, LifeEvent]]:
    slots = {slot.index: slot for slot in case.task.slots}
    return ((slots[event.index], event) for event in case.answer.events if event.index in slots)


@EVENTS.rule("There is one event a slot, in order, with the slot's index.")
def one_per_slot(case: EventsCase) -> Iterator[str]:
    return _one_per_slot(case.task.slots, case.answer.events)


@EVENTS.rule("Each event takes place in its slot's time.")
def date_in_slot(case: EventsCase) -> Iterator[str]:
    for slot, event in _planned(case):
        if not slot.not_before <= event.date <= slot.not_after:
            yield f"event {event.index} must be from {slot.not_before} to {slot.not_after}, but is on {event.date}"


@EVENTS.rule("Each event is later than the one before.")
def dates_increase(case: EventsCase) -> Iterator[str]:
    return _dates_increase(max((past.date for past in case.task.past), default=date.min), case.answer.events)


@EVENTS.rule("Each event is of its slot's domain.")
def domain(case: EventsCase) -> Iterator[str]:
    for slot, event in _planned(case):
        if event.domain is not slot.domain:
            yield f"event {event.index} must be of the domain {slot.domain}, but is of {event.domain}"


@EVENTS.rule("Events that are planned to serve the life goal do.")
def life_goal(case: EventsCase) -> Iterator[str]:
    for slot, event in _planned(case):
        if slot.life_goal and not event.serves_life_goal:
            yield f"event {event.index} must serve the life goal and say so in serves_life_goal"


@EVENTS.rule("An event that serves the life goal takes up its words.")
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


@EVENTS.rule("Each event makes exactly the changes that are planned for it.")
def planned_changes(case: EventsCase) -> Iterator[str]:
    for slot, event in _planned(case):
        found = Counter((delta.track, delta.change) for delta in event.changes)
        if found != Counter((planned.track, planned.change) for planned in slot.changes):
            wanted, made = (
                ", ".join(f"{change.track} {change.change}" for change in changes) or "none"
                for changes in (slot.changes, event.changes)
            )
            yield f"event {event.index} must make these changes: {wanted}; but makes: {made}"


@EVENTS.rule("Each narrative keeps to the length asked for.")
def narrative_words(case: EventsCase) -> Iterator[str]:
    expected = case.task.limits.narrative_words
    for event in case.answer.events:
        found = len(event.narrative.split())
        if found not in expected:
            yield f"the narrative of event {event.index} must have {expected} words, but has {found}"


@EVENTS.rule("An event with a narrative has a title, a result and an emotion.")
def outcome_told(case: EventsCase) -> Iterator[str]:
    for event in case.answer.events:
        for field in ("title", "result", "emotion"):
            if event.narrative and not getattr(event, field):
                yield f"event {event.index}: {field} must not be empty"


@EVENTS.rule("Each event is tied to the profile as often as asked for.")
def grounding(case: EventsCase) -> Iterator[str]:
    expected = case.task.limits.grounding
    for event in case.answer.events:
        found = sum(1 for text in event.grounding if text)
        if found < expected:
            yield f"event {event.index} must have at least {expected} grounding texts, but has {found}"


@EVENTS.rule("No two events of a life have the same title or narrative.")
def events_distinct(case: EventsCase) -> Iterator[str]:
    told: list[PastEvent | LifeEvent] = [*case.task.past, *case.answer.events]
    for title in repeated(event.title for event in told if event.title):
        yield f"the title {title!r} is that of an earlier event"
    for narrative in repeated(event.narrative for event in told if event.narrative):
        yield f"the narrative {narrative[:60]!r}... is that of an earlier event"


@EVENTS.rule("Known facts are not copied into the telling of an event.")
def told_anew(case: EventsCase) -> Iterator[str]:
    known = [(fact.text, normalised(fact.text)) for fact in case.task.facts]
    for event in case.answer.events:
        told = normalised("\n".join((event.title, event.narrative, event.result, event.emotion, *event.grounding)))
        for text, wording in known:
            if contains(told, wording):
                yield f"event {event.index} must tell in its own words, but copies the known fact {text!r}"


@EVENTS.rule("An event is itself remembered if that is asked for, as nothing that is known.")
def event_remembered(case: EventsCase) -> Iterator[str]:
    known = {normalised(fact.text) for fact in case.task.facts}
    for event in case.answer.events:
        if case.task.limits.memory != (event.memory is not None):
            yield f"event {event.index}: memory must be {'a fact' if case.task.limits.memory else 'null'}"
        elif event.memory is not None:
            changed = {normalised(delta.text) for delta in event.changes}
            if normalised(event.memory.text) in known | changed:
                yield f"event {event.index}: the memory says what is known already: {event.memory.text!r}"
            known.add(normalised(event.memory.text))


@EVENTS.rule("Participants are other people, each named once an event, with their relationship to the person.")
def participants(case: EventsCase) -> Iterator[str]:
    for event in case.answer.events:
        for name in repeated((case.task.fixed.name, *(participant.name for participant in event.participants))):
            yield f"event {event.index}: participant {name!r} must be somebody else than the person and be named once"
        for participant in event.participants:
            if not participant.relationship:
                yield f"event {event.index}: the relationship of participant {participant.name!r} must not be empty"


@EVENTS.rule("Somebody who is named for the first time is introduced by a new relationship fact of the same event.")
def newcomers_introduced(case: EventsCase) -> Iterator[str]:
    return _newcomers_introduced(case.task.names, case.answer.events)


Held = TrackedFact | StateDelta
"""A fact that holds: known from the start, or left by a delta."""

# A deletion may name what it takes away: "without the Thursday class".
_REMOVAL = re.compile(
    r"\b(?:(?:drop|stop|quit|skip|remov|cancel|ceas|end|abandon|leav|giv|cut|exclud|former|previous)[a-z]*"
    r"|left|gave|except|without|instead|once|used to|no|not|never|only|but)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """A delta in the replay of a life, the fact that held before, and how often that has been changed by now."""

    label: str
    event: LifeEvent
    delta: StateDelta
    previous: Held | None
    updates: int


def replay(facts: Iterable[tuple[TrackedFact, int]], events: Iterable[LifeEvent]) -> Iterator[ReplayStep]:
    """Go through the deltas in order, each against the facts that held before its event."""
    known: dict[str, tuple[Held, int]] = {fact.text: (fact, updates) for fact, updates in facts}
    for event in events:
        after = dict(known)
        for number, delta in enumerate(event.changes, start=1):
            previous, updates = known.get(delta.previous_text, (None, 0))
            label = f"event {event.index}, change {number} ({delta.track} {delta.change})"
            yield ReplayStep(label, event, delta, previous, updates + 1)
            after.pop(delta.previous_text, None)
            after[delta.text] = (delta, 0 if delta.change is FactChange.NEW else updates + 1)
        known = after


def _steps(case: EventsCase) -> Iterator[ReplayStep]:
    return replay(((fact, fact.updates) for fact in case.task.facts), case.answer.events)


def _delta_updates(case: EventsCase) -> Iterator[tuple[ReplayStep, Held]]:
    """The deltas that change a fact which held."""
    for step in _steps(case):
        if step.delta.change is not FactChange.NEW and step.previous is not None:
            yield step, step.previous


@EVENTS.rule("A new fact has no previous text.")
def new_without_previous(case: EventsCase) -> Iterator[str]:
    for step in _steps(case):
        if step.delta.change is FactChange.NEW and step.delta.previous_text:
            yield f"{step.label}: previous_text must be empty for a new fact, but is {step.delta.previous_text!r}"


@EVENTS.rule("The previous text of an update is, word for word, a fact that held before the event.")
def previous_text_exact(case: EventsCase) -> Iterator[str]:
    for step in _steps(case):
        if step.delta.change is not FactChange.NEW and step.previous is None:
            yield (
                f"{step.label}: previous_text must be, word for word, a known fact as it holds before this event, but is"
                f" {step.delta.previous_text!r}"
            )


@EVENTS.rule("No fact is changed twice in one event.")
def one_update_per_event(case: EventsCase) -> Iterator[str]:
    for event in case.answer.events:
        previous = Counter(delta.previous_text for delta in event.changes if delta.previous_text)
        for text, count in previous.items():
            if count > 1:
                yield f"event {event.index} must change the fact {text!r} once at most, but does {count} times"


@EVENTS.rule("No fact is changed more often than allowed over the whole life.")
def updates_per_fact(case: EventsCase) -> Iterator[str]:
    return _updates_per_fact(_steps(case), case.task.limits.updates_per_fact)


def _updates_per_fact(steps: Iterable[ReplayStep], limit: int | None) -> Iterator[str]:
    for step in steps:
        if limit is not None and step.previous is not None and step.updates > limit:
            yield (
                f"{step.label}: the fact {step.previous.text!r} has been changed {step.updates - 1} times already, and "
                f"{limit} is the limit; change another fact"
            )


@EVENTS.rule("An update stays in the track of its fact; facts of no track are left alone.")
def same_track(case: EventsCase) -> Iterator[str]:
    for step, fact in _delta_updates(case):
        if fact.track is None:
            yield f"{step.label}: the fact {fact.text!r} belongs to no track and must not be changed"
        elif fact.track is not step.delta.track:
            yield f"{step.label}: the track must be the fact's, {fact.track}: {fact.text!r}"


@EVENTS.rule("A change leads to a fact that was not known before.")
def changes_something(case: EventsCase) -> Iterator[str]:
    known = {normalised(fact.text) for fact in case.task.facts}
    for step in _steps(case):
        key = normalised(step.delta.text)
        if key in known:
            yield f"{step.label}: the text must say something that is not known yet, but is {step.delta.text!r}"
        known.add(key)


@EVENTS.rule("An update keeps a keyword of its fact.")
def keyword_kept(case: EventsCase) -> Iterator[str]:
    for step, fact in _delta_updates(case):
        if set(map(folded, wordings(fact.keywords))).isdisjoint(map(folded, wordings(step.delta.keywords))):
            yield (
                f"{step.label}: at least one keyword of the previous fact must be kept, one of {list(fact.keywords)}, but"
                f" the keywords are {list(step.delta.keywords)}"
            )


@EVENTS.rule("An update has a keyword that its fact's text lacks.")
def new_keyword(case: EventsCase) -> Iterator[str]:
    for step, fact in _delta_updates(case):
        changed = normalised(step.delta.text) != normalised(fact.text)
        before = folded(fact.text)
        known = [any(stands_in(folded(one), before) for one in alternatives(keyword)) for keyword in step.delta.keywords]
        if changed and all(known):
            found = list(step.delta.keywords)
            yield f"{step.label}: at least one keyword must be new, but all of {found} stand in {fact.text!r}"


@EVENTS.rule("An expansion or adjustment keeps the previous fact's information.")
def information_kept(case: EventsCase) -> Iterator[str]:
    share = case.task.limits.kept_stems
    name = content_stems(case.task.fixed.name)
    for step, fact in _delta_updates(case):
        if step.delta.change in (FactChange.EXPAND, FactChange.ADJUST):
            before = content_stems(fact.text) - name
            kept = before & content_stems(step.delta.text)
            if len(kept) < share * len(before):
                yield (
                    f"{step.label}: the text must keep the information of {fact.text!r}, at least {share:.0%} of its content"
                    f" words, but keeps {len(kept)} of {len(before)}: {step.delta.text!r}"
                )


@EVENTS.rule("An expansion is longer than the fact it expands.")
def expansion_longer(case: EventsCase) -> Iterator[str]:
    for step, fact in _delta_updates(case):
        if step.delta.change is FactChange.EXPAND and len(step.delta.text.split()) <= len(fact.text.split()):
            yield f"{step.label}: the text must add to {fact.text!r} and so be longer, but is {step.delta.text!r}"


@EVENTS.rule("A partial deletion keeps a part of its fact and takes another away.")
def deletion_partial(case: EventsCase) -> Iterator[str]:
    name = content_stems(case.task.fixed.name)
    for step, fact in _delta_updates(case):
        if step.delta.change is FactChange.PARTIAL_DELETION:
            before, after = content_stems(fact.text) - name, content_stems(step.delta.text)
            if not before & after:
                yield f"{step.label}: the text must keep the remainder of {fact.text!r}, but is {step.delta.text!r}"
            elif before <= after and not _REMOVAL.search(step.delta.text):
                yield f"{step.label}: the text must take something away from {fact.text!r}, but is {step.delta.text!r}"


@EVENTS.rule("A relationship change names a person, a preference change a category, other changes nothing.")
def subjects(case: EventsCase) -> Iterator[str]:
    if not case.task.limits.subjects:
        return
    for step in _steps(case):
        delta = step.delta
        needed = delta.track in (Track.RELATIONSHIP, Track.PREFERENCE)
        if needed and not delta.subject:
            kind = "full name of the other person" if delta.track is Track.RELATIONSHIP else "category of the preference"
            yield f"{step.label}: the subject must be the {kind}, but is empty"
        elif not needed and delta.subject:
            yield f"{step.label}: the subject must be empty in this track, but is {delta.subject!r}"


@EVENTS.rule("An update is about the same person or category as its fact.")
def same_subject(case: EventsCase) -> Iterator[str]:
    if case.task.limits.subjects:
        for step, fact in _delta_updates(case):
            if fact.track is step.delta.track and step.delta.subject != fact.subject:
                yield f"{step.label}: the subject must stay {fact.subject!r}, but is {step.delta.subject!r}"


@EVENTS.rule("A relationship change says the other one's full name.")
def subjects_occur(case: EventsCase) -> Iterator[str]:
    if case.task.limits.subjects:
        for step in _steps(case):
            delta = step.delta
            if delta.track is Track.RELATIONSHIP and not occurs(delta.subject, delta.text):
                yield f"{step.label}: the text must say the full name {delta.subject!r}, but is {delta.text!r}"


@EVENTS.rule("A new relationship is with somebody who takes part in the event, by full name.")
def new_relationship(case: EventsCase) -> Iterator[str]:
    if not case.task.limits.subjects:
        return
    for step in _steps(case):
        delta = step.delta
        if delta.track is Track.RELATIONSHIP and delta.change is FactChange.NEW and delta.subject:
            names = [participant.name for participant in step.event.participants]
            if delta.subject not in names:
                yield f"{step.label}: the subject must be one of the event's participants {names}, but is {delta.subject!r}"
            elif len(delta.subject.split()) < 2:
                yield f"{step.label}: the subject must be a full name, but is {delta.subject!r}"


def _delta_facts(case: EventsCase) -> Iterator[Worded]:
    for step in _steps(case):
        yield Worded(step.label, step.delta)
    for event in case.answer.events:
        if event.memory is not None:
            yield Worded(f"the memory of event {event.index}", event.memory)


EVENTS.add_wording(_delta_facts, limits="fact_limits")

EARLIEST = date(2026, 1, 1)
"""Every event is later (paper, prompt appendix, "time model")."""


def _life_steps(case: LifeCase) -> Iterator[ReplayStep]:
    profile = case.answer.profile
    return replay(((fact, 0) for fact in profile.initial) if profile else (), case.answer.events)


LIFE.rule("There is one event a slot, in order, with the slot's index.", name="one_per_slot")(
    lambda case: _one_per_slot(case.answer.slots, case.answer.events)
)
LIFE.rule("Each event is later than the one before.", name="dates_increase")(
    lambda case: _dates_increase(date.min, case.answer.events)
)


@LIFE.rule("Events are later than the first of January 2026 and than the initial memories.")
def dates_after_start(case: LifeCase) -> Iterator[str]:
    profile = case.answer.profile
    start = max(EARLIEST, profile.start.date()) if profile else EARLIEST
    for event in case.answer.events:
        if event.date <= start:
            yield f"event {event.index} must be later than {start}, but is on {event.date}"


@LIFE.rule("The events span the years asked for, as far as their number goes.")
def span(case: LifeCase) -> Iterator[str]:
    events = case.answer.events
    expected, found = span_days(case.task.years, len(events)), (events[-1].date - events[0].date).days
    if found not in expected:
        yield f"the {len(events)} events must span {expected} days, but span {found}"


def _quota(description: str) -> Callable[[Callable[[Quotas, Person, int], Iterable[str]]], object]:
    """A rule about a life that is planned by quotas; the check gets these, the person and the number of events."""

    def add(check: Callable[[Quotas, Person, int], Iterable[str]]) -> object:
        def quota(case: LifeCase) -> Iterable[str]:
            plan = case.task.plan
            return check(plan, case.answer, len(case.answer.events)) if isinstance(plan, Quotas) else ()

        return LIFE.rule(description, name=check.__name__)(quota)

    return add


def _made(person: Person) -> Iterator[PlannedChange | StateDelta]:
    """All changes of a life, and those that were planned and given up."""
    for event in person.events:
        yield from event.changes
    for slot in person.slots:
        yield from slot.given_up


@_quota("Each track has as many changes as its quota.")
def track_quotas(plan: Quotas, person: Person, count: int) -> Iterator[str]:
    found = Counter(made.track for made in _made(person))
    for track in Track:
        expected = scaled(plan.changes.get(track, Range(min=0, max=0)), count)
        if found[track] not in expected:
            yield f"track {track} must have {expected} changes in {count} events, but has {found[track]}"


@_quota("No kind of change is much more frequent than another.")
def operator_balance(plan: Quotas, person: Person, count: int) -> Iterator[str]:
    found = Counter(made.change for made in _made(person))
    counts = {str(change): found[change] for change in (FactChange.NEW, *UPDATES)}
    limit = scaled_maximum(plan.balance, count)
    if max(counts.values()) - min(counts.values()) > limit:
        yield f"the numbers of each kind of change may differ by {limit} at most, but are {counts}"


@_quota("Each domain has at least as many events as its quota.")
def domain_quotas(plan: Quotas, person: Person, count: int) -> Iterator[str]:
    found = Counter(event.domain for event in person.events)
    for domain, minimum in plan.domains.items():
        expected = scaled_minimum(minimum, count)
        if found[domain] < expected:
            yield f"domain {domain} must have at least {expected} of {count} events, but has {found[domain]}"


@_quota("Enough events serve the life goal.")
def life_goal_quota(plan: Quotas, person: Person, count: int) -> Iterator[str]:
    expected, found = scaled_minimum(plan.life_goal_events, count), sum(event.serves_life_goal for event in person.events)
    if found < expected:
        yield f"at least {expected} of {count} events must serve the life goal, but {found} do"


@LIFE.rule("In the session of an idle slot nothing is told: its event is bare.")
def idle_bare(case: LifeCase) -> Iterator[str]:
    for slot, event in zip(case.answer.slots, case.answer.events, strict=False):
        if slot.idle and (event.title or event.narrative or event.changes or event.memory is not None):
            yield f"event {event.index} is of an idle slot and must have neither text nor changes"


@LIFE.rule(
    "Each update names, word for word, a fact that held before its event, over all calls.", name="previous_text_exact"
)
def life_previous_text_exact(case: LifeCase) -> Iterator[str]:
    for step in _life_steps(case):
        if (step.delta.change is FactChange.NEW) != (step.delta.previous_text == ""):
            yield f"{step.label}: previous_text must be empty for a new fact only, but is {step.delta.previous_text!r}"
        elif step.delta.previous_text and step.previous is None:
            yield f"{step.label}: the previous text was no fact at that time: {step.delta.previous_text!r}"


LIFE.rule("No fact is changed more often than allowed over the whole life.", name="updates_per_fact")(
    lambda case: _updates_per_fact(_life_steps(case), case.task.events.updates_per_fact)
)


@LIFE.rule(
    "Somebody who is named for the first time is introduced by a new relationship fact of the same event.",
    name="newcomers_introduced",
)
def life_newcomers_introduced(case: LifeCase) -> Iterator[str]:
    known = set[str]()
    if profile := case.answer.profile:
        known = {profile.name, *(other.name for other in profile.dynamic.relationships)}
        known |= {fact.subject for fact in profile.initial if fact.track is Track.RELATIONSHIP}
    return _newcomers_introduced(known, case.answer.events)
