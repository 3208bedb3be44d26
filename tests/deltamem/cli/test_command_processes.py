"""The command as a process: exit codes, interrupts, pipes, two processes on one bank, speed of reading."""

import json
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_cases import FRIDAY, MONDAY, SUNDAY, follow_rules, lines_of, one_sentence, run, run_json, start, write
from episode_texts import WordEmbedder
from process_cases import environment
from scripted_server import Reply, Served, serve

from deltamem.bank.store import MemoryStore


def anns(bank: Path, **more: str) -> dict[str, str]:
    return {"DELTAMEM_BANK": str(bank), "DELTAMEM_OWNER": "ann", "DELTAMEM_PERSON": "Ann"} | more


def memories() -> list[str]:
    return [memory["text"] for memory in run_json("show")["memories"]]


def test_an_interrupt_loses_no_finished_session(bank: Path) -> None:
    def script(body: dict[str, Any]) -> Reply:
        reply = follow_rules(body)
        slow = "Denver" in body["messages"][1]["content"] and body["max_tokens"] > 1
        return Reply(reply.body, delay=300 if slow else 0)

    with serve(script) as served:
        process = start(["add", "-", "--json"], anns(bank, DELTAMEM_BASE_URL=served.url))
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(lines_of(MONDAY, FRIDAY, SUNDAY))
        process.stdin.close()
        process.stdin = None
        first = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=300)
    assert (first["outcome"], process.returncode, errors) == ("applied", 130, "interrupted\n")
    summary = json.loads(rest)["summary"]
    assert (summary["applied"], summary["interrupted"]) == (1, True)
    assert memories() == ["Ann's city is Boston."]
    with serve(follow_rules) as served:
        options = ["--base-url", served.url, "--person", "Ann"]
        assert run("add", "-", *options, given=lines_of(MONDAY, FRIDAY, SUNDAY)).exit_code == 0
    assert memories() == ["Ann's city is Boulder.", "Ann's dog is Rex."]


def test_readers_work_while_an_application_holds_the_bank(boston: Path) -> None:
    with MemoryStore.open(boston, WordEmbedder()):
        assert run("show").stdout == "m1  2026-03-02 09:00  Ann's city is Boston.\n"
        assert one_sentence(run("search", "city")).startswith(f"{boston} is in use by ")


def test_a_reader_that_leaves_early_ends_the_command_quietly(bank: Path) -> None:
    write(bank, ("many", "2026-03-02T09:00", f"Ann likes tea {'very ' * 400}much."), copies=2000)
    process = start(["export"], anns(bank), cheap=False)
    assert process.stdout is not None
    assert process.stdout.read(10)
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (141, "")


SEVERAL = """
import json, sys
from deltamem.cli.app import app
for command in json.loads(sys.argv[1]):
    try:
        app(command)
    except SystemExit as end:
        assert not end.code, command
    print()
print(sorted({'numpy', 'chromadb', 'torch', 'openai', 'fastapi', 'rich.progress'} & set(sys.modules)))
"""
"""Runs several commands in one new process; last it prints which of the heavy packages were loaded."""


def test_reading_loads_neither_numbers_nor_models_and_writes_in_any_encoding(bank: Path) -> None:
    write(bank, ("s", "2026-03-02T09:00", "Zoë likes 日本."))
    ascii_only = environment(anns(bank, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0"))
    commands = [["show"], ["show", "--json"], ["history", "m1"], ["diff", "@0"], ["blame", "m1"], ["export"]]
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", SEVERAL, json.dumps(commands)], env=ascii_only, capture_output=True)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode().splitlines()
    assert shown[-1] == "[]"
    assert r"Zo\xeb likes \u65e5\u672c." in shown[0]
    assert json.loads(shown[2])["memories"][0]["text"] == "Zoë likes 日本."
    assert "Zoë likes 日本." in done.stdout.decode().rpartition("entries")[2], "an export is UTF-8 everywhere"
    seconds = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    assert seconds < 2.4  # 0.8 s on an idle machine; these are shared


def test_the_bar_on_a_terminal_leaves_the_lines_alone(bank: Path, rules: Served) -> None:
    done = run("add", "-", given=lines_of(MONDAY, FRIDAY), FORCE_COLOR="1", NO_COLOR="1", COLUMNS="100")
    assert done.exit_code == 0
    assert "sessions" in done.stderr and "0/2" in done.stderr  # the bar, which is taken away again
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip("\r") for line in done.output.split("\n")]
    for expected in ("  + m1  Ann's city is Boston.", "  ~ m1  Ann's city is Denver.", "  + m2  Ann's dog is Rex."):
        assert expected in lines, ascii(done.output)


@pytest.mark.slow
def test_the_offline_embedder_in_a_real_process(bank: Path, rules: Served) -> None:
    process = start(["add", "-"], anns(bank, DELTAMEM_BASE_URL=rules.url), cheap=False)
    shown, errors = process.communicate(lines_of(MONDAY), timeout=300)
    assert (process.returncode, errors) == (0, "")
    assert "  + m1  Ann's city is Boston." in shown.splitlines()
