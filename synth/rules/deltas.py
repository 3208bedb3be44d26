"""Rules of state deltas against the facts that hold: the information preservation invariant (paper, appendix A)."""

# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deltamem.text.words import content_stems, normalised
from synth.records import Change, LifeEvent, StateDelta, Track, TrackedFact
from synth.rules.base import Case, Rule, rule
from synth.rules.wording import Worded, fact_rules, folded, occurs
from synth.tasks import Events, EventsTask, Unit

EventsCase = Case[EventsTask, Events]
Held = TrackedFact | StateDelta
"""A fact that holds: known from the start, or left by a delta."""

# A deletion may name what it takes away: "without the Thursday class".
_REMOVAL = re.compile(
    r"\b(?:(?:drop|stop|quit|skip|remov|cancel|ceas|end|abandon|leav|giv|cut|exclud|former|previous)[a-z]*"
    r"|left|gave|except|without|instead|once|used to|no|not|never|only|but)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Step:
    """A state delta at its place in the replay of a life.

    Attributes:
        label: How messages name it.
        event: The event that it belongs to.
        delta: The delta.
        previous: The fact that held before the event with the delta's previous text; None if there is none.
        updates: How often events have changed that fact, this time included.
    """

    label: str
    event: LifeEvent
    delta: StateDelta
    previous: Held | None
    updates: int


def replay(facts: Iterable[tuple[TrackedFact, int]], events: Iterable[LifeEvent]) -> Iterator[Step]:
    """Go through the deltas in order, each against the facts that held before its event.

    Args:
        facts: The facts that hold at first, and how often events have changed each.
        events: The events, in order.
    """
    known: dict[str, tuple[Held, int]] = {fact.text: (fact, updates) for fact, updates in facts}
    for event in events:
        after = dict(known)
        for number, delta in enumerate(event.changes, start=1):
            previous, updates = known.get(delta.previous_text, (None, 0))
            label = f"event {event.index}, change {number} ({delta.track} {delta.change})"
            yield Step(label, event, delta, previous, updates + 1)
            after.pop(delta.previous_text, None)
            after[delta.text] = (delta, 0 if delta.change is Change.NEW else updates + 1)
        known = after


def _steps(case: EventsCase) -> Iterator[Step]:
    return replay(((fact, fact.updates) for fact in case.task.facts), case.answer.events)


def _updates(case: EventsCase) -> Iterator[tuple[Step, Held]]:
    """The deltas that change a fact which held."""
    for step in _steps(case):
        if step.delta.change is not Change.NEW and step.previous is not None:
            yield step, step.previous


# --- state deltas ----------------------------------------------------------------------------------------------------------


@rule(Unit.EVENTS, "A new fact has no previous text.")
def new_without_previous(case: EventsCase) -> Iterator[str]:
    for step in _steps(case):
        if step.delta.change is Change.NEW and step.delta.previous_text:
            yield f"{step.label}: previous_text must be empty for a new fact, but is {step.delta.previous_text!r}"


@rule(Unit.EVENTS, "The previous text of an update is, word for word, a fact that held before the event.")
def previous_text_exact(case: EventsCase) -> Iterator[str]:
    for step in _steps(case):
        if step.delta.change is not Change.NEW and step.previous is None:
            yield (
                f"{step.label}: previous_text must be, word for word, a known fact as it holds before this event, but is"
                f" {step.delta.previous_text!r}"
            )


@rule(Unit.EVENTS, "No fact is changed twice in one event.")
def one_update_per_event(case: EventsCase) -> Iterator[str]:
    for event in case.answer.events:
        previous = Counter(delta.previous_text for delta in event.changes if delta.previous_text)
        for text, count in previous.items():
            if count > 1:
                yield f"event {event.index} must change the fact {text!r} once at most, but does {count} times"


@rule(Unit.EVENTS, "No fact is changed more often than allowed over the whole life.")
def updates_per_fact(case: EventsCase) -> Iterator[str]:
    limit = case.task.limits.updates_per_fact
    if limit is not None:
        for step, fact in _updates(case):
            if step.updates > limit:
                yield (
                    f"{step.label}: the fact {fact.text!r} has been changed {step.updates - 1} times already, and {limit} is"
                    " the limit; change another fact"
                )


@rule(Unit.EVENTS, "An update stays in the track of its fact; facts of no track are left alone.")
def same_track(case: EventsCase) -> Iterator[str]:
    for step, fact in _updates(case):
        if fact.track is None:
            yield f"{step.label}: the fact {fact.text!r} belongs to no track and must not be changed"
        elif fact.track is not step.delta.track:
            yield f"{step.label}: the track must be the fact's, {fact.track}: {fact.text!r}"


@rule(Unit.EVENTS, "A change leads to a fact that was not known before.")
def changes_something(case: EventsCase) -> Iterator[str]:
    known = {normalised(fact.text) for fact in case.task.facts}
    for step in _steps(case):
        key = normalised(step.delta.text)
        if key in known:
            yield f"{step.label}: the text must say something that is not known yet, but is {step.delta.text!r}"
        known.add(key)


@rule(Unit.EVENTS, "An update keeps a keyword of its fact.")
def keyword_kept(case: EventsCase) -> Iterator[str]:
    for step, fact in _updates(case):
        if not set(map(folded, fact.keywords)) & set(map(folded, step.delta.keywords)):
            yield (
                f"{step.label}: at least one keyword of the previous fact must be kept, one of {list(fact.keywords)}, but"
                f" the keywords are {list(step.delta.keywords)}"
            )


@rule(Unit.EVENTS, "An expansion or adjustment keeps the previous fact's information.")
def information_kept(case: EventsCase) -> Iterator[str]:
    share = case.task.limits.kept_stems
    name = content_stems(case.task.fixed.name)
    for step, fact in _updates(case):
        if step.delta.change in (Change.EXPAND, Change.ADJUST):
            before = content_stems(fact.text) - name
            kept = before & content_stems(step.delta.text)
            if len(kept) < share * len(before):
                yield (
                    f"{step.label}: the text must keep the information of {fact.text!r}, at least {share:.0%} of its content"
                    f" words, but keeps {len(kept)} of {len(before)}: {step.delta.text!r}"
                )


@rule(Unit.EVENTS, "An expansion is longer than the fact it expands.")
def expansion_longer(case: EventsCase) -> Iterator[str]:
    for step, fact in _updates(case):
        if step.delta.change is Change.EXPAND and len(step.delta.text.split()) <= len(fact.text.split()):
            yield f"{step.label}: the text must add to {fact.text!r} and so be longer, but is {step.delta.text!r}"


@rule(Unit.EVENTS, "A partial deletion keeps a part of its fact and takes another away.")
def deletion_partial(case: EventsCase) -> Iterator[str]:
    name = content_stems(case.task.fixed.name)
    for step, fact in _updates(case):
        if step.delta.change is Change.PARTIAL_DELETION:
            before, after = content_stems(fact.text) - name, content_stems(step.delta.text)
            if not before & after:
                yield f"{step.label}: the text must keep the remainder of {fact.text!r}, but is {step.delta.text!r}"
            elif before <= after and not _REMOVAL.search(step.delta.text):
                yield f"{step.label}: the text must take something away from {fact.text!r}, but is {step.delta.text!r}"


# --- subjects --------------------------------------------------------------------------------------------------------------


@rule(Unit.EVENTS, "A relationship change names a person, a preference change a category, other changes nothing.")
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


@rule(Unit.EVENTS, "An update is about the same person or category as its fact.")
def same_subject(case: EventsCase) -> Iterator[str]:
    if case.task.limits.subjects:
        for step, fact in _updates(case):
            if fact.track is step.delta.track and step.delta.subject != fact.subject:
                yield f"{step.label}: the subject must stay {fact.subject!r}, but is {step.delta.subject!r}"


@rule(Unit.EVENTS, "A relationship change says the other one's full name.")
def subjects_occur(case: EventsCase) -> Iterator[str]:
    if case.task.limits.subjects:
        for step in _steps(case):
            delta = step.delta
            if delta.track is Track.RELATIONSHIP and not occurs(delta.subject, delta.text):
                yield f"{step.label}: the text must say the full name {delta.subject!r}, but is {delta.text!r}"


@rule(Unit.EVENTS, "A new relationship is with somebody who takes part in the event, by full name.")
def new_relationship(case: EventsCase) -> Iterator[str]:
    if not case.task.limits.subjects:
        return
    for step in _steps(case):
        delta = step.delta
        if delta.track is Track.RELATIONSHIP and delta.change is Change.NEW and delta.subject:
            names = [participant.name for participant in step.event.participants]
            if delta.subject not in names:
                yield f"{step.label}: the subject must be one of the event's participants {names}, but is {delta.subject!r}"
            elif len(delta.subject.split()) < 2:
                yield f"{step.label}: the subject must be a full name, but is {delta.subject!r}"


def _facts(case: EventsCase) -> Iterator[Worded]:
    for event in case.answer.events:
        for number, delta in enumerate(event.changes, start=1):
            yield Worded(f"event {event.index}, change {number} ({delta.track} {delta.change})", delta)


def _name(task: EventsTask) -> str:
    return task.fixed.name


DELTAS: tuple[Rule, ...] = (
    new_without_previous,
    previous_text_exact,
    one_update_per_event,
    updates_per_fact,
    same_track,
    changes_something,
    keyword_kept,
    information_kept,
    expansion_longer,
    deletion_partial,
    subjects,
    same_subject,
    subjects_occur,
    new_relationship,
    *fact_rules(Unit.EVENTS, _facts, _name, lambda task: task.fact_limits),
)
