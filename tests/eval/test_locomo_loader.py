"""Every irregularity of the file is handled, and counted where it costs something."""

from datetime import datetime
from pathlib import Path

import pytest
from locomo_cases import benchmark, write

from deltamem.errors import DeltaMemError
from eval.data import LOCOMO, find
from eval.locomo.data import CATEGORIES, load_locomo, version_name


def test_sessions_lead_and_are_in_numerical_order(tmp_path: Path) -> None:
    first = load_locomo(write(tmp_path / "l.json", benchmark()))[0]
    assert first.speakers == ("Ana", "Bo")
    assert [session.number for session in first.sessions] == [2, 10]
    assert [session.time for session in first.sessions] == [datetime(2023, 5, 8, 13, 56), datetime(2023, 6, 10, 0, 5)]
    assert [turn.id for turn in first.turns] == ["D2:1", "D2:2", "D10:1"]
    assert [turn.caption for turn in first.turns] == ["a dog", "a red bicycle", None]
    assert [turn.has_url for turn in first.turns] == [True, False, False]


def test_answers_are_texts_or_absent(tmp_path: Path) -> None:
    questions = load_locomo(write(tmp_path / "l.json", benchmark()))[0].questions
    assert questions[0].answer == "2022"
    assert (questions[6].answer, questions[6].adversarial_answer) == (None, "a cat")
    assert (questions[7].answer, questions[7].adversarial_answer) == ("No", "yes")


def test_evidence_is_repaired_where_it_can_be(tmp_path: Path) -> None:
    questions = load_locomo(write(tmp_path / "l.json", benchmark()))[0].questions
    assert questions[1].evidence == ("D2:1", "D10:1", "D2:2")
    assert questions[1].repaired == ("D2:01; D10:1", "D:2:2")
    assert (questions[2].evidence, questions[2].unusable) == ((), ())
    assert (questions[3].evidence, questions[3].repaired, questions[3].unusable) == ((), (), ("D", "D9:9"))
    assert (questions[4].evidence, questions[4].repaired) == (("D2:2",), ())


def test_repeated_questions_keep_their_own_index(tmp_path: Path) -> None:
    questions = load_locomo(write(tmp_path / "l.json", benchmark()))[0].questions
    assert [(question.index, question.text) for question in questions[4:6]] == [(4, "bicycle?"), (5, "bicycle?")]


def broken(change) -> list:
    data = benchmark()
    change(data[0])
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "valid array"),
        (broken(lambda c: c.pop("sample_id")), r"0\.sample_id"),
        (broken(lambda c: c["qa"][0].update(category=6)), r"0\.qa\.0\.category"),
        (broken(lambda c: c["conversation"].pop("speaker_a")), r"conv-1: conversation\.speaker_a is missing"),
        (
            broken(lambda c: c["conversation"].pop("session_2_date_time")),
            "conv-1: conversation.session_2_date_time is missing",
        ),
        (
            broken(lambda c: c["conversation"].update(session_2_date_time="8/5/23")),
            "conv-1: session_2_date_time '8/5/23' is not",
        ),
        (broken(lambda c: c["conversation"]["session_2"][1].pop("text")), r"conv-1: session_2: 1\.text"),
        (
            broken(lambda c: c["conversation"]["session_10"][0].update(dia_id="D2:1")),
            "conv-1: two turns have the same dia_id",
        ),
        (broken(lambda c: c["conversation"].update(speaker_b="Ana")), "conv-1: both speakers are called 'Ana'"),
        (broken(lambda c: c["conversation"].update(speaker_b="A/B")), "conv-1: 'A/B' cannot be part of the name"),
        (broken(lambda c: c.update(sample_id="..")), r"\.\.: '\.\.' cannot be part of the name"),
        ([], "holds no conversation"),
        (benchmark()[:1] * 2, "two conversations have the same sample_id"),
    ],
)
def test_other_shapes_are_refused_with_their_place(tmp_path: Path, data: object, message: str) -> None:
    with pytest.raises(DeltaMemError, match=rf"l\.json.*: .*{message}"):
        load_locomo(write(tmp_path / "l.json", data))


def test_file_that_is_no_json_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "l.json").write_bytes(b"\xff{")
    with pytest.raises(DeltaMemError, match=r"l\.json is not LoCoMo\'s locomo10\.json: Invalid JSON"):
        load_locomo(tmp_path / "l.json")
    with pytest.raises(DeltaMemError, match=r"absent\.json: No such file"):
        load_locomo(tmp_path / "absent.json")


def test_versions_are_named_by_their_bytes(tmp_path: Path) -> None:
    conversations = load_locomo(write(tmp_path / "l.json", benchmark()))
    assert version_name(conversations, "0" * 64) == "unknown version (2 conversations, 9 questions)"
    assert LOCOMO.sha256 is not None
    assert version_name(conversations, LOCOMO.sha256) == "LoCoMo-2 (9 questions)"


def test_the_real_file_has_the_published_counts() -> None:
    path = find(LOCOMO)
    if path is None:
        pytest.skip("LoCoMo is not in a data folder")
    conversations = load_locomo(path)
    questions = [question for conversation in conversations for question in conversation.questions]
    assert len(conversations) == 10
    assert [len(conversation.sessions) for conversation in conversations] == [19, 19, 32, 29, 29, 28, 31, 30, 25, 30]
    assert sum(len(conversation.turns) for conversation in conversations) == 5882
    captions = [turn for conversation in conversations for turn in conversation.turns if turn.caption is not None]
    assert (len(captions), sum(turn.has_url for turn in captions)) == (1226, 910)
    counts = [sum(question.category == category for question in questions) for category in CATEGORIES]
    assert counts == [282, 321, 96, 841, 446]
    assert sum(len(question.repaired) for question in questions) == 6
    assert sorted(text for question in questions for text in question.unusable) == ["D", "D10:19", "D4:36"]
    assert sum(not question.evidence for question in questions if question.category != 5) == 4
