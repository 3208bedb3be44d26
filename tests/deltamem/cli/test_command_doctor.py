"""`deltamem doctor`: it finds what is wrong, and changes nothing."""

import json
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_cases import FRIDAY, lines_of, run, write
from episode_texts import WordEmbedder
from scripted_server import Reply, Script, completion, failure, is_check, serve, unused_url

from deltamem.bank.store import MemoryStore
from deltamem.errors import EmbedderUnavailableError


def examine(*options: str) -> tuple[int, dict[str, str], dict[str, str]]:
    """Exit code, and the status and the detail of every check."""
    done = run("doctor", "--json", *options)
    report = json.loads(done.stdout)
    assert report["ok"] is (done.exit_code == 0)
    status, detail = ({check["name"]: check[field] for check in report["checks"]} for field in ("status", "detail"))
    return done.exit_code, status, detail


def test_a_sound_bank(boston: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELTAMEM_OWNER")
    code, status, detail = examine()
    assert code == 0
    assert set(status.values()) - {status.pop("one session")} == {"ok"}, status  # its chat is none that the rules know
    assert "4096" in detail["model"] and "256" in detail["embedder"]
    assert {"python", "deltamem", "chromadb", "disk space", "lock", "journal", "journal of ann"} <= status.keys()
    assert ["ok", "lock", "free"] in [line.split() for line in run("doctor").stdout.splitlines()]


def test_without_a_bank_nothing_is_made(bank: Path) -> None:
    code, status, _ = examine()
    assert (code, status["bank"], status["model"]) == (0, "warn", "warn")
    assert not bank.exists()


def test_what_cannot_be_reached_fails(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **settings: object) -> WordEmbedder:
        raise EmbedderUnavailableError("not installed")

    monkeypatch.setattr("deltamem.embedding.load_embedder", missing)
    code, status, _ = examine("--base-url", unused_url(), "--model", "tiny")
    assert (code, status["embedder"], status["model"]) == (1, "fail", "fail")


FACTS = {"facts": [{"line": 1, "fact": "Nora moved to Porto in May."}, {"line": 1, "fact": "Nora has a cat called Miso."}]}


def trial(script: Script, *options: str) -> tuple[dict[str, str], dict[str, str]]:
    with serve(lambda body: completion("Hello.") if is_check(body) else script(body)) as served:
        code, status, detail = examine("--base-url", served.url, *options)
    assert code == 0
    return status, detail


def test_one_session_is_tried_and_nothing_is_stored(bank: Path) -> None:
    status, detail = trial(lambda body: completion(json.dumps(FACTS)), "--mode", "auto")
    assert detail["mode"].startswith("assisted: tiny at") and detail["answers"] == "kept to a JSON schema (json_schema)"
    assert status["one session"] == "ok" and detail["one session"].startswith("read, 2 facts (1 calls, ")
    assert not bank.exists()


def test_how_a_service_keeps_answers_is_said(bank: Path) -> None:
    def script(body: dict[str, Any]) -> Reply:
        if "response_format" in body or "tools" in body:
            return failure(400, "response_format and tools are not supported")
        return completion(json.dumps(FACTS))

    status, detail = trial(script, "--mode", "assisted")
    assert (detail["mode"], status["one session"]) == ("assisted: assisted was asked for", "ok")
    assert detail["answers"] == "not kept to a schema, which is told in words (text)"


@pytest.mark.parametrize(
    ("mode", "said", "sentence"),
    [
        (
            "react",
            "I would rather not.",
            "could not be read: missing_think (1 calls, S s); --mode assisted asks",
        ),
        ("assisted", "I would rather not.", "could not be read: bad_json (1 calls, S s); a larger model may do better"),
        ("assisted", '{"facts": []}', "read, but of two facts none was kept (1 calls, S s); a larger model may do better"),
    ],
)
def test_a_session_that_the_model_cannot_read_is_a_warning(bank: Path, mode: str, said: str, sentence: str) -> None:
    status, detail = trial(lambda body: completion(said), "--mode", mode)
    assert status["one session"] == "warn"
    assert re.sub(r"\d+\.\d s", "S s", detail["one session"]).startswith(sentence)


def test_a_model_that_fails_at_the_session_fails(bank: Path) -> None:
    with serve(lambda body: completion("Hello.") if is_check(body) else failure(401, "no credit")) as served:
        code, status, detail = examine("--base-url", served.url, "--mode", "assisted")
    assert (code, status["model"], status["one session"]) == (1, "ok", "fail") and "no credit" in detail["one session"]


def test_an_index_out_of_step_is_reported_and_left_alone(boston: Path) -> None:
    write(boston, ("later", "2026-03-09T09:00", "Ann likes tea."))
    for _ in range(2):
        code, status, detail = examine()
        assert (code, status["index of ann"]) == (0, "warn")
        assert "@1" in detail["index of ann"] and "@2" in detail["index of ann"]
    assert "other" in examine("--embedder", "other")[2]["index of ann"]
    assert run("search", "tea").exit_code == 0
    assert examine()[1]["index of ann"] == "ok"


def test_a_damaged_index_is_reported_and_left_alone(boston: Path) -> None:
    database = boston / "index" / "chroma.sqlite3"
    database.write_bytes(b"garbage" * 1000)
    code, status, _ = examine()
    assert (code, status["index"]) == (0, "warn")
    assert database.read_bytes() == b"garbage" * 1000
    assert "Boston" in run("search", "city").stdout


def test_a_bank_in_use_is_reported(boston: Path) -> None:
    with MemoryStore.open(boston, WordEmbedder()):
        code, status, detail = examine()
    assert (code, status["lock"], status["journal of ann"]) == (0, "warn", "ok")
    assert str(os.getpid()) in detail["lock"] or "this process" in detail["lock"]


def contradict(journal: Path) -> None:
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("UPDATE changes SET before_text = 'Something else.' WHERE event = 'UPDATE'")


def overwrite(journal: Path) -> None:
    content = bytearray(journal.read_bytes())
    for page in range(4096, len(content), 4096):
        content[page : page + 200] = b"\xff" * 200
    journal.write_bytes(content)


@pytest.mark.parametrize(("damage", "check"), [(contradict, "journal of ann"), (overwrite, "journal")])
def test_a_journal_that_cannot_be_trusted_fails(boston: Path, damage: Callable[[Path], None], check: str) -> None:
    assert run("add", "-", given=lines_of(FRIDAY)).exit_code == 0
    damage(boston / "journal.sqlite3")
    code, status, _ = examine()
    assert (code, status[check]) == (1, "fail")
