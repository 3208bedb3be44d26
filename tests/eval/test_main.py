from __future__ import annotations

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


def test_compare_prints_tables_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [question(f"conv-{number % 2}/{number}", ORDER[number % 5]) for number in range(10)]
    folder = write_run(tmp_path / "ours", records, config={"system": "[deltamem]"})
    assert run(monkeypatch, "compare", folder, "--out", tmp_path / "report.html") == 0
    printed = capsys.readouterr().out
    for expected in (
        "[deltamem]",
        "Single-hop 841",
        "Table 1",
        "naive_rag: not run",
        "75.13",
        str(tmp_path / "report.html"),
    ):
        assert expected in printed, expected
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(monkeypatch, *arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("\n") == 1
    return message


def test_wrong_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such folder" in refused(monkeypatch, capsys, "compare", "nowhere")
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
