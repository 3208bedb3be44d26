"""The commands in this process: a walk through all of them, points, hostile texts, and what is refused in one sentence."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_cases import FRIDAY, MONDAY, SUNDAY, lines_of, on_a_terminal, one_sentence, run, run_json, write
from episode_texts import WordEmbedder
from scripted_server import Served, completion, serve, unused_url

from deltamem.bank.store import MemoryStore
from deltamem.cli.output import visible
from deltamem.errors import EmbedderUnavailableError
from deltamem.journal.journal import Journal
from deltamem.sessions import Session, Turn


def test_a_correction_chain_from_the_first_session_to_the_last_erasure(bank: Path, rules: Served, tmp_path: Path) -> None:
    files = [tmp_path / "early.json", tmp_path / "late.jsonl"]
    files[0].write_text(json.dumps(MONDAY))
    files[1].write_text(lines_of(FRIDAY, SUNDAY))
    added = run("add", *map(str, files))
    assert (added.exit_code, added.stderr) == (0, ""), added.output
    changes = ["+ m1  Ann's city is Boston.", "~ m1  Ann's city is Denver.", "+ m2  Ann's dog is Rex."]
    changes += ["~ m1  Ann's city is Boulder."]
    assert [line[2:] for line in added.stdout.splitlines() if line.startswith("  ")] == changes
    assert "2 ADD, 2 UPDATE, 0 NONE" in added.stdout

    assert run("show").stdout.splitlines()[0] == "m1  2026-03-08 10:15  Ann's city is Boulder."
    current = run_json("show")
    boulder = {"id": "m1", "time": "2026-03-08T10:15:00", "text": "Ann's city is Boulder.", "metadata": {}}
    rex = {"id": "m2", "time": "2026-03-06T18:30:00", "text": "Ann's dog is Rex.", "metadata": {}}
    assert (current["owner"], current["memories"]) == ("ann", [boulder, rex])
    [found] = run_json("search", "Ann's city", "-k", "1")["results"]
    assert [hit["id"] for hit in found["memories"]] == ["m1"] and 0 < found["memories"][0]["similarity"] <= 1

    assert [(step["event"], step["session_id"], step["after"]) for step in run_json("history", "m1")["steps"]] == [
        ("ADD", "monday", "Ann's city is Boston."),
        ("UPDATE", "friday", "Ann's city is Denver."),
        ("UPDATE", "sunday", "Ann's city is Boulder."),
    ]
    assert run("history", "m1").stdout.splitlines()[0] == "@1  monday (2026-03-02 09:00)  + m1  Ann's city is Boston."
    origins = run_json("blame", "m1")["origins"]
    assert [(step["session_id"], [turn["content"] for turn in step["turns"]]) for step in origins] == [
        ("monday", ["Hello! My city is Boston."]),
        ("friday", ["I moved. My city is Denver."]),
        ("sunday", ["No, my city is Boulder."]),
    ]
    assert "turn 2  user: No, my city is Boulder." in run("blame", "m1").stdout
    difference = run_json("diff", "monday")
    assert [memory["id"] for memory in difference["added"]] == ["m2"]
    assert difference["changed"][0]["before"]["text"] == "Ann's city is Boston."
    assert (difference["before"], difference["after"]) == (1, 3)
    assert len(run("diff", "monday", "friday").stdout.splitlines()) == 3

    back = run_json("rollback", "monday", "--yes")
    assert (back["position"], back["restored"]) == (4, 1)
    assert [(change["event"], change["id"]) for change in back["changes"]] == [("UPDATE", "m1"), ("REMOVE", "m2")]
    assert [memory["text"] for memory in run_json("show")["memories"]] == ["Ann's city is Boston."]
    again = run("add", "-", "--json", given=lines_of(MONDAY, FRIDAY, SUNDAY))
    records = [json.loads(line) for line in again.stdout.splitlines()]
    assert [record.get("outcome") for record in records] == ["known", "applied", "applied", None]
    assert records[-1]["summary"]["operations"] == {"ADD": 1, "UPDATE": 2, "NONE": 0}
    assert run_json("show") == current and run_json("search", "Ann's city", "-k", "1")["results"] == [found]

    file = tmp_path / "ann.jsonl"
    exported = run_json("export", str(file))
    assert [exported[name] for name in ("owner", "entries", "memories", "dialogues")] == ["ann", 6, 2, 5]
    assert run("export").stdout == run("export", "-", "--json").stdout == file.read_text(encoding="utf-8")
    other = ["--bank", str(tmp_path / "other")]
    assert run_json("import", str(file), *other)["memories"] == 2
    assert run_json("show", *other) == current
    assert run_json("search", "Ann's city", "-k", "1", *other)["results"] == [found]
    assert run_json("import", "-", "--rename", *other, "--owner", "bob", given=file.read_text())["entries"] == 6
    assert run_json("show", *other, "--owner", "bob")["memories"] == current["memories"]
    assert "ann" in one_sentence(run("import", str(file), *other))

    audited = run_json("audit")
    assert (audited["memories"], audited["without_source"], audited["findings"]) == (2, 0, [])
    assert run("forget", "m2", "--yes").exit_code == 0
    assert [memory["id"] for memory in run_json("show")["memories"]] == ["m1"]
    assert run_json("history", "m2")["steps"][0]["erased"] is True and "(erased)" in run("history", "m2").stdout
    gone = run_json("forget", "--everything", "--yes", "--owner", "ann")
    assert (gone["owner"], gone["memories"], gone["entries"]) == ("ann", 1, 7)
    assert run_json("show", "--owner", "ann")["memories"] == []
    assert [path for path in bank.rglob("*") if path.is_file() and b"Boulder" in path.read_bytes()] == []


def test_memories_are_written_corrected_and_retracted_without_a_model(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAMEM_ACTOR", "Bob")
    made = run_json("remember", "Ann likes tea.", "--time", "2026-03-02T09:00")
    assert (made["position"], made["kind"], [change["id"] for change in made["changes"]]) == (1, "edit", ["m1"])
    done = run("remember", "Ann likes fog.", "--actor", "Cem\x1b")
    assert done.stdout == "this is @2\n  + m2  Ann likes fog.\n"
    assert run("edit", "m1", "Ann likes rain.").stdout == "this is @3\n  ~ m1  Ann likes rain.\n"
    assert run("show").stdout.splitlines()[0] == "m1  2026-03-02 09:00  Ann likes rain."
    blamed = run("blame", "m1").stdout.splitlines()
    assert re.fullmatch(r"  @3  edit by Bob \(\d{4}-\S+ \S+\)  ~ Ann likes rain\.", blamed[-1])
    assert r"edit by Cem\x1b" in run("history", "m2").stdout
    assert [(step["actor"], step["session_id"]) for step in run_json("blame", "m1")["origins"]] == [("Bob", None)] * 2
    assert run_json("audit")["findings"] == [] and run_json("audit")["without_source"] == 0
    assert run("retract", "m1").stdout == "this is @4\n  - m1  Ann likes rain.\n"
    assert [memory["id"] for memory in run_json("show")["memories"]] == ["m2"]
    assert [step["actor"] for step in run_json("history", "m1")["steps"]] == ["Bob"] * 3
    assert run("rollback", "@3", "--yes").exit_code == 0 and len(run_json("show")["memories"]) == 2


def test_metadata_is_noted_shown_and_filtered(bank: Path) -> None:
    done = run("remember", "Ann likes tea.", "--metadata", '{"topic": "food", "n": 1}')
    assert done.stdout == 'this is @1\n  + m1  Ann likes tea.  {"n": 1, "topic": "food"}\n'
    run("remember", "Ann likes fog.", "--metadata", '{"topic": "weather\\u001b"}')
    assert run("show", "--filter", '{"topic": {"contains": "weather"}}').stdout.endswith(
        r'{"topic": "weather\u001b"}' + "\n"
    )
    found = run_json("search", "Ann likes", "--filter", '{"n": {"gte": 1}}')["results"][0]["memories"]
    assert [(hit["id"], hit["metadata"]) for hit in found] == [("m1", {"topic": "food", "n": 1})]
    assert run("edit", "m1", "--metadata", '{"topic": "drink"}').stdout.endswith(
        '~ m1  Ann likes tea.  {"topic": "drink"}\n'
    )
    steps = run_json("history", "m1")["steps"]
    assert [(step["before_metadata"], step["after_metadata"]) for step in steps] == [
        (None, {"n": 1, "topic": "food"}),
        ({"n": 1, "topic": "food"}, {"topic": "drink"}),
    ]
    assert run_json("blame", "m1")["origins"][-1]["metadata"] == {"topic": "drink"}
    assert '->  Ann likes tea.  {"topic": "drink"}' in run("diff", "@2").stdout
    assert run("edit", "m1", "--metadata", "{}").stdout.endswith("~ m1  Ann likes tea.\n")
    for command, sentence in (
        (["show", "--filter", "{"], "--filter: expected a JSON object"),
        (["show", "--filter", "[" * 100_000], "--filter: expected a JSON object"),
        (["show", "--filter", '{"a": {"like": 1}}'], "'like' of 'a' is no operator"),
        (["search", "x", "--filter", '{"OR": []}'], "OR needs a list"),
        (["search", "x", " \u200b"], "the query is blank; say what to look for"),
        (["search", ""], "the query is blank; say what to look for"),
        (["remember", "x", "--metadata", '{"a": {}}'], "'a' must be a text"),
        (["edit", "m1"], "nothing to change"),
    ):
        assert sentence in one_sentence(run(*command))


def test_queued_sessions_are_listed_and_forgotten_with_their_owner(bank: Path) -> None:
    bank.mkdir()
    with Journal.open(bank / "journal.sqlite3") as journal:
        ann = journal.owner("ann")
        for number in (1, 2):
            turns = (Turn("user", "My city is Zanzibar."),)
            job = ann.enqueue(Session("ann", "Ann", datetime(2026, 3, 2), turns, f"s{number}"))
        claimed = journal.queue.claim(timedelta(hours=1))
        assert claimed is not None
        journal.queue.retry(claimed, datetime(2126, 1, 1, tzinfo=UTC), "busy\x1b")
    lines = run("jobs").stdout.splitlines()
    assert lines[0].endswith(r"s1  queued  1 attempts  not before 2126-01-01 00:00+00:00  busy\x1b")
    assert lines[1] == f"{job.id}  s2  queued  0 attempts"
    found = run_json("jobs")["jobs"]
    assert [(one["attempts"], one["last_error"]) for one in found] == [(1, "busy\x1b"), (0, None)]
    assert found[0]["retry_at"] == "2126-01-01T00:00:00+00:00"
    assert run_json("forget", "--everything", "--yes")["entries"] == 0 and run_json("jobs")["jobs"] == []
    assert [path for path in bank.rglob("*") if path.is_file() and b"Zanzibar" in path.read_bytes()] == []


def test_an_audit_names_what_is_suspicious(boston: Path) -> None:
    # Two memories that say the same, as another tool may have left them.
    header, entry, dialogue, memory = [json.loads(line) for line in run("export").stdout.splitlines()]
    (change,) = entry["changes"]
    entry["changes"] = [change, change | {"memory_id": "m2"}]
    doubled = [header | {"memories": 2}, entry, dialogue, memory, memory | {"id": "m2"}]
    given = "".join(json.dumps(line) + "\n" for line in doubled)
    assert run("import", "-", "--owner", "bob", "--rename", given=given).exit_code == 0
    found = run_json("audit", "--owner", "bob")["findings"]
    assert [(finding["kind"], finding["ids"]) for finding in found] == [("exact_duplicate", ["m1", "m2"])]
    assert run("audit", "--owner", "bob").stdout.startswith("exact_duplicate  m1 m2  ")


POINTS = {
    "first": ["m1"],
    "@0": [],
    "@2": ["m1", "m2"],
    "@1": ["m1"],  # always a position, also where a session has that name
    "2026-03-03T09:00": ["m1", "m2"],
    "2026-03-03": ["m1"],
    "2026-03-04T10:00+02:00": ["m1", "m2"],
    "2027-01-01": ["m1", "m2", "m3"],
    "1999-01-01T00:00:00": [],
}
NO_POINTS = ("nonsense", "@", "@-1", "@²", "@1x", "@4", "2026-13-01", "", "@9999999999999999999999")


def test_a_point_is_a_session_a_position_or_a_time(three: Path) -> None:
    for point, ids in POINTS.items():
        assert [memory["id"] for memory in run_json("show", "--at", point)["memories"]] == ids, point
    for point in NO_POINTS:
        assert "position" in one_sentence(run("show", "--at", point)), point


HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b2J [bold]plain[/bold] :smile: \u202eright to left\u202c\nnext line\r \U000e0041"


def test_no_text_steers_the_terminal(bank: Path) -> None:
    write(bank, (f"s{HOSTILE}", "2026-03-02T09:00", HOSTILE))
    for command in (["show"], ["history", "m1"], ["blame", "m1"], ["diff", "@0"]):
        done = run(*command)
        assert done.exit_code == 0
        assert "[bold]plain[/bold] :smile:" in done.stdout
        assert r"\x1b[31mred\x9b2J" in done.stdout
        assert all(char == "\n" or char.isprintable() for char in done.stdout), ascii(done.stdout)
    assert len(run("show").stdout.splitlines()) == 1
    written = run("show", "--json").stdout
    assert written.isascii() and "\x1b" not in written
    assert json.loads(written)["memories"][0]["text"] == HOSTILE
    message = run("history", f"m2{HOSTILE}").stderr
    assert all(char == "\n" or char.isprintable() for char in message)
    coloured = run("show", FORCE_COLOR="1", TERM="xterm-256color").stdout
    shown = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert shown != coloured and "\x1b" not in shown and "\x1b[31m" not in coloured and "\x9b" not in coloured
    assert shown == run("show").stdout


def test_ordinary_text_of_any_script_stays_and_what_hides_becomes_visible() -> None:
    for text in ("Zoë 日本 नमस्ते", "👩\u200d👩\u200d👧", "می\u200cخو", "a\xa0b\u3000c"):
        assert visible(text) == text
    for char in "\x00\x7f\x85\u2028\u2066\ufeff\ud800\u00ad":
        assert visible(char).isprintable()


def test_a_declined_rollback_changes_nothing(three: Path) -> None:
    shown, code = on_a_terminal("rollback", "first", given="\n")
    assert "\x1b" not in shown
    assert code == 1
    assert "Take back 2 sessions of 'ann', to @1?" in shown and "nothing was changed" in shown
    assert len(run_json("show")["memories"]) == 3
    assert not (three / "index").exists()


READING = (["show"], ["search", "tea"], ["history", "m1"], ["diff", "@0"], ["blame", "m1"], ["jobs"], ["export"], ["audit"])
CHANGING = (
    ["rollback", "@0", "--yes"],
    ["forget", "m1", "--yes"],
    ["forget", "--everything", "--yes"],
    ["edit", "m1", "Ann swims."],
    ["retract", "m1"],
)


def test_only_adding_and_importing_make_a_bank_and_none_guesses_an_owner(bank: Path) -> None:
    for command in (*READING, *CHANGING):
        assert "no memory bank there" in one_sentence(run(*command))
    for command in (*READING, *CHANGING, ["add", "-"], ["remember", "x"], ["import", "-"]):
        assert "--owner" in one_sentence(run(*command, DELTAMEM_OWNER=""))
    assert not bank.exists()


WRONG_USE = {
    "": "Missing command",
    "shwo": "shwo",
    "show --ownr ann": "--ownr",
    "history": "ID",
    "search tea -k 0": "-k",
    "show --window 0": "--window",
    "show --tool-role system": "system",
    "forget": "--everything",
    "forget m1 --everything": "--everything",
    "remember tea --time soon": "--time: 'soon'",
    "remember": "TEXT",
    "add absent.json": "absent.json",
    "import absent.jsonl": "absent.jsonl",
}


def test_wrong_use_is_one_sentence(bank: Path) -> None:
    for arguments, said in WRONG_USE.items():
        assert said in one_sentence(run(*arguments.split())), arguments
    assert not bank.exists()


MISTAKES = (
    "",
    "{",
    "[]",
    "7",
    '{"id": "a"}',
    lines_of(MONDAY) + "{}",
    lines_of(MONDAY | {"time": "soon"}),
    "\x00",
    "[" * 100_000,
)


def test_nothing_is_read_of_a_file_with_a_mistake(bank: Path, rules: Served) -> None:
    file = bank.parent / "sessions.jsonl"
    for text in MISTAKES:
        file.write_text(text)
        assert str(file) in one_sentence(run("add", str(file)))
    assert not bank.exists() and not rules.requests


def test_a_model_is_needed_and_must_be_reachable(bank: Path) -> None:
    gone = unused_url()
    with serve(lambda body: completion("x"), models=[{"id": "small"}, {"id": "large"}]) as served:
        for options, said in (
            ([], "--base-url"),
            (["--base-url", "nonsense"], "localhost:8000"),
            (["--base-url", gone], gone),
            (["--base-url", served.url], "small, large"),
        ):
            assert said in one_sentence(run("add", "-", *options, given=lines_of(MONDAY)))
    assert not bank.exists()


def test_a_missing_embedder_says_how_to_get_it(boston: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **settings: object) -> WordEmbedder:
        raise EmbedderUnavailableError(f"embedder {name!r} is not installed")

    monkeypatch.setattr("deltamem.embedding.load_embedder", missing)
    done = run("search", "city", "--embedder", "other")
    assert (done.exit_code, done.stdout) == (2, "") and "'other' is not installed" in done.stderr


def test_an_unknown_owner_is_reported_and_not_made(boston: Path) -> None:
    for command in (["show"], ["search", "city"], ["diff", "@0"], ["export"]):
        done = run(*command, "--owner", "amn")
        assert (done.exit_code, done.stderr) == (0, f"note: {boston} holds nothing of 'amn'\n")
    for command in (*CHANGING, ["audit"], ["history", "m1"], ["blame", "m1"]):
        one_sentence(run(*command, "--owner", "amn"))
    assert json.loads(run("export", "--owner", "amn").stdout)["entries"] == 0
    with MemoryStore.open(boston, WordEmbedder()) as store:
        assert store.owners() == ["ann"]


def test_unknown_memories_and_steps_without_a_way_back_are_refused(boston: Path) -> None:
    for command in (["history"], ["blame"], ["forget", "--yes"], ["retract"], ["edit", "--metadata", "{}"]):
        for memory_id in ("m9", "\udcff"):
            one_sentence(run(*command, memory_id))
    for refused in (["remember", " "], ["edit", "m1", ""], ["edit", "m1", "x\udcff"], ["retract", "m1", "--actor", ""]):
        one_sentence(run(*refused))
    for command in (["forget", "m1"], ["forget", "--everything"], ["rollback", "@0"]):
        assert "--yes" in one_sentence(run(*command, given="y\n"))
    assert "Boston" in run("show").stdout


def test_a_damaged_export_is_refused_as_a_whole(boston: Path) -> None:
    lines = run("export").stdout.splitlines(keepends=True)
    for damaged in ("".join(lines[:-1]), "".join(lines) + "{}\n", "", "\xff"):
        assert "line " in one_sentence(run("import", "-", "--owner", "bob", "--rename", given=damaged))
    assert run("show", "--owner", "bob").stdout == ""


def test_a_journal_that_is_none_is_refused(bank: Path) -> None:
    bank.write_text("a file")
    assert str(bank) in one_sentence(run("show"))
    bank.unlink()
    bank.mkdir()
    for content in (b"", b"SQLite format 3\0 but no more", b"nonsense" * 1000):
        (bank / "journal.sqlite3").write_bytes(content)
        for command in (["show"], ["search", "tea"]):
            assert "journal.sqlite3" in one_sentence(run(*command))
        assert (bank / "journal.sqlite3").read_bytes() == content
