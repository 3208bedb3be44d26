"""Every rule of a unit, and of a whole life, is broken on purpose at least once, and must be the only one to say so."""

from datetime import date
from types import SimpleNamespace

import numpy as np
import pytest
from handmade import (
    CASES,
    COFFEE,
    COFFEE_LESS,
    DYNAMIC,
    EVENTS,
    FILLING,
    INES,
    JUN,
    LIFE,
    NAME,
    OMAR,
    PREFERENCES,
    REVISION,
    ROWING,
    THREAD,
    VILLAGE,
    broken,
    edit,
    fact,
    small_shape,
    span,
)
from offline_people import shape

from synth.records import Fact, FactChange, FactPlan, Participant, PlannedChange, Preference, Track
from synth.validators import RULES, UNIT_RULES, judge_answer, judge_life
from synth.validators.base import EmbedderSimilarity
from synth.validators.events import LIFE as LIFE_RULES

PEOPLE, TASTES = DYNAMIC.relationships, PREFERENCES.groups
AGAIN, GOLF, DARTS = (Preference(item=item, reason="It is cold.") for item in ("Lemonade.", "golf", "darts"))
NEIGHBOUR = {"name": "Li Wei", "kind": "neighbour", "description": "They share a wall."}
LEO = Participant(name="Leo Brandt", relationship="coach")
UPDATE = PlannedChange(track=Track.PREFERENCE, change=FactChange.ADJUST)
SHORTER = fact("enjoys company in the old boat there.", "company", "old boat", "there")
NAMES_WITH_INES = (NAME, "Omar Haddad", "Ines Duarte")
AT_NOON = {
    "previous_text": COFFEE_LESS.text,
    "text": f"{NAME} likes strong black coffee at noon.",
    "keywords": ("strong", "black coffee", "noon"),
    "subject": "beverages",
}


def told(index, text, *keywords):
    """Edits of what the event of the answer changes: 0 is Ines (new), 1 coffee (less), 2 swimming (more), 3 rowing."""
    return {f"events.{index}.changes.0.text": f"{NAME} {text}", f"events.{index}.changes.0.keywords": keywords}


def noon(event):
    """Edits of an event, which changes the coffee that an earlier event changed."""
    return {f"events.{event}.changes.0.{field}": value for field, value in AT_NOON.items()}


# The broken rule, what is changed in the task, what is changed in the answer.
PLANTED = [
    ("fixed.identity", {}, {"name": "Maya Lindquist"}),
    ("fixed.background_told", {}, {"location": " "}),
    ("fixed.life_goal_told", {}, {"life_goal.target": ""}),
    ("fixed.traits_distinct", {}, {"traits": ("patient", "Patient.")}),
    ("dynamic.relationship_count", {"draft.relationships": PEOPLE[:1]}, {"relationships": PEOPLE[:1]}),
    ("dynamic.relationship_names", {}, {"relationships.0.name": "Omar Hadad"}),
    ("dynamic.relationship_others", {"draft.relationships.0.name": NAME}, {"relationships.0.name": NAME}),
    ("dynamic.relationship_told", {}, {"relationships.1.kind": ""}),
    ("dynamic.situation_told", {}, {"career.description": ""}),
    ("dynamic.employment", {}, {"career.status": "Unemployed"}),
    ("preferences.categories", {}, {"groups": TASTES[::-1]}),
    ("preferences.item_count", {}, {"groups.0.likes": ()}),
    ("preferences.items_distinct", {}, {"groups.1.likes.1.item": "Rowing!"}),
    ("preferences.items_told", {}, {"groups.0.likes.0.reason": ""}),
    ("initial.fact_count", {"counts.total": span(8, 9)}, {}),
    ("initial.track_counts", {"counts.health": span(2, 3)}, {}),
    ("initial.facts_distinct", {}, {"facts.5": edit(COFFEE, {"text": COFFEE.text.upper().replace(NAME.upper(), NAME)})}),
    ("initial.subjects", {}, {"facts.6.subject": "Bergen"}),
    ("initial.subjects_occur", {}, {"facts.2.text": f"{NAME} plays chess with Omar on Sundays.",
                                    "facts.2.keywords": ("chess", "Omar", "Sundays")}),
    ("initial.people_remembered", {"dynamic.relationships": (*PEOPLE, NEIGHBOUR)}, {}),
    ("initial.begins_with_name", {}, {"facts.6.text": f"{NAME}en grew up in a village near Bergen."}),
    ("initial.fact_words", {"limits.words": span(10, 32)}, {}),
    ("initial.keyword_count", {}, {"facts.6.keywords": ("grew up", "village", "near", "Bergen")}),
    ("initial.keyword_words", {}, {"facts.6.keywords": ("grew up in a village", "village", "Bergen")}),
    ("events.one_per_slot", {}, {"events": EVENTS[1:4]}),
    ("events.date_in_slot", {}, {"events.0.date": date(2026, 3, 5)}),
    ("events.dates_increase", {"slots.1.not_before": date(2026, 2, 1)}, {"events.1.date": date(2026, 3, 1)}),
    ("events.domain", {}, {"events.2.domain": "work"}),
    ("events.life_goal", {}, {"events.0.serves_life_goal": False}),
    ("events.life_goal_told", {}, {"events.0.narrative": "A neighbour saw her in the yard, offered help and joined her."}),
    ("events.planned_changes", {}, {"events.1.changes": ()}),
    ("events.narrative_words", {}, {"events.3.narrative": "The rent of the shed rose."}),
    ("events.outcome_told", {}, {"events.3.title": ""}),
    ("events.grounding", {}, {"events.3.grounding": ()}),
    ("events.events_distinct", {}, {"events.3.title": "a new chair"}),
    ("events.told_anew", {}, {"events.3.narrative": f"As ever {JUN.text[:-1]}, but the rent of the shed rose."}),
    ("events.participants", {}, {"events.2.participants": (Participant(name=NAME, relationship="herself"),)}),
    ("events.newcomers_introduced", {}, {"events.2.participants": (LEO,)}),
    ("events.new_without_previous", {}, {"events.0.changes.0.previous_text": JUN.text}),
    ("events.previous_text_exact", {}, {"events.3.changes.0.previous_text": ROWING.text.rstrip(".")}),
    ("events.one_update_per_event", {"slots.3.changes": (UPDATE, UPDATE)}, {"events.3.changes": (
        EVENTS[4].changes[0], edit(EVENTS[4].changes[0], {"text": f"{NAME} likes rowing on the dark fjord at dusk."}))}),
    ("events.updates_per_fact", {"facts.4.updates": 1}, {}),
    ("events.same_track", {"facts.4.track": None}, {}),
    ("events.changes_something", {}, told(3, "likes rowing on the fjord at dawn!", "rowing", "fjord", "dawn")),
    ("events.keyword_kept", {"facts.3.keywords": ("coffee", "oat biscuits", "likes")}, {}),
    ("events.new_keyword", {}, {"events.1.changes.0.keywords": ("black coffee", "morning", "strong")}),
    ("events.information_kept", {}, told(3, "went from rowing to a hall since the storms.", "rowing", "hall", "storms")),
    ("events.expansion_longer", {}, told(2, "swims twice weekly against pain.", "swims", "weekly", "pain")),
    ("events.deletion_partial", {}, told(1, "likes strong black coffee, oat biscuits and milk in the morning.",
                                         "black coffee", "milk", "morning")),
    ("events.subjects", {}, {"events.0.changes.0.subject": ""}),
    ("events.same_subject", {}, {"events.3.changes.0.subject": "beverages"}),
    ("events.subjects_occur", {"names": NAMES_WITH_INES}, told(0, "rows with her neighbour.", "rows", "with", "neighbour")),
    ("events.new_relationship", {"names": NAMES_WITH_INES}, {"events.0.participants": ()}),
    ("links.group_count", {"groups": span(3, 4)}, {}),
    ("links.group_size", {"events_per_group": span(2, 2)}, {}),
    ("links.events_exist", {}, {"groups.0.events": (0, 9)}),
    ("links.events_in_order", {}, {"groups.0.events": (2, 0)}),
    ("links.groups_disjoint", {}, {"groups.0.events": (0, 1)}),
    ("links.thread_named", {}, {"groups.1.thread": " "}),
    ("evolution.one_per_event", {}, {"memories": THREAD.memories[:2]}),
    ("evolution.memory_changes", {}, {"memories.1": THREAD.memories[0]}),
    ("evolution.keyword_kept", {}, {"memories.1.keywords": ("company", "enjoys", "others")}),
    ("evolution.new_keyword", {}, {"memories.1.keywords": ("rowing", "old boat", "others")}),
    ("evolution.subsumes", {}, {"memories.1": SHORTER}),
    ("evolution.anchor_kept", {}, {
        "memories.1": fact("enjoys the company of others in the old boat, no longer feeling alone.",
                           "company", "old boat", "alone"),
        "memories.2": fact("enjoys company now and is no longer alone in the boat.", "company", "is no longer", "alone")}),
    ("evolution.not_known", {"known": (OMAR.text, THREAD.memories[1].text.upper())}, {}),
    ("evolution.no_invented_names", {},
     {"memories.0.text": f"{NAME} feels shy about rowing with Carla and others in the old boat."}),
    ("extraction.turns_exist", {}, {"facts.0.turn": 7}),
    ("extraction.begins_with_name", {}, {"facts.1.text": "She is relieved."}),
    ("contradictions.turns_exist", {}, {"found.0.turn": 7}),
    ("filling.fact_count", {"count": span(4, 6)}, {}),
    ("filling.not_existing", {"existing": (f"{NAME.upper()} mends the planks of an old boat in her yard!",)}, {}),
    ("filling.facts_differ", {}, {"facts.1": FILLING.facts[0]}),
    ("filling.keywords_not_nested", {}, {"facts.0.keywords": ("planks", "old boat", "boat")}),
    ("filling.goal_and_summary", {}, {"goal": ""}),
    ("filling.no_invented_full_names", {},
     {"facts.0": fact("mends the planks of an old boat with Carla Mendez.", "planks", "old boat", "mends")}),
]  # fmt: skip
# What each rule of wording forbids, as a change of a good sentence or of its three keywords, and where such a sentence is.
WORDINGS = [
    ("begins_with_name", "text", lambda text: text.replace(NAME, "She")),
    ("third_person", "text", lambda text: text.replace(".", " of our own.")),
    ("one_sentence", "text", lambda text: text.rstrip(".")),
    ("lasting_time", "text", lambda text: text.replace(".", " since yesterday.")),
    ("fact_words", "text", lambda text: text.replace(".", " and so on" * 8 + ".")),
    ("keyword_count", "keywords", lambda words: words[:2]),
    ("keyword_words", "keywords", lambda words: (*words[:2], "")),
    ("keywords_occur", "keywords", lambda words: (*words[:2], "zebra")),
    ("keywords_distinct", "keywords", lambda words: (*words[:2], words[1].upper())),
    ("keywords_tell", "keywords", lambda words: (*words[:2], NAME)),
]
SAILS = fact("sails on a lake in the evening.", "sails", "lake", "evening")
TEA = Fact(text=COFFEE.text.replace("coffee", "tea"), keywords=("tea", *COFFEE.keywords[1:]))
SIBLING = {"family": 1}


def plans(*first: dict, more: int = 0):
    """Plans for the facts of an answer: these, and so many that ask for nothing."""
    return {"plans": tuple(FactPlan(**plan).model_dump() for plan in (*first, *({} for _ in range(more))))}


PLANTED += [
    ("events.event_remembered", {"limits.memory": True}, {}),
    ("initial.one_per_plan", plans(more=6), {}),
    ("initial.siblings", plans({}, {}, {}, {}, SIBLING, SIBLING, {}), {}),
    ("initial.same_track", plans({}, {}, {}, {}, SIBLING, {}, SIBLING), {"facts.6": edit(COFFEE, {
        "text": TEA.text, "keywords": TEA.keywords, "track": None, "subject": ""})}),
    ("initial.dates", plans({"temporary": True}, more=6), {}),
    ("filling.one_per_plan", plans(more=2), {}),
    ("filling.siblings", plans(SIBLING, SIBLING, more=1), {}),
    ("filling.dates", plans({"dated": True}, more=2), {}),
    ("filling.provenance", plans({"provenance": "third_person"}, more=2), {}),
    ("filling.misspoken", plans({"provenance": "self_corrected"}, more=2), {}),
    ("revision.one_per_step", {}, {"steps": REVISION.steps[:1]}),
    ("revision.one_per_memory", {"memories": (ROWING, COFFEE)}, {}),
    ("revision.new_text", {"known": (REVISION.steps[1].facts[0].text.upper(),)}, {}),
    ("revision.new_keyword", {}, {"steps.0.facts.0.keywords": ("likes", "rowing", "dawn")}),
    ("revision.same_memory", {}, {"steps.0.facts.0.text": SAILS.text, "steps.0.facts.0.keywords": SAILS.keywords,
                                  "steps.1.facts.0.text": f"{NAME} no longer sails on a lake in the evening.",
                                  "steps.1.facts.0.keywords": ("no longer", "sails", "lake"),
                                  "steps.1.facts.0.outdated": ()}),
    ("revision.outdated", {}, {"steps.0.facts.0.outdated": ("fjord", "river")}),
    ("revision.operator", {"steps.0.change": "expand"}, {}),
    ("revision.expired", {"steps.1.change": "expire"}, {}),
    ("revision.dates", {"steps.0.dated": True}, {}),
    ("revision.misspoken", {"steps.0.provenance": "self_corrected"}, {}),
]  # fmt: skip
SENTENCES = {
    "initial": ("facts.6", VILLAGE),
    "events": ("events.3.changes.0", EVENTS[4].changes[0]),
    "evolution": ("memories.0", THREAD.memories[0]),
    "filling": ("facts.0", FILLING.facts[0]),
    "revision": ("steps.0.facts.0", REVISION.steps[0].facts[0]),
}
PLANTED += [
    (f"{unit}.{rule}", {}, {f"{place}.{field}": spoil(getattr(sentence, field))})
    for unit, (place, sentence) in SENTENCES.items()
    for rule, field, spoil in WORDINGS
]


@pytest.mark.parametrize("unit", CASES)
def test_a_good_answer_breaks_no_rule(unit):
    verdict = judge_answer(*CASES[unit])
    assert verdict.violations == () and verdict.checked


@pytest.mark.parametrize(("rule", "in_task", "in_answer"), PLANTED)
def test_a_planted_violation_is_found_by_its_rule_alone(rule, in_task, in_answer):
    task, answer = CASES[rule.partition(".")[0]]
    assert broken(judge_answer(edit(task, in_task), edit(answer, in_answer))) == {rule}


def test_every_rule_is_planted():
    units = [rule.name for unit, rules in UNIT_RULES.items() if unit != "dialogue" for rule in rules]
    assert {rule for rule, _, _ in PLANTED} == set(units)
    assert {rule for rule, _ in PLANTED_LIVES} == {rule.name for rule in LIFE_RULES.rules}


def test_rule_names_are_unique_and_rules_say_what_they_demand():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.description.endswith(".") for rule in RULES)


MET_AGAIN = edit(INES, {
    "change": "adjust", "previous_text": INES.text, "keywords": ("neighbour", "Ines Duarte", "friend"),
    "text": f"{NAME} rows with her neighbour and friend Ines Duarte on Thursdays."})  # fmt: skip
MEET_AGAIN = PlannedChange(track=Track.RELATIONSHIP, change=FactChange.ADJUST)
WORDED = [
    "saw My Neighbor Totoro in a village near Bergen and grew up.",
    "grew up with type I diabetes in a village near Bergen.",
    "grew up near Dr. Lee in St. Olav, a village by Bergen.",
    'grew up in a village near Bergen and says "we are my family."',
    "grew up in a village near Bergen!",
    "grew up in a village near Bergen and loves The Day After Tomorrow.",
]
# The unit, what is changed in the task, what is changed in the answer.
ALLOWED = [
    *(("initial", {}, {"facts.6.text": f"{NAME} {text}"}) for text in WORDED),
    ("initial", {}, {"facts.6.text": f"{NAME}'s parents grew up in a village near Bergen."}),
    # Where there is no room for everybody, nobody is missed.
    ("initial", {"counts.relationship": span(0, 1), "counts.career": span(1, 2)},
     {"facts.2.track": "career", "facts.2.subject": ""}),
    *(("dynamic", {}, {"career.status": status, "career.employer": "", "career.job": ""})
      for status in ("unemployed", "student", "on parental leave")),
    # A fact that an earlier event left may be changed where the limit allows.
    *(("events", {"limits.updates_per_fact": limit}, noon(3)) for limit in (2, None)),
    # A new fact may be changed by a later event.
    ("events", {"slots.3.changes": (MEET_AGAIN,)}, {"events.3.changes": (MET_AGAIN,)}),
    # A deletion may name what it takes away.
    ("events", {}, told(1, "likes strong black coffee in the morning, without the oat biscuits.",
                        "black coffee", "morning", "without")),
    ("events", {"limits.subjects": False}, {f"events.{index}.changes.0.subject": "" for index in range(4)}),
    # Of alternatives one has to stand in the text, and one is enough to keep.
    ("initial", {}, {"facts.6.keywords": ("grew up", ("hamlet", "village"), "Bergen")}),
    # Days do not make siblings differ.
    ("filling", plans(SIBLING, SIBLING, more=1), {
        "facts.0": fact("meets Omar Haddad at the old pier, from 3 May 2026 on.", "old pier", "Omar Haddad", "3 May 2026"),
        "facts.1": fact("meets Jun Park at the old pier, from 28 July 2027 on.", "old pier", "Jun Park", "28 July 2027")}),
    # A place of a known name is not invented, nor are names of the profile and of other memories.
    ("filling", {}, {"facts.0.text": f"{NAME} mends the planks of an old boat in a yard near Bergen Havn."}),
    ("evolution", {}, {"memories.2": fact("was shy about rowing in the old boat near Bergen, and now enjoys the company of "
                                          "Omar Haddad.", "rowing", "old boat", "Omar Haddad")}),
]  # fmt: skip


@pytest.mark.parametrize(("unit", "in_task", "in_answer"), ALLOWED)
def test_what_is_allowed(unit, in_task, in_answer):
    task, answer = CASES[unit]
    assert judge_answer(edit(task, in_task), edit(answer, in_answer)).violations == ()


@pytest.mark.parametrize(
    ("unit", "in_answer", "message"),
    [
        (
            "initial",
            {"facts.6.keywords": ("grew up", "town", "Bergen")},
            f"fact 7: keyword 'town' must occur word for word in '{NAME} grew up in a village near Bergen.'",
        ),
        (
            "initial",
            {"facts.6.keywords": ("grew up", ("town", "city"), "Bergen")},
            f"fact 7: keyword ('town', 'city') must occur word for word in '{NAME} grew up in a village near Bergen.'",
        ),
        (
            "initial",
            {"facts.6.keywords": ("grew up", ("Bergen", "Norway"), "bergen")},
            "fact 7: keyword 'bergen' must be given once only",
        ),
        (
            "evolution",
            {"memories.1": SHORTER},
            "memory 2 must include what memory 1 says, at least 50% of its content words, but keeps 33% "
            "(left out: feels, shy, rowing, others)",
        ),
        ("links", {"groups.0.events": (0, 1)}, "event 1 is in group 1 and in group 2; it may be in one only"),
    ],
)
def test_messages_say_which_item_what_was_found_and_what_was_expected(unit, in_answer, message):
    task, answer = CASES[unit]
    [violation] = judge_answer(task, edit(answer, in_answer)).violations
    assert violation.message == message


PLANTED_LIVES = [
    ("life.one_per_slot", {"events.4.index": 5}),
    ("life.dates_increase", {"events.2.date": date(2026, 3, 1)}),
    ("life.dates_after_start", {"events.0.date": date(2026, 1, 5)}),
    ("life.span", {"events.4.date": date(2026, 8, 4)}),
    ("life.track_quotas", {"events.3.changes.0.track": Track.RELATIONSHIP}),
    ("life.operator_balance", {"events.0.changes.0.change": FactChange.EXPAND}),
    ("life.domain_quotas", {"events.0.domain": "admin"}),
    ("life.life_goal_quota", {"events.1.serves_life_goal": False}),
    ("life.previous_text_exact", {"events.4.changes.0.previous_text": COFFEE.text}),
    ("life.updates_per_fact", noon(4)),
    ("life.newcomers_introduced", {"events.4.participants": (LEO,)}),
    ("life.idle_bare", {"slots.3.idle": True}),
]


@pytest.mark.parametrize(("rule", "changes"), PLANTED_LIVES)
def test_a_violation_planted_in_a_life_is_found_by_its_rule_alone(rule, changes):
    assert broken(judge_life(LIFE, small_shape())) == set()
    assert broken(judge_life(edit(LIFE, changes), small_shape())) == {rule}


@pytest.mark.parametrize(("rule", "changes"), [planted for planted in PLANTED_LIVES if "quota" in planted[0]])
def test_quotas_bind_only_where_changes_are_planned_by_quota(rule, changes):
    demanding = edit(small_shape(), {"plan": shape("demanding").plan.model_dump()})
    assert judge_life(edit(LIFE, changes), demanding).violations == ()


def test_a_row_a_text_with_the_cosine_to_each_other_text():
    letters = SimpleNamespace(
        documents=lambda texts: np.asarray([[text.count("a"), text.count("b")] for text in texts], "f")
    )
    half = 0.5**0.5
    rows = EmbedderSimilarity(letters).between(["aa", "ab", "xyz"], ["a", "b", "bbbb"])
    assert rows == [pytest.approx([1, 0, 0]), pytest.approx([half, half, half]), [0, 0, 0]]
