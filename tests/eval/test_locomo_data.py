"""LoCoMo's file with its irregularities, the audit of it, and how a conversation is laid out for stores."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from benchmark_cases import DELETED, LOCOMO, changed
from hypothesis import given
from hypothesis import strategies as st
from locomo_cases import audit, benchmark, write

from deltamem.errors import DeltaMemError
from eval import data as published
from eval.locomo.data import (
    CATEGORIES,
    Conversation,
    LocomoData,
    dialogues,
    load_audit,
    load_locomo,
    read_data,
)
from eval.run import merged
from eval.systems.base import Passage, StoreKey


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "l.json", benchmark())


@pytest.fixture
def first(path: Path) -> Conversation:
    return load_locomo(path)[0]


def test_sessions_lead_and_are_in_numerical_order(first: Conversation) -> None:
    assert first.speakers == ("Ana", "Bo")
    assert [session.number for session in first.sessions] == [2, 10]
    assert [session.time for session in first.sessions] == [datetime(2023, 5, 8, 13, 56), datetime(2023, 6, 10, 0, 5)]
    turns = [(turn.id, turn.caption, bool(turn.urls)) for turn in first.turns]
    assert turns == [("D2:1", "a dog", True), ("D2:2", "a red bicycle", False), ("D10:1", None, False)]


def test_answers_are_texts_or_absent_and_evidence_is_repaired_where_it_can_be(first: Conversation) -> None:
    asked = first.questions
    assert asked[0].answer == "2022"
    assert [(question.answer, question.adversarial_answer) for question in asked[6:]] == [(None, "a cat"), ("No", "yes")]
    assert (asked[1].evidence, asked[1].repaired) == (("D2:1", "D10:1", "D2:2"), ("D2:01; D10:1", "D:2:2"))
    assert (asked[2].evidence, asked[2].unusable) == ((), ())
    assert (asked[3].evidence, asked[3].repaired, asked[3].unusable) == ((), (), ("D", "D9:9"))
    # A question that occurs twice keeps its own index.
    assert [(question.index, question.text, question.evidence) for question in asked[4:6]] == [
        (4, "bicycle?", ("D2:2",)),
        (5, "bicycle?", ("D2:2",)),
    ]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("0.sample_id", DELETED, r"0\.sample_id"),
        ("0.sample_id", "..", r"0\.sample_id: .*'\.\.' cannot be the name of a folder"),
        ("1.sample_id", "conv-1", "two conversations have the same sample_id"),
        ("0.qa.0.category", 6, r"0\.qa\.0\.category"),
        ("0.conversation", DELETED, "0: .*not an object with a conversation"),
        ("0.conversation.speaker_a", DELETED, r"0\.speakers\.0: "),
        ("0.conversation.speaker_b", "Ana", "0: .*both speakers are called 'Ana'"),
        ("0.conversation.session_2_date_time", DELETED, r"0: conversation\.session_2_date_time is missing or not a text"),
        ("0.conversation.session_2_date_time", "8/5/23", r"session_2\.time: '8/5/23' is not like '1:56 pm on 8 May, 2023'"),
        ("0.conversation.session_2_date_time", 5, r"session_2_date_time is missing or not a text"),
        ("0.conversation.session_01", [], r"conversation\.session_01_date_time is missing or not a text"),
        ("0.conversation.session_2.1.text", DELETED, r"session_2\.turns\.1\.text"),
        ("0.conversation.session_10.0.dia_id", "D2:1", "0: .*two turns have the same dia_id"),
    ],
)
def test_other_shapes_are_refused_with_their_place(path: Path, place: str, value: object, message: str) -> None:
    with pytest.raises(DeltaMemError, match=rf"l\.json.*: .*{message}"):
        load_locomo(write(path, changed(benchmark(), place, value)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "valid array"),
        (b"[]", "holds no conversation"),
        (b"\xff{", "not UTF-8 text"),
        (b"{", "is not LoCoMo's locomo10.json: Invalid JSON"),
        (b"PK\x03\x04", "an archive"),
        (None, "No such file"),
    ],
)
def test_another_file_is_refused(path: Path, content: bytes | None, message: str) -> None:
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DeltaMemError, match=rf"l\.json.*{message}"):
        load_locomo(path)


def test_categories_that_nobody_asks_about_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "one.json", benchmark()[1:])
    with pytest.raises(DeltaMemError, match=r"one\.json: has no question of the categories \[3, 5\]"):
        read_data(LOCOMO.configured(tmp_path, f"data={one}", "categories=[3,5]"))


def test_the_real_file_has_the_published_counts() -> None:
    if (path := published.find(published.LOCOMO)) is None:
        pytest.skip("LoCoMo is not in a data folder")
    conversations = load_locomo(path)
    questions = [question for conversation in conversations for question in conversation.questions]
    assert [len(conversation.sessions) for conversation in conversations] == [19, 19, 32, 29, 29, 28, 31, 30, 25, 30]
    assert sum(len(conversation.turns) for conversation in conversations) == 5882
    captions = [turn for conversation in conversations for turn in conversation.turns if turn.caption is not None]
    assert (len(captions), sum(bool(turn.urls) for turn in captions)) == (1226, 910)
    counts = [sum(question.category == category for question in questions) for category in CATEGORIES]
    assert counts == [282, 321, 96, 841, 446]
    assert sum(len(question.repaired) for question in questions) == 6
    assert sorted(text for question in questions for text in question.unusable) == ["D", "D10:19", "D4:36"]
    assert sum(not question.evidence for question in questions if question.category != 5) == 4


def read(tmp_path: Path, *overrides: str, **first_entry: object) -> LocomoData:
    file = write(tmp_path / "a.json", audit(**first_entry))
    return read_data(LOCOMO.configured(tmp_path, f"audit={file}", *overrides))


def test_wrong_answers_and_evidence_are_replaced(tmp_path: Path, first: Conversation) -> None:
    data = read(tmp_path, "gold=audited")
    questions = data.conversations[0].questions
    assert (questions[0].answer, questions[0].evidence) == ("2023", ("D2:1", "D10:1"))
    # A wrong citation leaves the answer, whatever is remarked on it; its twin is another question.
    assert (questions[4].answer, questions[4].evidence) == ("red", ("D2:1",))
    assert questions[5] == first.questions[5]
    assert data.conversations[1] == data.released[1]
    for evidence in ([], ["D2:1", "D77:1"]):  # not in the conversation: as it was
        left = read(tmp_path, "gold=audited", correct_evidence=evidence).conversations[0].questions[0]
        assert left.evidence == ("D2:1",)


def test_ceiling_is_of_the_files_own_answers_with_either_gold(tmp_path: Path) -> None:
    # Only the first question has a wrong answer; category 5 was not audited.
    right = {"single-hop": 1.0, "multi-hop": 1.0, "open-domain": 1.0, "temporal": 0.0, "all": pytest.approx(6 / 7)}
    for gold, answer in (("original", "2022"), ("audited", "2023")):
        data = read(tmp_path, f"gold={gold}")
        assert data.ceiling() == right and data.asked["conv-1"][0].answer == answer
        assert data.description()["audit"]["applied"] is (gold == "audited")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": "cat?"}, "locomo_0_qa0 is another question in the benchmark file"),
        ({"question_id": "locomo_7_qa0"}, "locomo_7_qa0 is another question"),
        ({"question_id": "locomo_0_qa6", "question": "cat?"}, "locomo_0_qa6 is another question"),
        ({"question_id": "conv-1/0"}, "conv-1/0 is another question"),
        ({"question_id": "locomo_0_qa4", "question": "bicycle?"}, "locomo_0_qa4 occurs twice"),
        ({"correct_answer": None}, r"0\.correct_answer"),
    ],
)
def test_an_audit_that_does_not_fit_is_refused(tmp_path: Path, path: Path, change: dict, message: str) -> None:
    with pytest.raises(DeltaMemError, match=rf"a\.json: {message}"):
        load_audit(write(tmp_path / "a.json", audit(**change)), load_locomo(path))


def test_an_audit_that_lies_there_is_needed_for_audited_gold_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("eval.locomo.data.find", lambda dataset: None)
    assert read_data(LOCOMO.configured(tmp_path)).ceiling() is None
    with pytest.raises(DeltaMemError, match="dial481/locomo-audit"):
        read_data(LOCOMO.configured(tmp_path, "gold=audited"))
    with pytest.raises(DeltaMemError, match=r"no\.json: No such file"):
        read_data(LOCOMO.configured(tmp_path, f"audit={tmp_path / 'no.json'}"))
    other = write(tmp_path / "other.json", audit(question="of another file"))
    monkeypatch.setattr("eval.locomo.data.find", lambda dataset: other)
    assert read_data(LOCOMO.configured(tmp_path)).audit is None
    with pytest.raises(DeltaMemError, match="another question"):
        read_data(LOCOMO.configured(tmp_path, "gold=audited"))


def test_the_real_audit_has_the_published_counts(tmp_path: Path) -> None:
    path, list_of_errors = published.find(published.LOCOMO), published.find(published.LOCOMO_AUDIT)
    if path is None or list_of_errors is None:
        pytest.skip("LoCoMo or its audit is not in a data folder")
    data = read_data(LOCOMO.configured(tmp_path, f"data={path}", f"audit={list_of_errors}"))
    assert data.audit is not None and len(data.audit.corrections) == 156
    wrong = {"single-hop": 36, "multi-hop": 28, "open-domain": 9, "temporal": 26, "all": 99}
    counts = {"single-hop": 841, "multi-hop": 282, "open-domain": 96, "temporal": 321, "all": 1540}
    assert data.ceiling() == {name: pytest.approx(1 - wrong[name] / counts[name]) for name in wrong}


def test_stores_of_a_conversation(path: Path, first: Conversation) -> None:
    stores = dialogues(first, per_speaker=True, captions="all")
    assert list(stores) == [StoreKey("conv-1.Ana", "Ana", 2), StoreKey("conv-1.Bo", "Bo", 2)]
    ana, bo = stores.values()
    assert [session.id for session in ana] == ["session_2", "session_10"]
    assert ana[0].time == datetime(2023, 5, 8, 13, 56)
    assert [[turn.role for turn in store[0].turns] for store in (ana, bo)] == [["user", "assistant"], ["assistant", "user"]]
    ((key, both),) = dialogues(first, per_speaker=False, captions="all").items()
    assert key == StoreKey("conv-1", "Ana and Bo", 2)
    assert {turn.role for session in both for turn in session.turns} == {"user"}
    dog, bicycle = "Ana: I adopted a dog. [image: a dog]", "Bo: Lovely! [image: a red bicycle]"
    for captions, spoken in (
        ("all", [dog, bicycle]),
        ("with_url", [dog, "Bo: Lovely!"]),
        ("none", ["Ana: I adopted a dog.", "Bo: Lovely!"]),
    ):
        (both,) = dialogues(first, per_speaker=False, captions=captions).values()
        assert [turn.spoken for turn in both[0].turns] == spoken
    write(path, changed(benchmark(), "0.conversation.session_2", []))
    (both,) = dialogues(load_locomo(path)[0], per_speaker=False, captions="all").values()
    assert [session.id for session in both] == ["session_10"], "one without turns is left out"


def passages(**similarities: float | None) -> list[Passage]:
    return [Passage(name, similarity=similarity) for name, similarity in similarities.items()]


@given(st.lists(st.lists(st.floats(-1, 1), max_size=5), min_size=1, max_size=3))
def test_merging_loses_nothing_and_keeps_the_order_of_each_store(similarities: list[list[float]]) -> None:
    stores = [
        [Passage(f"{number}.{rank}", similarity=value) for rank, value in enumerate(sorted(values, reverse=True))]
        for number, values in enumerate(similarities)
    ]
    together = merged(stores)
    assert len(together) == sum(map(len, stores))
    for number, store in enumerate(stores):
        assert [found for found in together if found.text.startswith(f"{number}.")] == store
    # By similarity, the first store first; without similarities by rank.
    assert [one.text for one in merged([passages(a=0.9, b=0.5, c=0.1), passages(d=0.95, e=0.5)])] == list("dabec")
    assert [one.text for one in merged([passages(a=0.1, b=None, c=0.9), passages(d=0.99)])] == list("adbc")
