"""``python -m eval.halumem`` as a person runs it: results on disk, tables, and one sentence for what is wrong."""

import json
from pathlib import Path

import pytest
from benchmark_command import finish, in_process
from halumem_cases import StemEmbedder, ana, ben, kind, models, served, write
from scripted_server import Reply, completion, serve

import eval.runner as evaluation
from eval.data import HALUMEM_USER, find
from eval.halumem.__main__ import main


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """The command in this process, with an embedder that needs no weights."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "h.jsonl", ana(), ben())
    return in_process("halumem", main, evaluation, StemEmbedder, monkeypatch, capsys)


def test_tables_of_a_judged_run(command) -> None:
    with serve(models) as server:
        done = command("data=h.jsonl", "resamples=50", "judge.probes=false", *served(server))
    assert (done.code, done.err) == (0, "")
    rows = [line.split() for line in done.out.splitlines()]
    heading = rows.index(["R", "Weighted", "R", "Target", "P", "Acc.", "FMR", "F1"])
    assert rows[heading + 2] == ["50.0", "53.8", "100.0", "100.0", "100.0", "66.7"]
    assert ["updating", "1", "100.0", "0.0", "0.0"] in rows
    assert ["all", "questions", "3", "100.0", "0.0", "0.0", "66.7", "0.0", "33.3"] in rows
    assert not [row for row in rows if "(valid)" in row]  # every judge gave a verdict, so one row is enough


def test_failed_judges_make_two_rows_and_exit_code_1(command) -> None:
    def prose(body) -> Reply:
        return completion("Nice.") if kind(body) == "qa" and "middle" in str(body) else models(body)

    with serve(prose) as server:
        done = command("data=h.jsonl", "resamples=50", "judge.probes=false", *served(server))
    assert done.code == 1
    told, first = done.err.splitlines()
    assert told == "1 failures (1 in judge); the same command tries again what can be tried; the first:"
    assert first.startswith("judge: aaaa-1/S1/q2, qa: ")
    rows = [line.split() for line in done.out.splitlines()]
    assert ["all", "questions", "(all)", "3", "66.7", "0.0", "0.0", "66.7", "0.0", "33.3"] in rows
    assert ["all", "questions", "(valid)", "3", "100.0", "0.0", "0.0", "66.7", "0.0", "33.3"] in rows


def test_a_truncated_line_is_named_and_the_run_goes_on(command, tmp_path: Path) -> None:
    whole = (tmp_path / "h.jsonl").read_text()
    (tmp_path / "h.jsonl").write_text(whole[:-50])
    done = command("data=h.jsonl", "answer.kind=none")
    assert done.code == 1
    assert "1 failures (1 in data)" in done.err
    assert "h.jsonl, line 2: Invalid JSON" in done.err
    assert "3 questions" in done.out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["judges=[mild]"], "config key 'judges.0'"),
        (["version=short"], "config key 'version'"),
        (["data=wrong.json"], "wrong.json holds no user of HaluMem"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(command, tmp_path: Path, overrides: list[str], message: str) -> None:
    (tmp_path / "wrong.json").write_text('[{"sample_id": "conv-1"}]')
    done = command("data=h.jsonl", *overrides)
    assert done.code == 2
    assert message in done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert not list(tmp_path.glob("runs/*/*"))


@pytest.mark.slow
def test_the_real_user_offline(tmp_path: Path) -> None:
    path = find(HALUMEM_USER)
    if path is None:
        pytest.skip("the complete user of HaluMem is not in a data folder")

    def run() -> dict:
        done = finish("halumem", tmp_path, f"data={path}", "out=out")
        assert done.code == 0, done.err
        return json.loads((tmp_path / "out" / "summary.json").read_text())

    summary = run()
    assert summary["sessions"]["applied"] == 62
    assert summary["questions"]["total"] == sum(summary["questions"]["by_category"].values()) == 161
    assert summary["questions"]["by_category"] == {
        "Basic Fact Recall": 32,
        "Multi-hop Inference": 7,
        "Dynamic Update": 3,
        "Memory Boundary": 43,
        "Memory Conflict": 38,
        "Generalization & Application": 38,
    }
    points = summary["points"]
    assert (points["total"], points["not_judged"], points["searched"]) == (686, 686, 145)
    assert points["by_source"] == {"secondary": 467, "system": 93, "interference": 126}
    assert summary["evidence"]["questions_with_evidence"] == 118
    recall = [summary["scores"][f"recall@{k}"]["all"]["estimate"] for k in (5, 10, 20)]
    assert 0.2 < recall[0] < recall[1] < recall[2] < 0.8
    assert summary["scores"]["recall@20"]["all"]["count"] == 118
    assert summary["scores"]["set_f1"]["all"]["count"] == 161
    assert 0.03 < summary["scores"]["set_f1"]["all"]["estimate"] < 0.3  # the extractive answerer is a floor
    size = {file.name: file.stat().st_size for file in (tmp_path / "out").glob("*.jsonl")}
    again = run()
    assert again["scores"] == summary["scores"]
    assert {file.name: file.stat().st_size for file in (tmp_path / "out").glob("*.jsonl")} == size
