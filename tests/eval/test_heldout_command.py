from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder, outputs
from heldout_cases import people
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from scripted_server import Reply, completion, failure, serve

from deltamem.config import CONFIGS, validated
from deltamem.errors import DeltaMemError
from deltamem.sessions import to_json_line
from eval import heldout as command_module
from eval.heldout import HeldoutSettings, main

ROOT = Path(__file__).parents[2]
ENDPOINT = ["endpoint.base_url=http://127.0.0.1:9/v1", "endpoint.model=tiny", "endpoint.max_retries=0"]


@pytest.fixture
def sessions_file(tmp_path: Path) -> Path:
    path = tmp_path / "sessions.jsonl"
    lines = [to_json_line(item) for item in [*people(3, 2), *people(2, 2, split="train")]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("heldout", list(overrides))


def test_an_endpoint_is_scored_and_a_failed_episode_gives_exit_code_1(
    sessions_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        if "Person1" in body["messages"][1]["content"]:
            return failure(400, "no room")
        return completion(outputs())

    monkeypatch.setattr(command_module, "load_embedder", lambda *_, **__: WordEmbedder())
    out = tmp_path / "out"
    with serve(answer) as server:
        endpoint = [f"endpoint.base_url={server.url}", "endpoint.model=tiny"]
        assert main(composed(*endpoint, f"sessions={sessions_file}", f"out={out}", "n=5", "seed=3")) == 1
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["sessions"] == 5 and summary["failed"] in (1, 2)
    assert summary["metrics"]["reward"]["estimate"] == pytest.approx(0.1)
    assert summary["provenance"]["seed"] == 3 and len(summary["provenance"]["sessions_sha256"]) == 64
    assert summary["provenance"]["config"]["endpoint"]["model"] == "tiny"
    assert len((out / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()) == 5
    printed = capsys.readouterr()
    assert "no room" in printed.err and "due UPDATEs done as ADD" in printed.out


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eval.heldout", *ENDPOINT, f"out={tmp_path}", "sessions=missing.jsonl"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"COLUMNS": "120"},
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "missing.jsonl: no such file" in done.stderr and done.stdout == ""


def test_an_unreachable_endpoint_is_told(sessions_file: Path, tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match="cannot be reached"):
        main(composed(*ENDPOINT, f"sessions={sessions_file}", f"out={tmp_path / 'out'}"))
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], "name one policy"),
        (["checkpoint=/x", "endpoint.model=tiny"], "name one policy"),
        (["endpoint.model=tiny"], "needs both"),
        (["checkpoint=/no/such/folder"], "/no/such/folder: not a checkpoint folder"),
        ([*ENDPOINT, "n=0"], "'n'"),
        ([*ENDPOINT, "temperature=-1"], "'temperature'"),
        ([*ENDPOINT, "split=test"], "'split'"),
        ([*ENDPOINT, "episode.k=0"], r"'episode\.k'"),
        ([*ENDPOINT, "episode.system_prompt=poem"], "prompt 'poem' does not exist"),
        ([*ENDPOINT, "reward.format_weight=0.5"], "must not be negative and must add up to 1"),
        ([*ENDPOINT, "reward.tau=2"], "tau must be"),
    ],
)
def test_wrong_settings_are_told_before_anything_runs(
    overrides: list[str], said: str, sessions_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(DeltaMemError, match=said):
        main(composed(f"sessions={sessions_file}", f"out={tmp_path / 'out'}", *overrides))


@pytest.mark.parametrize("thinking", [True, False])
def test_the_endpoint_is_told_whether_to_think(
    sessions_file: Path, tmp_path: Path, thinking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_module, "load_embedder", lambda *_, **__: WordEmbedder())
    with serve(lambda body: completion(outputs())) as server:
        endpoint = [f"endpoint.base_url={server.url}", "endpoint.model=tiny", "n=1", "resamples=2"]
        episode = [f"episode.thinking={thinking}", "episode.system_prompt=manager_compact"]
        assert main(composed(*endpoint, *episode, f"sessions={sessions_file}", f"out={tmp_path / 'out'}")) == 0
    told = [request.get("chat_template_kwargs") for request in server.requests]
    assert told == [None if thinking else {"enable_thinking": False}] * 2


def test_no_heldout_sessions_is_told(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    path.write_text(to_json_line(people(1, 1, split="train")[0]) + "\n", encoding="utf-8")
    with pytest.raises(DeltaMemError, match="no sessions of the split 'heldout'"):
        main(composed(*ENDPOINT, f"sessions={path}", f"out={tmp_path / 'out'}"))


def test_an_output_folder_that_cannot_be_made_is_told_before_anything_runs(sessions_file: Path) -> None:
    with pytest.raises(DeltaMemError, match="the output folder cannot be made"):
        main(composed(*ENDPOINT, f"sessions={sessions_file}", f"out={sessions_file}/out"))


def settings(checkpoint: Path, *overrides: str) -> HeldoutSettings:
    return validated(composed("sessions=s", "out=o", f"checkpoint={checkpoint}", *overrides), HeldoutSettings)


def test_the_episode_comes_from_the_checkpoint_and_keys_win(checkpoint: Path) -> None:
    assert settings(checkpoint).episode_config().k == 5
    (checkpoint / "episode.json").write_text(
        json.dumps({"system_prompt": "manager_compact", "k": 2, "memory_fields": ["text", "id"], "max_turns": 3})
    )
    config = settings(checkpoint, "episode.k=4").episode_config()
    assert (config.system_prompt, config.k, config.max_turns) == ("manager_compact", 4, 3)
    assert config.memory_fields == ("text", "id") and config.session_prompt == "session"


def test_a_prompt_that_does_not_fit_the_thinking_is_told(checkpoint: Path) -> None:
    with pytest.raises(DeltaMemError, match="prompt 'manager' asks for a think block"):
        settings(checkpoint, "episode.thinking=false").episode_config()
    config = settings(checkpoint, "episode.thinking=false", "episode.system_prompt=manager_direct").episode_config()
    assert not config.thinking and config.max_invalid_calls == 0


@pytest.mark.parametrize(
    ("text", "said"), [("{", "episode.json: the file: "), ('{"k": "two"}', "k: "), ('{"shots": 3}', "shots: ")]
)
def test_an_unreadable_episode_file_is_told(checkpoint: Path, text: str, said: str) -> None:
    (checkpoint / "episode.json").write_text(text)
    with pytest.raises(DeltaMemError, match=said):
        settings(checkpoint).episode_config()
