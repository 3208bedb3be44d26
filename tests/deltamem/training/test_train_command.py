"""Composition of both experiments, and bad input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from training_cases import write_sessions

ROOT = Path(__file__).resolve().parents[3]


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "train.py", *arguments], capture_output=True, text=True, cwd=ROOT, env=env)


def test_tiny_composes() -> None:
    done = train("+experiment=tiny", "deltamem.out=/runs/x", "--cfg", "job", "--resolve")
    assert done.returncode == 0, done.stderr
    config = OmegaConf.create(done.stdout)
    assert config.actor_rollout_ref.rollout.name == "deltamem_cpu"
    assert config.trainer.v1.sampler.sampler_kwargs.train_rollouts == config.actor_rollout_ref.rollout.n
    assert config.trainer.default_local_dir == "/runs/x/grpo/checkpoints"
    assert config.algorithm.adv_estimator == "grpo"
    assert config.data.train_batch_size == config.actor_rollout_ref.actor.ppo_mini_batch_size  # one update a step


def test_qwen8b_has_the_settings_of_the_paper() -> None:
    done = train("+experiment=qwen8b", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    config = OmegaConf.create(done.stdout)
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen3-8B"
    assert config.actor_rollout_ref.rollout.name == "vllm"
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n) == (64, 8)
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6
    assert config.actor_rollout_ref.actor.clip_ratio == 0.2
    assert config.actor_rollout_ref.rollout.temperature == 1.0
    assert (config.deltamem.episode.k, config.deltamem.reward.tau, config.trainer.total_epochs) == (5, 0.75, 1)
    assert config.deltamem.embedder.name == "Qwen/Qwen3-Embedding-0.6B"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["deltamem.turn_token=3"], "unknown config key 'deltamem.turn_token'"),
        (["+deltamem.nonsense=3", "deltamem.out=x", "deltamem.sessions=y"], "unknown config key 'nonsense'"),
        (["actor_rollout_ref.rollout.typo=3"], "unknown config key 'actor_rollout_ref.rollout.typo'"),
        (["deltamem.synth=null", "deltamem.sessions=/nowhere/sessions.jsonl"], "/nowhere/sessions.jsonl: no such file"),
        (["deltamem.out=???"], "'deltamem.out' has no value"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], sentence: str) -> None:
    done = train("+experiment=tiny", *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_too_few_sessions_for_one_batch(tmp_path: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=3, heldout=2)
    done = train(
        "+experiment=tiny",
        f"deltamem.out={tmp_path / 'run'}",
        f"deltamem.sessions={sessions}",
        "deltamem.synth=null",
        "deltamem.data.heldout_sessions=2",
        "deltamem.data.skip_people=0",
    )
    assert done.returncode == 2
    assert "3 training sessions are fewer than data.train_batch_size=16" in done.stderr


@pytest.mark.slow
def test_a_preflight_of_a_sweep_ends_with_2_and_makes_nothing(tmp_path: Path) -> None:
    done = train(
        "-m",
        "+experiment=tiny",
        "+ablation=tau",
        "deltamem.reward.tau=0.5,0.9",
        "preflight=true",
        f"hydra.sweep.dir={tmp_path / 'sweep'}",
        "deltamem.synth=null",
        "deltamem.sessions=/nowhere/sessions.jsonl",
        f"deltamem.out={tmp_path}/run_${{deltamem.reward.tau}}",
    )
    assert done.returncode == 2, done.stderr
    # The first failing run ends a sweep: the same command again goes on with it.
    assert done.stdout.count("preflight: ") == 1
    assert done.stdout.strip().splitlines()[-1].endswith("the run would not work")
    assert "tau=0.5" in done.stdout
    assert "/nowhere/sessions.jsonl: no such file" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["sweep"]
