"""The commands `episodes ...`, with a model behind a real endpoint; and what a kill leaves."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_cases import one_sentence, run, run_json, start
from episodic_cases import BOOKING, answer
from scripted_server import Reply, Served, completion, is_check, serve

TICKET = {"id": "t1", "time": "2026-04-05T20:01", "messages": BOOKING}


def review(body: dict[str, Any]) -> Reply:
    return completion("Hello." if is_check(body) else answer(body["messages"]), tokens=10)


@pytest.fixture
def reviewer(bank: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with serve(review) as served:
        monkeypatch.setenv("DELTAMEM_BASE_URL", served.url)
        yield served


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tickets.jsonl"
    path.write_text(json.dumps(TICKET) + "\n" + json.dumps(TICKET | {"id": "t2", "messages": BOOKING[:7]}) + "\n")
    return path


def asked(served: Served) -> list[dict[str, Any]]:
    return [body for body in served.requests if not is_check(body)]


def test_from_a_file_to_what_helps_with_a_task(reviewer: Served, file: Path) -> None:
    done = run("episodes", "add", str(file), "--keep-turns")
    assert done.exit_code == 0 and len(asked(reviewer)) == 8, done.output
    assert "t1  applied  5 calls" in done.stdout and "+ m5  Check opening hours first." in done.stdout
    again = run("episodes", "add", str(file), "--json")
    assert [json.loads(line)["outcome"] for line in again.stdout.splitlines()] == ["known", "known"]
    assert len(asked(reviewer)) == 8

    listed = run_json("episodes", "list", "--owner", "agent:ann")
    assert [one["id"] for one in listed["episodes"]] == ["m4", "m6", "m8"]
    assert [(one["id"], one["confidence"]) for one in listed["reflections"]] == [("m5", 0.8)]
    assert "m6  t1 turns 2-3  achieved  Get a table or a delivery." in run("episodes", "list").stdout
    shown = run_json("episodes", "show", "m6")
    assert [turn["turn"] for turn in shown["turns"]] == [2, 3] and shown["achieved"] is True
    text = run("episodes", "show", "m5").stdout
    assert "t1#reflections-2  turns 2, 3" in text and "Then choose another one." in text
    found = run_json("episodes", "recall", "order a meal", "-k", "1", "--episodes", "2")
    assert [one["id"] for one in found["reflections"]] == ["m5"] and len(found["episodes"]) == 2
    assert "hints: Look up the opening hours" in run("episodes", "recall", "order a meal").stdout

    assert run_json("show", "--owner", "agent:ann")["memories"] and run_json("show")["memories"] == []
    steps = run_json("history", "m5", "--owner", "agent:ann")["steps"]
    assert [step["event"] for step in steps] == ["ADD", "UPDATE", "NONE"]
    assert "neither an episode nor a reflection" in one_sentence(run("episodes", "show", "m1"))
    assert "no memory 'm99' now" in one_sentence(run("episodes", "show", "m99"))
    assert "the task is empty" in one_sentence(run("episodes", "recall", " "))


def test_what_the_model_gets_wrong_is_said_and_ends_in_1(bank: Path, file: Path) -> None:
    with serve(lambda body: completion("I would rather not.")) as served:
        done = run("episodes", "add", str(file), "--base-url", served.url)
    assert done.exit_code == 1 and "t1  unreadable  2 calls" in done.stdout and "2 no_block" in done.stdout


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[]", "no trajectory in it"),
        ("{", "not valid JSON"),
        ("5", "the trajectory: Input should be"),
        ('{"id": "a", "time": "soon", "messages": [{"role": "user"}]}', "time: expected an ISO 8601 time"),
        (json.dumps(TICKET | {"x": 1}), "x: Extra inputs"),
        (json.dumps(TICKET) + '\n{"id": 5}\n', "line 2: id"),
        (json.dumps([TICKET, {}]), "entry 1: id: Field required"),
        (json.dumps(TICKET | {"messages": BOOKING[:2]}), "nothing that an agent said"),
    ],
    ids=range(8),
)
def test_a_bad_file_is_one_sentence_and_leaves_no_bank(bank: Path, tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    said = one_sentence(run("episodes", "add", str(file)))
    assert problem in said and str(file) in said and not bank.exists()


def test_a_missing_file_and_a_missing_bank_are_one_sentence(bank: Path, tmp_path: Path) -> None:
    assert "No such file" in one_sentence(run("episodes", "add", str(tmp_path / "none.json")))
    assert "no memory bank there" in one_sentence(run("episodes", "recall", "anything"))
    (tmp_path / "latin.json").write_bytes(b"\xff")
    assert "not UTF-8" in one_sentence(run("episodes", "add", str(tmp_path / "latin.json")))


@pytest.mark.slow
@pytest.mark.parametrize("answers", range(5))
def test_after_a_kill_no_call_is_repeated(bank: Path, file: Path, answers: int) -> None:
    """Killed while the model works on the call after `answers` answered ones; the command is given again."""
    file.write_text(json.dumps(TICKET))
    given = 0

    def script(body: dict[str, Any]) -> Reply:
        nonlocal given
        if not is_check(body):
            given += 1
            if given == answers + 1:
                process.send_signal(signal.SIGKILL)  # the answer finds nobody
                process.wait()
        return review(body)

    with serve(script) as served:
        environment = {"DELTAMEM_BANK": str(bank), "DELTAMEM_OWNER": "ann", "DELTAMEM_BASE_URL": served.url}
        process = start(["episodes", "add", str(file)], environment)
        process.communicate(timeout=300)
        first = asked(served)
    assert process.returncode == -signal.SIGKILL and len(first) == answers + 1
    with serve(review) as served:
        done = run("episodes", "add", str(file), "--base-url", served.url, "--json")
        second = asked(served)
    assert done.exit_code == 0 and json.loads(done.stdout)["outcome"] == "applied"
    # All but the one that the kill cut off are asked once; that one is the same again.
    prompts = {json.dumps(body["messages"]) for body in [*first[:-1], *second]}
    assert len(prompts) == 5 == answers + len(second) and second[0]["messages"] == first[-1]["messages"]
    assert [one["confidence"] for one in run_json("episodes", "list")["reflections"]] == [0.8]
