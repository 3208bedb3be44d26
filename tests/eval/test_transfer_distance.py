"""How far data are from talk: figures of small sessions that one can count by hand."""

from __future__ import annotations

import pytest
from heldout_cases import people

from deltamem.errors import DeltaMemError
from deltamem.sessions import to_json_line
from eval.transfer.distance import CountedSession, distance, distances, known_words, markdown

TOLD = CountedSession(
    (
        (True, "Hi!"),
        (False, "Where did you go yesterday?"),
        (True, "To the lake. I was so happy, we swam on Monday at 9:30 and paid $5."),
        (False, "Nice."),
    ),
    ("Ana was happy at the lake.", "Ana adopted a dog in May."),
)


def test_figures_are_those_that_one_counts_by_hand() -> None:
    found = distances([TOLD])
    words = 1 + 15
    assert found["words of an owner's turn, median"] == 8.5
    assert found["turns of a session"] == 4
    assert found["memories per 100 words of the owner"] == pytest.approx(100 * 2 / words, rel=0.1)
    assert found["turns of the owner that carry a memory"] == 1 / 2
    assert found["labels told in an answer to a question"] == 1 / 2
    assert found["labels with a number or a month"] == 1 / 2
    assert found["turns with a relative date"] == 0
    assert found["words of emotion"] > 0 < found["sums of money"]


def test_a_data_set_knows_its_own_words_and_few_of_others() -> None:
    other = CountedSession(((True, "Quantum lasers wobble."), (False, "Zap.")), ())
    assert known_words([TOLD], [TOLD]) == 1
    assert known_words([TOLD], [other]) == 0
    table = markdown({"mine": [TOLD], "theirs": [other]}, "mine").splitlines()
    assert table[0] == "|  | mine | theirs |"
    assert table[-1] == "| content words that mine knows | 1.00 | 0.00 |"


def test_one_command_compares_a_folder_with_what_is_there(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("eval.transfer.data.data_folders", list)
    (tmp_path / "sessions.jsonl").write_text("\n".join(map(to_json_line, people(2, 3))), encoding="utf-8")
    assert distance([str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert f"| content words that {tmp_path.name} knows | 1.00 |" in printed.out
    assert "locomo" in printed.err.lower()
    with pytest.raises(DeltaMemError, match="folder of one data set"):
        distance([])
