"""The card of a policy reads what evaluations write, and shows no figure of another model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import CASES, DELETED, LOCOMO, Case, changed, prepare, served
from scripted_server import serve

from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256, weights_sha256
from deltamem.training.measured import Measured, read_measured
from eval.summary import SUMMARY_FILE


def policy(folder: Path, content: bytes = b"trained") -> Path:
    """A folder that a server names as the place of its model."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_text("{}")
    return folder


def measure(case: Case, folder: Path, root: Path, system: str = "deltamem", *overrides: str) -> Path:
    """A whole run of a small benchmark; its result folder."""
    folder.mkdir()
    listed = [{"id": "tiny", "root": str(root), "max_model_len": 16384}]
    with serve(case.script, listed) as server:
        named = [part for part in served(server, system) if not part.startswith("judge.")]
        case.run(folder, *(named if system == "deltamem" else [f"system={system}"]), "answer.kind=extractive", *overrides)
    return folder / "out"


def card(measured: Measured) -> str:
    return "\n\n".join(measured.sections())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_of_each_benchmark_can_be_shown(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch, case)
    root = policy(tmp_path / "policy")
    own, other = measure(case, tmp_path / "own", root), measure(case, tmp_path / "rag", root, "naive_rag")
    measured = read_measured([own, other])
    measured.check(weights_sha256(root))
    (section,) = measured.sections()
    summary = json.loads((own / SUMMARY_FILE).read_text())
    assert section.startswith(f"### {summary['benchmark']}\n") and summary["version"] in section
    assert "| this policy | naive_rag |" in section
    shown = [metric for metric in summary["scores"] if metric not in summary["withheld"]]
    assert shown and all(f"\n| {metric}" in section for metric in shown)
    assert any("by a judge: no model has said" in line for line in measured.missing())


def test_figures_of_another_model_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch, LOCOMO)
    root = policy(tmp_path / "policy")
    own = measure(LOCOMO, tmp_path / "own", root)
    before = weights_sha256(root)
    (root / "model.safetensors").write_bytes(b"trained on")
    now = file_sha256(root / "model.safetensors")
    measured = read_measured([own])
    with pytest.raises(DeltaMemError, match=rf"own.out: measured another model: model\.safetensors is .*{now[:12]} here"):
        measured.check(weights_sha256(root))
    with pytest.raises(DeltaMemError, match=r"measured another model: model-2\.safetensors is none there"):
        measured.check({**before, "model-2.safetensors": now})
    elsewhere = read_measured([measure(LOCOMO, tmp_path / "elsewhere", Path("org/policy"))])
    with pytest.raises(DeltaMemError, match="does not say which weights it measured"):
        elsewhere.check(before)


def test_a_run_that_went_on_with_other_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch, LOCOMO)
    root = policy(tmp_path / "policy")
    listed = [{"id": "tiny", "root": str(root), "max_model_len": 16384}]
    with serve(LOCOMO.script, listed) as server:
        asked = [*served(server, "deltamem"), "answer.kind=extractive"]
        LOCOMO.run(tmp_path, *asked, "limit=1")
        (root / "model.safetensors").write_bytes(b"trained on")
        LOCOMO.run(tmp_path, *asked, "mixed=true")
    with pytest.raises(DeltaMemError, match="measured another model"):
        read_measured([tmp_path / "out"]).check(weights_sha256(root))


def test_rows_beside_the_policy_are_of_the_same_conditions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch, LOCOMO)
    root = policy(tmp_path / "policy")
    own = measure(LOCOMO, tmp_path / "own", root)
    part = measure(LOCOMO, tmp_path / "part", root, "naive_rag", "conversations=[conv-1]")
    for folders in ([part], [own, part]):
        with pytest.raises(DeltaMemError, match=r"part.out: system=naive_rag without a run of the policy"):
            read_measured(folders).check(weights_sha256(root))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("scores", DELETED, r"scores: Field required"),
        ("scores.recall@5.all.estimate", "0.5", r"scores\.recall@5\.all\.estimate: .*valid number"),
        ("making.fingerprint.served.manager.weights", "abc", r"making\.fingerprint\.served\.manager\.weights: .*object"),
        ("partial", {"done": 1, "questions": 9}, "the run is not finished"),
    ],
)
def test_a_broken_summary_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, value: Any, said: str
) -> None:
    prepare(monkeypatch, LOCOMO)
    file = measure(LOCOMO, tmp_path / "own", policy(tmp_path / "policy")) / SUMMARY_FILE
    read_measured([file.parent])
    broken = changed(json.loads(file.read_text()), path, value)
    file.write_text(json.dumps(broken))
    with pytest.raises(DeltaMemError, match=said) as error:
        read_measured([file.parent])
    assert str(file) in str(error.value)
    file.write_text(json.dumps(broken)[:200])
    with pytest.raises(DeltaMemError, match="not the summary of an evaluation"):
        read_measured([file.parent])
    file.unlink()
    with pytest.raises(DeltaMemError, match=r"summary\.json: cannot be read"):
        read_measured([file.parent])


def test_withheld_scores_are_named_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch, LOCOMO)
    file = measure(LOCOMO, tmp_path / "own", policy(tmp_path / "policy")) / SUMMARY_FILE
    summary = json.loads(file.read_text())
    file.write_text(json.dumps(summary | {"withheld": {"mrr": "2 of 3 sessions could not be ingested"}}))
    measured = read_measured([file.parent])
    assert "\n| mrr" not in card(measured)
    said = f"{summary['benchmark']}, mrr (system=deltamem): withheld, 2 of 3 sessions could not be ingested."
    assert said in measured.missing()
