from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from deltamem.prompts import Prompt
from eval.answer import load_prompt
from eval.judge import ABSTENTION_FIELDS, ABSTENTION_LABELS, QUESTION_FIELDS, QUESTION_LABELS

OWN = {
    "answer_locomo": ("context", "question"),
    "judge_lenient": QUESTION_FIELDS,
    "judge_strict": QUESTION_FIELDS,
    "judge_abstention": ABSTENTION_FIELDS,
}


@pytest.mark.parametrize(("name", "fields"), OWN.items())
def test_own_prompts_take_their_fields(name: str, fields: Collection[str]) -> None:
    prompt = load_prompt(name, fields)
    filled = prompt.fill(**{field: f"<{field}>" for field in fields})
    assert all(filled.count(f"<{field}>") == 1 for field in fields) and "$" not in filled
    assert prompt.name == name and prompt.sha256 == hashlib.sha256(prompt.text.encode()).hexdigest()


def test_judges_are_told_their_labels() -> None:
    for name, labels in (("judge_lenient", QUESTION_LABELS), ("judge_strict", QUESTION_LABELS)):
        assert all(f'"{label}"' in load_prompt(name, QUESTION_FIELDS).text for label in labels)
    assert all(f'"{label}"' in load_prompt("judge_abstention", ABSTENTION_FIELDS).text for label in ABSTENTION_LABELS)


def test_the_answer_prompt_knows_the_official_words_of_abstention() -> None:
    assert "No information available" in load_prompt("answer_locomo", ("context", "question")).text


@given(st.text(), st.text(), st.text())
def test_contents_are_never_expanded(gold: str, question: str, answer: str) -> None:
    prompt = Prompt("x", "<$gold|${question}|$answer|$$>", "")
    odd = f"${{gold}} $answer {{0}} %s $$ {question}"
    assert prompt.fill(gold=gold, question=odd, answer=answer) == f"<{gold}|{odd}|{answer}|$>"


def test_a_file_is_a_prompt_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.md"
    path.write_text("\nAsk: $question\n\n", encoding="utf-8")
    prompt = load_prompt(str(path), ["question"])
    assert (prompt.name, prompt.text, prompt.fill(question="1 $", more="x")) == ("mine", "Ask: $question", "Ask: 1 $")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Ask: $question", r"mine\.md has \$question; expected exactly \$context, \$question"),
        ("$context $question $extra", r"has \$context, \$extra, \$question; expected exactly"),
        ("none", "has no fields; expected"),
        ("$context $question 5 $", r"write \$\$ for a dollar sign"),
    ],
)
def test_wrong_fields_are_told(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.md"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DeltaMemError, match=said):
        load_prompt(str(path), ("context", "question"))


def test_a_prompt_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match=r"'answer_lokomo' does not exist; there are: .*answer_locomo"):
        load_prompt("answer_lokomo", ())
    with pytest.raises(DeltaMemError, match=r"missing\.md cannot be read"):
        load_prompt(str(tmp_path / "missing.md"), ())
    (tmp_path / "latin.md").write_bytes(b"\xff\xfe caf\xe9")
    with pytest.raises(DeltaMemError, match=r"latin\.md cannot be read"):
        load_prompt(str(tmp_path / "latin.md"), ())
