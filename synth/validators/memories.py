"""Rules of stage 3: links between events, memory threads, filling."""
# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise, permutations, product

from deltamem.memory import wordings
from deltamem.text import content_stems, content_words, marked_words, normalised, stem
from rewards.fidelity import folded, folded_keyword
from synth.records import Evolution, Fact
from synth.tasks import EvolutionTask, Filling, FillingTask, Links, LinksTask, Unit
from synth.validators.base import Case, RuleSet, Worded, invented_full_names, invented_names, numbered, occurs
from synth.validators.demands import add_session_plans

LINKS, EVOLUTION, FILLING = RuleSet(Unit.LINKS), RuleSet(Unit.EVOLUTION), RuleSet(Unit.FILLING)

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


@LINKS.rule("There are as many groups as asked for.")
def group_count(case: _Links) -> Iterator[str]:
    if len(case.answer.groups) not in case.task.groups:
        yield f"there must be {case.task.groups} groups, but there are {len(case.answer.groups)}"


@LINKS.rule("Each group has as many events as asked for.")
def group_size(case: _Links) -> Iterator[str]:
    for number, group in enumerate(case.answer.groups, start=1):
        if len(group.events) not in case.task.events_per_group:
            yield f"group {number} must have {case.task.events_per_group} events, but has {len(group.events)}"


@LINKS.rule("The events of the groups exist.")
def events_exist(case: _Links) -> Iterator[str]:
    known = {event.index for event in case.task.events}
    for number, group in enumerate(case.answer.groups, start=1):
        for index in group.events:
            if index not in known:
                yield f"group {number} names event {index}, which is not among the events"


@LINKS.rule("The events of a group are in order, each once.")
def events_in_order(case: _Links) -> Iterator[str]:
    for number, group in enumerate(case.answer.groups, start=1):
        if any(before >= after for before, after in pairwise(group.events)):
            yield f"group {number}: the indices must increase, but are {list(group.events)}"


@LINKS.rule("No event belongs to two groups.")
def groups_disjoint(case: _Links) -> Iterator[str]:
    first: dict[int, int] = {}
    for number, group in enumerate(case.answer.groups, start=1):
        for index in dict.fromkeys(group.events):
            if first.setdefault(index, number) != number:
                yield f"event {index} is in group {first[index]} and in group {number}; it may be in one only"


@LINKS.rule("Each group says what links its events.")
def thread_named(case: _Links) -> Iterator[str]:
    for number, group in enumerate(case.answer.groups, start=1):
        if not group.thread.strip():
            yield f"group {number} must say in a sentence what links its events, but its thread is empty"


def _memories(case: _Evolution) -> Iterator[Worded]:
    return numbered("memory", case.answer.memories)


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


@EVOLUTION.rule("There is one memory an event.")
def one_per_event(case: _Evolution) -> Iterator[str]:
    if len(case.answer.memories) != len(case.task.events):
        yield f"there must be {len(case.task.events)} memories, one an event, but there are {len(case.answer.memories)}"


EVOLUTION.add_wording(_memories)


@EVOLUTION.rule("Each memory differs from all earlier ones.")
def memory_changes(case: _Evolution) -> Iterator[str]:
    seen: dict[str, int] = {}
    for number, memory in enumerate(case.answer.memories, start=1):
        first = seen.setdefault(normalised(memory.text), number)
        if first != number:
            yield f"memory {number} is the same as memory {first}; it must say how the event changes the view"


@EVOLUTION.rule("Each later memory keeps a keyword of the one before.")
def keyword_kept(case: _Evolution) -> Iterator[str]:
    for number, before, after in _updates(case):
        if before.keywords and set(map(folded, wordings(before.keywords))).isdisjoint(map(folded, wordings(after.keywords))):
            yield (
                f"memory {number} must keep at least one keyword of memory {number - 1} "
                f"({', '.join(map(repr, before.keywords))}), but has {', '.join(map(repr, after.keywords))}"
            )


@EVOLUTION.rule("Each later memory has a keyword that the text of the one before lacks.")
def new_keyword(case: _Evolution) -> Iterator[str]:
    for number, before, after in _updates(case):
        known = {normalised(memory.text) for memory in case.answer.memories[: number - 1]}
        if normalised(after.text) not in known and all(occurs(keyword, before.text) for keyword in after.keywords):
            yield f"memory {number} must have a keyword that memory {number - 1} lacks, but has {list(after.keywords)}"


@EVOLUTION.rule("Each later memory subsumes the one before.")
def subsumes(case: _Evolution) -> Iterator[str]:
    for number, before, after in _updates(case):
        missing, kept = _left_out(before, after, case.task.fixed.name)
        if kept < KEPT_STEMS:
            yield (
                f"memory {number} must include what memory {number - 1} says, at least {KEPT_STEMS:.0%} of its content "
                f"words, but keeps {kept:.0%} (left out: {', '.join(missing)})"
            )


@EVOLUTION.rule("All memories stay with the topic of the first.")
def anchor_kept(case: _Evolution) -> Iterator[str]:
    for number, memory in enumerate(case.answer.memories[2:], start=3):
        missing, kept = _left_out(case.answer.memories[0], memory, case.task.fixed.name)
        if kept < ANCHOR_STEMS:
            yield (
                f"memory {number} must stay with the topic of memory 1 and keep at least {ANCHOR_STEMS:.0%} of its content "
                f"words, but keeps {kept:.0%} (left out: {', '.join(missing)})"
            )


@EVOLUTION.rule("No memory repeats what is remembered elsewhere.")
def not_known(case: _Evolution) -> Iterator[str]:
    known = set(map(normalised, case.task.known))
    for label, memory in _memories(case):
        if normalised(memory.text) in known:
            yield f"{label} repeats a fact that is remembered elsewhere: {memory.text!r}"


@EVOLUTION.rule("No memory names anybody or anything that the task does not know.")
def no_invented_names(case: _Evolution) -> Iterator[str]:
    for label, memory in _memories(case):
        for name in invented_names([memory.text], case.task):
            yield f"{label} names {name!r}, who or which is nowhere in the input"


def _facts(case: _Filling) -> Iterator[Worded]:
    return numbered("fact", case.answer.facts)


@FILLING.rule("There are as many further facts as asked for.")
def fact_count(case: _Filling) -> Iterator[str]:
    if len(case.answer.facts) not in case.task.count:
        yield f"there must be {case.task.count} facts, but there are {len(case.answer.facts)}"


FILLING.add_wording(_facts)
add_session_plans(FILLING)


@FILLING.rule("No fact says what is remembered already, in the same words in any order.")
def not_existing(case: _Filling) -> Iterator[str]:
    existing = {key for text in case.task.existing for key in _same(text)}
    for label, fact in _facts(case):
        if not existing.isdisjoint(_same(fact.text)):
            yield f"{label} repeats what is remembered already: {fact.text!r}"


@FILLING.rule("No two facts say the same, in the same words in any order.")
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
    words = content_stems(text) | marked_words(text)
    return (normalised(text), words) if words else (normalised(text),)


@FILLING.rule("No keyword of a fact is part of another one.")
def keywords_not_nested(case: _Filling) -> Iterator[str]:
    for label, fact in _facts(case):
        keys = dict.fromkeys(map(folded_keyword, fact.keywords))
        for first, second in permutations(keys, 2):
            for inner, outer in product(sorted(first), sorted(second)):
                if inner and inner != outer and f" {inner} " in f" {outer} ":
                    yield f"{label}: keyword {inner!r} is part of keyword {outer!r}; each must add something"


@FILLING.rule("The goal and the summary of the conversation are given.")
def goal_and_summary(case: _Filling) -> Iterator[str]:
    for what, text in (("goal", case.answer.goal), ("summary", case.answer.summary)):
        if not text.strip():
            yield f"the {what} of the conversation is empty"


@FILLING.rule("No fact names anybody or anything in full that the task does not know.")
def no_invented_full_names(case: _Filling) -> Iterator[str]:
    for label, fact in _facts(case):
        for name in invented_full_names([fact.text], case.task):
            yield f"{label} names {name!r}, who or which is nowhere in the input"
