"""The audit must be one of this benchmark file; what it changes, and the ceiling that it implies."""

from pathlib import Path

import pytest
from locomo_cases import audit, benchmark, settings, write

from deltamem.errors import DeltaMemError
from eval.data import LOCOMO, LOCOMO_AUDIT, find
from eval.locomo.data import load_audit, load_locomo, read_data


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "l.json", benchmark())


def test_wrong_answers_and_evidence_are_replaced(tmp_path: Path, data: Path) -> None:
    conversations = load_locomo(data)
    found = load_audit(write(tmp_path / "a.json", audit()), conversations)
    first = found.apply(conversations[0]).questions
    assert (first[0].answer, first[0].evidence) == ("2023", ("D2:1", "D10:1"))
    # A wrong citation leaves the answer, whatever is remarked on it; its twin is another question.
    assert (first[4].answer, first[4].evidence) == ("red", ("D2:1",))
    assert (first[5].answer, first[5].evidence) == ("red", ("D2:2",))
    assert found.apply(conversations[1]) == conversations[1]


@pytest.mark.parametrize("evidence", [[], ["D2:1", "D77:1"]])
def test_evidence_that_is_not_in_the_conversation_is_left_as_it_was(tmp_path: Path, data: Path, evidence: list[str]) -> None:
    conversations = load_locomo(data)
    found = load_audit(write(tmp_path / "a.json", audit(correct_evidence=evidence)), conversations)
    assert found.apply(conversations[0]).questions[0].evidence == ("D2:1",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": "cat?"}, "locomo_0_qa0 is another question in the benchmark file"),
        ({"question_id": "locomo_0_qa99"}, "locomo_0_qa99 is another question"),
        ({"question_id": "locomo_7_qa0"}, "locomo_7_qa0 is another question"),
        ({"question_id": "locomo_0_qa6", "question": "cat?"}, "locomo_0_qa6 is another question"),
        ({"question_id": "conv-1/0"}, "question_id 'conv-1/0' is not like 'locomo_0_qa17'"),
        ({"question_id": "locomo_0_qa4", "question": "bicycle?"}, "locomo_0_qa4 occurs twice"),
        ({"correct_answer": None}, r"0\.correct_answer"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(tmp_path: Path, data: Path, change: dict, message: str) -> None:
    path = write(tmp_path / "a.json", audit(**change))
    with pytest.raises(DeltaMemError, match=rf"a\.json: {message}"):
        load_audit(path, load_locomo(data))


def test_ceiling_is_of_the_files_own_answers_with_either_gold(tmp_path: Path, data: Path) -> None:
    path = write(tmp_path / "a.json", audit())
    for gold in ("original", "audited"):
        read = read_data(settings(f"data={data}", f"audit={path}", f"gold={gold}"))
        # Only the first question has a wrong answer; category 5 was not audited.
        assert read.ceiling() == {
            "single-hop": 1.0,
            "multi-hop": 1.0,
            "open-domain": 1.0,
            "temporal": 0.0,
            "all": pytest.approx(6 / 7),
        }
        assert read.asked["conv-1"][0].answer == {"original": "2022", "audited": "2023"}[gold]
        assert read.description()["audit"]["applied"] is (gold == "audited")


def test_audit_is_needed_only_for_audited_gold(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAMEM_DATA", str(tmp_path))
    monkeypatch.setattr("eval.locomo.data.find", lambda dataset: None)
    assert read_data(settings(f"data={data}")).ceiling() is None
    with pytest.raises(DeltaMemError, match="dial481/locomo-audit"):
        read_data(settings(f"data={data}", "gold=audited"))
    with pytest.raises(DeltaMemError, match=r"no\.json: No such file"):
        read_data(settings(f"data={data}", f"audit={tmp_path / 'no.json'}"))


def test_an_audit_that_lies_there_does_not_concern_other_files(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.json", audit(question="of another file"))
    monkeypatch.setattr("eval.locomo.data.find", lambda dataset: path)
    assert read_data(settings(f"data={data}")).audit is None
    with pytest.raises(DeltaMemError, match="another question"):
        read_data(settings(f"data={data}", "gold=audited"))


def test_the_real_audit_has_the_published_counts() -> None:
    data, path = find(LOCOMO), find(LOCOMO_AUDIT)
    if data is None or path is None:
        pytest.skip("LoCoMo or its audit is not in a data folder")
    read = read_data(settings(f"data={data}", f"audit={path}"))
    assert read.audit is not None
    assert len(read.audit.corrections) == 156
    wrong = {"single-hop": 36, "multi-hop": 28, "open-domain": 9, "temporal": 26, "all": 99}
    counts = {"single-hop": 841, "multi-hop": 282, "open-domain": 96, "temporal": 321, "all": 1540}
    assert read.ceiling() == {name: pytest.approx(1 - wrong[name] / counts[name]) for name in wrong}
