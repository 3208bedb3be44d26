"""How the tests of the command run it: in this process, as a real one or on a terminal; with a cheap embedder."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import typer.testing
from episode_texts import WordEmbedder
from process_cases import COMMAND, INTERRUPTIBLE, environment
from rule_model import answer, assisted_answer
from scripted_server import Reply, completion, is_check
from typer.testing import CliRunner, Result

from deltamem.cli.app import app
from deltamem.journal.journal import Journal
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.memory import Memory
from deltamem.sessions import Session, Turn

RUNNER = CliRunner()
# Building all commands takes longer than running most of them.
typer.testing._get_command = cache(typer.main.get_command)  # type: ignore[attr-defined]


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the bank of Ann will be; every command that a test runs uses it."""
    for name in os.environ:
        if name.startswith("DELTAMEM_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("deltamem.embedding.load_embedder", lambda name, **settings: WordEmbedder())
    monkeypatch.setenv("DELTAMEM_BANK", str(tmp_path / "bank"))
    monkeypatch.setenv("DELTAMEM_OWNER", "ann")
    monkeypatch.setenv("DELTAMEM_MODE", "react")  # which the rules follow
    return tmp_path / "bank"


def follow_rules(body: dict[str, Any]) -> Reply:
    """How a server answers whose model follows the rules of `rule_model`, in both modes."""
    if is_check(body):
        return completion("Hello.", tokens=1)
    written = (assisted_answer if "response_format" in body else answer)(body["messages"])
    return completion(written, prompt_tokens=100, tokens=10)


def run(*arguments: str, given: str | None = None, **variables: str) -> Result:
    """Run the command in this process; a defect of ours is raised."""
    return RUNNER.invoke(app, list(arguments), input=given, env=variables, prog_name="deltamem", catch_exceptions=False)


def run_json(*arguments: str, given: str | None = None) -> Any:
    """Run the command with --json; it must succeed and print one document."""
    done = run(*arguments, "--json", given=given)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def one_sentence(result: Result) -> str:
    """The only line on standard error of a command that was used wrongly."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("error: ").strip()


def start(arguments: Sequence[str], variables: Mapping[str, str], *, cheap: bool = True) -> "subprocess.Popen[str]":
    """Start the command as a process of its own."""
    pipe = subprocess.PIPE
    command = [*(COMMAND if cheap else (sys.executable, "-m", "deltamem.cli")), *arguments]
    return subprocess.Popen(
        command, env=environment(variables), stdin=pipe, stdout=pipe, stderr=pipe, text=True, preexec_fn=INTERRUPTIBLE
    )


def on_a_terminal(*arguments: str, given: str) -> tuple[str, int]:
    """Run the command on a terminal of its own; what it showed, and how it ended."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "deltamem.cli", *arguments]
    variables = {name: value for name, value in os.environ.items() if name.startswith("DELTAMEM_")}
    env = environment(variables | {"NO_COLOR": "1"})
    process = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, given.encode())
    shown = b""
    with suppress(OSError):  # the other side is closed
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)
    return shown.decode(), process.wait()


def session(session_id: str, time: str, *said: str) -> dict[str, Any]:
    """A session of a file in which the user says some sentences."""
    return {"id": session_id, "time": time, "turns": [{"role": "user", "content": text} for text in said]}


MONDAY = session("monday", "2026-03-02T09:00", "Hello! My city is Boston.")
FRIDAY = session("friday", "2026-03-06T18:30", "I moved. My city is Denver.", "My dog is Rex.")
SUNDAY = session("sunday", "2026-03-08T10:15", "How are you?", "No, my city is Boulder.")


def lines_of(*sessions: dict[str, Any]) -> str:
    """Sessions as the text of a JSONL file."""
    return "".join(json.dumps(item) + "\n" for item in sessions)


def write(bank: Path, *sessions: tuple[str, str, str], copies: int = 1) -> None:
    """Add memories without a model: of every session its id, its time, and the text of its memories."""
    bank.mkdir(exist_ok=True)
    with Journal.open(bank / "journal.sqlite3") as journal:
        ann = journal.owner("ann")
        for session_id, time, text in sessions:
            first, when = ann.next_id_number(), datetime.fromisoformat(time)
            memories = [Memory(f"m{number}", text, when) for number in range(first, first + copies)]
            changes = [Change(ChangeEvent.ADD, memory.id, None, memory, (1,)) for memory in memories]
            said = Session("ann", "Ann", when, (Turn("user", text),), session_id)
            ann.append(EntryKind.SESSION, changes, session=said)
