"""Interrupts the tiny run at random moments until it is done, and compares it with one that nobody interrupted.

    PYTHONPATH=tests:tests/deltamem/training python benchmarks/interrupt.py OUT [--steps 20] [--kills 5] [--seed 0]

Prints a line an interruption and one JSON object at the end; exit code 1 if the two runs differ. The model is a random one
of 0.1 million parameters, so a kill costs about a minute: the start of verl. It earns no reward, so what tells whether the
weights went on as they should are the norms of the gradient, which change from step to step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from run_cases import Run, await_true
from training_cases import make_model, write_sessions

from deltamem.training.interruption import NOT_FINISHED

WAYS = ("kill the launcher", "kill the trainer", "kill all", "SIGTERM", "SIGUSR1")
SIGNAL = "actor_rollout_ref.actor.entropy_coeff=0.05"
FREQUENCY = "trainer.save_freq=2"
TOLERANCE = 1e-4
"""Relative difference of two norms of the gradient that are taken for the same."""


def interrupt(run: Run, steps: int, way: str, rng: random.Random) -> dict[str, Any]:
    """Start the run, and end it in some way at a random moment of the steps to come."""
    before = max((record["step"] for record in run.records()), default=-1)
    process = run.start(steps, SIGNAL, FREQUENCY)
    logs = len(list((run.out / "logs").glob("grpo_*.log")))
    await_true(lambda: len(list((run.out / "logs").glob("grpo_*.log"))) > logs or process.poll() is not None, 120.0)
    # From the first second of verl's start to some steps later.
    until = rng.choice((None, before + 1, before + 3))
    begin = time.monotonic()
    while process.poll() is None and (until is None or max((r["step"] for r in run.records()), default=-1) < until):
        if until is None and time.monotonic() > begin + rng.uniform(0.0, 30.0):
            break
        time.sleep(0.05)
    time.sleep(rng.uniform(0.0, 1.5))
    processes = run.processes()
    if process.poll() is None:
        if way == "kill all":
            for pid in processes:
                os.kill(pid, signal.SIGKILL)
        elif way == "kill the trainer":
            for pid in processes:
                if b"deltamem.training.trainer_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        else:
            process.send_signal({"SIGTERM": signal.SIGTERM, "SIGUSR1": signal.SIGUSR1}.get(way, signal.SIGKILL))
    process.communicate()
    ended = time.monotonic()
    await_true(lambda: not run.processes(), 60.0)
    expected = {"SIGTERM": 143, "SIGUSR1": NOT_FINISHED, "kill the trainer": 1}.get(way, -signal.SIGKILL)
    after = max((record["step"] for record in run.records()), default=-1)
    return {
        "way": way,
        "code": process.returncode,
        "as_expected": process.returncode in (expected, 0),
        "steps_before": before,
        "steps_after": after,
        "seconds_to_the_last_process": round(time.monotonic() - ended, 1),
    }


def compare(one: Run, two: Run, steps: int) -> dict[str, Any]:
    """How two finished runs differ."""
    first, second = one.records(), two.records()
    both = [(a, b) for a, b in zip(first, second, strict=False) if "train/reward" in a and "train/reward" in b]
    norms = [(a["train/grad_norm"], b["train/grad_norm"]) for a, b in both if "train/grad_norm" in b]
    return {
        "every_step_once": [record["step"] for record in second] == list(range(steps + 1)),
        "data_order_as_uninterrupted": [r["data/order"] for r in second[1:]] == one.expected_orders(steps),
        "gradient_norms": [min(a for a, _ in norms), max(a for a, _ in norms)],
        "largest_relative_difference_of_gradient_norms": max(abs(a - b) / a for a, b in norms),
        "largest_reward": max(a["train/reward"] for a, _ in both),
        "largest_difference_of_rewards": max(abs(a["train/reward"] - b["train/reward"]) for a, b in both),
        "largest_difference_of_response_tokens": max(
            abs(a["train/response_tokens"] - b["train/response_tokens"]) for a, b in both if "train/response_tokens" in b
        ),
        "steps_without_figures_of_the_update": sum("train/grad_norm" not in record for record in second[1:]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a folder that does not exist")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    out = given.out.absolute()
    out.mkdir(parents=True)
    sessions = write_sessions(out / "sessions.jsonl", train=19, heldout=4)
    model = make_model(out / "model")
    one, two = (Run(out / name, sessions, model) for name in ("straight", "interrupted"))
    assert one.finish(given.steps, SIGNAL, FREQUENCY).returncode == 0
    rng = random.Random(given.seed)
    found = []
    for kill in range(given.kills):
        found.append(interrupt(two, given.steps, WAYS[kill % len(WAYS)], rng))
        print(json.dumps(found[-1]), flush=True)
    done = two.finish(given.steps, SIGNAL, FREQUENCY)
    assert done.returncode == 0, done.stdout + done.stderr
    differences = compare(one, two, given.steps)
    print(json.dumps({"interruptions": len(found), **differences}))
    good = differences["every_step_once"] and differences["data_order_as_uninterrupted"]
    good = good and differences["largest_relative_difference_of_gradient_norms"] <= TOLERANCE
    return 0 if good and all(entry["as_expected"] for entry in found) else 1


if __name__ == "__main__":
    sys.exit(main())
