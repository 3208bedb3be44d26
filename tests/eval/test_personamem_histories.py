"""How contexts are cut, and which block a question refers to."""

from collections import defaultdict
from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from personamem_cases import ANA, BO, BO_AGAIN, contexts, rows, write_contexts, write_questions

from eval.data import PERSONAMEM_QUESTIONS, find
from eval.personamem.data import (
    ContextFile,
    Message,
    Question,
    histories,
    history,
    load_contexts,
    load_questions,
    record_key,
    referenced_block,
    session_starts,
    store_ids,
    without_history,
)


def question(end: int, *, row: int = 1, blocks_back: int = 1, tokens_back: int = 50, tokens: int = 100) -> Question:
    return Question(row, "0", "t", "q", ("(a)", "(b)", "(c)", "(d)"), "a", "x", end, blocks_back, tokens_back, tokens)


def messages(roles: str) -> tuple[Message, ...]:
    """``s``, ``u`` or ``a`` for each message; each has ten characters."""
    names = {"s": "system", "u": "user", "a": "assistant"}
    return tuple(Message(role=names[role], content=f"{index:010d}") for index, role in enumerate(roles))


def keyed(*questions: Question) -> list[tuple[str, Question]]:
    return [(f"x/{number}", one) for number, one in enumerate(questions)]


def test_a_context_is_cut_at_sessions_and_at_questions(tmp_path) -> None:
    questions = load_questions(write_questions(tmp_path / "q.csv")).questions
    shared = load_contexts(write_contexts(tmp_path / "c.jsonl")).contexts
    ana, bo, again = histories(questions, shared, keep_system=True)
    assert [piece.session.id for piece in ana.pieces] == ["0-2", "3-6", "7-8", "9-10"]
    assert [piece.session.time for piece in ana.pieces] == [
        datetime(2024, 1, 1, 9),
        datetime(2024, 1, 2, 9),
        datetime(2024, 1, 3, 9),
        datetime(2024, 1, 3, 9, 1),
    ]
    assert (ana.key.id, ana.key.owner, ana.key.batch_turns) == ("a1" * 6, "Ana Lopez", 10)
    assert [piece.session.id for piece in bo.pieces] == ["0-2", "3-4"]
    assert [piece.session.id for piece in again.pieces] == ["0-2", "3-5", "6-6", "7-7"]
    first = ana.pieces[0].session.turns
    assert [(turn.id, turn.role, turn.speaker) for turn in first] == [
        ("0", "system", ""),
        ("1", "user", ""),
        ("2", "assistant", ""),
    ]
    assert first[1].spoken == "User: I love tea more than anything."
    assert [asked.key for asked in ana.samples] == [f"{'a1' * 6}/{n}" for n in (1, 2, 3, 4)]
    assert [asked.session for asked in ana.samples] == [2, 2, 2, 2]
    assert [sorted(asked.evidence, key=int) for asked in ana.samples] == [
        ["1", "2"],
        ["1", "2"],
        ["4", "5", "6"],
        ["8", "9", "10"],
    ]
    assert [asked.turns for asked in ana.samples] == [11, 9, 11, 11]


def test_persona_texts_can_be_dropped(tmp_path) -> None:
    questions = load_questions(write_questions(tmp_path / "q.csv")).questions
    shared = load_contexts(write_contexts(tmp_path / "c.jsonl")).contexts
    ana, _, again = histories(questions, shared, keep_system=False)
    assert [turn.id for piece in ana.pieces for turn in piece.session.turns] == ["1", "2", "4", "5", "6", "8", "9", "10"]
    # A piece that was only a persona text is gone, and what follows keeps its day.
    assert [(piece.session.id, piece.session.time.day) for piece in again.pieces] == [("0-2", 1), ("3-5", 2), ("7-7", 3)]
    assert ana.samples[0].evidence == {"1", "2"}
    assert ana.samples[0].turns == 8


@settings(max_examples=60)
@given(
    roles=st.text("sua", min_size=1, max_size=30),
    ends=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    keep_system=st.booleans(),
)
def test_what_is_fed_before_a_question_is_its_history_and_nothing_else(
    roles: str, ends: list[int], keep_system: bool
) -> None:
    context = messages(roles)
    asked = [question(min(end, len(roles)), row=row) for row, end in enumerate(ends)]
    cut = history("x", context, keyed(*asked), keep_system=keep_system)
    for one in cut.samples:
        steps = cut.steps({one.key})
        fed = [turn for sessions, _ in steps for session in sessions for turn in session.turns]
        expected = [
            (str(index), message.role, message.content)
            for index, message in enumerate(context[: one.question.end])
            if keep_system or message.role != "system"
        ]
        assert [(turn.id, turn.role, turn.text) for turn in fed] == expected
        assert one.turns == len(expected)
        assert one.evidence <= {turn.id for turn in fed}
    sessions = [piece.session for piece in cut.pieces]
    assert all(session.turns for session in sessions)
    assert len({session.id for session in sessions}) == len(sessions)
    times = [session.time for session in sessions]
    assert times == sorted(set(times))


@settings(max_examples=60)
@given(
    roles=st.text("sua", min_size=2, max_size=20),
    end=st.integers(1, 20),
    back=st.integers(-2, 9),
    tokens=st.integers(0, 200),
)
def test_a_block_lies_in_the_history_and_within_one_session(roles: str, end: int, back: int, tokens: int) -> None:
    context = messages(roles)
    end = min(end, len(roles))
    block = referenced_block(context, question(end, blocks_back=back, tokens_back=tokens))
    if block is not None:
        assert 0 <= block.start < block.stop <= end
        starts = session_starts(context)
        assert block.start in starts
        assert not any(block.start < start < block.stop for start in starts)


def test_sessions_begin_at_system_messages() -> None:
    assert session_starts(messages("suasua")) == [0, 3]
    assert session_starts(messages("uasua")) == [0, 2]
    assert session_starts(messages("ssua")) == [0]
    assert session_starts(messages("suas")) == [0, 3]


@pytest.mark.parametrize(
    ("end", "blocks_back", "tokens_back", "tokens", "expected"),
    [
        # Three sessions of three messages of ten characters. In the middle of the last session, before message 7 (block 2):
        (7, 2, 60, 70, (0, 3, True)),  # the reference lies at 10 of 70
        (7, 1, 30, 70, (3, 6, True)),  # at 40
        (7, 1, 65, 70, (3, 6, False)),  # at 5: by tokens it would be the first block
        (7, 3, 60, 70, None),  # before the first block
        # After everything, where the end index is that of the last message (block 3 would come next):
        (8, 3, 70, 80, (0, 3, True)),
        (8, 1, 10, 80, (6, 8, True)),
        (9, 1, 10, 90, (6, 9, True)),
        # With that end index the question may also be asked before the last message (block 2); the tokens decide.
        (8, 1, 40, 80, (3, 6, True)),
        # If they fit neither, it is asked after everything, as most are.
        (8, 1, 79, 80, (6, 8, False)),
        # A block begins in the prefix, or it is none.
        (4, 0, 10, 40, (3, 4, True)),
        (4, -1, 10, 40, None),
        # Tokens that say nothing.
        (7, 1, 5, 0, (3, 6, False)),
    ],
)
def test_referenced_block(
    end: int, blocks_back: int, tokens_back: int, tokens: int, expected: tuple[int, int, bool] | None
) -> None:
    one = question(end, blocks_back=blocks_back, tokens_back=tokens_back, tokens=tokens)
    block = referenced_block(messages("suasuasua"), one)
    assert (None if block is None else (block.start, block.stop, block.agrees)) == expected


def test_invented_questions_refer_to_what_they_are_about(tmp_path) -> None:
    questions = load_questions(write_questions(tmp_path / "q.csv")).questions
    shared = load_contexts(write_contexts(tmp_path / "c.jsonl")).contexts
    for one in questions:
        word = one.text.removeprefix("User: ").split()[-1 if one.text.startswith("the") else 0].strip("?")
        block = referenced_block(shared[one.context], one)
        assert block is not None
        assert block.agrees
        assert any(word in message.content for message in shared[one.context][block.start : block.stop])


def test_questions_without_history_are_told_why(tmp_path) -> None:
    file = load_contexts(write_contexts(tmp_path / "c.jsonl", {"x": contexts()[BO]}))
    assert without_history(question(6), file) is None
    assert without_history(question(1), file) is None
    for end in (-3, 0, 7):
        lost = without_history(question(end), file)
        assert lost is not None
        assert lost.kind == "end_out_of_range"
        assert f"end index {end} is not within its context, which has 6 messages" in lost.reason
    lost = without_history(question(6), ContextFile("c.jsonl", "", {}, ()))
    assert lost == ("context_missing", "its context x is not in c.jsonl")


def test_stores_are_named_by_as_much_as_tells_them_apart() -> None:
    assert store_ids([ANA, BO, BO_AGAIN]) == {ANA: "a1" * 6, BO: "b2" * 6, BO_AGAIN: "c3" * 6}
    alike = ["x" * 12 + "1", "x" * 12 + "2"]
    assert store_ids(alike) == {name: name for name in alike}


def test_keys_are_unique_by_row(tmp_path) -> None:
    twice = load_questions(write_questions(tmp_path / "q.csv", rows() + rows())).questions
    assert len({record_key(one) for one in twice}) == 14


def test_the_published_distances_bear_out_what_blocks_are() -> None:
    """Within a context, what lies in a later block must lie later by tokens: that holds if questions at the last end
    index are asked one block after those in the middle of the last session, and not if all are asked in the same block."""
    path = find(PERSONAMEM_QUESTIONS)
    if path is None:
        pytest.skip("PersonaMem's questions are not here")
    members = defaultdict(list)
    for one in load_questions(path).questions:
        members[one.context].append(one)

    def out_of_order(blocks_between: int) -> int:
        contexts = 0
        for questions in members.values():
            last = max(one.end for one in questions)
            places = defaultdict(list)
            for one in questions:
                block = -one.blocks_back - (0 if one.end == last else blocks_between)
                places[block].append(one.tokens - one.tokens_back)
            ordered = sorted(places)
            contexts += any(max(places[a]) >= min(places[b]) for a, b in pairwise(ordered))
        return contexts

    assert out_of_order(1) == 2  # of 37; in both a single question, asked before the last message and not after it
    assert out_of_order(0) == 23
    assert out_of_order(2) > 20
