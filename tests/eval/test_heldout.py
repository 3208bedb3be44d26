"""Held-out evaluation: scripted policies by hand, and the command."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder, add, none, outputs, search, update
from heldout_cases import ScriptedPolicy, graded, labelled, oracle, people, silent
from omegaconf import DictConfig
from scripted_server import Reply, completion, failure, is_check, serve

from deltamem import config as config_module
from deltamem.config import run_hydra, validated
from deltamem.embedding import CachedEmbedder
from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from deltamem.sessions import LabelledSession, to_json_line
from eval import heldout as command_module
from eval.heldout import HeldoutResult, HeldoutSettings, differences, evaluate, main, select, summary_table
from rewards.reward import RewardOptions

CONFIG = EpisodeConfig(k=1)


def run(sessions: list[LabelledSession], script: object) -> HeldoutResult:
    policy = ScriptedPolicy(sessions, script, CONFIG)  # type: ignore[arg-type]
    return asyncio.run(evaluate(policy, sessions, WordEmbedder(), CONFIG, resamples=100))


def test_the_oracle_earns_everything() -> None:
    result = run(people(3, 2), oracle)
    metrics = result.summary["metrics"]
    whole = ("reward", "format", "retrieval", "transition", "precision", "recall", "add_recall", "update_matched_recall")
    for name in whole:
        assert metrics[name]["estimate"] == metrics[name]["low"] == metrics[name]["high"] == 1.0, name
    assert result.summary["failed"] == 0 and result.summary["people"] == 3 and result.summary["answered"] == 6
    assert metrics["add_for_update_rate"]["estimate"] == metrics["wrong_target_rate"]["estimate"] == 0.0
    assert metrics["none_recall"] is None, "there was no NONE to recall"


def test_silence_earns_the_format_only_and_nonsense_and_failures_are_told_by_kind() -> None:
    metrics = run(people(3, 2), silent).summary["metrics"]
    assert metrics["reward"]["estimate"] == pytest.approx(0.1)
    assert metrics["update_recall"]["estimate"] == 0.0
    assert metrics["update_precision"] is None, "no UPDATE was made"
    assert metrics["due_left_alone_rate"]["estimate"] == 1.0 and metrics["idle_left_alone_rate"] is None

    result = run(people(2, 2), lambda item, turn: "nonsense" if item.session_index else outputs())
    metrics = result.summary["metrics"]
    assert metrics["violations_per_episode/no_action"]["estimate"] == metrics["unreadable_rate"]["estimate"] == 0.5
    assert result.records[1]["violations"] == ["missing_think", "no_action"] and result.records[1]["operations"] is None

    def failing(item: LabelledSession, turn: int) -> str:
        raise TimeoutError

    summary = run(people(2, 1), failing).summary
    assert summary["failed"] == 2 and summary["metrics"]["reward"] is None
    assert summary["metrics"]["failure_rate"]["estimate"] == 1.0


def test_figures_of_a_small_case_worked_out_by_hand() -> None:
    pilot, dog = update("m1", "Ann works as pilot", "pilot"), none("m2", "Ann owns a dog")
    rome, jazz = update("m1", "Ann lives in Rome", "Rome"), add("Ann likes jazz", "jazz")
    first, second, third, _ = sessions = [
        labelled("ann", 0, {"m1": "Ann works as baker", "m2": "Ann owns a dog"}, [pilot, dog]),
        labelled("ann", 1, {"m1": "Ann lives in Oslo"}, [rome, jazz]),
        labelled("bob", 0, {"m1": "Bob drives a tram"}, [add("Bob collects old stamps", "stamps")]),
        labelled("bob", 1, {}, [add("Bob sings", "sings")]),
    ]

    def script(item: LabelledSession, turn: int) -> str:
        if item is first:  # right update after a search that finds only m1; the NONE is forgotten
            return search("Ann works as baker") if turn == 0 else outputs(update("m1", "Ann works as pilot"))
        if item is second:  # ADD instead of the due UPDATE, no search
            return outputs(add("Ann lives in Rome"), add("Ann likes jazz"))
        if item is third:  # wrong UPDATE, a right ADD, and one that is known already
            return outputs(update("m1", "Bob plays chess badly"), add("Bob collects old stamps"), add("bob drives a tram."))
        raise ConnectionError("gone")

    result = run(sessions, script)
    summary, metrics = result.summary, result.summary["metrics"]
    assert (summary["sessions"], summary["answered"], summary["failed"]) == (4, 3, 1)
    assert summary["failures"] == {"ConnectionError: gone": 1}
    assert metrics["failure_rate"]["estimate"] == 0.25

    by_key = {record["key"]: record for record in result.records}
    # ann/0: the agreed update is the only change, m2 was never found: transition 1, retrieval 0.
    assert by_key["ann/0"]["score"]["reward"] == pytest.approx(0.1 + 0 + 0.8)
    # ann/1: Dp = two additions and the stale m1, Dt = the new m1 and jazz: P = 2/3, R = 1, F = 0.8; no search.
    assert by_key["ann/1"]["score"]["reward"] == pytest.approx(0.1 + 0 + 0.8 * 0.8)
    # bob/0: Dp = wrong m1 and two additions, Dt = the old m1 and the stamps. The stamps match, and the known sentence added
    # again restores the old m1: P = 2/3, R = 1, F = 0.8. Nothing had to be retrieved.
    assert by_key["bob/0"]["score"]["reward"] == pytest.approx(0.1 + 0.1 + 0.8 * 0.8)
    assert metrics["reward"]["estimate"] == pytest.approx((0.9 + 0.74 + 0.84) / 3)
    assert (metrics["reward"]["count"], metrics["reward"]["groups"]) == (3, 2)
    assert metrics["reward"]["low"] == pytest.approx(0.82) and metrics["reward"]["high"] == pytest.approx(0.84)

    expected = {
        "update_recall": 1 / 2,
        "add_for_update_rate": 1 / 2,
        "update_precision": 1 / 2,
        "wrong_target_rate": 1 / 2,
        "add_recall": 2 / 2,
        "none_recall": 0 / 1,
        "duplicates_per_episode": 1 / 3,
        "queries_per_episode": 1 / 3,
        "queries_per_memory": 1 / 5,
        "restored_overwrites_per_episode": 1 / 3,
        "violations_per_episode/no_action": 0,
        "due_left_alone_rate": 0 / 3,
    }
    assert {name: metrics[name]["estimate"] for name in expected} == pytest.approx(expected)


def first_fails(sessions: list[LabelledSession]) -> Callable[[LabelledSession, int], str]:
    """The first session breaks; of the others the first of each person are answered rightly, the rest not at all."""

    def script(item: LabelledSession, turn: int) -> str:
        if item is sessions[0]:
            raise ConnectionError("gone")
        return silent(item, turn) if item.session_index else oracle(item, turn)

    return script


def test_rewards_by_cell_of_difficulty() -> None:
    sessions = graded(people(3, 2))
    result = run(sessions, first_fails(sessions))
    cells = result.summary["cells"]
    # Every session holds an ADD, which is plain; of the first sessions one has failed.
    assert cells["signal=value"]["estimate"] == pytest.approx((2 * 1.0 + 3 * 0.1) / 5)
    assert {name: cells["signal=implied"][name] for name in ("count", "groups")} == {"count": 3, "groups": 3}
    assert cells["rivals=2"]["estimate"] == cells["chain=1"]["estimate"] == pytest.approx(0.1)
    assert cells["bank=1-20"] == cells["noise=medium"] == cells["signal=value"]
    assert list(cells)[:2] == ["signal=value", "signal=implied"] and "bank=0" not in cells
    assert result.records[0]["cells"] == list(sessions[0].difficulty.cells()), "in the file too"
    plain = run(people(3, 2), oracle)
    assert plain.summary["cells"] == plain.summary["recall_by_cell"] == {} and "cells" not in plain.records[0]


def test_due_memories_are_counted_by_kind_one_by_one() -> None:
    sessions = graded(people(3, 2))

    def script(item: LabelledSession, turn: int) -> str:
        """Finds what is added, of the second sessions alone, and never what is due an UPDATE."""
        return outputs(item.operations[1]) if item.session_index else outputs()

    recalls = run(sessions, script).summary["recall_by_cell"]
    # Three implied UPDATEs, of status; three plain ones and six additions, of events, of which three are found.
    assert {name: recalls[name]["estimate"] for name in ("kind=event", "kind=status")} == pytest.approx(
        {"kind=event": 3 / 9, "kind=status": 0.0}
    )
    assert (recalls["kind=event"]["count"], recalls["kind=status"]["groups"]) == (9, 3)
    assert recalls["signal=implied"] == recalls["kind=status"]
    assert "bank=1-20" not in recalls, "the session's"
    assert run(sessions, oracle).summary["recall_by_cell"]["kind=status"]["estimate"] == 1.0
    known = graded([labelled("ann", 0, {"m1": "Ann sings"}, [none("m1", "Ann sings"), add("Ann rows", "rows")])])
    assert run(known, oracle).summary["recall_by_cell"]["kind=event"]["count"] == 1, "of what is known nothing is due"


def test_paired_differences_by_hand() -> None:
    sessions = people(3, 2)
    best, mixed = run(sessions, oracle).records, run(sessions, first_fails(sessions)).records
    found = differences(best, mixed, resamples=100)
    # Of the five sessions that both answered, the three second ones earn .1 where the oracle earns 1.
    assert found["reward"].estimate == pytest.approx(3 * 0.9 / 5)
    assert (found["reward"].count, found["reward"].groups) == (5, 3)
    assert found["update_recall"].estimate == pytest.approx(differences(mixed, best)["update_recall"].estimate * -1)
    assert "update_precision" not in found, "what is counted out of depends on the policy"
    same = differences(best, best, resamples=100)["reward"]
    assert same.estimate == same.low == same.high == 0
    moved = [record | {"dialogue": []} for record in best]
    assert differences(best, moved) == {}, "the same key in other data"


def test_texts_are_embedded_in_batches_not_one_session_at_a_time() -> None:
    sessions, embedder = people(5, 4), WordEmbedder()
    asyncio.run(evaluate(ScriptedPolicy(sessions, silent, CONFIG), sessions, CachedEmbedder(embedder), CONFIG, resamples=10))
    assert len(embedder.calls) == 2, "prior memories, then all that is scored"


def test_files_hold_records_and_making(tmp_path: Path) -> None:
    sessions = people(2, 1)
    result = run(sessions, oracle)
    result.write(tmp_path / "a" / "b")
    lines = (tmp_path / "a" / "b" / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["key"] for record in records] == ["person0/0", "person1/0"]
    record = records[0]
    assert record["queries"] == [["Person0 works as baker in Oslo0"]] and record["retrieved_ids"] == [["m1"]]
    assert record["target_operations"][0]["keywords"] == ["pilot", "Oslo0"]
    assert {pair["kind"] for pair in record["score"]["transition"]["pairs"]} == {"agreed_update", "matched"}
    assert [turn["role"] for turn in record["turns"]] == ["assistant", "tool", "assistant"]
    summary = json.loads((tmp_path / "a" / "b" / "summary.json").read_text(encoding="utf-8"))
    making = summary["provenance"]
    assert making["episode"]["k"] == 1 and set(making["prompt_hashes"]) == {"manager", "session"}
    assert making["versions"]["python"] and making["embedder"] == "words"
    assert summary["tokens"] == sum(record["tokens"] for record in records) > 0
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DeltaMemError, match="cannot be written"):
        result.write(tmp_path / "file")


def test_selection_is_spread_over_people_and_depends_on_nothing_but_the_seed() -> None:
    sessions = people(5, 6)
    chosen = select(sessions, 12, seed=3)
    per_person = [sum(item.session.person_id == f"person{number}" for item in chosen) for number in range(5)]
    assert sorted(per_person) == [2, 2, 2, 3, 3]
    assert chosen == select(list(reversed(sessions)), 12, seed=3)
    assert {item.key for item in chosen} != {item.key for item in select(sessions, 12, seed=4)}
    assert {item.key for item in chosen} <= {item.key for item in select(sessions, 20, seed=3)}
    few = people(2, 2) + people(3, 1)[2:]
    assert [item.key for item in select(few, 99)] == ["person0/0", "person0/1", "person1/0", "person1/1", "person2/0"]
    assert select([], 5) == []


ENDPOINT = ["endpoint.base_url=http://127.0.0.1:9/v1", "endpoint.model=tiny", "endpoint.max_retries=0"]


@pytest.fixture
def sessions_file(tmp_path: Path) -> Path:
    path = tmp_path / "sessions.jsonl"
    lines = [to_json_line(item) for item in [*people(3, 2), *people(2, 2, split="train")]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@cache
def base(*groups: str) -> DictConfig:
    """Composed once, as that takes longer than most of the tests."""
    return config_module.composed("heldout", list(groups))


def composed(*overrides: str) -> DictConfig:
    """The configuration with overrides; those of groups, such as ``reward=demanding``, by Hydra."""
    groups = tuple(one for one in overrides if one.startswith("reward="))
    config = base(*groups).copy()
    config.merge_with_dotlist([one for one in overrides if one not in groups])
    return config


def test_an_endpoint_is_scored_and_a_failed_episode_gives_exit_code_1(
    sessions_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        if "Person1" in body["messages"][1]["content"]:
            return failure(400, "no room")
        return completion(outputs().partition("</think>")[2].strip())

    monkeypatch.setattr(command_module, "load_embedder", lambda *_, **__: WordEmbedder())
    out = tmp_path / "out"
    with serve(answer) as server:
        endpoint = [f"endpoint.base_url={server.url}", "endpoint.model=tiny"]
        direct = ["episode.thinking=false", "episode.system_prompt=manager_compact", "endpoint.guided=true"]
        assert (
            main(composed(*endpoint, *direct, f"sessions={sessions_file}", f"out={out}", "n=5", "seed=3", "resamples=20"))
            == 1
        )
    assert {str(request.get("chat_template_kwargs")) for request in server.requests} == {"{'enable_thinking': False}"}
    # The first request makes sure that the endpoint answers.
    assert all("structured_outputs" in request for request in server.requests[1:]) and len(server.requests) == 6
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["sessions"] == 5 and summary["failed"] in (1, 2)
    assert summary["metrics"]["reward"]["estimate"] == pytest.approx(0.1)
    assert summary["provenance"]["seed"] == 3 and len(summary["provenance"]["sessions_sha256"]) == 64
    assert summary["provenance"]["config"]["endpoint"]["model"] == "tiny"
    assert len((out / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()) == 5
    printed = capsys.readouterr()
    assert "no room" in printed.err and "due UPDATEs done as ADD" in printed.out and "the repaired reward; " in printed.out
    assert summary["probes"]["do_nothing"]["parts"]["reward"]["estimate"] == pytest.approx(0.1)
    assert "Beside shallow policies" in printed.out and "earns 0.100, no more than" in printed.err


def test_an_endpoint_is_scored_in_assisted_mode(
    sessions_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        if is_check(body):
            return completion("Hello.")
        assert "tool" not in {message["role"] for message in body["messages"]} and "structured_outputs" not in body
        asked = body["messages"][-1]["content"]
        if "Conversation on " not in asked:  # The two facts, the first of which changes a memory
            changed = {"relation": "change", "note": "m1"}, {"relation": "new", "note": "none"}
            judged = body["response_format"]["json_schema"]["schema"]["required"]
            return completion(json.dumps(dict(zip(judged, changed, strict=False))))
        said = re.findall(r"^\[(\d+)\] [^:]+: (.+)$", asked, re.MULTILINE)
        return completion(json.dumps({"facts": [{"line": int(line), "fact": text} for line, text in said]}))

    monkeypatch.setattr(command_module, "load_embedder", lambda *_, **__: WordEmbedder())
    out = tmp_path / "out"
    with serve(answer) as server:
        command = [f"endpoint.base_url={server.url}", "endpoint.model=tiny", "endpoint.guided=true", "probes=false", "n=4"]
        assert main(composed(*command, "mode=assisted", f"sessions={sessions_file}", f"out={out}", "resamples=20")) == 0
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (summary["failed"], summary["metrics"]["unreadable_rate"]["estimate"]) == (0, 0.0)
    assert summary["metrics"]["update_matched_recall"]["estimate"] == summary["metrics"]["add_recall"]["estimate"] == 1.0
    made = summary["provenance"]
    assert (made["mode"], made["episode"]["examples"]) == ("assisted", True) and "assisted" in made["prompt_hashes"]
    records = [json.loads(line) for line in (out / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()]
    # Of each session the model's own two answers, and none of the worked examples.
    assert [[next(iter(json.loads(turn["content"]))) for turn in record["turns"]] for record in records] == [
        ["facts", "1"]
    ] * 4


def test_an_evaluation_against_an_earlier_one(
    sessions_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_module, "load_embedder", lambda *_, **__: WordEmbedder())
    heldout = people(3, 2)
    best = run(heldout, oracle)
    policy, options = ScriptedPolicy(heldout, oracle, CONFIG), RewardOptions(tau=0.6)
    rewarded = asyncio.run(evaluate(policy, heldout, WordEmbedder(), CONFIG, options=options, resamples=10))
    moved = HeldoutResult([record | {"dialogue": []} for record in best.records], best.summary)
    fewer = HeldoutResult([record | {"counts": {"episodes": 1, "failures": 0}} for record in best.records], best.summary)
    written = {"before": best, "reward": rewarded, "moved": moved, "fewer": fewer, "broken": HeldoutResult([], {})}
    for name, result in written.items():
        result.write(tmp_path / name)
    with serve(lambda body: completion(outputs().partition("</think>")[2].strip())) as server:
        command = [f"endpoint.base_url={server.url}", "endpoint.model=tiny", "probes=false", "resamples=20"]
        command += [f"sessions={sessions_file}", f"out={tmp_path / 'out'}"]
        with pytest.raises(DeltaMemError, match="evaluated with words, not all-MiniLM-L6-v2"):
            main(composed(*command, f"against={tmp_path / 'before'}"))
        command.append("embedder=words")
        for folder, sentence in (
            ("nowhere", "no held-out evaluation to compare with"),
            ("broken", "not the files of a held-out evaluation"),
            ("fewer", "or of one that counted less"),
            ("reward", "evaluated under another reward"),
            ("moved", "evaluated on other sessions"),
        ):
            with pytest.raises(DeltaMemError, match=sentence):
                main(composed(*command, f"against={tmp_path / folder}"))
        assert not server.requests, "refused before anything was spent"
        assert main(composed(*command, f"against={tmp_path / 'before'}")) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["against"]["folder"] == str(tmp_path / "before")
    assert summary["against"]["differences"]["reward"]["estimate"] == pytest.approx(-1.0)
    printed = capsys.readouterr().out
    assert "More than" in printed and "-1.000*" in printed


def test_the_reward_of_the_demanding_data_can_be_chosen_and_is_named() -> None:
    settings = [
        validated(composed(*ENDPOINT, "sessions=x", "out=y", *chosen), HeldoutSettings).reward
        for chosen in ((), ("reward=demanding",), ("reward=demanding", "reward.tau=0.6"))
    ]
    assert settings[0] == RewardOptions()
    assert (settings[1].stale_weight, settings[1].weigh_new_keywords, settings[1].tau) == (3.0, True, 0.75)
    assert settings[2] == replace(settings[1], tau=0.6)
    sessions = people(1, 1)
    policy = ScriptedPolicy(sessions, silent, CONFIG)
    result = asyncio.run(evaluate(policy, sessions, WordEmbedder(), CONFIG, options=settings[1], resamples=10))
    assert "reward with stale_weight=3.0, match_overwritten=False, " in str(summary_table(result.summary).caption)


def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # Hydra sets it, and the command takes it away again
    monkeypatch.setattr(sys, "argv", ["eval.heldout", *ENDPOINT, f"out={tmp_path}", "sessions=missing.jsonl"])
    with pytest.raises(SystemExit) as ended:
        run_hydra(main, "heldout")
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert "missing.jsonl: no such file" in printed.err


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], "name a policy"),
        (["checkpoint=/x", "endpoint.model=tiny"], "/x: no episode.json there"),
        (["endpoint.model=tiny"], "needs both"),
        (["checkpoint=/no/such/folder"], "/no/such/folder: not a checkpoint folder"),
        ([*ENDPOINT, "n=0"], "'n'"),
        ([*ENDPOINT, "temperature=-1"], "'temperature'"),
        ([*ENDPOINT, "split=test"], "'split'"),
        ([*ENDPOINT, "episode.k=0"], r"'episode\.k'"),
        ([*ENDPOINT, "mode=auto"], "'mode'"),
        ([*ENDPOINT, "assisted.support=2"], r"'assisted\.support'"),
        (["checkpoint=.", "mode=assisted"], "mode=assisted asks an endpoint"),
        ([*ENDPOINT, "episode.system_prompt=poem"], "prompt 'poem' does not exist"),
        ([*ENDPOINT, "reward.format_weight=0.5"], "must not be negative and must add up to 1"),
        ([*ENDPOINT, "reward.tau=2"], "tau must be"),
        ([*ENDPOINT, "split=train", "sessions=only.jsonl"], "no sessions of the split 'train'"),
        ([*ENDPOINT, "out=sessions.jsonl/out"], "the output folder cannot be made"),
        (ENDPOINT, "cannot be reached"),
    ],
)
def test_wrong_settings_are_told_before_anything_runs(
    overrides: list[str], said: str, sessions_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").touch()
    (tmp_path / "only.jsonl").write_text(to_json_line(people(1, 1)[0]) + "\n", encoding="utf-8")
    with pytest.raises(DeltaMemError, match=said):
        main(composed("sessions=sessions.jsonl", "out=out", *overrides))
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_the_episode_comes_from_the_checkpoint_and_keys_win(tmp_path: Path) -> None:
    def episode(*overrides: str) -> EpisodeConfig:
        config = composed("sessions=s", "out=o", f"checkpoint={tmp_path}", *overrides)
        return validated(config, HeldoutSettings).episode_config()

    assert episode().k == 5
    fields = {"system_prompt": "manager_compact", "k": 2, "memory_fields": ["text", "id"], "max_turns": 3}
    (tmp_path / "episode.json").write_text(json.dumps(fields))
    config = episode("episode.k=4")
    assert (config.system_prompt, config.k, config.max_turns) == ("manager_compact", 4, 3)
    assert config.memory_fields == ("text", "id") and config.session_prompt == "session"
