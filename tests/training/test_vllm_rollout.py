"""Real vLLM inside verl on the CPU: the same training run, sampled by the server that a cluster uses."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import pytest
from safetensors.torch import load_file
from training_cases import write_sessions
from vllm_server import vllm_python

PYTHON = vllm_python()
ROOT = Path(__file__).resolve().parents[2]
STEPS = 3
MARK = "DELTAMEM_TEST_RUN"


def train(python: Path, out: Path, sessions: Path, model: Path, mark: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(python),
        str(ROOT / "train.py"),
        "+experiment=tiny",
        "rollout=vllm",
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
        f"trainer.save_freq={STEPS}",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
        f"trainer.total_training_steps={STEPS}",
        # A random model earns no reward, so nothing would be learnt without a bonus for entropy.
        "actor_rollout_ref.actor.entropy_coeff=1.0",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
        # The trainer computes the log-probs of all sampled tokens itself, and verl compares them with vLLM's.
        "algorithm.rollout_correction.bypass_mode=false",
        "algorithm.rollout_correction.rollout_is=token",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    ]
    env = os.environ | {"OMP_NUM_THREADS": "1", MARK: mark}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)


def running(mark: str) -> list[str]:
    """Command lines of the processes that inherited the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def left_shared_memory(since: float) -> set[str]:
    """Segments of Python or verl in shared memory, made after a point in time, that no process uses."""
    segments = [*Path("/dev/shm").glob("psm_*"), *Path("/dev/shm").glob("verl_weights_*")]
    fresh = {str(path) for path in segments if path.exists() and path.stat().st_ctime >= since}
    used = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            used |= {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if "/dev/shm/" in line}
        except OSError:
            continue
    return fresh - used


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="no vLLM: run `make vllm`, or name an interpreter in DELTAMEM_VLLM_PYTHON")
def test_vllm_and_the_trainer_are_the_same_policy_after_every_step(tmp_path: Path, model_folder: Path) -> None:
    assert PYTHON is not None
    out, sessions = tmp_path / "run", write_sessions(tmp_path / "sessions.jsonl", train=16, heldout=4)
    mark, begin = uuid4().hex, time.time()
    done = train(PYTHON, out, sessions, model_folder, mark)
    assert done.returncode == 0, done.stdout + done.stderr

    steps = [json.loads(line)["data"] for line in (out / "logs" / "grpo_1.jsonl").read_text().splitlines()]
    assert [step["training/global_step"] for step in steps] == [1, 2, 3]
    for step in steps:
        # Ratio of both policies' probabilities, the largest and the smallest of all sampled tokens.
        ratios = [step[f"rollout_corr/rollout_is_{end}"] for end in ("min", "max")]
        assert all(abs(math.log(ratio)) < 1e-4 for ratio in ratios), ratios
        assert step["actor/grad_norm"] > 0.0 and step["actor/lr"] > 0.0
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [record["train/failure"] for record in records] == [0.0] * STEPS
    start, policy = load_file(model_folder / "model.safetensors"), load_file(out / "policy" / "model.safetensors")
    moved = [(policy[name].double() - tensor.double()).abs().max() for name, tensor in start.items()]
    assert min(moved) > 1e-4, "every parameter must have changed"

    for _ in range(50):
        if not running(mark):
            break
        time.sleep(0.2)
    assert running(mark) == []
    assert left_shared_memory(begin) == set()
