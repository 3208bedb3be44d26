"""Rules of stage 1: the profile (HaluMem, stage 1) and the initial memory state S0."""

# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from deltamem.text import normalised
from synth.records import DynamicPart, FixedPart, Preference, PreferenceGroup, Preferences, Track
from synth.tasks import DynamicTask, FixedTask, InitialFacts, InitialTask, PreferencesTask, Unit
from synth.validators.base import Case, RuleSet, numbered, occurs, repeated
from synth.validators.demands import add_initial_plans

FIXED, DYNAMIC = RuleSet(Unit.FIXED), RuleSet(Unit.DYNAMIC)
PREFERENCES, INITIAL = RuleSet(Unit.PREFERENCES), RuleSet(Unit.INITIAL)


def _empty(fields: Mapping[str, str]) -> Iterator[str]:
    for field, text in fields.items():
        if not text:
            yield f"{field} must not be empty"


@FIXED.rule("Name, gender and birth date are the draft's.")
def identity(case: Case[FixedTask, FixedPart]) -> Iterator[str]:
    draft, answer = case.task.draft, case.answer
    for field in ("name", "gender", "birth_date"):
        expected, found = str(getattr(draft, field)), str(getattr(answer, field))
        if found != expected:
            yield f"{field} must stay {expected!r}, but is {found!r}"


@FIXED.rule("Place, education and family are told.")
def background_told(case: Case[FixedTask, FixedPart]) -> Iterator[str]:
    answer = case.answer
    # The major stays open: somebody without a degree has none.
    yield from _empty({"location": answer.location, "degree": answer.degree})
    yield from _empty({f"family.{field}": text for field, text in answer.family})


@FIXED.rule("The life goal has a kind, a statement, a motivation and a target.")
def life_goal_told(case: Case[FixedTask, FixedPart]) -> Iterator[str]:
    yield from _empty({f"life_goal.{field}": text for field, text in case.answer.life_goal})


@FIXED.rule("Traits are words, none of them twice.")
def traits_distinct(case: Case[FixedTask, FixedPart]) -> Iterator[str]:
    yield from _empty({f"traits[{index}]": trait for index, trait in enumerate(case.answer.traits)})
    for trait in repeated(case.answer.traits):
        yield f"trait {trait!r} must be given once only"


@DYNAMIC.rule("The person knows as many people as asked for.")
def relationship_count(case: Case[DynamicTask, DynamicPart]) -> Iterator[str]:
    expected, found = case.task.limits.relationships, len(case.answer.relationships)
    if found not in expected:
        yield f"there must be {expected} relationships, but there are {found}"


@DYNAMIC.rule("The people are the draft's, each once.")
def relationship_names(case: Case[DynamicTask, DynamicPart]) -> Iterator[str]:
    expected = sorted(relationship.name for relationship in case.task.draft.relationships)
    found = sorted(relationship.name for relationship in case.answer.relationships)
    if found != expected:
        yield f"the relationships must name {expected}, each once, but name {found}"


@DYNAMIC.rule("Nobody is a relationship of their own.")
def relationship_others(case: Case[DynamicTask, DynamicPart]) -> Iterator[str]:
    for relationship in case.answer.relationships:
        if normalised(relationship.name) == normalised(case.task.fixed.name):
            yield f"the relationships must be other people, but {relationship.name!r} is the person"


@DYNAMIC.rule("Each relationship says what kind it is and describes the other one.")
def relationship_told(case: Case[DynamicTask, DynamicPart]) -> Iterator[str]:
    for relationship in case.answer.relationships:
        where = f"relationship {relationship.name!r}"
        yield from _empty({f"{where}: kind": relationship.kind, f"{where}: description": relationship.description})


@DYNAMIC.rule("Career and health are described.")
def situation_told(case: Case[DynamicTask, DynamicPart]) -> Iterator[str]:
    career, health = case.answer.career, case.answer.health
    yield from _empty(
        {
            "career.status": career.status,
            "career.description": career.description,
            "health.physical": health.physical,
            "health.mental": health.mental,
            "health.reason": health.reason,
        }
    )


@DYNAMIC.rule("Who is unemployed has neither employer nor job; who is employed or an entrepreneur has both.")
def employment(case: Case[DynamicTask, DynamicPart]) -> Iterator[str]:
    career = case.answer.career
    status = normalised(career.status)
    for field, text in (("employer", career.employer), ("job", career.job)):
        if status == "unemployed" and text:
            yield f"career.{field} must be empty, since the status is {career.status!r}, but is {text!r}"
        if status in ("employed", "entrepreneur") and not text:
            yield f"career.{field} must be told, since the status is {career.status!r}"


@PREFERENCES.rule("The categories are the given ones, in their order.")
def categories(case: Case[PreferencesTask, Preferences]) -> Iterator[str]:
    expected, found = list(case.task.categories), [group.category for group in case.answer.groups]
    if found != expected:
        yield f"the categories must be {expected}, but are {found}"


@PREFERENCES.rule("Each category has as many likes and dislikes together as asked for.")
def item_count(case: Case[PreferencesTask, Preferences]) -> Iterator[str]:
    expected = case.task.limits.items
    for group in case.answer.groups:
        found = len(group.likes) + len(group.dislikes)
        if found not in expected:
            yield f"category {group.category!r} must have {expected} likes and dislikes together, but has {found}"


@PREFERENCES.rule("Nothing is named twice, nor both liked and disliked.")
def items_distinct(case: Case[PreferencesTask, Preferences]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for group, kind, preference in _preferences(case.answer):
        key, where = normalised(preference.item), f"the {kind} of {group.category!r}"
        if key in seen:
            yield f"{preference.item!r} is named in {where}, but already in {seen[key]}"
        seen.setdefault(key, where)


@PREFERENCES.rule("Each like and dislike names something and gives a reason.")
def items_told(case: Case[PreferencesTask, Preferences]) -> Iterator[str]:
    for group, kind, preference in _preferences(case.answer):
        where = f"{preference.item!r} in the {kind} of {group.category!r}"
        yield from _empty({f"{where}: item": preference.item, f"{where}: reason": preference.reason})


def _preferences(answer: Preferences) -> Iterator[tuple[PreferenceGroup, str, Preference]]:
    for group in answer.groups:
        for preference in group.likes:
            yield group, "likes", preference
        for preference in group.dislikes:
            yield group, "dislikes", preference


@INITIAL.rule("There are as many facts as asked for.")
def fact_count(case: Case[InitialTask, InitialFacts]) -> Iterator[str]:
    expected, found = case.task.counts.total, len(case.answer.facts)
    if found not in expected:
        yield f"there must be {expected} facts, but there are {found}"


@INITIAL.rule("Each track has as many facts as asked for.")
def track_counts(case: Case[InitialTask, InitialFacts]) -> Iterator[str]:
    found = Counter(fact.track for fact in case.answer.facts)
    for track in (*Track, None):
        expected = case.task.counts.of(track)
        if found[track] not in expected:
            yield f"track {_track(track)} must have {expected} facts, but has {found[track]}"


@INITIAL.rule("No fact is stated twice.")
def facts_distinct(case: Case[InitialTask, InitialFacts]) -> Iterator[str]:
    for text in repeated(fact.text for fact in case.answer.facts):
        yield f"a fact must be stated once only: {text!r}"


@INITIAL.rule("A relationship names one of the person's people, a preference one of the categories, other facts nothing.")
def subjects(case: Case[InitialTask, InitialFacts]) -> Iterator[str]:
    task = case.task
    allowed: dict[Track | None, list[str]] = {
        Track.RELATIONSHIP: [relationship.name for relationship in task.dynamic.relationships],
        Track.PREFERENCE: [group.category for group in task.preferences.groups],
    }
    for number, fact in enumerate(case.answer.facts, start=1):
        known = allowed.get(fact.track)
        if known is None and fact.subject:
            yield f"fact {number}: the subject must be empty in track {_track(fact.track)}, but is {fact.subject!r}"
        elif known and fact.subject not in known:
            yield f"fact {number}: the subject must be one of {known}, but is {fact.subject!r}"


@INITIAL.rule("A relationship's fact says the other one's full name.")
def subjects_occur(case: Case[InitialTask, InitialFacts]) -> Iterator[str]:
    for number, fact in enumerate(case.answer.facts, start=1):
        if fact.track is Track.RELATIONSHIP and not occurs(fact.subject, fact.text):
            yield f"fact {number} must say the full name {fact.subject!r}, but is {fact.text!r}"


@INITIAL.rule("Everybody whom the person knows is remembered, as far as there is room.")
def people_remembered(case: Case[InitialTask, InitialFacts]) -> Iterator[str]:
    people = [relationship.name for relationship in case.task.dynamic.relationships]
    if len(people) <= case.task.counts.relationship.max:
        found = {fact.subject for fact in case.answer.facts if fact.track is Track.RELATIONSHIP}
        for name in people:
            if name not in found:
                yield f"there must be a fact of track relationship with the subject {name!r}"


def _track(track: Track | None) -> str:
    return "none" if track is None else track.value


INITIAL.add_wording(lambda case: numbered("fact", case.answer.facts))
add_initial_plans(INITIAL)
