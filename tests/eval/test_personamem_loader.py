"""Reading PersonaMem's files: the real ones by their published counts, broken ones by what is said of them."""

import json
from collections import Counter
from pathlib import Path

import pytest
from personamem_cases import ANA, BO, contexts, persona, row, rows, user, write_contexts, write_questions

from deltamem.errors import DeltaMemError
from eval.data import PERSONAMEM_EXCERPT, PERSONAMEM_QUESTIONS, find
from eval.personamem.data import COUNTS_32K, in_order, label, load_contexts, load_questions, size_of


def test_rows_become_questions(tmp_path: Path) -> None:
    file = load_questions(write_questions(tmp_path / "q.csv"))
    assert (file.rows, file.problems, len(file.questions)) == (7, (), 7)
    second = file.questions[1]
    assert second.text == "User: tea or coffee?"
    assert (second.row, second.persona, second.gold, second.end, second.blocks_back) == (2, "0", "b", 9, 2)
    assert second.options[0] == "(a) Have a 'cup' of juice."
    assert len(file.sha256) == 64


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = write_questions(tmp_path / "q.csv")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert load_questions(path).problems == ()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"all_options": "['(a) x', '(b) y'"}, "all_options is not a list of texts"),
        ({"all_options": "['(a) x', '(b) y', '(c) z']"}, "four texts"),
        ({"all_options": "['(b) x', '(a) y', '(c) z', '(d) w']"}, "four texts"),
        ({"all_options": "['(a) x', '(b) y', '(c) z', 4]"}, "four texts"),
        ({"all_options": r"['(a) \ud800', '(b) y', '(c) z', '(d) w']"}, "all_options: the text is not valid Unicode"),
        ({"all_options": "open('x')"}, "all_options is not a list of texts"),
        ({"correct_answer": "(e)"}, "correct_answer is '(e)'"),
        ({"correct_answer": ""}, "correct_answer is missing"),
        ({"end_index_in_shared_context": "ten"}, "end_index_in_shared_context is 'ten'"),
        ({"shared_context_id": "../x"}, "shared_context_id is '../x'"),
        ({"user_question_or_message": " "}, "user_question_or_message is missing"),
    ],
)
def test_a_broken_row_is_named_and_the_others_stay(tmp_path: Path, changes: dict[str, str], problem: str) -> None:
    values = rows()
    values[2] |= changes
    file = load_questions(write_questions(tmp_path / "q.csv", values))
    assert (file.rows, len(file.questions), len(file.problems)) == (7, 6, 1)
    assert file.problems[0].startswith("q.csv, row 3 (line 4): ")
    assert problem in file.problems[0]
    assert [question.row for question in file.questions] == [1, 2, 4, 5, 6, 7]


def test_a_row_that_is_cut_off_and_one_that_is_too_long(tmp_path: Path) -> None:
    path = write_questions(tmp_path / "q.csv")
    lines = path.read_text().splitlines()
    lines[1] += ",more"
    path.write_text("\n".join(lines)[:-90])
    problems = load_questions(path).problems
    assert [problem.partition(": ")[2] for problem in problems][:1] == ["more values than columns"]
    assert len(problems) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the header lacks persona_id"),
        (b"a,b\n1,2\n", "the header lacks persona_id"),
        (b"\xff\xfe\x00", "not a UTF-8 text file"),
        (b"question,answer,options,persona_id\n", "no questions of PersonaMem v1"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "q.csv"
    path.write_bytes(content)
    with pytest.raises(DeltaMemError, match=message):
        load_questions(path)


def test_questions_without_rows_and_absent_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match="no rows"):
        load_questions(write_questions(tmp_path / "q.csv", []))
    with pytest.raises(DeltaMemError, match=r"absent\.csv: No such file"):
        load_questions(tmp_path / "absent.csv")
    with pytest.raises(DeltaMemError, match=r"absent\.jsonl: No such file"):
        load_contexts(tmp_path / "absent.jsonl")


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
        good[1],
        good[2][:-40],
    ]
    path.write_text("\n".join(broken))
    file = load_contexts(path)
    assert list(file.contexts) == [ANA, BO]
    assert [problem.split(":")[0] for problem in file.problems] == [f"c.jsonl, line {n}" for n in (3, 4, 5, 6, 7, 9)]
    assert "message 0.role" in file.problems[1]
    assert "second time" in file.problems[4]
    assert "cut off" in file.problems[5]
    assert [message.content for message in file.contexts[BO]] == [message["content"] for message in contexts()[BO]]


def test_a_file_without_contexts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text("hello\n")
    with pytest.raises(DeltaMemError, match=r"no line is a context of PersonaMem; c\.jsonl, line 1: not valid JSON"):
        load_contexts(path)


def test_line_separators_inside_texts_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({"x": [persona("Ana"), user("one\u2028two")]}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert load_contexts(path).contexts["x"][1].content == "User: one\u2028two"


def test_sizes_are_told_by_counts() -> None:
    types = [name for name, count in COUNTS_32K.items() for _ in range(count)]
    assert len(types) == 589
    assert size_of(types) == "32k"
    assert size_of(types[1:]) is None
    assert size_of(["suggest_new_ideas"] * 589) is None
    assert size_of(["x"] * 2_727) == "128k"
    assert [label(name) for name in in_order(types)] == [
        "Pref-Rec",
        "Recall-Reason",
        "New-Ideas",
        "Pref-Evol",
        "Recall-User",
        "Gen-New",
        "Recall-Facts",
    ]
    assert in_order(["z", "suggest_new_ideas", "y"]) == ["suggest_new_ideas", "y", "z"]


def test_the_published_questions() -> None:
    path = find(PERSONAMEM_QUESTIONS)
    if path is None:
        pytest.skip("PersonaMem's questions are not here")
    file = load_questions(path)
    questions = file.questions
    assert (file.rows, len(questions), file.problems) == (589, 589, ())
    assert size_of(question.type for question in questions) == "32k"
    assert Counter(question.type for question in questions) == COUNTS_32K
    assert Counter(question.gold for question in questions) == {"c": 158, "b": 146, "a": 143, "d": 142}
    assert len({(question.context, question.end) for question in questions}) == 222
    assert len({question.context for question in questions}) == 37
    assert len({question.persona for question in questions}) == 20
    assert sum(question.text.startswith("User:") for question in questions) == 64


def test_the_excerpt_of_the_contexts() -> None:
    path = find(PERSONAMEM_EXCERPT)
    if path is None:
        pytest.skip("the excerpt of PersonaMem's contexts is not here")
    file = load_contexts(path)
    assert [len(messages) for messages in file.contexts.values()] == [4, 4]
    assert file.problems == ()
    first = next(iter(file.contexts.values()))
    assert [message.role for message in first] == ["system", "user", "user", "assistant"] or first[0].role == "system"


def test_a_row_helper_that_tests_rely_on() -> None:
    assert row(ANA, 11, 0, 3, "x")["distance_to_ref_proportion_in_context"] == "100.00%"
