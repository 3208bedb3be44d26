"""Text recalled from memory into a dialogue is shown as such and not stored again."""

import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import pytest
from episode_texts import add, none, update
from hypothesis import given
from hypothesis import strategies as st

from deltamem.bank.base import Hit
from deltamem.dedup import MARK, Adjustment, Corrected, KnownTexts, drop_known, mark_recalled
from deltamem.journal.records import Change, ChangeEvent
from deltamem.memory import Event, Memory, MemoryState, Operation
from deltamem.sessions import Turn
from deltamem.text import normalised

TIME = datetime(2026, 4, 5, 20, 1)
DENVER = Memory("m1", "Ana lives in Denver.", TIME)
ITO = Memory("m2", "Ana sees Dr. Ito at St. Mary's on Mondays.", TIME)
DOGS = Memory("m3", "2 dogs live with Ana.", TIME)
TEA = Memory("m4", "安娜喜欢绿茶。", TIME)
STATE = MemoryState([DENVER, ITO, DOGS, TEA])
KNOWN = KnownTexts(STATE)


def marked(content: str, role: str = "assistant") -> str:
    turns, _ = mark_recalled([Turn(role, content)], KNOWN)  # type: ignore[arg-type]
    return turns[0].content


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        ("", "Ana lives in Denver.", ""),
        ("", "ANA  lives in Denver", ""),
        ("- ", "Ana lives in Denver.", ""),
        ("* [m1] ", "Ana lives in Denver.", "\n* something else"),
        ("1. ", "2 dogs live with Ana.", ""),
        ("Facts:\n• m1: ", "Ana lives in Denver.", "\r\nThanks."),
        ("- 2026/04/05 (Sun) 20:01: ", "Ana lives in Denver.", ""),
        ("[2026-04-05T20:01:00Z] ", "Ana lives in Denver.", ""),
        ("", "Ana lives in Denver. (2026/04/05)", ""),
        ("", "Ana lives in Denver (m1)", ""),
        ("Hello! ", "Ana lives in Denver.", " Is that right?"),
        ("I know this: ", "Ana lives in Denver.", ""),
        ("Sure. ", "Ana sees Dr. Ito at St. Mary's on Mondays.", " Shall I call Dr. Ito?"),
        ('You said "', "Ana lives in Denver.", '" once.'),
        ("> “", "Ana lives in Denver", "”"),
        ('[{"id": "m1", "time": "2026/04/05 (Sun) 20:01", "text": "', "Ana lives in Denver.", '"}]'),
        ("你好。", "安娜喜欢绿茶。", "对吗？"),  # noqa: RUF001
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_quoted_memory_is_wrapped(before: str, text: str, after: str, role: str) -> None:
    assert marked(before + text + after, role) == f"{before}{MARK}{text}]{after}"


@pytest.mark.parametrize(
    "content",
    ["I live in Denver.", "Ana lives in Denver, Colorado.", "Does Ana lives in Denver sound right?", "", "\n\n", "...",
     '"" ""', "(m1)"],
)  # fmt: skip
def test_other_text_is_left_alone(content: str) -> None:
    assert marked(content) == content


def test_passages_are_counted_and_marking_twice_is_marking_once() -> None:
    turns = [Turn("user", "- Ana lives in Denver.\n- 2 dogs live with Ana."), Turn("assistant", "Hm. Ana lives in Denver!")]
    once, count = mark_recalled(turns, KNOWN)
    assert count == 3 and [turn.role for turn in once] == ["user", "assistant"]
    assert mark_recalled(once, KNOWN) == (once, 0)


def test_cost_does_not_grow_with_the_memories() -> None:
    state = MemoryState(Memory(f"m{n}", f"Ana met person number {n}.", TIME) for n in range(20_000))
    known = KnownTexts(state)
    turns = [Turn("assistant", " ".join(f"Ana met person number {n}. Fine." for n in range(200)))] * 5
    begin = time.thread_time()
    _, count = mark_recalled(turns, known)
    assert count == 1000
    # Comparing with every memory would be 40 million comparisons.
    assert time.thread_time() - begin < 2


@pytest.mark.parametrize(
    "content", ["-" * 100_000, " " * 100_000, "a. " * 30_000, '"' * 50_000, "(" * 50_000, "m1" * 50_000]
)
def test_hostile_turns_are_cheap(content: str) -> None:
    begin = time.thread_time()
    assert marked(content) == content
    assert time.thread_time() - begin < 3


def test_known_texts_follow_changes() -> None:
    moved = Memory("m1", "Ana lives in Boulder.", TIME)
    cello = Memory("m5", "Ana plays the cello.", TIME)
    after = KNOWN.updated(
        [
            Change(ChangeEvent.UPDATE, "m1", DENVER, moved),
            Change(ChangeEvent.ADD, "m5", None, cello),
            Change(ChangeEvent.NONE, "m3", DOGS, DOGS),
            Change(ChangeEvent.REMOVE, "m2", Memory("m2", "", TIME), None, erased=True),
        ]
    )
    assert after.ids("ana lives in boulder") == ("m1",) and after.ids(cello.text) == ("m5",)
    assert after.ids(DENVER.text) == after.ids(ITO.text) == () and after.ids(DOGS.text) == ("m3",)
    assert after.text("m2") is None and after.text("m1") == "ana lives in boulder"
    assert KNOWN.ids(DENVER.text) == ("m1",)  # unchanged


def test_two_memories_of_one_text_are_both_known() -> None:
    known = KnownTexts(MemoryState([DENVER, Memory("m9", "ana lives in Denver", TIME)]))
    assert known.ids(DENVER.text) == ("m1", "m9")
    assert known.updated([Change(ChangeEvent.REMOVE, "m1", DENVER, None)]).ids(DENVER.text) == ("m9",)


NO_ONE: dict[int, list[Hit]] = {}
SMALL_TALK = (Turn("user", "What a day."), Turn("assistant", "Indeed."))


def deduplicated(
    *operations: Operation,
    neighbours: dict[int, list[Hit]] = NO_ONE,
    dialogue: tuple[Turn, ...] = SMALL_TALK,
    earlier: dict[str, str] | None = None,
) -> Corrected:
    old = {normalised(text): memory_id for text, memory_id in (earlier or {}).items()}
    return drop_known(
        operations,
        known=KNOWN,
        neighbours=neighbours,
        dialogue=dialogue,
        person_name="Ana",
        earlier_text=lambda text: old.get(normalised(text)),
    )


def test_new_facts_pass() -> None:
    operations = (add("Ana plays the cello."), update("m1", "Ana lives in Boulder."), none("m3", ""))
    assert deduplicated(*operations) == Corrected(operations, Counter())


CELLO = "Ana plays the cello."


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        # An added copy becomes a NONE, or is dropped where its memory is named already.
        ([add("ana lives in Denver"), add(CELLO)], [none("m1", "ana lives in Denver"), add(CELLO)]),
        ([add(DENVER.text), update("m1", "Ana lives in Boulder.")], [update("m1", "Ana lives in Boulder.")]),
        ([add(DENVER.text), none("m1", "")], [none("m1", "")]),
        # Copies within an answer are dropped.
        ([add(CELLO), add("Ana plays the cello")], [add(CELLO)]),
        ([add(CELLO), update("m1", CELLO)], [update("m1", CELLO)]),
        ([update("m3", CELLO), update("m1", CELLO)], [update("m3", CELLO)]),
        # An update to another memory's text is refused.
        ([update("m1", DOGS.text)], []),
    ],
)
def test_copies_are_stored_once(operations: list[Operation], expected: list[Operation]) -> None:
    result = deduplicated(*operations)
    assert result.operations == tuple(expected)
    assert result.notes == {Adjustment.DUPLICATE_TEXT: 1}
    own = update("m1", "Ana lives in Denver")
    assert deduplicated(own).operations == (own,)


BOSTON = "Ana lives in Boston."


@pytest.mark.parametrize(
    ("dialogue", "kept"),
    [
        ((Turn("user", "I moved back to Boston."), Turn("assistant", "Welcome back to Boston.")), True),
        ((Turn("user", "Where do I live?"), Turn("assistant", "Ana lives in Boston.")), False),
        ((Turn("user", "Good morning."), Turn("assistant", "Good morning to Boston!")), False),
        (SMALL_TALK, False),
    ],
)
def test_an_addition_of_an_earlier_text_needs_the_person(dialogue: tuple[Turn, ...], kept: bool) -> None:
    result = deduplicated(add(BOSTON), dialogue=dialogue, earlier={BOSTON: "m1"})
    assert result.operations == ((add(BOSTON),) if kept else ())
    assert result.notes == ({} if kept else {Adjustment.RECALLED_TEXT: 1})


@pytest.mark.parametrize("said", ["We are back where we lived before Denver.", "Yes, there again.", "Good morning."])
def test_an_update_back_to_an_earlier_value_stays_in_whatever_words_it_is_said(said: str) -> None:
    back, asked = update("m1", BOSTON), Turn("assistant", "Ana lives in Boston. Is that so again?")
    result = deduplicated(back, dialogue=(asked, Turn("user", said)), earlier={BOSTON: "m1"})
    assert result == Corrected((back,), Counter())


def test_text_that_says_nothing_new_becomes_a_none() -> None:
    short = add("Ana sees Dr. Ito on Mondays.")
    long = Memory("m2", "Ana sees Dr. Ito on Mondays at noon.", TIME)
    recalled = (Turn("user", "Hi."), Turn("assistant", "As I remember, Ana sees Dr. Ito on Mondays at noon."))
    result = deduplicated(short, neighbours={0: [Hit(long, 0.95)]}, dialogue=recalled)
    assert result.operations == (none("m2", short.text),)
    assert result.notes == {Adjustment.RECALLED_TEXT: 1}


@pytest.mark.parametrize(
    ("text", "theirs", "similarity"),
    [
        ("Ana sees Dr. Ito on Mondays.", "Ana sees Dr. Ito on Mondays at noon.", 0.89),
        ("Ana sees Dr. Ito on Tuesday.", "Ana sees Dr. Ito on Monday, not on Tuesday.", 0.97),
        ("Ana eats meat.", "Ana does not eat meat.", 0.97),
        ("Ana does not eat meat.", "Ana eats meat.", 0.97),
        ("Ana paid 300 euros.", "Ana paid 3,000 euros in 300 days.", 0.97),
        ("Ana sees Dr. Ito and Dr. Rao.", "Ana sees Dr. Ito.", 0.97),
    ],
)
def test_text_that_says_something_else_stays(text: str, theirs: str, similarity: float) -> None:
    result = deduplicated(add(text), neighbours={0: [Hit(Memory("m2", theirs, TIME), similarity)]})
    assert result.operations == (add(text),) and not result.notes


def test_text_that_the_person_says_stays() -> None:
    text = "Ana sees Dr. Ito on Mondays."
    hits = {0: [Hit(Memory("m2", "Ana sees Dr. Ito on Mondays at noon.", TIME), 0.97)]}
    said = (Turn("user", "I see Dr. Ito on Mondays."),)
    assert deduplicated(add(text), neighbours=hits, dialogue=said).operations == (add(text),)


@pytest.mark.parametrize("quoted", [ITO.text, f"{MARK}{ITO.text}]", f"[m2] {ITO.text}"])
def test_memory_pasted_into_a_user_turn_is_not_what_the_person_says(quoted: str) -> None:
    hits = {0: [Hit(ITO, 0.97)]}
    pasted = (Turn("user", f"Context:\n- {quoted}\n\nPlease greet me."), Turn("assistant", "Hello!"))
    result = deduplicated(add("Ana sees Dr. Ito at St. Mary's Mondays"), neighbours=hits, dialogue=pasted)
    assert [operation.event for operation in result.operations] == [Event.NONE]


_texts = st.sampled_from([DENVER.text, "ana lives in denver", DOGS.text, BOSTON, CELLO, "Ana runs.", "Ana."])
_ids = st.sampled_from(["m1", "m2", "m3"])
_operations = st.lists(
    st.builds(add, _texts) | st.builds(update, _ids, _texts) | st.builds(none, _ids, _texts),
    max_size=7,
)
_hits = st.builds(
    Hit, st.sampled_from([DENVER, ITO, DOGS, Memory("m3", "Ana runs and plays the cello.", TIME)]), st.floats(0, 1)
)
_dialogues = st.lists(
    st.builds(Turn, st.sampled_from(["user", "assistant"]), st.sampled_from([BOSTON, "I run.", "Cello.", DENVER.text])),
    max_size=3,
).map(tuple)


@given(_operations, st.dictionaries(_texts, st.lists(_hits, max_size=2)), _dialogues)
def test_settling_invents_nothing_changes_no_text_and_is_idempotent(
    operations: list[Operation], near: dict[str, list[Hit]], dialogue: tuple[Turn, ...]
) -> None:
    def settled(given: Sequence[Operation]) -> Corrected:
        neighbours = {index: near.get(operation.text, []) for index, operation in enumerate(given)}
        return deduplicated(*given, neighbours=neighbours, dialogue=dialogue, earlier={BOSTON: "m1"})

    once, rest = settled(operations), iter(operations)
    for operation in once.operations:  # each is found behind the one before
        repeats = operation.event is Event.NONE
        assert any(one == operation or (repeats and (one.event, one.text) == (Event.ADD, operation.text)) for one in rest)
        assert operation.target_memory_id in {*STATE, None}
    assert len(operations) - len(once.operations) <= once.notes.total() <= len(operations)
    written = [normalised(operation.text) for operation in once.operations if operation.event is Event.ADD]
    assert len(set(written)) == len(written) and not any(KNOWN.ids(text) for text in written)
    twice = settled(once.operations)
    assert twice.operations == once.operations and not twice.notes
