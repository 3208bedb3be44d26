"""`deltamem add`: what it prints for each session, and what happens when a session fails."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_cases import FRIDAY, MONDAY, SUNDAY, lines_of, one_sentence, run, run_json, session
from episode_texts import add, outputs, search, update
from rule_model import answer
from scripted_server import Reply, Served, completion, failure, replies, serve

from deltamem.episode import EpisodeConfig, save_episode_config
from deltamem.prompts import load_prompt


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_each_session_is_one_json_line_and_the_summary_the_last(bank: Path, rules: Served) -> None:
    done = run("add", "-", "--json", given=lines_of(MONDAY, FRIDAY))
    assert done.exit_code == 0
    assert done.stderr == ""
    monday, friday, last = records(done.stdout)
    assert (monday["session"], monday["outcome"], monday["position"]) == ("monday", "applied", 1)
    added = {"event": "ADD", "id": "m1", "before": None, "after": "Ann's city is Boston.", "turns": [1], "erased": False}
    assert monday["changes"] == [added]
    assert friday["changes"][0]["before"] == "Ann's city is Boston."
    (summary,) = last.values()
    assert [summary[name] for name in ("sessions", "applied", "known", "unreadable", "failed")] == [2, 2, 0, 0, 0]
    assert summary["operations"] == {"ADD": 2, "UPDATE": 1, "NONE": 0}
    assert summary["usage"] == {"calls": 4, "cached": 0, "prompt_tokens": 400, "completion_tokens": 40, "searches": 2}
    assert not summary["interrupted"]


def test_a_session_that_is_known_changes_nothing(bank: Path, rules: Served) -> None:
    assert run("add", "-", given=lines_of(MONDAY)).exit_code == 0
    asked = len(rules.requests)
    again = run("add", "-", given=lines_of(MONDAY))
    assert again.exit_code == 0
    assert "0 applied, 1 known" in again.stdout
    assert len(rules.requests) == asked + 1  # the test of the endpoint
    other = session("monday", "2026-03-02T09:00", "Something else.")
    assert "other content" in run("add", "-", given=lines_of(other)).stdout


def test_a_session_that_fails_does_not_stop_the_others(bank: Path) -> None:
    def script(body: dict[str, Any]) -> Reply:
        if "Denver" in body["messages"][1]["content"] and body["max_tokens"] > 1:
            return failure(400, "out of \x1b[31morder")
        return completion("x" if body["max_tokens"] == 1 else answer(body["messages"]))

    with serve(script) as served:
        options = ["--base-url", served.url, "--person", "Ann"]
        done = run("add", "-", "--json", *options, given=lines_of(MONDAY, FRIDAY, SUNDAY))
        assert done.exit_code == 1
        monday, friday, sunday, summary = records(done.stdout)
        assert (monday["outcome"], friday["outcome"], sunday["outcome"]) == ("applied", "failed", "applied")
        assert "out of" in friday["error"]
        assert summary["summary"]["failed"] == 1
        shown = run("add", "-", *options, given=lines_of(FRIDAY))
        assert shown.exit_code == 1
        assert "\x1b" not in shown.stdout and "out of" in shown.stdout
    assert [memory["text"] for memory in run_json("show")["memories"]] == ["Ann's city is Boulder."]


def test_nonsense_of_the_model_is_counted_and_reported(bank: Path) -> None:
    replies = {
        "monday": "I would rather not.",
        "friday": outputs(add("Ann's city is Denver."), update("m99", "Ann flies.")),
    }

    def script(body: dict[str, Any]) -> Reply:
        said = body["messages"][1]["content"]
        return completion(replies["friday" if "Denver" in said else "monday"])

    with serve(script) as served:
        done = run("add", "-", "--base-url", served.url, given=lines_of(MONDAY, FRIDAY))
    assert done.exit_code == 1
    for expected in ("1 applied, 0 known, 1 unreadable, 0 failed", "1 unknown_target", "2 no_action"):
        assert expected in done.stdout


@pytest.mark.parametrize(("window", "expected"), [(None, 1024), ("400000", 2048), ("1000", 250)])
def test_the_window_leaves_room_for_the_answer(bank: Path, rules: Served, window: str | None, expected: int) -> None:
    options = [] if window is None else ["--window", window]
    run("add", "-", *options, given=lines_of(MONDAY))
    assert {request["max_tokens"] for request in rules.requests} == {1, expected}
    assert {request["model"] for request in rules.requests} == {"tiny"}


def test_options_reach_the_endpoint(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    monkeypatch.setenv("DELTAMEM_TOOL_ROLE", "user")
    said = [search("city"), outputs(add("Ann's city is Boston."))]
    with serve(replies(completion("x"), *map(completion, said))) as served:
        options = ["--base-url", served.url, "--api-key-env", "SECRET", "--temperature", "0.5", "--model", "mine"]
        done = run("add", "-", *options, "--person", "Annie", given=lines_of(MONDAY))
    assert done.exit_code == 0, done.output
    assert "s3cret" not in done.output
    assert {request["_key"] for request in served.requests} == {"Bearer s3cret"}
    for request in served.requests[1:]:
        assert (request["temperature"], request["model"]) == (0.5, "mine")
        assert {message["role"] for message in request["messages"]} <= {"system", "user", "assistant"}
        assert "Person: Annie" in request["messages"][1]["content"]
    assert "<tool_response>" in served.requests[-1]["messages"][-1]["content"]


def test_a_server_without_a_list_of_models_needs_the_name(bank: Path) -> None:
    with serve(lambda body: completion(outputs())) as served:
        unlisted = served.url.removesuffix("/v1")  # chat is answered under any path, the list only under its own
        assert unlisted in one_sentence(run("add", "-", "--base-url", unlisted, given=lines_of(MONDAY)))
        assert run("add", "-", "--base-url", unlisted, "--model", "x", given=lines_of(MONDAY)).exit_code == 0


def test_a_trained_model_is_asked_with_its_own_prompts(bank: Path, tmp_path: Path, rules: Served) -> None:
    save_episode_config(tmp_path, EpisodeConfig(system_prompt="manager_compact"))
    assert run("add", "-", "--checkpoint", str(tmp_path), given=lines_of(MONDAY)).exit_code == 0
    assert rules.requests[-1]["messages"][0]["content"] == load_prompt("manager_compact").text
    assert all("chat_template_kwargs" not in request for request in rules.requests)
    save_episode_config(tmp_path, EpisodeConfig(system_prompt="manager_direct", thinking=False))
    assert run("add", "-", "--checkpoint", str(tmp_path), given=lines_of(FRIDAY)).exit_code == 0
    assert rules.requests[-1]["chat_template_kwargs"] == {"enable_thinking": False}
    missing = run("add", "-", "--checkpoint", str(bank), given=lines_of(FRIDAY))
    assert missing.exit_code == 2 and "no episode.json there" in one_sentence(missing)
