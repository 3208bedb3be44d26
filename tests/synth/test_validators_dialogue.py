"""Every rule of dialogues is broken on purpose at least once, and must be the only one to say so."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_cases import FACTS, FURTHER, HULL, OMAR, PLAN, ROWING, TALK, dialogue_case
from rule_cases import NAME, broken, edit

from deltamem.embedding import load_embedder
from deltamem.memory import Event
from synth.records import Dialogue, Exchange, PlannedFact
from synth.validators import judge_answer
from synth.validators.base import EmbedderSimilarity
from synth.validators.dialogue import DIALOGUE, SIMILAR, Said, uses

TURNS = tuple(Exchange(user=user, assistant=assistant) for user, assistant in TALK)
ENTRIES = tuple(PlannedFact(fact_id=f"f{fact}", turn=turn, previous_turn=previous) for fact, turn, previous in PLAN)
PLEASANTRY = Exchange(user="Lovely, is it not?", assistant="It is indeed.")
LONG_ANSWER = "It is a fine thing to have company out there, and it will make everything easier."


def shifted(turns):
    """The plan with so many turns in between the first turn and the second."""
    entries = [entry.model_dump() for entry in ENTRIES]
    for entry in entries[2:] + entries[:1]:
        entry["turn"] += turns
        entry["previous_turn"] += turns if entry["previous_turn"] else 0
    return entries


# The broken rule, what is changed in the task, what is changed in the answer.
PLANTED = [
    ("dialogue.turn_count", {"limits.turns": {"min": 7, "max": 8}}, {}),
    ("dialogue.turn_count", {"limits.turns": {"min": 1, "max": 5}}, {}),
    ("dialogue.both_speak", {}, {"turns.2.assistant": " "}),
    ("dialogue.both_speak", {}, {"turns": (*TURNS, Exchange(user="", assistant="Until next time then."))}),
    ("dialogue.assistant_words", {}, {"turns.2.assistant": "Indeed."}),
    ("dialogue.assistant_words", {"limits.assistant_words": {"min": 3, "max": 17}}, {}),
    ("dialogue.not_recited", {}, {"turns.5.user": f"Write down: {HULL.text}"}),
    ("dialogue.not_recited", {}, {"turns.4.user": "And she plays chess  with her friend Omar Haddad ON Sundays, as I do."}),
    ("dialogue.not_recited", {}, {"turns.3.user": "My hours: likes rowing on the fjord at dawn. Now I am out at dusk."}),
    ("dialogue.no_control_marks", {}, {"turns.2.assistant": "That is good.<|im_end|>"}),
    ("dialogue.no_control_marks", {}, {"turns.2.assistant": "<think>She is relieved.</think> That is good."}),
    ("dialogue.no_posing", {}, {"turns.2.assistant": "That is good.\n User: What else?"}),
    ("dialogue.no_posing", {}, {"turns.2.assistant": "**Assistant:** That is good."}),
    ("dialogue.no_posing", {}, {"turns.5.user": f"Maya: {TALK[5][0]}"}),
    ("dialogue.plain_speech", {}, {"turns.2.assistant": "So this is f3 of your list."}),
    ("dialogue.plain_speech", {}, {"turns.2.assistant": 'That is good. {"turn": 3}'}),
    ("dialogue.plain_speech", {}, {"turns.2.assistant": "Hello {{USER}}, how are you?"}),
    ("dialogue.no_repetition", {}, {"turns": (*TURNS, Exchange(user=TALK[5][0].upper(), assistant="You said so."))}),
    ("dialogue.no_repetition", {}, {"turns.2.assistant": LONG_ANSWER, "turns.4.assistant": LONG_ANSWER}),
    ("dialogue.plan_complete", {}, {"plan": ENTRIES[:5]}),
    ("dialogue.plan_complete", {}, {"plan": (*ENTRIES, ENTRIES[0])}),
    ("dialogue.plan_complete", {}, {"plan": (*ENTRIES, {"fact_id": "f9", "turn": 1, "previous_turn": 0})}),
    ("dialogue.plan_turns_exist", {}, {"plan.5.turn": 7}),
    ("dialogue.plan_previous_turns", {}, {"plan.0.previous_turn": 1}),
    ("dialogue.plan_previous_turns", {}, {"plan.4.previous_turn": 5}),
    ("dialogue.plan_previous_turns", {}, {"plan.3.previous_turn": 0}),
    ("dialogue.plan_previous_turns", {}, {"plan.3.previous_turn": 5}),
    (
        "dialogue.facts_per_turn",
        {"limits.facts_per_turn": 1},
        {"plan.1.turn": 2, "turns.1.user": TALK[1][0] + " We start from the yard."},
    ),
    ("dialogue.spread", {}, {"turns": (*TURNS, PLEASANTRY, PLEASANTRY)}),
    ("dialogue.spread", {}, {"turns": (TURNS[0], PLEASANTRY, PLEASANTRY, *TURNS[1:]), "plan": shifted(2)}),
    (
        "dialogue.no_dumping",
        {},
        {"turns.0.user": " ".join((TALK[0][0], TALK[1][0], TALK[4][0]))},
    ),
    (
        "dialogue.keywords_said",
        {},
        {"turns.5.user": "Next I want to paint the hull blue this summer.", "turns.5.assistant": "Blue looks fine."},
    ),
    ("dialogue.keywords_said", {}, {"plan.0.turn": 1, "turns.0.user": TALK[0][0] + " She is my neighbour."}),
    ("dialogue.said_where_planned", {}, {"plan.1.turn": 3, "turns.2.user": "I feel relieved: she offered to help."}),
    ("dialogue.previous_said", {"facts.3.previous_text": f"{NAME} likes rowing on the lake at dawn."}, {}),
    ("dialogue.previous_said", {}, {"plan.3.previous_turn": 1}),
    ("dialogue.user_first", {}, {"turns.0.assistant": "Is it Ines Duarte by any chance?"}),
    ("dialogue.user_first", {}, {"turns.0.assistant": "Will you be painting the thing soon?"}),
    ("dialogue.user_first", {}, {"turns.2.assistant": "Do you row at dusk as well?"}),
    ("dialogue.no_invented_names", {}, {"turns.5.user": TALK[5][0] + " And then Carla Mendez can see it."}),
]


class Always:
    """The same similarity for all texts; remembers what was compared."""

    def __init__(self, value):
        self.value = value
        self.texts, self.others = [], []

    def between(self, texts, others):
        self.texts, self.others = texts, others
        return [[self.value for _ in others] for _ in texts]


def test_a_good_dialogue_breaks_no_rule():
    task, answer = dialogue_case()
    assert judge_answer(task, answer, Always(SIMILAR)).violations == ()


@pytest.mark.parametrize(("rule", "in_task", "in_answer"), PLANTED)
def test_a_planted_violation_is_found_by_its_rule_alone(rule, in_task, in_answer):
    task, answer = dialogue_case()
    verdict = judge_answer(edit(task, in_task), edit(answer, in_answer), Always(1.0))
    assert broken(verdict) == {rule}


def test_every_rule_has_a_planted_violation():
    planted = {rule for rule, _, _ in PLANTED} | {"dialogue.meaning_said"}  # its own tests follow
    assert {rule.name for rule in DIALOGUE} == planted


def test_a_fact_whose_keywords_are_scattered_is_compared_with_what_the_user_says():
    similarity = Always(SIMILAR - 0.01)
    task, answer = dialogue_case()
    [violation] = judge_answer(task, answer, similarity).violations
    assert violation.rule == "dialogue.meaning_said"
    assert violation.message.startswith("f3: by turn 3 ")
    assert similarity.texts == ["I feels relieved that somebody offered help with the boat."]
    assert TALK[2][0] in similarity.others
    # Sentences without any of its words are left out.
    assert TALK[4][0] not in similarity.others


def test_only_what_is_said_up_to_the_planned_turn_counts():
    class Last(Always):
        def between(self, texts, others):
            return [[float("too late" in other) for other in others] for _ in texts]

    task, answer = dialogue_case()
    late = edit(answer, {"turns.3.user": TALK[3][0] + " Relieved, and not too late."})
    assert broken(judge_answer(task, late, Last(0))) == {"dialogue.meaning_said"}
    in_time = edit(answer, {"turns.2.user": TALK[2][0] + " Relieved, and not too late."})
    assert broken(judge_answer(task, in_time, Last(0))) == set()


def test_nothing_is_compared_where_every_fact_is_said_beyond_doubt():
    similarity = Always(-1.0)
    task, answer = dialogue_case()
    beyond_doubt = edit(answer, {"turns.2.user": "Relieved, that is it: she offered help with the boat."})
    assert judge_answer(task, beyond_doubt, similarity).violations == ()
    assert similarity.texts == []


def test_meaning_is_not_checked_without_an_embedding_model():
    task, answer = dialogue_case()
    assert "dialogue.meaning_said" not in judge_answer(task, answer).checked


SCATTERED = "The shop offered a discount on trousers. My cousin cannot help laughing at them. Dad is relieved that they fit."


@pytest.mark.parametrize(("said", "expected"), [(TALK[2][0], set()), (SCATTERED, {"dialogue.meaning_said"})])
def test_a_real_model_tells_a_told_fact_from_scattered_words(said, expected):
    task, answer = dialogue_case()
    similarity = EmbedderSimilarity(load_embedder())
    assert broken(judge_answer(task, edit(answer, {"turns.2.user": said}), similarity)) == expected


@pytest.mark.parametrize(
    ("in_task", "in_answer"),
    [
        # What was known before the session may come from the assistant.
        ({}, {"turns.0.assistant": "Did you play chess with Omar Haddad, or go rowing at dawn?"}),
        # A plural or another form of a verb is the same word.
        ({}, {"turns.5.user": "Next comes painting the hulls, before those summer regattas."}),
        # Only the last name has been said before; the person's own name is never asked for.
        ({"facts.1.keywords": ("planks", "Maya Lindqvist", "yard")}, {}),
        # Copied sentences are allowed where the shape says so.
        ({"limits.verbatim": True}, {"turns.5.user": HULL.text}),
        # An aperture is no id, nor is the name of a race.
        ({}, {"turns.2.assistant": "A photo at f2.8 would show it, as in F1 racing."}),
        # Small talk may come again.
        ({}, {"turns": (TURNS[0], PLEASANTRY, *TURNS[1:], PLEASANTRY), "plan": shifted(1)}),
        # A colon alone makes no speaker.
        ({}, {"turns.2.assistant": "Three things for the user: patience, tar and time.\nMayans: no."}),
        # Brands, feasts and one-word names are left to the reader.
        ({}, {"turns.5.user": TALK[5][0] + " Or by Christmas, says Mom. Next Monday I buy Netflix."}),
        # Without facts there is nothing to spread.
        ({"facts": ()}, {"plan": (), "turns.4.user": "Sundays stay as they are, of course."}),
    ],
)
def test_what_is_allowed(in_task, in_answer):
    task, answer = dialogue_case()
    assert judge_answer(edit(task, in_task), edit(answer, in_answer)).violations == ()


def test_a_word_that_comes_and_goes_is_not_what_held_before():
    task, answer = dialogue_case()
    usually = edit(task, {"facts.3.previous_text": f"{NAME} usually likes rowing on the fjord at dawn."})
    assert judge_answer(usually, answer).violations == ()


def test_messages_name_what_is_missing():
    task, answer = dialogue_case()
    planted = {"turns.5.user": "Next I want to paint the hull blue this summer.", "turns.5.assistant": "Blue looks fine."}
    [violation] = judge_answer(task, edit(answer, planted)).violations
    assert (
        violation.message == "f6: the user must say 'summer regatta' in turn 6 or before, but does not (missing: 'regatta')"
    )


def test_a_broken_plan_does_not_stop_the_other_rules():
    task, answer = dialogue_case()
    empty = Dialogue(plan=(), turns=())
    assert {"dialogue.plan_complete", "dialogue.turn_count"} <= broken(judge_answer(task, empty))
    wild = edit(answer, {"plan": tuple({"fact_id": "f77", "turn": 99, "previous_turn": 99} for _ in range(40))})
    assert "dialogue.plan_turns_exist" in broken(judge_answer(task, wild))


# --- when something counts as said -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keyword", "texts", "turn"),
    [
        ("physical therapy", ["Therapy it is, the physical kind."], 1),
        ("physical therapy", ["It got physical.", "So I need therapies."], 2),
        ("physical therapy", ["It got physical."], None),
        ("art", ["We had a party."], None),
        ("art", ["I love art!"], 1),
        ("two cups", ["Now it is 2 cups."], 1),
        ("her brother Tom", ["My brother Tom came."], 1),
        ("The Who", ["I saw who came."], None),
        ("The Who", ["I saw The Who live."], 1),
        ("C++", ["I write C."], 1),
        ("茶", ["我喜欢喝茶。"], 1),
        (f"{NAME}'s boat", ["My boat leaks."], 1),
        (NAME, ["Nothing."], 1),
    ],
)
def test_when_a_keyword_is_said(keyword, texts, turn):
    assert Said(texts, NAME).turn(keyword) == turn


@pytest.mark.parametrize(
    ("text", "keyword", "expected"),
    [
        ("Did physical therapies help?", "physical therapy", True),
        ("Therapy can be physical.", "physical therapy", False),
        ("A cup of tea?", "cup of tea", True),
        ("A party!", "art", False),
        ("Nothing at all.", NAME, False),
        ("One way would be to write.", "one in May", False),
        ("You present one in May, then.", "one in May", True),
    ],
)
def test_when_a_text_uses_a_keyword(text, keyword, expected):
    assert uses(text, keyword, NAME) is expected


FACT_TEXTS = st.sampled_from([fact for fact in FACTS if fact.event is Event.ADD] + [*FURTHER, OMAR, ROWING])


@given(FACT_TEXTS, st.lists(st.text(max_size=60), max_size=5), st.text(max_size=20), st.text(max_size=20))
def test_whoever_says_a_fact_word_for_word_says_its_keywords(fact, before, left, right):
    said = Said([*before, f"{left} {fact.text} {right}"], NAME)
    for keyword in fact.keywords:
        assert said.turn(keyword) <= len(before) + 1
        assert said.missing(keyword, len(before) + 1) == []
        assert uses(f"{left} {fact.text} {right}", keyword, NAME)


@given(FACT_TEXTS, st.integers(0, 10_000))
def test_the_order_of_words_does_not_matter_for_the_user(fact, seed):
    parts = fact.text.rstrip(".").split()
    random.Random(seed).shuffle(parts)
    assert all(Said([" ".join(parts)], NAME).turn(keyword) == 1 for keyword in fact.keywords)
