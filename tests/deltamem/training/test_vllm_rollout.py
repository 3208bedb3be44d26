"""Real vLLM inside verl on the CPU: the same training run, sampled by the server that a cluster uses."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from run_cases import Run, await_true
from training_cases import write_sessions
from vllm_server import vllm_python

PYTHON = vllm_python()
STEPS = 3
OPTIONS = (
    "rollout=vllm",
    f"trainer.save_freq={STEPS}",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    # A random model earns no reward, so nothing would be learnt without a bonus for entropy.
    "actor_rollout_ref.actor.entropy_coeff=1.0",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
    # The trainer computes the log-probs of all sampled tokens itself, and verl compares them with vLLM's.
    "algorithm.rollout_correction.bypass_mode=false",
    "algorithm.rollout_correction.rollout_is=token",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
)
# What lets verl run vLLM on a CPU lies beside this file.
ENVIRONMENT = {"VERL_USE_EXTERNAL_MODULES": "vllm_on_cpu", "PYTHONPATH": str(Path(__file__).parent)}


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
    from safetensors.torch import load_file

    assert PYTHON is not None
    out, sessions = tmp_path / "run", write_sessions(tmp_path / "sessions.jsonl", train=16, heldout=4)
    run, begin = Run(out, sessions, model_folder, PYTHON, ENVIRONMENT), time.time()
    done = run.finish(STEPS, *OPTIONS)
    assert done.returncode == 0, done.stdout + done.stderr

    steps = [json.loads(line)["data"] for line in (out / "logs" / "grpo_1.jsonl").read_text().splitlines()]
    assert [step["training/global_step"] for step in steps] == [1, 2, 3]
    for step in steps:
        # Ratio of both policies' probabilities, the largest and the smallest of all sampled tokens.
        ratios = [step[f"rollout_corr/rollout_is_{end}"] for end in ("min", "max")]
        assert all(abs(math.log(ratio)) < 1e-4 for ratio in ratios), ratios
        assert step["actor/grad_norm"] > 0.0 and step["actor/lr"] > 0.0
    assert [record["train/failure"] for record in run.records()] == [0.0] * STEPS
    start, policy = load_file(model_folder / "model.safetensors"), load_file(out / "policy" / "model.safetensors")
    moved = [(policy[name].double() - tensor.double()).abs().max() for name, tensor in start.items()]
    assert min(moved) > 1e-4, "every parameter must have changed"

    await_true(lambda: not run.processes(), 120.0)
    # Another test's server may be between the making of a segment and its first use, or its end.
    await_true(lambda: left_shared_memory(begin) == set(), 120.0)
