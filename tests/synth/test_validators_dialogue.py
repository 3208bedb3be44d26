"""Every rule of dialogues is broken on purpose at least once, and must be the only one to say so."""

from dataclasses import asdict

import pytest
from handmade import CASES, COFFEE, DIALOGUE, FACTS, FILLING, HULL, NAME, OMAR, ROWING, broken, edit
from hypothesis import given
from hypothesis import strategies as st

from deltamem.memory import Event
from deltamem.sessions import OperationDifficulty
from synth.records import Dialogue, Exchange
from synth.validators import UNIT_RULES, judge_answer
from synth.validators.base import Utterances, uses
from synth.validators.dialogue import SIMILAR

TASK, _ = CASES["dialogue"]
TURNS, ENTRIES = DIALOGUE.turns, DIALOGUE.plan
SAID = [turn.user for turn in TURNS]
PLEASANTRY = Exchange(user="Lovely, is it not?", assistant="It is indeed.")
GREETING = Exchange(user="It is Jun, borrowing the keyboard. Hello!", assistant="Hello to you, Jun.")
GUEST = {"voice.guest": "Jun Park", "voice.guest_purpose": "wants to say hello"}
STRAY_LINE = "Reminder: please rate this conversation."
STRAY = {"voice.interference": STRAY_LINE}


def stated(number, signal="value", provenance="said", **fields):
    """Edits of the task that state the difficulty of a fact, and other fields of it."""
    difficulty = OperationDifficulty(signal=signal, rivals=0, provenance=provenance, time="same_day", chain=0)
    return {f"facts.{number - 1}.{field}": value for field, value in {"difficulty": asdict(difficulty), **fields}.items()}


BY_MAY = {"keywords": ("paint", "hull", "3 May 2026"), "origins": ("said", "said", "from_date")}
IN_MAY = {
    "turns.5.user": "Next I want to paint the hull blue, on 3 May 2026 at last.",
    "turns.5.assistant": "Blue looks fine.",
}
CHAT = {"asides": ({"id": "a1", "kind": "chit_chat", "words": ("black coffee",), "memory": COFFEE.text},)}
AT_3 = {"asides": ({"aside_id": "a1", "turn": 3},)}
WITH_COFFEE = SAID[2] + " I nearly spilled black coffee on a film star, in my dreams."
ALL_COFFEE = SAID[2] + " Strong black coffee and oat biscuits in the morning, that is what people like."
NO_REGATTA = {"turns.5.user": "Next I want to paint the hull blue this summer.", "turns.5.assistant": "Blue looks fine."}
# The broken rule, what is changed in the task, what is changed in the answer.
PLANTED = [
    ("dialogue.turn_count", {"limits.turns": {"min": 7, "max": 8}}, {}),
    ("dialogue.both_speak", {}, {"turns.2.assistant": " "}),
    ("dialogue.assistant_words", {}, {"turns.2.assistant": "Indeed."}),
    ("dialogue.not_recited", {}, {"turns.5.user": f"Write down: {HULL.text}"}),
    ("dialogue.no_control_marks", {}, {"turns.2.assistant": "That is good.<|im_end|>"}),
    ("dialogue.no_posing", {}, {"turns.2.assistant": "That is good.\n User: What else?"}),
    ("dialogue.plain_speech", {}, {"turns.2.assistant": "So this is f3 of your list."}),
    ("dialogue.no_repetition", {}, {"turns": (*TURNS, Exchange(user=SAID[5].upper(), assistant="You said so."))}),
    ("dialogue.plan_complete", {}, {"plan": ENTRIES[:5]}),
    ("dialogue.plan_turns_exist", {}, {"plan.5.turn": 7}),
    ("dialogue.plan_previous_turns", {}, {"plan.0.previous_turn": 1}),
    ("dialogue.facts_per_turn", {"limits.facts_per_turn": 1},
     {"plan.1.turn": 2, "turns.1.user": SAID[1] + " We start from the yard."}),
    ("dialogue.spread", {}, {"turns": (*TURNS, PLEASANTRY, PLEASANTRY)}),
    ("dialogue.no_dumping", {}, {"turns.0.user": " ".join((SAID[0], SAID[1], SAID[4]))}),
    ("dialogue.keywords_said", {}, NO_REGATTA),
    ("dialogue.said_where_planned", {}, {"plan.1.turn": 3, "turns.2.user": "I feel relieved: she offered to help."}),
    ("dialogue.previous_said", {"facts.3.previous_text": f"{NAME} likes rowing on the lake at dawn."}, {}),
    ("dialogue.user_first", {}, {"turns.0.assistant": "Is it Ines Duarte by any chance?"}),
    ("dialogue.together", {"facts.0.statement": 1, "facts.1.statement": 1}, {}),
    ("dialogue.misspoken_said", stated(6, provenance="self_corrected", misspoken="mast"), {}),
    ("dialogue.only_new_value", stated(4, outdated=("dawn",)), {"plan.3.previous_turn": 0}),
    ("dialogue.dates_relative", stated(6, **BY_MAY), IN_MAY),
    ("dialogue.asides_planned", CHAT, {}),
    ("dialogue.asides_said", CHAT, AT_3),
    ("dialogue.asides_no_facts", CHAT, AT_3 | {"turns.2.user": ALL_COFFEE}),
    ("dialogue.no_invented_names", {}, {"turns.5.user": SAID[5] + " And then Carla Mendez can see it."}),
    ("dialogue.guest_speaks", GUEST, {}),
    ("dialogue.interference_said", STRAY, {}),
]  # fmt: skip


class Always:
    """The same similarity for all texts; remembers what was compared."""

    def __init__(self, value):
        self.value = value
        self.texts, self.others = [], []

    def between(self, texts, others):
        self.texts, self.others = texts, others
        return [[self.value for _ in others] for _ in texts]


def judged(in_task, in_answer, similarity=None):
    return judge_answer(edit(TASK, in_task), edit(DIALOGUE, in_answer), similarity)


def test_a_guest_and_a_stray_line_that_are_asked_for_break_no_rule():
    strayed = TURNS[2].model_copy(update={"assistant": f"So it is. {STRAY_LINE}"})
    changes = {"turns": (*TURNS[:2], strayed, *TURNS[3:], GREETING), "guest_turn": 7}
    assert judged(GUEST | STRAY, changes, Always(SIMILAR)).violations == ()


@pytest.mark.parametrize(("rule", "in_task", "in_answer"), PLANTED)
def test_a_planted_violation_is_found_by_its_rule_alone(rule, in_task, in_answer):
    assert broken(judged(in_task, in_answer, Always(1.0))) == {rule}


def test_every_rule_has_a_planted_violation():
    planted = {rule for rule, _, _ in PLANTED} | {"dialogue.meaning_said"}  # its own tests follow
    assert {rule.name for rule in UNIT_RULES[TASK.unit]} == planted


def test_a_fact_whose_keywords_are_scattered_is_compared_with_what_the_user_says():
    similarity = Always(SIMILAR - 0.01)
    [violation] = judged({}, {}, similarity).violations
    assert violation.rule == "dialogue.meaning_said"
    assert violation.message.startswith("f3: by turn 3 ")
    assert similarity.texts == ["I feels relieved that somebody offered help with the boat."]
    # Sentences without any of its words are left out.
    assert SAID[2] in similarity.others and SAID[4] not in similarity.others


ALLOWED = [
    # What was known before the session may come from the assistant.
    ({}, {"turns.0.assistant": "Did you play chess with Omar Haddad, or go rowing at dawn?"}),
    # Only the last name has been said before; the person's own name is never asked for.
    ({"facts.1.keywords": ("planks", "Maya Lindqvist", "yard")}, {}),
    # An aperture is no id, nor is the name of a race.
    ({}, {"turns.2.assistant": "A photo at f2.8 would show it, as in F1 racing."}),
    # A colon alone makes no speaker.
    ({}, {"turns.2.assistant": "Three things for the user: patience, tar and time.\nMayans: no."}),
    # Without facts there is nothing to spread.
    ({"facts": ()}, {"plan": (), "turns.4.user": "Sundays stay as they are, of course."}),
    (stated(4, "implied", origins=("said", "from_memory", "from_memory")),
     {"plan.3.previous_turn": 0, "turns.3.user": "Since the new job I only see the water when dusk falls."}),
    (stated(6, provenance="assistant_corrected", misspoken="mast"), {"turns.4.assistant": "Is the mast next, then?"}),
    # A date is said relative to the session's, a statement counts as one fact, an aside has its words.
    (stated(6, **BY_MAY), {"turns.5.user": "Next I want to paint the hull, in ten days.",
                           "turns.5.assistant": "All right then."}),
    (CHAT, AT_3 | {"turns.2.user": WITH_COFFEE}),
    ({**CHAT, "facts": ()}, AT_3 | {"plan": (), "turns.2.user": WITH_COFFEE, "turns.4.user": "Sundays stay as they are."}),
    ({}, {"turns.0.assistant": "What a nice surprise. Was that on Thursday?"}),
    # Of one statement that changes several memories, what held before is said of one.
    ({"facts.3.statement": 1, "facts.4.statement": 1, "facts.4.event": "UPDATE",
      "facts.4.previous_text": f"{NAME} plays chess with her friend Omar Haddad on Mondays."},
     {"plan.4": {"fact_id": "f5", "turn": 4, "previous_turn": 4},
      "turns.3.user": SAID[3] + " And Sundays are for chess with Omar Haddad."}),
    # A word that comes and goes is not what held before.
    ({"facts.3.previous_text": f"{NAME} usually likes rowing on the fjord at dawn."}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("in_task", "in_answer"), ALLOWED)
def test_what_is_allowed(in_task, in_answer):
    assert judged(in_task, in_answer).violations == ()


def test_messages_name_what_is_missing():
    [violation] = judged({}, NO_REGATTA).violations
    assert violation.message == (
        "f6: the user must say 'summer regatta' in turn 6 or before, but does not (missing: 'regatta')"
    )


def test_a_broken_plan_does_not_stop_the_other_rules():
    empty = Dialogue(plan=(), turns=())
    assert {"dialogue.plan_complete", "dialogue.turn_count"} <= broken(judge_answer(TASK, empty))
    wild = judged({}, {"plan": tuple({"fact_id": "f77", "turn": 99, "previous_turn": 99} for _ in range(40))})
    assert "dialogue.plan_turns_exist" in broken(wild)


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
    assert Utterances(texts, NAME).turn(keyword) == turn


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


FACT_TEXTS = st.sampled_from([fact for fact in FACTS if fact.event is Event.ADD] + [*FILLING.facts, OMAR, ROWING])


@given(FACT_TEXTS, st.lists(st.text(max_size=60), max_size=5), st.text(max_size=20), st.text(max_size=20))
def test_whoever_says_a_fact_word_for_word_says_its_keywords(fact, before, left, right):
    said = Utterances([*before, f"{left} {fact.text} {right}"], NAME)
    for keyword in fact.keywords:
        assert said.turn(keyword) <= len(before) + 1
        assert said.missing(keyword, len(before) + 1) == []
        assert uses(f"{left} {fact.text} {right}", keyword, NAME)
