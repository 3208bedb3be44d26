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

TASK, _ = CASES["dialogue"]
TURNS, ENTRIES = DIALOGUE.turns, DIALOGUE.plan
SAID = [turn.user for turn in TURNS]
PLEASANTRY = Exchange(user="Lovely, is it not?", assistant="It is indeed.")
GREETING = Exchange(user="It is Jun, borrowing the keyboard. Hello!", assistant="Hello to you, Jun.")
GUEST = {"voice.guest": "Jun Park", "voice.guest_purpose": "wants to say hello"}
AT_DUSK = f"{NAME} rows on the fjord at dusk."
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
ASKED = {"turns.4.assistant": "Is it paint for the hull next, before the summer regatta?"}
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
    ("dialogue.no_dumping", {}, {"turns.0.user": " ".join((SAID[0], SAID[1], SAID[4]))}),
    ("dialogue.supported", {}, {"turns.5.user": "Next I want to paint it."}),
    ("dialogue.previous_said", {"facts.3.previous_text": f"{NAME} likes rowing on the lake at dawn."}, {}),
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


def judged(in_task, in_answer):
    return judge_answer(edit(TASK, in_task), edit(DIALOGUE, in_answer))


def test_a_guest_and_a_stray_line_that_are_asked_for_break_no_rule():
    strayed = TURNS[2].model_copy(update={"assistant": f"So it is. {STRAY_LINE}"})
    changes = {"turns": (*TURNS[:2], strayed, *TURNS[3:], GREETING), "guest_turn": 7}
    assert judged(GUEST | STRAY, changes).violations == ()


@pytest.mark.parametrize(("rule", "in_task", "in_answer"), PLANTED)
def test_a_planted_violation_is_found_by_its_rule_alone(rule, in_task, in_answer):
    assert broken(judged(in_task, in_answer)) == {rule}


def test_every_rule_has_a_planted_violation():
    assert {rule.name for rule in UNIT_RULES[TASK.unit]} == {rule for rule, _, _ in PLANTED}


ALLOWED = [
    # Of alternatives one is said.
    ({"facts.5.keywords": ("hull", ("boat race", "summer regatta"))}, {}),
    # A fact may be told by an answer, in other words, or over several turns.
    ({}, {**ASKED, "turns.5.user": "Exactly, blue."}),
    ({}, {"turns.5.user": "Next I want it blue, a coat for the hull, as soon as this summer."}),
    ({}, {"turns.4.user": f"{SAID[4]} And the summer regatta?", "turns.5.user": "Blue paint, I think."}),
    ({}, {"plan.1.turn": 3}),
    # The assistant may speak of what it is told later, and turns may be about nothing.
    ({}, {"turns.0.assistant": "Is it Ines Duarte by any chance?"}),
    ({}, {"turns": (*TURNS, PLEASANTRY, PLEASANTRY.model_copy(update={"user": "Is it far?", "assistant": "Not so far."}))}),
    # What was known before the session may come from the assistant.
    ({}, {"turns.0.assistant": "Did you play chess with Omar Haddad, or go rowing at dawn?"}),
    # Only the last name has been said before; the person's own name is never asked for.
    ({"facts.1.keywords": ("planks", "Maya Lindqvist", "yard")}, {}),
    # An aperture is no id, nor is the name of a race.
    ({}, {"turns.2.assistant": "A photo at f2.8 would show it, as in F1 racing."}),
    # A colon alone makes no speaker.
    ({}, {"turns.2.assistant": "Three things for the user: patience, tar and time.\nMayans: no."}),
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


@pytest.mark.parametrize(
    ("in_answer", "start"),
    [
        # Said by the assistant, but denied, or never answered.
        ({**ASKED, "turns.5.user": "No, not that."}, "f6: by turn 6 "),
        (
            {"turns.5": Exchange(user="Guess what is next.", assistant="Paint for the hull, before the regatta?")},
            "f6: by turn 6 ",
        ),
        # A name that nobody says, though most of the words are there; a first name is enough.
        ({"turns.1.user": "My new neighbour is nice. Both of us go out rowing on Thursdays now."}, "f1: by turn 2 "),
        ({"turns.1.user": "My new neighbour is Ines. Both of us go out rowing on Thursdays now."}, ""),
        # Told, but later than planned.
        ({"plan.5.turn": 5}, "f6: by turn 5 "),
    ],
)
def test_what_a_fact_can_be_told_from(in_answer, start):
    violations = judged({}, in_answer).violations
    assert [violation.message[: len(start)] for violation in violations] == [start] * bool(start)


def test_messages_name_what_is_missing():
    [violation] = judged({}, {"turns.5.user": "Next I want to paint it."}).violations
    assert violation.message == (
        f"f6: by turn 6 it must be possible to tell {HULL.text!r} from the conversation, but neither of the two says "
        "'plans', 'hull', 'blue', 'summer', 'regatta'"
    )


@pytest.mark.parametrize(
    ("text", "keywords", "known", "spoken", "expected"),
    [
        (f"{NAME} pays 340 euros for a loft.", (), "", "It is a loft for a few hundred euros.", ["340"]),
        # Both, nothing, and years that are computed.
        (f"{NAME} fed two grey cats in 2021.", (), "", "I fed both of the grey cats.", []),
        # Of an update what is new, of what is known already its keywords.
        (AT_DUSK, ("fjord", "dusk"), AT_DUSK.replace("dusk", "dawn"), "At dusk now.", []),
        (AT_DUSK, ("fjord", "dusk"), AT_DUSK.replace("dusk", "dawn"), "On the fjord.", ["dusk"]),
        (AT_DUSK, ("fjord", "dusk"), AT_DUSK, "Ah, the fjord.", []),
        (AT_DUSK, ("fjord", "dusk"), AT_DUSK, "Ah.", ["fjord", "dusk"]),
        # Half of the keywords, where the label summarises.
        (f"{NAME} finds quiet mornings essential for creative work.", ("mornings", "work"), "", "I work early.", []),
        # Alternatives need not be the words of the label, and one of them will do.
        (f"{NAME} felt let down.", (("let down", "disappointed"),), "", "I was so disappointed.", []),
    ],
)  # fmt: skip
def test_what_is_lacking_for_a_label(text, keywords, known, spoken, expected):
    assert Utterances([spoken], NAME).lacking(text, keywords, known) == expected


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
        assert uses(f"{left} {fact.text} {right}", keyword, NAME)
    assert said.lacking(fact.text, fact.keywords) == []
