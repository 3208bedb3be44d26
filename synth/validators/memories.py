"""Rules of stage 3: state deltas, links between events, memory threads, filling."""
# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from deltamem.text import content_stems, content_words, normalised, stem
from synth.records import Change, Evolution, Fact, LifeEvent, StateDelta, Track, TrackedFact
from synth.tasks import Events, EventsTask, EvolutionTask, Filling, FillingTask, Links, LinksTask, Unit
from synth.validators.base import Case, Rule, Worded, fact_rules, folded, invented_full_names, invented_names, occurs, rule

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


def _delta_updates(case: EventsCase) -> Iterator[tuple[Step, Held]]:
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
        for step, fact in _delta_updates(case):
            if step.updates > limit:
                yield (
                    f"{step.label}: the fact {fact.text!r} has been changed {step.updates - 1} times already, and {limit} is"
                    " the limit; change another fact"
                )


@rule(Unit.EVENTS, "An update stays in the track of its fact; facts of no track are left alone.")
def same_track(case: EventsCase) -> Iterator[str]:
    for step, fact in _delta_updates(case):
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


@rule(Unit.EVENTS, "An update keeps a keyword of its fact.", name="keyword_kept")
def delta_keyword_kept(case: EventsCase) -> Iterator[str]:
    for step, fact in _delta_updates(case):
        if not set(map(folded, fact.keywords)) & set(map(folded, step.delta.keywords)):
            yield (
                f"{step.label}: at least one keyword of the previous fact must be kept, one of {list(fact.keywords)}, but"
                f" the keywords are {list(step.delta.keywords)}"
            )


@rule(Unit.EVENTS, "An expansion or adjustment keeps the previous fact's information.")
def information_kept(case: EventsCase) -> Iterator[str]:
    share = case.task.limits.kept_stems
    name = content_stems(case.task.fixed.name)
    for step, fact in _delta_updates(case):
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
    for step, fact in _delta_updates(case):
        if step.delta.change is Change.EXPAND and len(step.delta.text.split()) <= len(fact.text.split()):
            yield f"{step.label}: the text must add to {fact.text!r} and so be longer, but is {step.delta.text!r}"


@rule(Unit.EVENTS, "A partial deletion keeps a part of its fact and takes another away.")
def deletion_partial(case: EventsCase) -> Iterator[str]:
    name = content_stems(case.task.fixed.name)
    for step, fact in _delta_updates(case):
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
        for step, fact in _delta_updates(case):
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


def _delta_facts(case: EventsCase) -> Iterator[Worded]:
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
    delta_keyword_kept,
    information_kept,
    expansion_longer,
    deletion_partial,
    subjects,
    same_subject,
    subjects_occur,
    new_relationship,
    *fact_rules(Unit.EVENTS, _delta_facts, _name, lambda task: task.fact_limits),
)

KEPT_STEMS = 0.5
"""Share of the previous memory's content words that a later memory keeps, at least.

A memory of some twelve words has about eight content words; an update rewrites a verb and an attitude and may shorten the
rest, so half of them stay. The shape of the paper asks the same of deltas that expand or adjust a fact.
"""

ANCHOR_STEMS = 1 / 3
"""Share of the first memory's content words that every later memory keeps; half of a half would let the topic drift away."""

_Links = Case[LinksTask, Links]
_Evolution = Case[EvolutionTask, Evolution]
_Filling = Case[FillingTask, Filling]

# --- links -----------------------------------------------------------------------------------------------------------------


@rule(Unit.LINKS, "There are as many groups as asked for.")
def group_count(case: _Links) -> Iterator[str]:
    if len(case.answer.groups) not in case.task.groups:
        yield f"there must be {case.task.groups} groups, but there are {len(case.answer.groups)}"


@rule(Unit.LINKS, "Each group has as many events as asked for.")
def group_size(case: _Links) -> Iterator[str]:
    for number, group in enumerate(case.answer.groups, start=1):
        if len(group.events) not in case.task.events_per_group:
            yield f"group {number} must have {case.task.events_per_group} events, but has {len(group.events)}"


@rule(Unit.LINKS, "The events of the groups exist.")
def events_exist(case: _Links) -> Iterator[str]:
    known = {event.index for event in case.task.events}
    for number, group in enumerate(case.answer.groups, start=1):
        for index in group.events:
            if index not in known:
                yield f"group {number} names event {index}, which is not among the events"


@rule(Unit.LINKS, "The events of a group are in order, each once.")
def events_in_order(case: _Links) -> Iterator[str]:
    for number, group in enumerate(case.answer.groups, start=1):
        if any(before >= after for before, after in pairwise(group.events)):
            yield f"group {number}: the indices must increase, but are {list(group.events)}"


@rule(Unit.LINKS, "No event belongs to two groups.")
def groups_disjoint(case: _Links) -> Iterator[str]:
    first: dict[int, int] = {}
    for number, group in enumerate(case.answer.groups, start=1):
        for index in dict.fromkeys(group.events):
            if first.setdefault(index, number) != number:
                yield f"event {index} is in group {first[index]} and in group {number}; it may be in one only"


@rule(Unit.LINKS, "Each group says what links its events.")
def thread_named(case: _Links) -> Iterator[str]:
    for number, group in enumerate(case.answer.groups, start=1):
        if not group.thread.strip():
            yield f"group {number} must say in a sentence what links its events, but its thread is empty"


# --- memory threads --------------------------------------------------------------------------------------------------------


def _memories(case: _Evolution) -> Iterator[Worded]:
    for number, memory in enumerate(case.answer.memories, start=1):
        yield Worded(f"memory {number}", memory)


def _updates(case: _Evolution) -> Iterator[tuple[int, Fact, Fact]]:
    """Each later memory with its number and the one before."""
    for number, (before, after) in enumerate(pairwise(case.answer.memories), start=2):
        yield number, before, after


def _left_out(fact: Fact, later: Fact, name: str) -> tuple[list[str], float]:
    """The content words of a memory that a later one leaves out, and the share of stems that it keeps."""
    stems = content_stems(fact.text) - content_stems(name)
    missing = stems - content_stems(later.text)
    words = [word for word in content_words(fact.text) if stem(word) in missing]
    return words, 1 - len(missing) / len(stems) if stems else 1.0


@rule(Unit.EVOLUTION, "There is one memory an event.")
def one_per_event(case: _Evolution) -> Iterator[str]:
    if len(case.answer.memories) != len(case.task.events):
        yield f"there must be {len(case.task.events)} memories, one an event, but there are {len(case.answer.memories)}"


@rule(Unit.EVOLUTION, "Each memory differs from all earlier ones.")
def memory_changes(case: _Evolution) -> Iterator[str]:
    seen: dict[str, int] = {}
    for number, memory in enumerate(case.answer.memories, start=1):
        first = seen.setdefault(normalised(memory.text), number)
        if first != number:
            yield f"memory {number} is the same as memory {first}; it must say how the event changes the view"


@rule(Unit.EVOLUTION, "Each later memory keeps a keyword of the one before.")
def keyword_kept(case: _Evolution) -> Iterator[str]:
    for number, before, after in _updates(case):
        if before.keywords and set(map(folded, before.keywords)).isdisjoint(map(folded, after.keywords)):
            yield (
                f"memory {number} must keep at least one keyword of memory {number - 1} "
                f"({', '.join(map(repr, before.keywords))}), but has {', '.join(map(repr, after.keywords))}"
            )


@rule(Unit.EVOLUTION, "Each later memory subsumes the one before.")
def subsumes(case: _Evolution) -> Iterator[str]:
    for number, before, after in _updates(case):
        missing, kept = _left_out(before, after, case.task.fixed.name)
        if kept < KEPT_STEMS:
            yield (
                f"memory {number} must include what memory {number - 1} says, at least {KEPT_STEMS:.0%} of its content "
                f"words, but keeps {kept:.0%} (left out: {', '.join(missing)})"
            )


@rule(Unit.EVOLUTION, "All memories stay with the topic of the first.")
def anchor_kept(case: _Evolution) -> Iterator[str]:
    for number, memory in enumerate(case.answer.memories[2:], start=3):
        missing, kept = _left_out(case.answer.memories[0], memory, case.task.fixed.name)
        if kept < ANCHOR_STEMS:
            yield (
                f"memory {number} must stay with the topic of memory 1 and keep at least {ANCHOR_STEMS:.0%} of its content "
                f"words, but keeps {kept:.0%} (left out: {', '.join(missing)})"
            )


@rule(Unit.EVOLUTION, "No memory repeats what is remembered elsewhere.")
def not_known(case: _Evolution) -> Iterator[str]:
    known = set(map(normalised, case.task.known))
    for label, memory in _memories(case):
        if normalised(memory.text) in known:
            yield f"{label} repeats a fact that is remembered elsewhere: {memory.text!r}"


@rule(Unit.EVOLUTION, "No memory names anybody or anything that the task does not know.")
def no_invented_names(case: _Evolution) -> Iterator[str]:
    for label, memory in _memories(case):
        for name in invented_names([memory.text], case.task):
            yield f"{label} names {name!r}, who or which is nowhere in the input"


# --- filling ---------------------------------------------------------------------------------------------------------------


def _facts(case: _Filling) -> Iterator[Worded]:
    for number, fact in enumerate(case.answer.facts, start=1):
        yield Worded(f"fact {number}", fact)


@rule(Unit.FILLING, "There are as many further facts as asked for.")
def fact_count(case: _Filling) -> Iterator[str]:
    if len(case.answer.facts) not in case.task.count:
        yield f"there must be {case.task.count} facts, but there are {len(case.answer.facts)}"


@rule(Unit.FILLING, "No fact says what is remembered already, in the same words in any order.")
def not_existing(case: _Filling) -> Iterator[str]:
    existing = {key for text in case.task.existing for key in _same(text)}
    for label, fact in _facts(case):
        if not existing.isdisjoint(_same(fact.text)):
            yield f"{label} repeats what is remembered already: {fact.text!r}"


@rule(Unit.FILLING, "No two facts say the same, in the same words in any order.")
def facts_differ(case: _Filling) -> Iterator[str]:
    seen: dict[str | frozenset[str], str] = {}
    for label, fact in _facts(case):
        earlier = [seen[key] for key in _same(fact.text) if key in seen]
        if earlier:
            yield f"{label} says the same as {earlier[0]}: {fact.text!r}"
        seen |= dict.fromkeys(_same(fact.text), label)


# The tasks of a person's fillings name mostly the same memories.
@lru_cache(maxsize=8_192)
def _same(text: str) -> tuple[str | frozenset[str], ...]:
    """What two texts share if they say the same."""
    stems = content_stems(text)
    return (normalised(text), stems) if stems else (normalised(text),)


@rule(Unit.FILLING, "No keyword of a fact is part of another one.")
def keywords_not_nested(case: _Filling) -> Iterator[str]:
    for label, fact in _facts(case):
        keys = dict.fromkeys(map(folded, fact.keywords))
        for inner in keys:
            for outer in keys:
                if inner and inner != outer and f" {inner} " in f" {outer} ":
                    yield f"{label}: keyword {inner!r} is part of keyword {outer!r}; each must add something"


@rule(Unit.FILLING, "The goal and the summary of the conversation are given.")
def goal_and_summary(case: _Filling) -> Iterator[str]:
    for what, text in (("goal", case.answer.goal), ("summary", case.answer.summary)):
        if not text.strip():
            yield f"the {what} of the conversation is empty"


@rule(Unit.FILLING, "No fact names anybody or anything in full that the task does not know.")
def no_invented_full_names(case: _Filling) -> Iterator[str]:
    for label, fact in _facts(case):
        for name in invented_full_names([fact.text], case.task):
            yield f"{label} names {name!r}, who or which is nowhere in the input"


LINKS: tuple[Rule, ...] = (group_count, group_size, events_exist, events_in_order, groups_disjoint, thread_named)
"""Rules of a `LinksTask`'s answer."""

EVOLUTION: tuple[Rule, ...] = (
    one_per_event,
    *fact_rules(Unit.EVOLUTION, _memories, lambda task: task.fixed.name, lambda task: task.limits),
    memory_changes,
    keyword_kept,
    subsumes,
    anchor_kept,
    not_known,
    no_invented_names,
)
"""Rules of an `EvolutionTask`'s answer."""

FILLING: tuple[Rule, ...] = (
    fact_count,
    *fact_rules(Unit.FILLING, _facts, lambda task: task.fixed.name, lambda task: task.limits),
    not_existing,
    facts_differ,
    keywords_not_nested,
    goal_and_summary,
    no_invented_full_names,
)
"""Rules of a `FillingTask`'s answer."""
