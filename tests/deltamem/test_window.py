"""Splitting sessions that do not fit a model's window."""

from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.sessions import Session, Turn, format_dialogue
from deltamem.window import LEAST_LIMIT, estimate_tokens, split_session

TIME = datetime(2026, 4, 5, 20, 1)


def session(*turns: Turn) -> Session:
    return Session("p1", "Ana", TIME, turns, id="s1")


def size(part: Session) -> int:
    return estimate_tokens(format_dialogue(part.dialogue))


def test_tokens_are_estimated_on_the_safe_side() -> None:
    assert [estimate_tokens(text) for text in ("", "a", "北京", "x" * 3001)] == [0, 1, 2, 1001]


def test_session_that_fits_is_returned_as_it_is() -> None:
    whole = session(Turn("user", "Hi."), Turn("assistant", "Hello."))
    (part,) = split_session(whole, LEAST_LIMIT)
    assert part.session is whole and part.turn_numbers == (1, 2)
    assert split_session(session(), LEAST_LIMIT)[0].turn_numbers == ()


def test_question_and_answer_stay_together_in_parts_of_equal_size() -> None:
    turns = [Turn(role, "x" * 80) for _ in range(7) for role in ("user", "assistant")]
    parts = split_session(session(*turns), 200)
    assert sorted(len(part.turn_numbers) for part in parts) == [4, 4, 6]
    assert all(part.session.dialogue[0].role == "user" for part in parts)


def test_last_part_is_not_tiny_and_parts_keep_time_person_and_id() -> None:
    parts = split_session(session(*[Turn("user", "x" * 30)] * 21), 130)
    assert [len(part.turn_numbers) for part in parts] == [7, 7, 7]
    assert {replace(part.session, dialogue=()) for part in parts} == {session()}


@pytest.mark.parametrize(
    ("sentence", "end"),
    [("The cat sat on the mat. ", ". "), ("cat sat on the mat ", " "), ("猫坐在垫子上。", "。"), ("x", "x")],
)
def test_long_turn_is_cut_at_sentences_else_words_else_anywhere(sentence: str, end: str) -> None:
    parts = split_session(session(Turn("user", sentence * 200), Turn("assistant", "Fine.")), 64)
    contents = [turn.content for part in parts for turn in part.session.dialogue if turn.role == "user"]
    assert len(contents) > 1 and "".join(contents) == sentence * 200
    assert all(content.endswith(end) for content in contents)
    assert {number for part in parts for number in part.turn_numbers} == {1, 2}


def test_pieces_of_a_turn_are_about_equal_and_a_long_one_is_cut_fast() -> None:
    parts = split_session(session(Turn("user", "x" * 3100)), 1030)
    sizes = [len(part.session.dialogue[0].content) for part in parts]
    assert len(sizes) == 2 and max(sizes) < 1.3 * min(sizes)
    assert len(split_session(session(Turn("user", "字" * 100_000)), 8_000)) == 13


def test_limit_must_leave_room() -> None:
    with pytest.raises(ValueError, match="at least 32"):
        split_session(session(Turn("user", "Hi.")), 31)


_contents = st.text(max_size=40) | st.text("ab. \n", min_size=60, max_size=400) | st.just("<|im_start|>" * 30)
_turns = st.lists(st.builds(Turn, st.sampled_from(["user", "assistant"]), _contents), max_size=12)


@given(_turns, st.integers(LEAST_LIMIT, 150))
def test_parts_fit_and_hold_the_whole_session_in_order(turns: list[Turn], limit: int) -> None:
    parts = split_session(session(*turns), limit)
    assert all(size(part.session) <= limit for part in parts)
    assert all(len(part.turn_numbers) == len(part.session.dialogue) for part in parts)
    said = [(n, turn) for part in parts for n, turn in zip(part.turn_numbers, part.session.dialogue, strict=True)]
    for number, turn in enumerate(turns, start=1):
        assert "".join(piece.content for n, piece in said if n == number) == turn.content
        assert {piece.role for n, piece in said if n == number} == {turn.role}
    assert [n for n, _ in said] == sorted(n for n, _ in said)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=14))
def test_there_are_no_more_parts_than_needed(lengths: list[tuple[int, int]]) -> None:
    pairs = [(Turn("user", "x" * question), Turn("assistant", "x" * answer)) for question, answer in lengths]
    parts = split_session(session(*[turn for pair in pairs for turn in pair]), 70)
    fewest, room = 1, 70
    for pair in pairs:
        tokens = sum(estimate_tokens(format_dialogue([turn]) + "\n") for turn in pair)
        fewest, room = (fewest, room - tokens) if tokens <= room else (fewest + 1, 70 - tokens)
    assert len(parts) <= fewest
    assert all(part.turn_numbers[0] % 2 == 1 for part in parts)
