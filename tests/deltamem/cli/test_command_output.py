"""What the command writes: points, escapes, JSON, colour."""

import json
import os
import pty
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from command_cases import ROOT, one_sentence, run, run_json

from deltamem.cli.output import visible
from deltamem.journal.journal import Journal
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.memory import Memory
from deltamem.sessions import Session, Turn

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b2J [bold]plain[/bold] :smile: \u202eright to left\u202c\nnext line\r \U000e0041"


def write_many(bank: Path, count: int, text: str) -> None:
    """Add memories by one session, without a model."""
    bank.mkdir(exist_ok=True)
    time = datetime(2026, 3, 2, 9, 0)
    memories = [Memory(f"m{number}", f"{text} {number}", time) for number in range(1, count + 1)]
    with Journal.open(bank / "journal.sqlite3") as journal:
        session = Session("ann", "Ann", time, (Turn("user", "Hello."),), "many")
        changes = [Change(ChangeEvent.ADD, memory.id, None, memory) for memory in memories]
        journal.owner("ann").append(EntryKind.SESSION, changes, session=session)


def write(bank: Path, *entries: tuple[str, str, str]) -> None:
    """Add one memory a session, without a model: id and time of the session, and the text."""
    bank.mkdir(exist_ok=True)
    with Journal.open(bank / "journal.sqlite3") as journal:
        ann = journal.owner("ann")
        for session_id, time, text in entries:
            memory = Memory(f"m{ann.head + 1}", text, datetime.fromisoformat(time))
            session = Session("ann", "Ann", memory.time, (Turn("user", text),), session_id)
            ann.append(EntryKind.SESSION, [Change(ChangeEvent.ADD, memory.id, None, memory, (1,))], session=session)


@pytest.fixture
def three(bank: Path) -> Path:
    write(
        bank,
        ("first", "2026-03-02T09:00", "Ann likes tea."),
        ("@1", "2026-03-03T09:00", "Ann likes rain."),
        ("third", "2026-03-04T09:00", "Ann likes fog."),
    )
    return bank


@pytest.mark.parametrize(
    ("point", "ids"),
    [
        ("first", ["m1"]),
        ("@0", []),
        ("@2", ["m1", "m2"]),
        ("@1", ["m1", "m2"]),  # a session of that name, which wins over the position
        ("2026-03-03T09:00", ["m1", "m2"]),
        ("2026-03-03", ["m1"]),
        ("2026-03-04T10:00+02:00", ["m1", "m2"]),
        ("2027-01-01", ["m1", "m2", "m3"]),
        ("1999-01-01T00:00:00", []),
    ],
)
def test_a_point_is_a_session_a_position_or_a_time(three: Path, point: str, ids: list[str]) -> None:
    assert [memory["id"] for memory in run_json("show", "--at", point)["memories"]] == ids


@pytest.mark.parametrize("point", ["nonsense", "@", "@-1", "@²", "@1x", "@4", "2026-13-01", "", "@9999999999999999999999"])
def test_a_point_that_is_none_is_refused(three: Path, point: str) -> None:
    assert "position" in one_sentence(run("show", "--at", point))


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
    assert written.isascii()
    assert "\x1b" not in written
    assert json.loads(written)["memories"][0]["text"] == HOSTILE
    message = run("history", f"m2{HOSTILE}").stderr
    assert all(char == "\n" or char.isprintable() for char in message)


@pytest.mark.parametrize("text", ["Zoë 日本 नमस्ते", "👩\u200d👩\u200d👧", "می\u200cخو", "a\xa0b\u3000c"])
def test_ordinary_text_of_any_script_stays(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize("char", ["\x00", "\x7f", "\x85", "\u2028", "\u2066", "\ufeff", "\ud800", "\u00ad"])
def test_what_hides_becomes_visible(char: str) -> None:
    assert visible(char).isprintable()


def on_a_terminal(
    *arguments: str, given: str = "", program: tuple[str, ...] = ("-m", "deltamem.cli"), **environment: str
) -> tuple[str, int]:
    """Run the command on a terminal of its own; what it showed, and how it ended."""
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, *program, *arguments],
        env=env | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color"} | environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, given.encode())
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    return shown.decode(), process.wait()


def test_colour_is_for_terminals_and_can_be_switched_off(three: Path) -> None:
    coloured, _ = on_a_terminal("show")
    plain, _ = on_a_terminal("show", NO_COLOR="1")
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert plain.replace("\r\n", "\n") == run("show").stdout


def test_a_hostile_memory_adds_no_escape_to_a_coloured_terminal(bank: Path) -> None:
    write(bank, ("s", "2026-03-02T09:00", HOSTILE))
    shown, _ = on_a_terminal("show")
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "\x1b[31m" not in shown
    assert "\x9b" not in shown


@pytest.mark.parametrize("answer", ["n\n", "\n"])
def test_a_declined_rollback_changes_nothing(three: Path, answer: str) -> None:
    shown, code = on_a_terminal("rollback", "first", given=answer)
    assert code == 1
    assert "Take back 2 sessions of 'ann', to @1?" in shown
    assert "nothing was changed" in shown
    assert len(run_json("show")["memories"]) == 3
    assert not (three / "index").exists()
