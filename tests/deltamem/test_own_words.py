"""Whether a fact is in the person's own words, by itself and as assisted episodes ask."""

from __future__ import annotations

import pytest
from assisted_cases import kept, session
from hypothesis import given
from hypothesis import strategies as st

from deltamem.memory import Event, Memory, MemoryState, Operation
from deltamem.own_words import NamedDialogue, OwnWords, keep_supported
from deltamem.text import content_stems


@pytest.mark.parametrize(
    ("text", "fact", "held"),
    [
        ("I moved to Denver last week.", "Ann moved to Denver on 30 March 2026.", True),
        ("I moved to Denver last week.", "Ann works at a bakery in York.", False),
        ("I drink 5 cups of coffee.", "Ann drinks five cups of coffee a day.", True),
        ("I lost my job", "Ann lost her job.", True),
        ("I know C and got an A.", "Ann knows C#.", False),
        ("I know C and got an A.", "Ann got an A-.", False),
        ("I know C# and a bit of c++, and got an A-!", "Ann knows C++ and C# and got an A-.", True),
        ("We paid 50 dollars, 5 percent off, in the us", "Ann paid $50 (5% off) in the US.", True),
        ("ich wohne in München", "Ann wohnt in München.", True),
        ("我搬到了北京，在一家银行工作。", "Ann搬到了北京，在银行工作。", True),  # noqa: RUF001
        ("我搬到了北京。", "Ann喜欢吃苹果和香蕉。", False),
        ("Я переехала в Москву и работаю врачом.", "Ann переехала в Москву и работает врачом.", True),
        ("Я живу в Москве.", "Ann держит трёх собак дома.", False),
    ],
)
def test_a_fact_needs_words_of_the_person(text: str, fact: str, held: bool) -> None:
    assert OwnWords(NamedDialogue.of(session(("user", text), ("assistant", "I see.")))).holds(fact, 0.5) is held


def test_what_only_the_assistant_says_is_not_kept() -> None:
    made = session(("user", "Which pet is best?"), ("assistant", "You could get a grey parrot from the shelter."))
    assert not OwnWords(NamedDialogue.of(made)).holds("Ann gets a grey parrot from the shelter.", 0.5)


@given(st.text(), st.text(), st.text(), st.floats(0, 1))
def test_support_is_a_share(person: str, text: str, fact: str, least: float) -> None:
    own_words = OwnWords(NamedDialogue.of(session(("user", text), ("assistant", "ok"), person=person)))
    own, anybody = own_words.support(fact)
    assert 0 <= own <= anybody <= 1
    assert own_words.holds(fact, 0)
    said = content_stems(text) - content_stems(person)
    assert own_words.holds(text, least) or not said


@pytest.mark.parametrize(
    ("person", "text", "facts", "remembered"),
    [
        # Names that are common words, and no name at all
        ("May", "I may move in May.", ["May may move in May 2026.", "May owns a boat."], ["May may move in May 2026."]),
        ("Will", "I will run.", ["Will will run.", "Will has a horse."], ["Will will run."]),
        ("Hope", "I hope to lose weight.", ["Hope hopes to lose weight."], ["Hope hopes to lose weight."]),
        ("user-42", "I moved to Rome.", ["user-42 moved to Rome."], ["user-42 moved to Rome."]),
        ("user-42", "I moved to Rome.", ["The user moved to Rome.", "user-42 owns a boat."], ["The user moved to Rome."]),
        # Other ways of naming the person than by name are the model's; nothing is lost by them.
        ("Ann", "I have a dog.", ["She has a dog.", "A dog I have."], ["She has a dog.", 'Ann said: "A dog I have."']),
        # Sessions in other languages, answered in theirs
        ("小明", "我搬到了北京。", ["小明搬到了北京。", "小明有31本书。"], ["小明搬到了北京。"]),
        ("Jana", "Ich bin nach Köln gezogen.", ["Jana ist nach Köln gezogen."], ["Jana ist nach Köln gezogen."]),
    ],
)  # fmt: skip
def test_common_words_as_names_ids_pronouns_and_languages(
    person: str, text: str, facts: list[str], remembered: list[str]
) -> None:
    assert kept(session(("user", text), ("assistant", "OK."), person=person), *facts) == remembered


UNTOLD = pytest.mark.xfail(reason="words alone do not tell", strict=True)
TOLD = [
    # Nobody said it
    ("a number", "Ann", "I have some books.", "OK.", "Ann has 31 books.", False),
    ("a number of the example", "Ravi", "I ran a half marathon!", "Wow.", "Ravi ran a half marathon in 1:58.", False),
    pytest.param("a lost negation", "Ann", "I don't smoke.", "OK.", "Ann smokes.", False, marks=UNTOLD),
    pytest.param(
        "a suggestion", "Ann", "Which pet should I get?", "Get a parrot!", "Ann gets a parrot.", False, marks=UNTOLD
    ),
    ("of the other", "Ann", "Ann: Wow!", "Ben: I got a job at NASA!", "Ann has a job at NASA.", False),
    # The person said it
    ("an age", "Ann", "I'm 42.", "OK, what do you do?", "Ann is 42 years old.", True),
    ("a request to others", "Ann", "I asked my boss for a raise.", "OK.", "Ann asked her boss for a raise.", True),
    (
        "inflection",
        "Ana",
        "Me mudé a Madrid el lunes pasado.",
        "Qué bien, ¡felicidades! ¿Vives allí con alguien?",
        "Ana se mudó a Madrid.",
        True,
    ),
    (
        "translation",
        "Ana",
        "Me gusta mucho el vino de mi pueblo.",
        "¿Qué prefieres, tinto o blanco?",
        "Ana likes wine a lot.",
        True,
    ),
    ("to the owner", "Ann", "Ann: Thanks!", "Ben: Congrats on the job at NASA, Ann!", "Ann has a job at NASA.", True),
]


@pytest.mark.parametrize(("case", "person", "text", "reply", "fact", "right"), TOLD)
def test_a_fact_is_judged_by_its_words(case: str, person: str, text: str, reply: str, fact: str, right: bool) -> None:
    assert (fact in kept(session(("user", text), ("assistant", reply), person=person), fact)) is right, case


@pytest.mark.parametrize(
    ("other", "reply", "fact", "right"),
    [
        ("You still have your grey parrot.", "Yes, exactly.", "Ann has a grey parrot.", True),
        ("You still have your grey parrot.", "What do they eat?", "Ann has a grey parrot.", False),
        ("I hope you get to try the focaccia.", "We fly to Bari in July.", "Ann will try the focaccia in Bari.", False),
        ("Will you try the focaccia there?", "In Bari, of course.", "Ann will try the focaccia in Bari.", True),
    ],
)
def test_what_is_said_yes_to_and_what_is_answered(other: str, reply: str, fact: str, right: bool) -> None:
    said = session(("user", "Hello there."), ("assistant", other), ("user", reply), ("assistant", "I see."))
    assert (fact in kept(said, fact)) is right


def test_of_what_the_model_made_up_the_person_s_own_words_stay() -> None:
    said = session(
        ("user", "Big change: the firm sent me to Denver, so I live there. And tea? I love tea."), ("assistant", "OK.")
    )
    quote = 'Ann said: "Big change: the firm sent me to Denver, so I live there."'
    assert kept(said, "Ann moved to Denver, Colorado, from her home in New York.", "Ann loves tea.") == [
        "Ann loves tea.",
        quote,
    ]
    assert kept(said, "Ann has 31 kinds of tea.", "Ann loves tea.") == ["Ann loves tea."], "it is told already"
    assert kept(said, "Ann owns a yacht.") == []


@given(
    st.lists(
        st.sampled_from(
            [
                Operation(Event.ADD, "Ann lives in Denver."),
                Operation(Event.ADD, "Ann bought a sailing boat because her uncle left her his savings."),
                Operation(Event.UPDATE, "Ann's sister Ruth moved to Norway to study whales.", "m1"),
                Operation(Event.UPDATE, "Ann moved from Boston to Denver.", "m1"),
                Operation(Event.NONE, "Ann has a cello.", "m1"),
                Operation(Event.ADD, "Ann has a cello."),
            ]
        ),
        unique=True,
    ),
    st.floats(0, 1),
)
def test_what_nobody_said_is_left_out_and_nothing_else(operations: list[Operation], least: float) -> None:
    said = session(("user", "I moved to Denver. I sold the boat."), ("assistant", "OK."))
    own_words = OwnWords(NamedDialogue.of(said))
    state = MemoryState([Memory("m1", "Ann lives in Boston.", said.time)])
    found = keep_supported(operations, own_words, least, state, "Ann has a cello.".__eq__)
    left = [operation for operation in operations if operation in found.operations]
    assert list(found.operations[: len(left)]) == left, "what is kept is as it was, in its order"
    assert len(left) + found.notes.total() == len(operations)
    assert all(operation in left for operation in operations if operation.event is Event.NONE or "cello" in operation.text)
    quoted = found.operations[len(left) :]
    assert {operation.text for operation in quoted} <= {
        'Ann said: "I moved to Denver."',
        'Ann said: "I sold the boat."',
    } and all(operation.event is Event.ADD for operation in quoted)
    assert least or list(found.operations) == operations
    if least >= 0.5:
        assert not any("savings" in operation.text or "whales" in operation.text for operation in found.operations)
    if least <= 0.5:
        assert all(operation in left for operation in operations if "Denver" in operation.text)
