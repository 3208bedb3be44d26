"""Rules of a whole life: its events together, over all calls, against the quotas of the shape (paper, appendix A)."""

# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date
from itertools import pairwise

from synth.planning.scaling import scaled, scaled_maximum, scaled_minimum, span_days
from synth.records import Change, Person, Track
from synth.rules.base import Case, Rule, rule
from synth.rules.deltas import Step, replay
from synth.rules.events import introduces, new_people
from synth.shape import Quotas, Range, Shape, Shares

LifeCase = Case[Shape, Person]

EARLIEST = date(2026, 1, 1)
"""Every event is later (paper, prompt appendix, "time model")."""


def _steps(case: LifeCase) -> Iterator[Step]:
    profile = case.answer.profile
    return replay(((fact, 0) for fact in profile.initial) if profile else (), case.answer.events)


@rule("life", "There is one event a slot, in order, with the slot's index.")
def one_per_slot(case: LifeCase) -> Iterator[str]:
    expected = [slot.index for slot in case.answer.slots]
    found = [event.index for event in case.answer.events]
    if found != expected:
        yield f"the events must have the indices {expected}, one each and in this order, but have {found}"


@rule("life", "Each event is later than the one before.")
def dates_increase(case: LifeCase) -> Iterator[str]:
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


@rule("life", "Somebody who is named for the first time is introduced by a new relationship fact of the same event.")
def newcomers_introduced(case: LifeCase) -> Iterator[str]:
    known = set()
    if profile := case.answer.profile:
        known = {profile.name, *(other.name for other in profile.dynamic.relationships)}
        known |= {fact.subject for fact in profile.initial if fact.track is Track.RELATIONSHIP}
    for event, participant in new_people(known, case.answer.events):
        if not introduces(event, participant.name):
            yield f"event {event.index}: participant {participant.name!r} is new, but no new relationship fact says so"


LIFE: tuple[Rule, ...] = (
    one_per_slot,
    dates_increase,
    dates_after_start,
    span,
    track_quotas,
    operator_balance,
    domain_quotas,
    life_goal_quota,
    facts_per_session,
    previous_text_exact,
    updates_per_fact,
    newcomers_introduced,
)
