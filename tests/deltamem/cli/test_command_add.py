"""`deltamem add`: what it prints for each session, and what happens when a session fails."""

import json
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from command_cases import FRIDAY, MONDAY, SUNDAY, follow_rules, lines_of, one_sentence, run, run_json, session
from episode_texts import add, outputs, search, update
from scripted_server import Reply, Served, completion, failure, present_day, replies, serve

from deltamem.assisted import AssistedConfig
from deltamem.episode import EpisodeConfig, save_episode_config
from deltamem.journal.journal import JOURNAL_FILE, Journal
from deltamem.prompts import load_prompt


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_each_session_is_one_json_line_and_the_summary_the_last(bank: Path, rules: Served) -> None:
    done = run("add", "-", "--json", given=lines_of(MONDAY, FRIDAY))
    assert (done.exit_code, done.stderr) == (0, "")
    monday, friday, last = records(done.stdout)
    assert (monday["session"], monday["outcome"], monday["position"]) == ("monday", "applied", 1)
    added = {"event": "ADD", "id": "m1", "before": None, "after": "Ann's city is Boston.", "turns": [1], "erased": False}
    added |= {"before_metadata": None, "after_metadata": {}}
    assert monday["changes"] == [added] and friday["changes"][0]["before"] == "Ann's city is Boston."
    (summary,) = last.values()
    assert [summary[name] for name in ("sessions", "applied", "known", "unreadable", "failed")] == [2, 2, 0, 0, 0]
    assert summary["operations"] == {"ADD": 2, "UPDATE": 1, "NONE": 0}
    assert summary["usage"] == {"calls": 4, "cached": 0, "prompt_tokens": 400, "completion_tokens": 40, "searches": 2}
    assert not summary["interrupted"]


def test_a_session_that_is_known_changes_nothing(boston: Path, rules: Served) -> None:
    asked = len(rules.requests)
    again = run("add", "-", given=lines_of(MONDAY))
    assert again.exit_code == 0 and "0 applied, 1 known" in again.stdout
    assert len(rules.requests) == asked + 1  # the test of the endpoint
    other = session("monday", "2026-03-02T09:00", "Something else.")
    assert "other content" in run("add", "-", given=lines_of(other)).stdout


def test_a_session_that_fails_or_cannot_be_read_does_not_stop_the_others(bank: Path) -> None:
    def script(body: dict[str, Any]) -> Reply:
        said = body["messages"][1]["content"]
        if body["max_tokens"] == 1 or "Boston" in said:
            return completion("I would rather not.")
        if "Denver" in said:
            return failure(400, "out of \x1b[31morder")
        return completion(outputs(add("Ann's city is Boulder."), update("m99", "Ann flies.")))

    with serve(script) as served:
        options = ["--base-url", served.url, "--person", "Ann"]
        done = run("add", "-", "--json", *options, given=lines_of(MONDAY, FRIDAY, SUNDAY))
        assert done.exit_code == 1
        *sessions, last = records(done.stdout)
        assert [record["outcome"] for record in sessions] == ["unreadable", "failed", "applied"]
        assert "out of" in sessions[1]["error"] and last["summary"]["failed"] == 1
        assert last["summary"]["violations"] == {"missing_think": 2, "no_action": 2, "unknown_target": 1}
        assert run("add", "-", *options, given=lines_of(MONDAY)).exit_code == 1
        shown = run("add", "-", *options, given=lines_of(FRIDAY, SUNDAY))
        assert shown.exit_code == 1 and "\x1b" not in shown.stdout and "out of" in shown.stdout
        assert "0 applied, 1 known, 0 unreadable, 1 failed" in shown.stdout
    assert [memory["text"] for memory in run_json("show")["memories"]] == ["Ann's city is Boulder."]


@pytest.mark.parametrize(("window", "expected"), [(None, 1024), ("400000", 2048), ("1000", 250)])
def test_the_window_leaves_room_for_the_answer(bank: Path, rules: Served, window: str | None, expected: int) -> None:
    run("add", "-", *([] if window is None else ["--window", window]), given=lines_of(MONDAY))
    assert {(request["max_tokens"], request["model"]) for request in rules.requests} == {(1, "tiny"), (expected, "tiny")}


def test_options_reach_the_endpoint(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    monkeypatch.setenv("DELTAMEM_TOOL_ROLE", "user")
    said = [search("city"), outputs(add("Ann's city is Boston."))]
    with serve(replies(completion("x"), *map(completion, said))) as served:
        options = ["--base-url", served.url, "--api-key-env", "SECRET", "--temperature", "0.5", "--model", "mine"]
        done = run("add", "-", *options, "--person", "Annie", given=lines_of(MONDAY))
    assert done.exit_code == 0 and "s3cret" not in done.output, done.output
    assert {request["_key"] for request in served.requests} == {"Bearer s3cret"}
    for request in served.requests[1:]:
        assert (request["temperature"], request["model"]) == (0.5, "mine")
        assert {message["role"] for message in request["messages"]} <= {"system", "user", "assistant"}
        assert "Person: Annie" in request["messages"][1]["content"]
    assert "<tool_response>" in served.requests[-1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (("--temperature", "none", "--max-tokens", "none"), {}),
        (("--temperature", "NULL", "--max-tokens", "77"), {"max_tokens": 77}),
        (("--max-tokens", "0"), {"temperature": 0, "max_tokens": 1024}),
    ],
)
def test_temperature_and_length_are_sent_as_given_or_not_at_all(
    bank: Path, rules: Served, options: Sequence[str], sent: dict[str, object]
) -> None:
    assert run("add", "-", *options, given=lines_of(MONDAY)).exit_code == 0
    assert {name: value for name, value in rules.requests[-1].items() if name in ("temperature", "max_tokens")} == sent
    for wrong in ("-1", "warm", "nan", "inf"):
        refused = run("add", "-", "--temperature", wrong, given=lines_of(MONDAY))
        assert refused.exit_code == 2 and wrong in refused.output


def test_an_endpoint_that_wants_other_options_is_asked_with_them(bank: Path) -> None:
    with serve(present_day(completion(outputs(add("Ann's city is Boston."))))) as served:
        done = run("add", "-", "--base-url", served.url, "--mode", "react", given=lines_of(MONDAY))
    assert done.exit_code == 0, done.output
    assert [memory["text"] for memory in run_json("show")["memories"]] == ["Ann's city is Boston."]


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
    save_episode_config(tmp_path, EpisodeConfig(system_prompt="manager_compact"), "Qwen/Qwen3-Embedding-0.6B")
    told = run("add", "-", "--checkpoint", str(tmp_path), given=lines_of(FRIDAY))
    assert "trained with the embedder Qwen/Qwen3-Embedding-0.6B, and this bank has" in " ".join(told.stderr.split())
    missing = run("add", "-", "--checkpoint", str(bank), given=lines_of(FRIDAY))
    assert "no episode.json there" in one_sentence(missing)


def test_a_model_that_was_not_trained_is_asked_for_json_and_changes_a_memory(bank: Path, rules: Served) -> None:
    first = run("add", "-", "--mode", "auto", given=lines_of(MONDAY))
    assert first.exit_code == 0 and len(rules.requests) == 2, first.output
    said = "mode assisted: tiny at .* is not known to be trained for DeltaMem\n"
    assert re.fullmatch(said, first.stderr), first.stderr
    second = run("add", "-", "--mode", "assisted", "--json", given=lines_of(FRIDAY))
    assert (second.exit_code, second.stderr) == (0, "")
    friday, _ = records(second.stdout)
    assert [(change["event"], change["id"], change["after"]) for change in friday["changes"]] == [
        ("UPDATE", "m1", "Ann's city is Denver."),
        ("ADD", "m2", "Ann's dog is Rex."),
    ]
    names = [request["response_format"]["json_schema"]["name"] for request in rules.requests if "response_format" in request]
    assert names == ["facts", "facts", "comparison"]
    # Nothing that such a service may refuse was sent before.
    assert not any(message["role"] == "tool" for request in rules.requests for message in request["messages"])
    with Journal.open(bank / JOURNAL_FILE, read_only=True) as journal:
        hashes = {entry.prompt_hash for entry in journal.owner("ann").entries()}
    in_use = AssistedConfig().prompt_hashes
    assert hashes == {sha256("".join(in_use[name] for name in sorted(in_use)).encode()).hexdigest()}


def test_an_answer_without_facts_is_unreadable_in_assisted_mode(bank: Path) -> None:
    with serve(lambda body: completion("I would rather not.")) as served:
        done = run("add", "-", "--mode", "assisted", "--json", "--base-url", served.url, given=lines_of(MONDAY))
    monday, last = records(done.stdout)
    assert (done.exit_code, monday["outcome"], last["summary"]["violations"]) == (1, "unreadable", {"bad_json": 2})


@pytest.mark.parametrize("served_from", ["a checkpoint option", "a trained folder", "a folder", "a hub name"])
def test_a_model_of_ours_writes_the_turns_itself(bank: Path, tmp_path: Path, served_from: str) -> None:
    folder = tmp_path / "policy"
    folder.mkdir()
    if served_from != "a folder":
        save_episode_config(folder, EpisodeConfig())
    root = {"root": "someone/policy" if served_from == "a hub name" else str(folder)}
    further = ["--checkpoint", str(folder)] if served_from == "a checkpoint option" else []
    with serve(follow_rules, [{"id": "tiny", **({} if further else root)}]) as served:
        options = ["--base-url", served.url, "--person", "Ann", "--mode", "auto", *further]
        assert run("add", "-", *options, given=lines_of(MONDAY)).exit_code == 0
    is_react = not any("response_format" in request for request in served.requests)
    assert is_react == (served_from in ("a checkpoint option", "a trained folder"))
