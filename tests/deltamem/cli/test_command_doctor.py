"""`deltamem doctor`: it finds what is wrong, and changes nothing."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from command_cases import FRIDAY, MONDAY, lines_of, run
from episode_texts import WordEmbedder
from scripted_server import Served, unused_url
from test_command_output import write

from deltamem.bank.store import MemoryStore
from deltamem.errors import EmbedderUnavailableError


def examine(*options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and the checks by name."""
    done = run("doctor", "--json", *options)
    assert done.stdout.count("\n") == 1
    report = json.loads(done.stdout)
    assert report["ok"] is (done.exit_code == 0)
    return done.exit_code, {check["name"]: check for check in report["checks"]}


def status(checks: dict[str, dict[str, Any]], name: str) -> str:
    return str(checks[name]["status"])


def test_a_sound_bank(bank: Path, rules: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("add", "-", given=lines_of(MONDAY, FRIDAY)).exit_code == 0
    monkeypatch.delenv("DELTAMEM_OWNER")
    code, checks = examine()
    assert code == 0
    assert {check["status"] for check in checks.values()} == {"ok"}, checks
    assert "4096" in checks["model"]["detail"] and "256" in checks["embedder"]["detail"]
    assert {"python", "deltamem", "chromadb", "disk space", "lock", "journal", "journal of ann"} <= checks.keys()
    assert ["ok", "lock", "free"] in [line.split() for line in run("doctor").stdout.splitlines()]


def test_without_a_bank_nothing_is_made(bank: Path) -> None:
    code, checks = examine()
    assert code == 0
    assert (status(checks, "bank"), status(checks, "model")) == ("warn", "warn")
    assert not bank.exists()


def test_what_cannot_be_reached_fails(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **settings: object) -> WordEmbedder:
        raise EmbedderUnavailableError("not installed")

    monkeypatch.setattr("deltamem.embedding.load_embedder", missing)
    code, checks = examine("--base-url", unused_url(), "--model", "tiny")
    assert code == 1
    assert (status(checks, "embedder"), status(checks, "model")) == ("fail", "fail")


def test_an_index_out_of_step_is_reported_and_left_alone(bank: Path, rules: Served) -> None:
    assert run("add", "-", given=lines_of(MONDAY)).exit_code == 0
    write(bank, ("later", "2026-03-09T09:00", "Ann likes tea."))
    for _ in range(2):
        code, checks = examine()
        assert code == 0
        assert status(checks, "index of ann") == "warn"
        assert "@1" in checks["index of ann"]["detail"] and "@2" in checks["index of ann"]["detail"]
    assert "other" in examine("--embedder", "other")[1]["index of ann"]["detail"]
    assert run("search", "tea").exit_code == 0
    assert status(examine()[1], "index of ann") == "ok"


def test_a_damaged_index_is_reported_and_left_alone(bank: Path, rules: Served) -> None:
    assert run("add", "-", given=lines_of(MONDAY)).exit_code == 0
    database = bank / "index" / "chroma.sqlite3"
    database.write_bytes(b"garbage" * 1000)
    code, checks = examine()
    assert code == 0
    assert status(checks, "index") == "warn"
    assert database.read_bytes() == b"garbage" * 1000
    assert "Boston" in run("search", "city").stdout


def test_a_bank_in_use_is_reported(bank: Path, rules: Served) -> None:
    assert run("add", "-", given=lines_of(MONDAY)).exit_code == 0
    with MemoryStore.open(bank, WordEmbedder()):
        code, checks = examine()
    assert code == 0
    assert status(checks, "lock") == "warn"
    assert status(checks, "journal of ann") == "ok"
    assert str(os.getpid()) in checks["lock"]["detail"] or "this process" in checks["lock"]["detail"]


def test_a_journal_that_contradicts_itself_fails(bank: Path, rules: Served) -> None:
    assert run("add", "-", given=lines_of(MONDAY, FRIDAY)).exit_code == 0
    with sqlite3.connect(bank / "journal.sqlite3") as connection:
        connection.execute("UPDATE changes SET before_text = 'Something else.' WHERE event = 'UPDATE'")
    connection.close()
    code, checks = examine()
    assert code == 1
    assert status(checks, "journal of ann") == "fail"


def test_a_damaged_journal_fails(bank: Path, rules: Served) -> None:
    assert run("add", "-", given=lines_of(MONDAY, FRIDAY)).exit_code == 0
    file = bank / "journal.sqlite3"
    content = bytearray(file.read_bytes())
    for page in range(4096, len(content), 4096):
        content[page : page + 200] = b"\xff" * 200
    file.write_bytes(content)
    code, checks = examine()
    assert code == 1
    assert status(checks, "journal") == "fail"
