"""The card of a policy reads what evaluations write, and shows no figure of another model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from benchmark_cases import DELETED, HALUMEM, LOCOMO, Case, changed, prepare, served
from scripted_server import serve

from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256, weights_sha256
from deltamem.training.measured import read_measured
from eval.summary import SUMMARY_FILE


class Runs(NamedTuple):
    """A policy, which a server names as the place of its model, and runs of a benchmark."""

    policy: Path
    own: Path
    without_model: Path

    def rewrite(self, folder: Path, change: Any) -> Path:
        """The summary of the policy's own run with a change, in a folder of its own."""
        folder.mkdir()
        summary = json.loads((self.own / SUMMARY_FILE).read_text())
        (folder / SUMMARY_FILE).write_text(json.dumps(change(summary)))
        return folder


def measure(case: Case, folder: Path, policy: Path | str, system: str, *overrides: str) -> Path:
    """A whole run of a small benchmark; its result folder."""
    folder.mkdir(exist_ok=True)
    with serve(case.script, [{"id": "tiny", "root": str(policy), "max_model_len": 16384}]) as server:
        named = [part for part in served(server, system) if not part.startswith("judge.")]
        case.run(folder, *(named if system == "deltamem" else [f"system={system}"]), "answer.kind=extractive", *overrides)
    return folder / "out"


@pytest.fixture(scope="module", params=[LOCOMO, HALUMEM], ids=lambda case: case.name)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    case, folder = request.param, tmp_path_factory.mktemp("runs")
    policy = folder / "policy"
    policy.mkdir()
    (policy / "model.safetensors").write_bytes(b"trained")
    (policy / "config.json").write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        prepare(patch, case)
        yield Runs(policy, *(measure(case, folder / name, policy, name) for name in ("deltamem", "naive_rag")))


locomo = pytest.mark.parametrize("runs", [LOCOMO], ids=["locomo"], indirect=True)


def test_a_run_of_each_benchmark_can_be_shown(runs: Runs) -> None:
    measured = read_measured([runs.own, runs.without_model])
    measured.check(weights_sha256(runs.policy))
    (section,) = measured.sections()
    summary = json.loads((runs.own / SUMMARY_FILE).read_text())
    assert section.startswith(f"### {summary['benchmark']}\n") and summary["version"] in section
    assert "| this policy | naive_rag |" in section
    shown = [metric for metric in summary["scores"] if metric not in summary["withheld"]]
    assert shown and all(f"\n| {metric}" in section for metric in shown)
    assert any("by a judge: no model has said" in line for line in measured.missing())


@locomo
def test_figures_of_another_model_are_refused(runs: Runs, tmp_path: Path) -> None:
    before = weights_sha256(runs.policy)
    trained_on = shutil.copytree(runs.policy, tmp_path / "policy")
    (trained_on / "model.safetensors").write_bytes(b"trained on")
    now = file_sha256(trained_on / "model.safetensors")
    measured = read_measured([runs.own])
    with pytest.raises(DeltaMemError, match=rf"measured another model: model\.safetensors is .*{now[:12]} here"):
        measured.check(weights_sha256(trained_on))
    with pytest.raises(DeltaMemError, match=r"measured another model: model-2\.safetensors is none there"):
        measured.check({**before, "model-2.safetensors": now})
    elsewhere = read_measured([measure(LOCOMO, tmp_path / "elsewhere", "org/policy", "deltamem")])
    with pytest.raises(DeltaMemError, match="does not say which weights it measured"):
        elsewhere.check(before)
    measure(LOCOMO, tmp_path / "mixed", trained_on, "deltamem", "limit=1")
    (trained_on / "model.safetensors").write_bytes(b"trained")
    mixed = read_measured([measure(LOCOMO, tmp_path / "mixed", trained_on, "deltamem", "mixed=true")])
    with pytest.raises(DeltaMemError, match="measured another model"):
        mixed.check(before)


@locomo
def test_rows_beside_the_policy_are_of_the_same_conditions(runs: Runs, tmp_path: Path) -> None:
    part = measure(LOCOMO, tmp_path / "part", runs.policy, "naive_rag", "conversations=[conv-1]")
    for folders in ([part], [runs.own, part]):
        with pytest.raises(DeltaMemError, match=r"part.out: system=naive_rag without a run of the policy"):
            read_measured(folders).check(weights_sha256(runs.policy))


@locomo
@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("scores", DELETED, r"scores: Field required"),
        ("scores.recall@5.all.estimate", "0.5", r"scores\.recall@5\.all\.estimate: .*valid number"),
        ("making.fingerprint.served.manager.weights", "abc", r"making\.fingerprint\.served\.manager\.weights: .*object"),
        ("partial", {"done": 1, "questions": 9}, "the run is not finished"),
    ],
)
def test_a_broken_summary_is_one_sentence(runs: Runs, tmp_path: Path, path: str, value: Any, said: str) -> None:
    folder = runs.rewrite(tmp_path / "broken", lambda summary: changed(summary, path, value))
    with pytest.raises(DeltaMemError, match=said) as error:
        read_measured([folder])
    assert str(folder / SUMMARY_FILE) in str(error.value)
    (folder / SUMMARY_FILE).write_text("{")
    with pytest.raises(DeltaMemError, match="not the summary of an evaluation"):
        read_measured([folder])
    (folder / SUMMARY_FILE).unlink()
    with pytest.raises(DeltaMemError, match=r"summary\.json: cannot be read"):
        read_measured([folder])


@locomo
def test_withheld_scores_are_named_and_not_shown(runs: Runs, tmp_path: Path) -> None:
    why = {"withheld": {"mrr": "2 of 3 sessions could not be ingested"}}
    measured = read_measured([runs.rewrite(tmp_path / "withheld", lambda summary: summary | why)])
    assert "\n| mrr" not in "".join(measured.sections())
    said = "mrr (system=deltamem): withheld, 2 of 3 sessions could not be ingested."
    assert any(line.endswith(said) for line in measured.missing())
