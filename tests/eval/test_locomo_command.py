"""``python -m eval.locomo`` as a person runs it: results on disk, and one sentence for what is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from locomo_cases import benchmark, write

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "eval.locomo", *overrides],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_writes_records_and_summary_and_nothing_else(tmp_path: Path) -> None:
    data = write(tmp_path / "l.json", benchmark())
    done = run(tmp_path, f"data={data}", "k=[2,1]", "out=result", "resamples=50")
    assert done.returncode == 0, done.stderr
    assert "evidence recall@k" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l.json", "result"]
    assert sorted(path.name for path in (tmp_path / "result").iterdir()) == ["questions.jsonl", "summary.json"]
    records = [json.loads(line) for line in (tmp_path / "result" / "questions.jsonl").read_text().splitlines()]
    assert len(records) == 7
    assert records[0]["hits"] == {"1": 1, "2": 1}
    summary = json.loads((tmp_path / "result" / "summary.json").read_text())
    assert summary["questions"] == 7
    assert list(summary["groups"]["all"]["recall_per_question"]) == ["1", "2"]
    assert summary["data_set"]["evidence_strings_unusable"] == 2
    assert len(summary["data_set"]["sha256"]) == 64
    assert {"git_commit", "versions", "config", "config_sha256", "seconds"} <= set(summary)
    assert str(tmp_path) not in json.dumps(summary)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["system=mem9"], "system 'mem9' does not exist; there are: deltamem, naive_rag"),
        (["system=deltamem"], "an endpoint needs both endpoint.base_url=<url> and endpoint.model=<name>"),
        (["endpoint.modl=x"], "unknown config key 'endpoint.modl'"),
        (["sytem=naive_rag"], "unknown config key 'sytem'"),
        (["+extra=1"], "unknown config key 'extra'"),
        (["k=[0]"], "config key 'k.0'"),
        (["data=absent.json"], "absent.json: No such file"),
        (["k=["], "no viable alternative"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, overrides: list[str], message: str) -> None:
    done = run(tmp_path, *overrides)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").rglob("*.json*"))


def test_data_folder_that_is_no_folder(tmp_path: Path) -> None:
    done = run(tmp_path, DELTAMEM_DATA=str(tmp_path / "absent"))
    assert done.returncode == 2
    assert "$DELTAMEM_DATA" in done.stderr


def test_hydra_still_shows_configuration_and_help(tmp_path: Path) -> None:
    shown = run(tmp_path, "--cfg", "job")
    assert shown.returncode == 0
    assert "system: naive_rag" in shown.stdout
    helped = run(tmp_path, "--help")
    assert helped.returncode == 0
    assert "naive_rag" in helped.stdout
    assert list(tmp_path.iterdir()) == []
