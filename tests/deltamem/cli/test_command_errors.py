"""Wrong use and bad data: one sentence on standard error, exit code 2, and nothing is made."""

import json
from pathlib import Path

import pytest
from command_cases import MONDAY, lines_of, one_sentence, run
from episode_texts import WordEmbedder
from scripted_server import Served, completion, serve, unused_url

from deltamem.bank.store import MemoryStore
from deltamem.errors import EmbedderUnavailableError

READING = (["show"], ["search", "tea"], ["history", "m1"], ["diff", "@0"], ["blame", "m1"], ["export"], ["audit"])
CHANGING = (["rollback", "@0", "--yes"], ["forget", "m1", "--yes"], ["forget", "--everything", "--yes"])


@pytest.mark.parametrize("command", [*READING, *CHANGING], ids=" ".join)
def test_only_add_and_import_make_a_bank(bank: Path, command: list[str]) -> None:
    assert "no memory bank there" in one_sentence(run(*command))
    assert not bank.exists()


@pytest.mark.parametrize("command", [*READING, *CHANGING, ["add", "-"], ["import", "-"]], ids=" ".join)
def test_there_is_no_memory_without_an_owner(bank: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELTAMEM_OWNER")
    assert "--owner" in one_sentence(run(*command))
    assert not bank.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing command"),
        (["shwo"], "shwo"),
        (["show", "--ownr", "ann"], "--ownr"),
        (["history"], "ID"),
        (["search", "tea", "-k", "0"], "-k"),
        (["show", "--window", "0"], "--window"),
        (["show", "--tool-role", "system"], "system"),
        (["forget"], "--everything"),
        (["forget", "m1", "--everything"], "--everything"),
        (["add", "absent.json"], "absent.json"),
        (["import", "absent.jsonl"], "absent.jsonl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_use_is_one_sentence(bank: Path, arguments: list[str], said: str) -> None:
    assert said in one_sentence(run(*arguments))
    assert not bank.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"id": "a"}', lines_of(MONDAY) + "{}", lines_of(MONDAY | {"time": "soon"}), "\x00", "[" * 100_000],
    ids=range(9),
)
def test_nothing_is_read_of_a_file_with_a_mistake(bank: Path, rules: Served, text: str) -> None:
    file = bank.parent / "sessions.jsonl"
    file.write_text(text)
    assert str(file) in one_sentence(run("add", str(file)))
    assert not bank.exists()
    assert not rules.requests


def test_a_model_is_needed_and_must_be_reachable(bank: Path) -> None:
    one = lines_of(MONDAY)
    assert "--base-url" in one_sentence(run("add", "-", given=one))
    assert "localhost:8000" in one_sentence(run("add", "-", "--base-url", "nonsense", given=one))
    gone = unused_url()
    assert gone in one_sentence(run("add", "-", "--base-url", gone, given=one))
    with serve(lambda body: completion("x"), models=[{"id": "small"}, {"id": "large"}]) as served:
        assert "small, large" in one_sentence(run("add", "-", "--base-url", served.url, given=one))
    assert not bank.exists()


def test_a_missing_embedder_says_how_to_get_it(bank: Path, rules: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **settings: object) -> WordEmbedder:
        raise EmbedderUnavailableError(f"embedder {name!r} is not installed")

    assert run("add", "-", given=lines_of(MONDAY)).exit_code == 0
    monkeypatch.setattr("deltamem.embedding.load_embedder", missing)
    done = run("search", "city", "--embedder", "other")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "'other' is not installed" in done.stderr


def test_an_unknown_owner_is_reported_and_not_made(bank: Path, rules: Served) -> None:
    assert run("add", "-", given=lines_of(MONDAY)).exit_code == 0
    for command in (["show"], ["search", "city"], ["diff", "@0"], ["export"]):
        done = run(*command, "--owner", "amn")
        assert done.exit_code == 0
        assert done.stderr == f"note: {bank} holds nothing of 'amn'\n"
    for command in (*CHANGING, ["audit"], ["history", "m1"], ["blame", "m1"]):
        one_sentence(run(*command, "--owner", "amn"))
    assert json.loads(run("export", "--owner", "amn").stdout)["entries"] == 0
    with MemoryStore.open(bank, WordEmbedder()) as store:
        assert store.owners() == ["ann"]


def test_an_unknown_memory(bank: Path, rules: Served) -> None:
    assert run("add", "-", given=lines_of(MONDAY)).exit_code == 0
    for command in (["history"], ["blame"], ["forget", "--yes"]):
        for memory_id in ("m9", "9", "m\x1b", "\udcff"):
            one_sentence(run(*command, memory_id))


def test_what_cannot_be_undone_is_not_done_without_a_yes(bank: Path, rules: Served) -> None:
    assert run("add", "-", given=lines_of(MONDAY)).exit_code == 0
    for command in (["forget", "m1"], ["forget", "--everything"], ["rollback", "@0"]):
        assert "--yes" in one_sentence(run(*command, given="y\n"))
    assert "Boston" in run("show").stdout


def test_a_damaged_export_is_refused_as_a_whole(bank: Path, rules: Served) -> None:
    assert run("add", "-", given=lines_of(MONDAY)).exit_code == 0
    lines = run("export").stdout.splitlines(keepends=True)
    for damaged in ("".join(lines[:-1]), "".join(lines) + "{}\n", "", "\xff"):
        assert "line " in one_sentence(run("import", "-", "--owner", "bob", "--rename", given=damaged))
    assert run("show", "--owner", "bob").stdout == ""


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0 but no more", b"nonsense" * 1000], ids=range(3))
def test_a_journal_that_is_none_is_refused(bank: Path, content: bytes) -> None:
    bank.mkdir()
    (bank / "journal.sqlite3").write_bytes(content)
    for command in (["show"], ["search", "tea"]):
        assert "journal.sqlite3" in one_sentence(run(*command))
    assert (bank / "journal.sqlite3").read_bytes() == content


def test_a_file_where_the_bank_should_be(bank: Path, rules: Served) -> None:
    bank.write_text("a file")
    assert str(bank) in one_sentence(run("add", "-", given=lines_of(MONDAY)))
    assert str(bank) in one_sentence(run("show"))
