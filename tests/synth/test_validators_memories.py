"""Every rule of memory generation is broken on purpose at least once, and must be the only one to say so."""

import pytest
from memory_cases import FURTHER, GROUPS, THREAD, evolution_case, filling_case, links_case, memory
from rule_cases import NAME, OMAR, broken, edit

from synth.validators import judge_answer
from synth.validators.memories import EVOLUTION, FILLING, LINKS

CASES = {"links": links_case, "evolution": evolution_case, "filling": filling_case}
FIRST = "feels shy about rowing with others in the old boat."


def words(text, *keywords):
    return memory(text, *(keywords or ("rowing", "old boat", "shy")))


# The broken rule, what is changed in the task, what is changed in the answer.
PLANTED = [
    ("links.group_count", {"groups": {"min": 3, "max": 4}}, {}),
    ("links.group_count", {}, {"groups": ()}),
    ("links.group_size", {"events_per_group": {"min": 2, "max": 2}}, {}),
    ("links.group_size", {}, {"groups.0.events": (0,)}),
    ("links.events_exist", {}, {"groups.0.events": (0, 9)}),
    ("links.events_in_order", {}, {"groups.0.events": (2, 0)}),
    ("links.events_in_order", {}, {"groups.0.events": (0, 0)}),
    ("links.groups_disjoint", {}, {"groups.0.events": (0, 1)}),
    ("links.groups_disjoint", {}, {"groups": (*GROUPS, GROUPS[0])}),
    ("links.thread_named", {}, {"groups.1.thread": " "}),
    ("evolution.one_per_event", {}, {"memories": THREAD[:2]}),
    ("evolution.begins_with_name", {}, {"memories.0.text": f"Ms {NAME} {FIRST}"}),
    ("evolution.third_person", {}, {"memories.0": words("feels shy about rowing with others in my old boat.")}),
    ("evolution.one_sentence", {}, {"memories.0": words(FIRST.rstrip("."))}),
    (
        "evolution.lasting_time",
        {},
        {"memories.0": words("feels shy about rowing with others in the old boat since yesterday.")},
    ),
    ("evolution.fact_words", {"limits.words": {"min": 14, "max": 32}}, {}),
    ("evolution.keyword_count", {}, {"memories.0": words(FIRST, "rowing", "old boat")}),
    ("evolution.keyword_words", {"limits.keyword_words": {"min": 1, "max": 1}}, {}),
    ("evolution.keywords_occur", {}, {"memories.0": words(FIRST, "rowing", "old boat", "shyness")}),
    ("evolution.keywords_distinct", {}, {"memories.0": words(FIRST, "rowing", "old boat", "Rowing")}),
    ("evolution.keywords_tell", {}, {"memories.0": words(FIRST, "rowing", "old boat", NAME)}),
    ("evolution.memory_changes", {}, {"memories.1": THREAD[0]}),
    ("evolution.memory_changes", {}, {"memories.2": THREAD[0]}),
    ("evolution.keyword_kept", {}, {"memories.1.keywords": ("company", "enjoys", "others")}),
    (
        "evolution.subsumes",
        {},
        {"memories.1": words("enjoys company in the old boat there.", "company", "old boat", "there")},
    ),
    (
        "evolution.anchor_kept",
        {},
        {
            "memories.1": words(
                "enjoys the company of others in the old boat, no longer feeling alone.", "company", "old boat", "alone"
            ),
            "memories.2": words("enjoys company now and is no longer alone in the boat.", "company", "no longer", "alone"),
        },
    ),
    ("evolution.not_known", {"known": (OMAR.text, THREAD[1].text.upper())}, {}),
    (
        "evolution.no_invented_names",
        {},
        {"memories.0": words("feels shy about rowing with Carla and others in the old boat.")},
    ),
    ("filling.fact_count", {"count": {"min": 4, "max": 6}}, {}),
    ("filling.fact_count", {}, {"facts": FURTHER[:2]}),
    ("filling.begins_with_name", {}, {"facts.0.text": "She mends the planks of an old boat in her yard."}),
    ("filling.third_person", {}, {"facts.0.text": f"{NAME} mends the planks of an old boat in our yard."}),
    ("filling.one_sentence", {}, {"facts.0.text": f"{NAME} mends the planks of an old boat. She is in her yard."}),
    ("filling.lasting_time", {}, {"facts.0.text": f"{NAME} mended the planks of an old boat in her yard yesterday."}),
    ("filling.fact_words", {"limits.words": {"min": 5, "max": 11}}, {}),
    ("filling.keyword_count", {}, {"facts.0.keywords": ("planks", "old boat")}),
    ("filling.keyword_words", {"limits.keyword_words": {"min": 1, "max": 2}}, {}),
    ("filling.keywords_occur", {}, {"facts.0.keywords": ("planks", "old boat", "garden")}),
    ("filling.keywords_distinct", {}, {"facts.0.keywords": ("planks", "old boat", "Old Boat")}),
    ("filling.keywords_tell", {}, {"facts.0.keywords": ("planks", "old boat", NAME)}),
    ("filling.not_existing", {"existing": (f"{NAME.upper()} mends the planks of an old boat in her yard!",)}, {}),
    ("filling.not_existing", {"existing": (f"In the yard, {NAME} mended planks of her old boat.",)}, {}),
    ("filling.facts_differ", {}, {"facts.1": FURTHER[0]}),
    (
        "filling.facts_differ",
        {},
        {"facts.1": memory("is in the yard, mending an old boat and its planks.", "yard", "old boat", "planks")},
    ),
    ("filling.keywords_not_nested", {}, {"facts.0.keywords": ("planks", "old boat", "boat")}),
    ("filling.goal_and_summary", {}, {"goal": ""}),
    ("filling.goal_and_summary", {}, {"summary": " "}),
    (
        "filling.no_invented_full_names",
        {},
        {"facts.0": memory("mends the planks of an old boat with Carla Mendez.", "planks", "old boat", "mends")},
    ),
]


@pytest.mark.parametrize("unit", CASES)
def test_a_good_answer_breaks_no_rule(unit):
    verdict = judge_answer(*CASES[unit]())
    assert verdict.violations == ()
    assert verdict.checked


@pytest.mark.parametrize(("rule", "in_task", "in_answer"), PLANTED)
def test_a_planted_violation_is_found_by_its_rule_alone(rule, in_task, in_answer):
    task, answer = CASES[rule.split(".")[0]]()
    verdict = judge_answer(edit(task, in_task), edit(answer, in_answer))
    assert broken(verdict) == {rule}


def test_every_rule_has_a_planted_violation():
    assert {rule.name for rule in (*LINKS, *EVOLUTION, *FILLING)} == {rule for rule, _, _ in PLANTED}


def test_messages_say_what_a_memory_leaves_out():
    task, answer = evolution_case()
    shorter = words("enjoys company in the old boat there.", "company", "old boat", "there")
    [violation] = judge_answer(task, edit(answer, {"memories.1": shorter})).violations
    assert violation.message == (
        "memory 2 must include what memory 1 says, at least 50% of its content words, but keeps 33% "
        "(left out: feels, shy, rowing, others)"
    )


def test_messages_name_both_groups_of_an_event():
    task, answer = links_case()
    [violation] = judge_answer(task, edit(answer, {"groups.0.events": (0, 1)})).violations
    assert violation.message == "event 1 is in group 1 and in group 2; it may be in one only"


def test_a_place_that_belongs_to_a_known_name_is_not_invented():
    task, answer = filling_case()
    fact = memory("mends the planks of an old boat near Bergen Havn.", "planks", "old boat", "Bergen Havn")
    assert judge_answer(task, edit(answer, {"facts.0": fact})).violations == ()


def test_names_from_the_profile_and_from_other_memories_may_be_used():
    task, answer = evolution_case()
    last = words("was shy about rowing in the old boat near Bergen, and now enjoys the company of Omar Haddad.")
    assert judge_answer(task, edit(answer, {"memories.2": last})).violations == ()
