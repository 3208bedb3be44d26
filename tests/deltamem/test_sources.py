"""Which turns a memory text comes from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.sessions import Turn
from deltamem.text import SourceFinder


def dialogue(*contents: str) -> list[Turn]:
    """Turns by turns: user, assistant, user, ..."""
    return [Turn("assistant" if number % 2 else "user", content) for number, content in enumerate(contents)]


MOVE = dialogue(
    "Hi there, how are you?",
    "Fine! What is new?",
    "I finally moved from Boston to Denver, and I work at Oakwood Clinic now.",
    "Denver is lovely. Are you settling in?",
    "Yes! My sister Clara is visiting, she turned 34 on Monday.",
    "Happy birthday to Clara!",
)


@pytest.mark.parametrize(
    ("text", "before", "expected"),
    [
        ("Ana lives in Denver.", "Ana lives in Boston.", (3,)),
        ("Ana works at Oakwood Clinic.", "", (3,)),
        ("Ana has a sister Clara who is 34.", "", (5,)),
        ("Ana moved to Denver, where her sister Clara visits her.", "", (3, 5)),
        ("Ana plays the cello in an orchestra.", "", ()),
        ("Ana.", "", ()),
        ("", "", ()),
    ],
)
def test_turns_that_say_it(text: str, before: str, expected: tuple[int, ...]) -> None:
    assert SourceFinder(MOVE, "Ana").turns(text, before) == expected


def test_only_new_words_count_unless_none_is_new() -> None:
    turns = dialogue("I have a dog.", "And his name?", "Rex.", "Good name for a dog.")
    assert SourceFinder(turns, "Ana").turns("Ana has a dog called Rex.", "Ana has a dog.") == (3,)
    assert 1 in SourceFinder(turns, "Ana").turns("Ana has a dog.", "Ana has a dog.")


def test_user_goes_before_an_echoing_assistant() -> None:
    turns = [Turn("assistant", "So you play the cello?"), Turn("user", "I play the cello."), Turn("assistant", "Cello!")]
    assert SourceFinder(turns, "Ana").turns("Ana plays the cello.", "") == (2,)


def test_assistant_alone_can_be_the_source() -> None:
    turns = dialogue("Where do I live again?", "You told me that you live in Boston with Tom.")
    assert SourceFinder(turns, "Ana").turns("Ana lives in Boston with Tom.", "") == (2,)


def test_name_of_the_person_does_not_count() -> None:
    turns = dialogue("Ana Lopez speaking, hello!", "Hello Ana.", "I bake bread.")
    assert SourceFinder(turns, "Ana Lopez").turns("Ana Lopez bakes bread.", "") == (3,)


def test_other_scripts_match() -> None:
    turns = dialogue("你好", "你好!", "我上个月搬到了北京。")
    assert SourceFinder(turns, "安娜").turns("安娜住在北京。", "") == (3,)


def test_limit_keeps_the_turns_that_cover_most() -> None:
    turns = dialogue("red", "ok", "green blue", "ok", "yellow violet", "ok", "brown")
    text = "red green blue yellow violet brown"
    assert SourceFinder(turns, "Ana").turns(text, "") == (1, 3, 5)
    assert SourceFinder(turns, "Ana").turns(text, "", limit=2) == (3, 5)


@given(st.text(), st.text(), st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text())), st.integers(0, 4))
def test_numbers_are_turns(text: str, before: str, spoken: list, limit: int) -> None:
    turns = [Turn(*turn) for turn in spoken]
    found = SourceFinder(turns, "Ana").turns(text, before, limit=limit)
    assert list(found) == sorted(set(found)) and len(found) <= limit
    assert all(1 <= number <= len(turns) for number in found)
