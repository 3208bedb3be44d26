"""One walk through all commands: a correction, its history, taking it back, moving house, forgetting."""

import json
from pathlib import Path

import pytest
from command_cases import FRIDAY, MONDAY, SUNDAY, lines_of, one_sentence, run, run_json
from scripted_server import Served


def test_a_correction_chain_from_the_first_session_to_the_last_erasure(
    bank: Path, rules: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "early.json", tmp_path / "late.jsonl"]
    files[0].write_text(json.dumps(MONDAY))
    files[1].write_text(lines_of(FRIDAY, SUNDAY))
    added = run("add", *map(str, files))
    assert added.exit_code == 0, added.output
    assert [line for line in added.stdout.splitlines() if line.startswith("  ")] == [
        "  + m1  Ann's city is Boston.",
        "  ~ m1  Ann's city is Denver.",
        "  + m2  Ann's dog is Rex.",
        "  ~ m1  Ann's city is Boulder.",
    ]
    assert "2 ADD, 2 UPDATE, 0 NONE" in added.stdout
    assert added.stderr == ""

    assert run("show").stdout.splitlines()[0] == "m1  2026-03-08 10:15  Ann's city is Boulder."
    current = run_json("show")
    assert current["owner"] == "ann"
    boulder = {"id": "m1", "time": "2026-03-08T10:15:00", "text": "Ann's city is Boulder."}
    assert current["memories"] == [boulder, {"id": "m2", "time": "2026-03-06T18:30:00", "text": "Ann's dog is Rex."}]
    [found] = run_json("search", "Ann's city", "-k", "1")["results"]
    assert [hit["id"] for hit in found["memories"]] == ["m1"]
    assert 0 < found["memories"][0]["similarity"] <= 1

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
    assert run_json("show") == current
    assert run_json("search", "Ann's city", "-k", "1")["results"] == [found]

    file = tmp_path / "ann.jsonl"
    exported = run_json("export", str(file))
    assert [exported[name] for name in ("owner", "entries", "memories", "dialogues")] == ["ann", 6, 2, 5]
    assert run("export").stdout == file.read_text(encoding="utf-8")
    assert run("export", "-", "--json").stdout == file.read_text(encoding="utf-8")

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
    assert run_json("history", "m2")["steps"][0]["erased"] is True
    assert "(erased)" in run("history", "m2").stdout
    monkeypatch.setenv("DELTAMEM_OWNER", "")
    gone = run_json("forget", "--everything", "--yes", "--owner", "ann")
    assert (gone["owner"], gone["memories"], gone["entries"]) == ("ann", 1, 7)
    assert run_json("show", "--owner", "ann")["memories"] == []
    for path in bank.rglob("*"):
        if path.is_file():
            assert b"Boulder" not in path.read_bytes(), path


def test_an_audit_names_what_is_suspicious(bank: Path, rules: Served) -> None:
    stories = lines_of(MONDAY)
    assert run("add", "-", given=stories).exit_code == 0
    file = bank.parent / "doubled.jsonl"
    # Two memories that say the same, as another tool may have left them.
    lines = [json.loads(line) for line in run("export").stdout.splitlines()]
    lines[0]["memories"] = 2
    change = lines[1]["changes"][0]
    lines[1]["changes"] = [change, change | {"memory_id": "m2"}]
    lines.append(lines[-1] | {"id": "m2"})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("import", str(file), "--owner", "bob", "--rename").exit_code == 0
    found = run_json("audit", "--owner", "bob")["findings"]
    assert [(finding["kind"], finding["ids"]) for finding in found] == [("exact_duplicate", ["m1", "m2"])]
    assert run("audit", "--owner", "bob").stdout.startswith("exact_duplicate  m1 m2  ")
