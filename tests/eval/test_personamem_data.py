"""PersonaMem's files and their irregularities, how contexts are cut, which block a question refers to, and letters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from personamem_cases import ANA, BO, BO_AGAIN, contexts, rows, write_contexts, write_questions

from deltamem.errors import DeltaMemError
from eval.data import PERSONAMEM_QUESTIONS, find
from eval.personamem.__main__ import chosen_letters, is_correct, is_final
from eval.personamem.data import (
    COLUMNS,
    COUNTS_32K,
    LABELS,
    PROFILE_MARK,
    ContextMessage,
    PersonaMemQuestion,
    histories,
    history,
    in_order,
    load_contexts,
    load_questions,
    referenced_block,
    session_starts,
    size_of,
    store_ids,
)


def test_rows_become_questions(tmp_path: Path) -> None:
    file = load_questions(write_questions(tmp_path / "q.csv"))
    assert (file.problems, len(file.content)) == ((), 7)
    second = file.content[1]
    assert second.text == "User: tea or coffee?"
    assert (second.row, second.persona, second.gold, second.end, second.blocks_back) == (2, "0", "b", 9, 2)
    assert second.options[0] == "(a) Have a 'cup' of juice."
    assert len(file.sha256) == 64


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"all_options": "['(a) x', '(b) y'"}, "all_options: not a list of texts"),
        ({"all_options": "['(b) x', '(a) y', '(c) z', '(d) w']"}, "four texts"),
        ({"all_options": "['(a) x', '(b) y', '(c) z', 4]"}, "all_options.3: Input should be a valid string, got 4"),
        ({"all_options": r"['(a) \ud800', '(b) y', '(c) z', '(d) w']"}, "all_options.0: Input should be a valid string"),
        ({"correct_answer": "(e)"}, "correct_answer: String should match pattern"),
        ({"end_index_in_shared_context": "ten"}, ", got 'ten'"),
        ({"shared_context_id": "../x"}, ", got '../x'"),
        ({"user_question_or_message": " "}, "user_question_or_message: "),
    ],
)
def test_a_broken_row_is_named_and_the_others_stay(tmp_path: Path, changes: dict[str, str], problem: str) -> None:
    values = rows()
    values[2] |= changes
    file = load_questions(write_questions(tmp_path / "q.csv", values))
    assert (len(file.content), len(file.problems)) == (6, 1)
    assert file.problems[0].startswith("q.csv, row 3 (line 4): ")
    assert problem in file.problems[0]
    assert [question.row for question in file.content] == [1, 2, 4, 5, 6, 7]


def test_a_row_that_is_cut_off_and_one_that_is_too_long(tmp_path: Path) -> None:
    path = write_questions(tmp_path / "q.csv")
    lines = path.read_text().splitlines()
    lines[1] += ",more"
    path.write_text("\n".join(lines)[:-90])
    problems = load_questions(path).problems
    assert [problem.partition(": ")[2] for problem in problems][:1] == ["more values than columns"]
    assert len(problems) == 2


@pytest.mark.parametrize(
    ("load", "content", "message"),
    [
        (load_questions, b"", "the header lacks persona_id"),
        (load_questions, b"a,b\n1,2\n", "the header lacks persona_id"),
        (load_questions, b"\xff\xfe\x00", "not UTF-8 text"),
        (load_questions, b"question,answer,options,persona_id\n", "no questions of PersonaMem v1"),
        (load_questions, ",".join(COLUMNS).encode(), "no rows"),
        (load_questions, None, "No such file"),
        (load_contexts, None, "No such file"),
        (load_contexts, b"hello\n", r"no line is a context of PersonaMem; file, line 1: Invalid JSON"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, load, content: bytes | None, message: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DeltaMemError, match=f"file: .*{message}"):
        load(path)


def test_broken_lines_of_contexts_are_named(tmp_path: Path) -> None:
    path = write_contexts(tmp_path / "c.jsonl")
    good = path.read_text().splitlines()
    broken = [
        good[0],
        "",
        json.dumps({"x": [], "y": []}),
        json.dumps({"z": [{"role": "robot", "content": "x"}]}),
        json.dumps({"w": [{"role": "user", "content": None}]}),
        '{"v": [{"role": "user", "content": "half of \\ud800"}]}',
        good[0],
        good[1].replace("a boat", "a\u2028boat"),
        good[2][:-40],
    ]
    path.write_text("\n".join(broken), encoding="utf-8")
    file = load_contexts(path)
    assert list(file.content) == [ANA, BO], "a line separator within a text ends no line"
    assert [problem.split(":")[0] for problem in file.problems] == [f"c.jsonl, line {n}" for n in (3, 4, 5, 6, 7, 9)]
    assert "z.0.role" in file.problems[1]
    assert "second time" in file.problems[4]
    assert "Invalid JSON: EOF" in file.problems[5]
    texts = [message.content.replace("\u2028", " ") for message in file.content[BO]]
    assert texts == [message["content"] for message in contexts()[BO]]


def test_sizes_are_told_by_counts() -> None:
    types = [name for name, count in COUNTS_32K.items() for _ in range(count)]
    assert size_of(types) == "32k" and size_of(types[1:]) is None and size_of(["x"] * 2_727) == "128k"
    names = "Pref-Rec Recall-Reason New-Ideas Pref-Evol Recall-User Gen-New Recall-Facts"
    assert [LABELS.get(name, name) for name in in_order(types)] == names.split()
    assert in_order(["z", "suggest_new_ideas", "y"]) == ["suggest_new_ideas", "y", "z"]


def test_the_published_questions() -> None:
    path = find(PERSONAMEM_QUESTIONS)
    if path is None:
        pytest.skip("PersonaMem's questions are not here")
    file = load_questions(path)
    questions = file.content
    assert (len(questions), file.problems) == (589, ())
    assert Counter(question.type for question in questions) == COUNTS_32K
    assert Counter(question.gold for question in questions) == {"c": 158, "b": 146, "a": 143, "d": 142}
    assert len({(question.context, question.end) for question in questions}) == 222
    assert len({question.context for question in questions}) == 37
    assert len({question.persona for question in questions}) == 20
    assert sum(question.text.startswith("User:") for question in questions) == 64


def question(
    end: int, *, row: int = 1, blocks_back: int = 1, tokens_back: int = 50, tokens: int = 100
) -> PersonaMemQuestion:
    distances = {"blocks_back": blocks_back, "tokens_back": tokens_back, "tokens": tokens}
    texts = {"persona": "0", "type": "t", "text": "q", "options": (), "gold": "a", "context": "x"}
    return PersonaMemQuestion.model_construct(row=row, end=end, **texts, **distances)


def messages(roles: str) -> tuple[ContextMessage, ...]:
    """``s``, ``u`` or ``a`` for each message; each has ten characters."""
    names = {"s": "system", "u": "user", "a": "assistant"}
    return tuple(ContextMessage(role=names[role], content=f"{index:010d}") for index, role in enumerate(roles))


@pytest.fixture
def questions(tmp_path: Path) -> Sequence[PersonaMemQuestion]:
    return load_questions(write_questions(tmp_path / "q.csv")).content


@pytest.fixture
def shared(tmp_path: Path) -> Mapping[str, Sequence[ContextMessage]]:
    return load_contexts(write_contexts(tmp_path / "c.jsonl")).content


def test_a_context_is_cut_at_sessions_and_at_questions(questions, shared) -> None:
    ana, bo, again = histories(questions, shared, keep_system=True)
    assert [piece.session.id for piece in ana.pieces] == ["0-2", "3-6", "7-8", "9-10"]
    times = [(1, 9), (2, 9), (3, 9), (3, 9, 1)]
    assert [piece.session.time for piece in ana.pieces] == [datetime(2024, 1, *time) for time in times]
    assert (ana.key.id, ana.key.owner, ana.key.batch_turns) == ("a1" * 6, "Ana Lopez", 10)
    assert [piece.session.id for piece in bo.pieces] == ["0-2", "3-4"]
    assert [piece.session.id for piece in again.pieces] == ["0-2", "3-5", "6-6", "7-7"]
    first = ana.pieces[0].session.turns
    assert [(turn.id, turn.role) for turn in first] == [("0", "user"), ("1", "user"), ("2", "assistant")]
    assert first[0].text.startswith(f"{PROFILE_MARK}Current user persona: Name: Ana Lopez")
    assert first[1].spoken == "User: I love tea more than anything."
    assert [asked.record.key for asked in ana.samples] == [f"{'a1' * 6}/{n}" for n in (1, 2, 3, 4)]
    assert [asked.record.session for asked in ana.samples] == [2, 2, 2, 2]
    evidence = [{"1", "2"}, {"1", "2"}, {"4", "5", "6"}, {"8", "9", "10"}]
    assert [asked.evidence for asked in ana.samples] == evidence
    assert [asked.turns for asked in ana.samples] == [11, 9, 11, 11]


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
    cut = history("x", context, asked, keep_system=keep_system)
    for one in cut.samples:
        steps = cut.steps({one.record.key})
        fed = [turn for sessions, _ in steps for session in sessions for turn in session.turns]
        expected = [
            (str(index), "user", PROFILE_MARK + message.content)
            if message.role == "system"
            else (str(index), message.role, message.content)
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


def test_stores_are_named_by_as_much_as_tells_them_apart() -> None:
    assert store_ids([ANA, BO, BO_AGAIN]) == {ANA: "a1" * 6, BO: "b2" * 6, BO_AGAIN: "c3" * 6}
    alike = ["x" * 12 + "1", "x" * 12 + "2"]
    assert store_ids(alike) == {name: name for name in alike}


@pytest.mark.parametrize(
    ("text", "letters", "right"),
    [
        ("<final_answer> (c)", "c", True),
        ("<final_answer>c</final_answer>\n", "c", True),
        ("  (C) ", "c", True),
        ("Option c.", "c", True),
        ("I weigh (a), (b) and (d). <final_answer>(c)", "c", True),
        ("<final_answer>(a)</final_answer> No: <final_answer>(c)</final_answer>", "c", True),
        # Letters in parentheses count before letters that stand alone: here the article does no harm ...
        ("It is a clear case: (c)", "c", True),
        # ... and here it does.
        ("It is a clear case: c", "ac", False),
        ("<final_answer> a good fit is c", "ac", False),
        ("A dog would suit you.", "a", False),  # and right where a is: a trap of the rule, kept as it is
        # Two letters are never right, whichever they are.
        ("<final_answer>(c) or (a)</final_answer>", "ac", False),
        # The same letter twice is one.
        ("(c), that is (c)", "c", True),
        # The whole answer is looked at again if what follows the tag is not right.
        ("(c) <final_answer> as above", "", True),
        ("(b) <final_answer>(c)", "c", True),
        ("(c) <final_answer>(b)", "b", False),
        # The tag is looked for as it is written; the letter is found all the same.
        ("<FINAL_ANSWER>(c)", "c", True),
        ("<final_answer>(c)</final_answer> Have fun!", "c", True),
        ("", "", False),
        ("I cannot tell (e).", "", False),
        ("abcd", "", False),
        ("c'est la vie", "c", True),
        ("<final_answer>**(c)**", "c", True),
    ],
)
def test_letters(text: str, letters: str, right: bool) -> None:
    assert chosen_letters(text) == frozenset(letters)
    assert is_correct(text, "c") is right
    assert is_correct(text, "(c)") is right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<final_answer> (c)", True),
        ("<final_answer> (a) <final_answer> c", True),
        (" (C). ", True),
        ("It is (c)", False),
        ("(c) <final_answer>", False),
        ("<final_answer> (c), not (a)", False),
        ("", False),
    ],
)
def test_a_final_answer_is_one_guess(text: str, right: bool) -> None:
    assert is_final(text, "(c)") is is_final(text, "c") is right
