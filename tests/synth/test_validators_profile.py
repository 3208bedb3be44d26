"""Every rule of the profile stage is broken on purpose at least once, and must be the only one to say so."""

from datetime import date

import pytest
from rule_cases import (
    DYNAMIC,
    NAME,
    PREFERENCES,
    SPORTS,
    broken,
    dynamic_case,
    edit,
    fixed_case,
    initial_case,
    preferences_case,
)

from synth.records import Preference, Relationship
from synth.validators import RULES, judge_answer
from synth.validators.profile import DYNAMIC as DYNAMIC_RULES
from synth.validators.profile import FIXED as FIXED_RULES
from synth.validators.profile import INITIAL as INITIAL_RULES
from synth.validators.profile import PREFERENCES as PREFERENCES_RULES

CASES = {"fixed": fixed_case, "dynamic": dynamic_case, "preferences": preferences_case, "initial": initial_case}
PEOPLE, GROUPS = DYNAMIC.relationships, PREFERENCES.groups
AGAIN = Preference(item="Lemonade.", reason="It is cold.")
GOLF = Preference(item="golf", reason="It is slow.")
NEIGHBOUR = Relationship(name="Li Wei", kind="neighbour", description="They share a wall.")
LONG = f"{NAME} swims " + "and swims " * 15 + "twice a week against back pain."

# The broken rule, what is changed in the task, what is changed in the answer.
PLANTED = [
    ("fixed.identity", {}, {"name": "Maya Lindquist"}),
    ("fixed.identity", {}, {"gender": "male"}),
    ("fixed.identity", {}, {"birth_date": date(1988, 6, 3)}),
    ("fixed.background_told", {}, {"location": " "}),
    ("fixed.background_told", {}, {"degree": ""}),
    ("fixed.background_told", {}, {"family.partner": ""}),
    ("fixed.life_goal_told", {}, {"life_goal.target": ""}),
    ("fixed.life_goal_told", {}, {"life_goal.statement": ""}),
    ("fixed.traits_distinct", {}, {"traits": ("patient", "Patient.")}),
    ("fixed.traits_distinct", {}, {"traits": ("patient", "")}),
    ("dynamic.relationship_count", {"draft.relationships": PEOPLE[:1]}, {"relationships": PEOPLE[:1]}),
    ("dynamic.relationship_names", {}, {"relationships.0.name": "Omar Hadad"}),
    ("dynamic.relationship_names", {}, {"relationships": (*PEOPLE, PEOPLE[0])}),
    ("dynamic.relationship_others", {"draft.relationships.0.name": NAME}, {"relationships.0.name": NAME}),
    ("dynamic.relationship_told", {}, {"relationships.1.kind": ""}),
    ("dynamic.relationship_told", {}, {"relationships.1.description": ""}),
    ("dynamic.situation_told", {}, {"career.description": ""}),
    ("dynamic.situation_told", {}, {"health.reason": ""}),
    ("dynamic.employment", {}, {"career.status": "Unemployed"}),
    ("dynamic.employment", {}, {"career.status": "unemployed", "career.employer": ""}),
    ("dynamic.employment", {}, {"career.employer": ""}),
    ("dynamic.employment", {}, {"career.status": "Entrepreneur", "career.job": ""}),
    ("preferences.categories", {}, {"groups": GROUPS[::-1]}),
    ("preferences.categories", {}, {"groups": GROUPS[:1]}),
    ("preferences.categories", {}, {"groups.0.category": "drinks"}),
    ("preferences.item_count", {}, {"groups.0.likes": ()}),
    ("preferences.item_count", {}, {"groups.1.dislikes": (GOLF, edit(GOLF, {"item": "darts"}))}),
    ("preferences.items_distinct", {}, {"groups.1.likes.1.item": "Rowing!"}),
    ("preferences.items_distinct", {}, {"groups.0.likes": (AGAIN,)}),
    ("preferences.items_distinct", {}, {"groups.1.dislikes": (AGAIN,)}),
    ("preferences.items_told", {}, {"groups.0.likes.0.reason": ""}),
    ("preferences.items_told", {}, {"groups.0.likes.0.item": ""}),
    ("initial.fact_count", {"counts.total": {"min": 8, "max": 9}}, {}),
    ("initial.track_counts", {"counts.health": {"min": 2, "max": 3}}, {}),
    ("initial.track_counts", {}, {"facts.1.track": None}),
    ("initial.facts_distinct", {}, {"facts.5.text": f"{NAME} likes strong black coffee and oat biscuits in the  Morning.",
                                    "facts.5.keywords": ("coffee", "oat biscuits", "morning")}),
    ("initial.subjects", {}, {"facts.6.subject": "Bergen"}),
    ("initial.subjects", {}, {"facts.0.subject": SPORTS}),
    ("initial.subjects", {}, {"facts.4.subject": "drinks"}),
    ("initial.subjects", {"dynamic.relationships": PEOPLE[1:]}, {}),
    ("initial.subjects_occur", {}, {"facts.2.text": f"{NAME} plays chess with her friend Omar on Sundays.",
                                    "facts.2.keywords": ("chess", "Omar", "Sundays")}),
    ("initial.people_remembered", {"dynamic.relationships": (*PEOPLE, NEIGHBOUR)}, {}),
    ("initial.begins_with_name", {}, {"facts.6.text": "She grew up in a village near Bergen."}),
    ("initial.begins_with_name", {}, {"facts.6.text": f"{NAME}en grew up in a village near Bergen."}),
    ("initial.third_person", {}, {"facts.6.text": f"{NAME} grew up in my village near Bergen."}),
    ("initial.third_person", {}, {"facts.6.text": f"{NAME} says I've grown; I grew up in a village near Bergen."}),
    ("initial.one_sentence", {}, {"facts.6.text": f"{NAME} grew up in a village near Bergen"}),
    ("initial.one_sentence", {}, {"facts.6.text": f"{NAME} grew up in a village. It was near Bergen."}),
    ("initial.one_sentence", {}, {"facts.6.text": f"{NAME} grew up in a village\nnear Bergen."}),
    ("initial.lasting_time", {}, {"facts.6.text": f"{NAME} grew up in a village near Bergen long ago."}),
    ("initial.lasting_time", {}, {"facts.6.text": f"{NAME} grew up in a village near Bergen and moves next Friday."}),
    ("initial.fact_words", {}, {"facts.1.text": LONG}),
    ("initial.fact_words", {"limits.words": {"min": 10, "max": 32}}, {}),
    ("initial.keyword_count", {}, {"facts.6.keywords": ("village", "Bergen")}),
    ("initial.keyword_count", {}, {"facts.6.keywords": ("grew up", "village", "near", "Bergen")}),
    ("initial.keyword_words", {}, {"facts.6.keywords": ("grew up in a village", "village", "Bergen")}),
    ("initial.keyword_words", {}, {"facts.6.keywords": ("grew up", "", "Bergen")}),
    ("initial.keywords_occur", {}, {"facts.6.keywords": ("grew up", "town", "Bergen")}),
    ("initial.keywords_distinct", {}, {"facts.6.keywords": ("bergen", "village", "Bergen")}),
    ("initial.keywords_tell", {}, {"facts.6.keywords": (NAME, "village", "Bergen")}),
    ("initial.keywords_tell", {}, {"facts.6.keywords": ("Maya", "village", "Bergen")}),
]  # fmt: skip


@pytest.mark.parametrize("unit", CASES)
def test_a_good_profile_breaks_no_rule(unit):
    task, answer = CASES[unit]()
    assert judge_answer(task, answer).violations == ()


@pytest.mark.parametrize(("rule", "in_task", "in_answer"), PLANTED)
def test_a_planted_violation_is_found_by_its_rule_alone(rule, in_task, in_answer):
    task, answer = CASES[rule.partition(".")[0]]()
    assert broken(judge_answer(edit(task, in_task), edit(answer, in_answer))) == {rule}


@pytest.mark.parametrize(
    "text",
    [
        "saw My Neighbor Totoro in a village near Bergen and grew up.",
        "grew up with type I diabetes in a village near Bergen.",
        "grew up near Dr. Lee in St. Olav, a village by Bergen.",
        'grew up in a village near Bergen and says "we are my family."',
        "grew up in a village near Bergen!",
        "grew up in a village near Bergen and loves The Day After Tomorrow.",
    ],
)
def test_wordings_that_only_look_wrong_are_let_through(text):
    task, answer = initial_case()
    good = edit(answer, {"facts.6.text": f"{NAME} {text}"})
    assert judge_answer(task, good).violations == ()


def test_a_possessive_name_begins_a_fact():
    task, answer = initial_case()
    good = edit(answer, {"facts.6.text": f"{NAME}'s parents grew up in a village near Bergen."})
    assert judge_answer(task, good).violations == ()


def test_the_unemployed_and_those_between_have_no_employer():
    task, answer = dynamic_case()
    for status in ("unemployed", "student", "on parental leave"):
        good = edit(answer, {"career.status": status, "career.employer": "", "career.job": ""})
        assert judge_answer(task, good).violations == ()


def test_people_are_not_missed_where_there_is_no_room_for_them():
    task, answer = initial_case()
    alone = {"track": "career", "subject": ""}
    counts = {"counts.relationship": {"min": 0, "max": 1}, "counts.career": {"min": 1, "max": 2}}
    full = edit(answer, {f"facts.2.{field}": value for field, value in alone.items()})
    assert judge_answer(edit(task, counts), full).violations == ()


def test_a_violation_says_which_item_what_was_found_and_what_was_expected():
    task, answer = initial_case()
    [violation] = judge_answer(task, edit(answer, {"facts.6.keywords": ("grew up", "town", "Bergen")})).violations
    assert (
        violation.message == f"fact 7: keyword 'town' must occur word for word in '{NAME} grew up in a village near Bergen.'"
    )


def test_every_rule_of_the_profile_is_planted():
    rules = (*FIXED_RULES, *DYNAMIC_RULES, *PREFERENCES_RULES, *INITIAL_RULES)
    assert {rule for rule, _, _ in PLANTED} == {rule.name for rule in rules}


def test_rule_names_are_unique_and_rules_say_what_they_demand():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.description.endswith(".") for rule in RULES)
