"""``python -m eval``: comparing runs and fetching data."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_cases import records, write_run

from eval.data import LOCOMO


def test_compare_prints_headlines_and_writes_the_page(tmp_path: Path, command) -> None:
    folder = write_run(tmp_path / "ours", records(), config={"system": "[deltamem]"})
    code, printed, _ = command("compare", folder, "--out", tmp_path / "report.html")
    assert code == 0
    for expected in ("[deltamem]", "not run: none", str(tmp_path / "report.html")):
        assert expected in printed, expected
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    for expected in ("[deltamem]", "Single-hop 841", "system=naive_rag", "75.13"):
        assert expected in page, expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "nowhere"], "no such folder"),
        ([], "Missing command"),
        (["compare"], "Missing argument"),
        (["judge"], "No such command"),
        (["fetch", "nothing"], "there are: "),
        (["fetch", "locomo"], "--accept-licence"),
        (["fetch", "locomo", "--accept-licence"], "is not the published file"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, monkeypatch, command, arguments: list[str], said: str) -> None:
    monkeypatch.setenv("DELTAMEM_DATA", str(tmp_path))  # where data is looked for, it is fetched to
    there = tmp_path / LOCOMO.path
    there.parent.mkdir(parents=True)
    there.write_text("[]", encoding="utf-8")
    code, _, errors = command(*arguments)
    last = errors.splitlines()[-1]
    assert code == 2 and last.startswith("error: ") and said in last
    assert there.read_text() == "[]" and len(list(there.parent.iterdir())) == 1
    assert arguments[:1] == ["fetch"] or errors.count("\n") == 1
