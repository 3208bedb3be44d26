"""Rules of data that demand memory: facts by plan (families, provenance, dates), and revisions of known memories."""
# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from itertools import combinations
from typing import Any

from deltamem.memory import wordings
from deltamem.sessions import Provenance
from deltamem.text import normalised
from rewards.fidelity import folded, folded_keyword
from synth.records import Fact, FactChange, FactPlan, PlannedRevision, RevisedFact, Revision, SaidFact
from synth.tasks import RevisionTask, Unit
from synth.validators.base import Case, RuleSet, Worded, dates_in, memory_stems, near, occurs, stands_in, without_dates

REVISION = RuleSet(Unit.REVISION)
"""Rules of a `RevisionTask`'s answer."""

CORRECTED: tuple[Provenance, ...] = ("assistant_corrected", "self_corrected")
"""How a fact comes up of which something wrong is said first."""

MOST_DAYS = 60
"""Days between a session and a date that is said in relation to it, at most."""

KEPT_STEMS = 1 / 3
"""Share of the old text's content words that a revision keeps, at least; less would be another memory."""

_END = re.compile(
    r"\b(?:no|not|never|nothing|nobody|neither|nor|none|without|former|formerly|once|used to|gone|over|anymore"
    r"|(?:stop|end|quit|ceas|cancel|abandon|expir|drop|finish|clos|discontinu)[a-z]*|gave up|given up|giving up)\b|n['’]t\b",  # noqa: RUF001
    re.IGNORECASE,
)
"""Words that say that something does not hold, or holds no longer."""
_HEARD = re.compile(
    r"\b(?:hear[sd]?|told|tells?|says?|said|according|mention(?:s|ed)?|claim(?:s|ed)?|learn(?:s|ed|t)?)\b", re.IGNORECASE
)

_Case = Case[RevisionTask, Revision]


def add_plans(rules: RuleSet) -> None:
    """Add the rules for the facts of an answer to a task that has a plan for each of them (`FactPlan`)."""

    @rules.rule("Where facts are planned, there is one for each plan.")
    def one_per_plan(case: Case[Any, Any]) -> Iterator[str]:
        if case.task.plans and len(case.answer.facts) != len(case.task.plans):
            yield f"there must be {len(case.task.plans)} facts, one a plan, but there are {len(case.answer.facts)}"

    @rules.rule("Siblings share most of their words, dates aside, and each has a keyword of its own.")
    def siblings(case: Case[Any, Any]) -> Iterator[str]:
        name = case.task.fixed.name
        for members in _families(case):
            for (one, first), (other, second) in combinations(members, 2):
                if not near(*(memory_stems(without_dates(fact.text), name) for fact in (first, second))):
                    yield f"{one} and {other} are siblings and must share half of their words: {second.text!r}"
            for label, fact in members:
                theirs = (keyword for place, other in members if place != label for keyword in other.keywords)
                others = frozenset(map(folded, wordings(theirs)))
                if not any(map(others.isdisjoint, map(folded_keyword, fact.keywords))):
                    yield f"{label} must have a keyword that none of its siblings has: {fact.text!r}"

    @rules.rule("A fact that is planned to have a date has it among its keywords; one that ends says on which day.")
    def dates(case: Case[Any, Any]) -> Iterator[str]:
        today = getattr(case.task, "today", None)
        for label, fact, plan in _planned(case):
            if plan.dated:
                yield from _dated(label, fact, today)
            if plan.temporary and not any(today is None or day > today for day in dates_in(fact.text)):
                yield f"{label} must say until which day it holds, such as '4 May 2026', later than {today}: {fact.text!r}"


def add_initial_plans(rules: RuleSet) -> None:
    """Add the rules for planned facts that belong to tracks."""
    add_plans(rules)

    @rules.rule("Siblings are of the same track.")
    def same_track(case: Case[Any, Any]) -> Iterator[str]:
        for members in _families(case):
            if len({getattr(fact, "track", None) for _, fact in members}) > 1:
                yield f"{', '.join(label for label, _ in members)} are siblings and must be of the same track"


def add_session_plans(rules: RuleSet) -> None:
    """Add the rules for planned facts that a session brings up."""
    add_plans(rules)

    @rules.rule("A fact about somebody else says whose it is; one from hearsay says that it was heard.")
    def provenance(case: Case[Any, Any]) -> Iterator[str]:
        name = case.task.fixed.name
        for label, fact, plan in _planned(case):
            if plan.provenance == "third_person" and not re.match(re.escape(name) + r"['’]", fact.text):  # noqa: RUF001
                yield f"{label} is about somebody else and must begin with {name + chr(39) + 's'!r}, but is {fact.text!r}"
            if plan.provenance == "hearsay" and not _HEARD.search(fact.text):
                yield f"{label} was only heard and must say so ('has heard from...'), but is {fact.text!r}"

    @rules.rule("What is said wrongly at first is given for facts that are corrected, and for no others.")
    def misspoken(case: Case[Any, Any]) -> Iterator[str]:
        for label, fact, plan in _planned(case):
            assert isinstance(fact, SaidFact)
            yield from _misspoken(label, fact, plan.provenance)


def _planned(case: Case[Any, Any]) -> Iterator[tuple[str, Fact, FactPlan]]:
    pairs = zip(case.answer.facts, case.task.plans, strict=False)
    return ((f"fact {number}", fact, plan) for number, (fact, plan) in enumerate(pairs, start=1))


def _families(case: Case[Any, Any]) -> Iterator[list[tuple[str, Fact]]]:
    families: dict[int, list[tuple[str, Fact]]] = {}
    for label, fact, plan in _planned(case):
        if plan.family:
            families.setdefault(plan.family, []).append((label, fact))
    return iter(families.values())


def _dated(label: str, fact: Fact, today: date | None) -> Iterator[str]:
    days = [day for wording in wordings(fact.keywords) for day in dates_in(wording)]
    if not days:
        yield f"{label} must have a date such as '4 May 2026' among its keywords, but has {list(fact.keywords)}"
    elif today is not None and min(abs((day - today).days) for day in days) > MOST_DAYS:
        yield f"{label}: the date must be within {MOST_DAYS} days of {today}, so that it can be said in relation to it"


def _misspoken(label: str, fact: SaidFact, provenance: Provenance) -> Iterator[str]:
    if (provenance in CORRECTED) != bool(fact.misspoken):
        needed = "must be given" if provenance in CORRECTED else "must be empty"
        yield f"{label}: misspoken {needed} for a fact that is {provenance}, but is {fact.misspoken!r}"
    elif fact.misspoken and _stands_in(fact.misspoken, fact.text):
        yield f"{label}: misspoken must be wrong, but {fact.misspoken!r} stands in {fact.text!r}"


def _stands_in(value: str, text: str) -> bool:
    """Whether a value is a part of a text that is no part of longer words: 4 May does not stand in 14 May."""
    return stands_in(folded(value), folded(text))


def _revised(case: _Case) -> Iterator[tuple[Worded, PlannedRevision, Sequence[Fact]]]:
    """Each revised fact with its plan and the texts before it, the latest last."""
    before: list[list[Fact]] = [[memory] for memory in case.task.memories]
    for number, (plan, step) in enumerate(zip(case.task.steps, case.answer.steps, strict=False), start=1):
        for place, (earlier, fact) in enumerate(zip(before, step.facts, strict=False), start=1):
            label = f"step {number} ({plan.change})" + (f", memory {place}" if len(before) > 1 else "")
            yield Worded(label, fact), plan, tuple(earlier)
            earlier.append(fact)


def _revised_facts(case: _Case) -> Iterable[tuple[Worded, PlannedRevision, RevisedFact, Sequence[Fact]]]:
    for worded, plan, before in _revised(case):
        assert isinstance(worded.fact, RevisedFact)
        yield worded, plan, worded.fact, before


@REVISION.rule("There is one step a planned change.")
def one_per_step(case: _Case) -> Iterator[str]:
    if len(case.answer.steps) != len(case.task.steps):
        yield f"there must be {len(case.task.steps)} steps, one a planned change, but there are {len(case.answer.steps)}"


@REVISION.rule("Each step has one fact a memory, in the order of the memories.")
def one_per_memory(case: _Case) -> Iterator[str]:
    for number, step in enumerate(case.answer.steps, start=1):
        if len(step.facts) != len(case.task.memories):
            yield f"step {number} must have {len(case.task.memories)} facts, one a memory, but has {len(step.facts)}"


REVISION.add_wording(lambda case: (worded for worded, _, _ in _revised(case)))


@REVISION.rule("Each text differs from all earlier and all known ones.")
def new_text(case: _Case) -> Iterator[str]:
    seen = {normalised(text) for text in (*case.task.known, *(memory.text for memory in case.task.memories))}
    for label, fact in (worded for worded, _, _ in _revised(case)):
        if normalised(fact.text) in seen:
            yield f"{label}: the text is known already: {fact.text!r}"
        seen.add(normalised(fact.text))


@REVISION.rule("An update has a keyword that the old text lacks.")
def new_keyword(case: _Case) -> Iterator[str]:
    for (label, fact), _, before in _revised(case):
        if all(occurs(keyword, before[-1].text) for keyword in fact.keywords):
            yield f"{label}: at least one keyword must be new, but all of {list(fact.keywords)} stand in {before[-1].text!r}"


@REVISION.rule("A revised memory is still about the same thing.")
def same_memory(case: _Case) -> Iterator[str]:
    name = case.task.fixed.name
    for (label, fact), _, before in _revised(case):
        stems = memory_stems(before[-1].text, name)
        kept = stems & memory_stems(fact.text, name)
        if len(kept) < KEPT_STEMS * len(stems):
            yield f"{label} must keep a third of the words of {before[-1].text!r}, but keeps {len(kept)} of {len(stems)}"


@REVISION.rule("Outdated values stand in an earlier text of the memory, and not in the new one.")
def outdated(case: _Case) -> Iterator[str]:
    for (label, _), _, fact, before in _revised_facts(case):
        for value in fact.outdated:
            if not any(_stands_in(value, earlier.text) for earlier in before):
                yield f"{label}: the outdated value {value!r} must stand in an earlier text of the memory"
            if _stands_in(value, fact.text):
                yield f"{label}: the outdated value {value!r} must not stand in the new text {fact.text!r}"


@REVISION.rule("An expansion is longer, an adjustment or shift names what is outdated, an end says that it is one.")
def operator(case: _Case) -> Iterator[str]:
    for (label, _), plan, fact, before in _revised_facts(case):
        if plan.change is FactChange.EXPAND and len(fact.text.split()) <= len(before[-1].text.split()):
            yield f"{label}: the text must add to {before[-1].text!r} and so be longer, but is {fact.text!r}"
        elif plan.change in (FactChange.ADJUST, FactChange.SHIFT) and not fact.outdated:
            yield f"{label}: outdated must name what was replaced"
        elif plan.change is FactChange.PARTIAL_DELETION and not fact.outdated and not _END.search(fact.text):
            yield f"{label}: the text must take something away, which outdated names, but is {fact.text!r}"
        elif plan.change in (FactChange.RETRACT, FactChange.EXPIRE) and not _END.search(fact.text):
            yield f"{label}: the text must say that it holds no longer, but is {fact.text!r}"


@REVISION.rule("What expires was to end before the day of the session.")
def expired(case: _Case) -> Iterator[str]:
    for (label, _), plan, before in _revised(case):
        ends = dates_in(before[0].text)
        if plan.change is FactChange.EXPIRE and (not ends or max(ends) >= plan.today):
            yield f"{label}: {before[0].text!r} has not ended by {plan.today}"


@REVISION.rule("A change that is planned to have a date has it among its keywords.", name="dates")
def revised_dates(case: _Case) -> Iterator[str]:
    for (label, fact), plan, _ in _revised(case):
        if plan.dated:
            yield from _dated(label, fact, plan.today)


@REVISION.rule("What is said wrongly at first is given for facts that are corrected, and for no others.", name="misspoken")
def revised_misspoken(case: _Case) -> Iterator[str]:
    for (label, _), plan, fact, _ in _revised_facts(case):
        yield from _misspoken(label, fact, plan.provenance)
