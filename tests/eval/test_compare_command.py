from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from compare_cases import ORDER, question, write_run

from eval.__main__ import main
from eval.data import LOCOMO


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "argv", ["eval", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    records = [question(f"conv-{number % 2}/{number}", ORDER[number % 5]) for number in range(10)]
    return write_run(tmp_path / "ours", records, config={"system": "[deltamem]"})


def test_compare_prints_tables_and_writes_the_page(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "compare", folder, "--out", tmp_path / "report.html") == 0
    printed = capsys.readouterr().out
    for expected in (
        "[deltamem]",
        "Single-hop 841",
        "published: DeltaMem, arXiv 2604.01560, Table 1",
        "full_context: not run",
        "naive_rag: not run",
        "python -m eval.locomo system=full_context",
        "LoCoMo, as in Table 1 of the DeltaMem paper: LJ",
        "75.13",
        "(?) Memory-R1-7B",
        f"written to {tmp_path / 'report.html'}",
    ):
        assert expected in printed, expected
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(monkeypatch, *arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("\n") == 1
    return message


def test_a_bad_folder_is_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no such folder" in refused(monkeypatch, capsys, "compare", tmp_path / "nowhere")
    assert "holds no summary.json" in refused(monkeypatch, capsys, "compare", folder, tmp_path)
    summary = folder / "summary.json"
    content = json.loads(summary.read_text(encoding="utf-8"))
    for key in ("scores", "cost", "failures"):
        summary.write_text(json.dumps({name: value for name, value in content.items() if name != key}), encoding="utf-8")
        assert f"run: {key}: " in refused(monkeypatch, capsys, "compare", folder)
    for text in ("", "[]", '{"benchmark": ', "\x00"):
        summary.write_text(text, encoding="utf-8")
        assert "not the summary of a benchmark run" in refused(monkeypatch, capsys, "compare", folder)


def test_a_bad_record_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    questions = folder / "questions.jsonl"
    lines = questions.read_text(encoding="utf-8").splitlines()
    questions.write_text("\n".join([lines[0], "{}", *lines[1:]]) + "\n", encoding="utf-8")
    assert "questions.jsonl, line 2: cannot be read as a record of a run" in refused(monkeypatch, capsys, "compare", folder)
    questions.unlink()
    assert "holds no questions.jsonl" in refused(monkeypatch, capsys, "compare", folder)


def test_wrong_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Missing command" in refused(monkeypatch, capsys)
    assert "Missing argument" in refused(monkeypatch, capsys, "compare")
    assert "No such command" in refused(monkeypatch, capsys, "judge")


def test_fetch_names_what_there_is_and_asks_for_the_licence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there are: " in refused(monkeypatch, capsys, "fetch", "nothing", "--folder", tmp_path)
    assert run(monkeypatch, "fetch", "locomo", "--folder", tmp_path) == 2
    assert "--accept-licence" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_fetch_uses_the_folder_in_which_data_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DELTAMEM_DATA", str(tmp_path / "data"))
    assert "$DELTAMEM_DATA is" in refused(monkeypatch, capsys, "fetch", "locomo", "--accept-licence")
    there = tmp_path / "data" / LOCOMO.path
    there.parent.mkdir(parents=True)
    there.write_text("[]", encoding="utf-8")
    assert run(monkeypatch, "fetch", "locomo", "--accept-licence") == 2
    assert f"{there} is there and is not the published file" in capsys.readouterr().err
