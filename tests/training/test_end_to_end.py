"""Real verl on the CPU: train, stop, go on, export."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_cases import write_sessions

ROOT = Path(__file__).resolve().parents[2]


def train(out: Path, sessions: Path, model: Path, steps: int, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        "+experiment=tiny",
        f"deltamem.out={out}",
        f"deltamem.sessions={sessions}",
        "deltamem.synth=null",
        "deltamem.model=null",
        "deltamem.warm_start=null",
        "deltamem.data.heldout_sessions=4",
        "deltamem.data.skip_people=0",
        "deltamem.turn_tokens=24",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "data.train_batch_size=4",
        "data.max_prompt_length=1024",
        "data.max_response_length=64",
        "trainer.save_freq=1",
        "trainer.test_freq=2",
        f"trainer.total_training_steps={steps}",
        *overrides,
    ]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_two_steps_and_a_resume_to_a_third(tmp_path: Path, model_folder: Path) -> None:
    out, sessions = tmp_path / "run", write_sessions(tmp_path / "sessions.jsonl", train=24, heldout=4)
    first = train(out, sessions, model_folder, 2)
    assert first.returncode == 0, first.stdout + first.stderr
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 1, 2]
    assert "heldout/reward" in records[0] and "heldout/reward" in records[2]
    for record in records[1:]:
        assert 0.0 <= record["train/reward"] <= 1.0
        assert record["train/failure"] == 0.0
        assert record["train/count/target_operations"] == 2.0
        assert abs(record["train/kl_to_sampler"]) < 1e-5, "the sampler and the trainer must be the same policy"
    start = load_file(model_folder / "model.safetensors")
    exported = load_file(out / "policy" / "model.safetensors")
    assert all(tensor.dtype == torch.float32 for tensor in exported.values())
    assert exported.keys() == start.keys()

    # A checkpoint that was cut off must not be taken for a whole one, whatever verl's own note says.
    broken = out / "grpo" / "checkpoints" / "global_step_3" / "actor"
    broken.mkdir(parents=True)
    (broken / "model_world_size_1_rank_0.pt").write_bytes(b"PK")
    (broken.parents[1] / "latest_checkpointed_iteration.txt").write_text("3")
    second = train(out, sessions, model_folder, 3)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "going on after step 2" in second.stdout
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    assert "stage 1/3 data: done before" in second.stdout

    third = train(out, sessions, model_folder, 3)
    assert third.returncode == 0, third.stderr
    assert third.stdout.count("done before") == 3
    other = train(out, sessions, model_folder, 4, "actor_rollout_ref.actor.optim.lr=1e-3")
    assert other.returncode == 2
    assert "another configuration" in other.stderr


@pytest.mark.slow
def test_failing_rollouts_end_the_run_with_one_sentence(tmp_path: Path, model_folder: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=8, heldout=4)
    done = train(tmp_path / "run", sessions, model_folder, 2, "data.max_prompt_length=40")
    assert done.returncode == 1
    assert "rollouts of one step failed" in done.stderr and "max_prompt_length=40" in done.stderr
    assert "Traceback" not in done.stderr
