"""What a policy was trained with travels in its folder: evaluations take it from there, and say where they depart."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import LOCOMO, prepare
from episode_texts import WordEmbedder
from heldout_cases import people
from hydra import compose, initialize_config_dir
from rich.console import Console
from rule_model import rules
from scripted_server import serve
from system_cases import benchmark_config

from deltamem.config import CONFIGS
from deltamem.embedding import CachedEmbedder, public_name, same_embedder
from deltamem.episode import EpisodeConfig, load_episode_config, load_trained, save_episode_config
from deltamem.errors import DeltaMemError
from deltamem.sessions import to_json_line
from eval import heldout, runner

QWEN, MINI = "Qwen/Qwen3-Embedding-0.6B", "all-MiniLM-L6-v2"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """The folder of a policy that was trained with other prompts and another embedder than the defaults."""
    folder = tmp_path / "policy"
    folder.mkdir()
    save_episode_config(folder, EpisodeConfig(system_prompt="manager_compact", k=3), QWEN)
    return folder


@pytest.mark.parametrize(
    ("name", "public"),
    [
        (MINI, MINI),
        (QWEN, QWEN),
        ("http://gpu1:8000/v1#Qwen/Qwen3-Embedding-0.6B", QWEN),
        ("/models/Qwen3-Embedding-0.6B", "Qwen3-Embedding-0.6B"),
        ("/cache/hub/models--Qwen--Qwen3-Embedding-0.6B/snapshots/97b0c61", QWEN),
    ],
)
def test_an_embedder_is_noted_by_the_name_that_it_has_on_any_machine(name: str, public: str, tmp_path: Path) -> None:
    save_episode_config(tmp_path, EpisodeConfig(k=2), name)
    assert load_trained(tmp_path).embedder == public_name(name) == public
    assert load_episode_config(tmp_path) == EpisodeConfig(k=2)
    assert same_embedder(name, public.upper()) and not same_embedder(name, "BAAI/bge-m3")


def test_a_folder_from_before_the_embedder_was_noted_is_read(tmp_path: Path) -> None:
    assert load_trained(tmp_path).embedder is None
    (tmp_path / "episode.json").write_text('{"k": 2}')
    assert (load_trained(tmp_path).embedder, load_episode_config(tmp_path)) == (None, EpisodeConfig(k=2))


def test_benchmarks_take_episode_and_embedder_from_the_folder_and_what_is_given_wins(policy: Path) -> None:
    for named in (f"manager.model={policy}", f"manager.checkpoint={policy}"):
        config = benchmark_config(policy, "system=deltamem", named)
        episode = config.manager_settings().episode
        assert (config.embedder.name, episode.system_prompt, episode.k) == (QWEN, "manager_compact", 3)
        assert config.run_config()["episode"]["k"] == 3 and config.training_departures(None) == []
    given = benchmark_config(policy, f"manager.model={policy}", f"embedder.name={MINI}", "episode.k=7")
    assert given.manager_settings().episode == EpisodeConfig(system_prompt="manager_compact", k=7)
    assert given.training_departures(None) == [
        f"the policy was trained with the embedder {QWEN}, and is used with {MINI}",
        "the policy was trained with other episodes than k=7",
    ]
    named = benchmark_config(policy, f"manager.checkpoint={policy}")
    assert "checkpoint" not in named.reported()["manager"]


def test_a_model_that_is_no_folder_of_a_policy_has_the_defaults(policy: Path) -> None:
    config = benchmark_config(policy, "manager.model=Qwen/Qwen3-8B")
    assert (config.embedder.name, config.manager_settings().episode) == (MINI, EpisodeConfig())
    assert config.training_departures(None) == config.training_departures("/nowhere") == []
    # Served under another name by this machine, it is known too late to be taken, and told.
    embedder, prompts = config.training_departures(str(policy))
    assert embedder.endswith(f"{MINI}; manager.checkpoint={policy} takes what it was trained with")
    assert "system_prompt=manager, k=5" in prompts
    (policy / "episode.json").write_text("{}")
    assert config.training_departures(str(policy)) == [
        f"{policy} does not say with which embedder the policy was trained; {MINI} is used"
    ]
    with pytest.raises(DeltaMemError, match=r"no episode\.json there, expected the folder of a trained policy"):
        benchmark_config(policy, f"manager.checkpoint={policy.parent}")


def test_a_turn_that_is_cut_earlier_than_in_training_is_told(policy: Path) -> None:
    save_episode_config(policy, EpisodeConfig(), MINI, turn_tokens=2900)
    named = ("system=deltamem", f"manager.model={policy}")
    cut = "the policy was trained with turns of up to 2900 tokens, and is cut at 2048 "
    cut += "(manager.max_tokens=2900 is as trained)"
    assert benchmark_config(policy, *named).training_departures(None) == [cut]
    for enough in ("2900", "4096", "null"):
        assert benchmark_config(policy, *named, f"manager.max_tokens={enough}").training_departures(None) == []


def test_a_policy_that_is_not_asked_by_its_turns_is_told(policy: Path) -> None:
    for mode in ("auto", "assisted"):
        (told,) = benchmark_config(policy, f"manager.model={policy}", f"manager.mode={mode}").training_departures(None)
        assert told == "the policy was trained to write turns itself (manager.mode=react), and is asked in the mode assisted"


def test_an_endpoint_that_leaves_out_the_instruction_of_queries_is_told(policy: Path) -> None:
    given = ("system=deltamem", f"manager.model={policy}")
    (told,) = benchmark_config(policy, *given, f"embedder.name=http://gpu1:8000/v1#{QWEN}").training_departures(None)
    assert told.startswith(f"queries reach {QWEN} behind an endpoint as they are")
    assert benchmark_config(policy, *given, f"embedder.name=/models/{QWEN}").training_departures(None) == []
    save_episode_config(policy, load_episode_config(policy), MINI)
    mini = f"embedder.name=http://gpu1:8000/v1#{MINI}"
    assert benchmark_config(policy, *given, mini).training_departures(None) == [], "it has no instruction"


def test_a_departure_is_told_when_the_run_begins_and_in_the_summary(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(monkeypatch, LOCOMO)
    (tmp_path / "run").mkdir()
    with serve(rules, models=[{"id": "tiny", "root": str(policy)}]) as server:
        given = ("system=deltamem", f"base_url={server.url}", "manager.model=tiny", "judge.model=null")
        screen = Console(file=io.StringIO(), width=100)
        summary = runner.evaluate(LOCOMO.kind, LOCOMO.configured(tmp_path / "run", *given), screen)
    (told,) = (one for one in summary.warnings if f"trained with the embedder {QWEN}" in one)
    assert told in screen.file.getvalue() and summary.making.models["embedder"] == MINI  # type: ignore[attr-defined]


def test_heldout_asks_an_endpoint_with_what_the_policy_was_trained_with(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded: list[str] = []

    def load(name: str, **_: Any) -> CachedEmbedder:
        loaded.append(name)
        return CachedEmbedder(WordEmbedder())

    monkeypatch.setattr(heldout, "load_embedder", load)
    sessions = tmp_path / "sessions.jsonl"
    sessions.write_text("".join(to_json_line(one) + "\n" for one in people(2, 1)), encoding="utf-8")

    def run(out: str, *overrides: str) -> dict[str, Any]:
        given = [f"sessions={sessions}", f"out={tmp_path / out}", "probes=false", "resamples=10", *overrides]
        with initialize_config_dir(str(CONFIGS), version_base=None):
            heldout.main(compose("heldout", overrides=given))
        summary: dict[str, Any] = json.loads((tmp_path / out / "summary.json").read_text())
        return summary

    with serve(rules, models=[{"id": "tiny", "root": str(policy)}]) as server:
        endpoint = (f"endpoint.base_url={server.url}", "endpoint.model=tiny")
        trained = run("a", *endpoint, f"checkpoint={policy}")
        assert loaded == [QWEN] and trained["provenance"]["episode"]["k"] == 3
        assert trained["provenance"]["training_departures"] == []
        assert trained["provenance"]["checkpoint_sha256"] is None, "what is served is not the folder's for certain"
        other = run("b", *endpoint)
        assert loaded[-1] == MINI and len(other["provenance"]["training_departures"]) == 2
    assert f"checkpoint={policy} takes what it was trained with" in capsys.readouterr().err
