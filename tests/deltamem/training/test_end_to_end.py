"""Real verl on the CPU: train, interrupt, go on, export; one and two ranks.

verl takes most of a minute to start, so two runs show all of it: one rank, which is asked for a checkpoint after some steps,
is the uninterrupted reference of two ranks, whose launcher is killed and which then go on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from lazy import lazy, names
from run_cases import TWO_RANKS, Run, await_true
from training_cases import write_sessions

from deltamem.training.checkpoints import latest_complete, step_of
from deltamem.training.interruption import NOT_FINISHED

torch = lazy("torch")
load_file = names("safetensors.torch", "load_file")

STEPS = 6
COMPARED = 4
OPTIONS = (
    # Random models earn nothing, and without a difference in reward there is no gradient: entropy gives one.
    "actor_rollout_ref.actor.entropy_coeff=0.05",
    # The learning rate must not depend on the number of steps, in which the two runs differ.
    "actor_rollout_ref.actor.optim.lr_scheduler_type=constant",
)


@pytest.mark.slow
@pytest.mark.end_to_end
def test_a_run_trains_and_exports_its_policy(tmp_path: Path, model_folder: Path) -> None:
    run = Run(tmp_path / "run", write_sessions(tmp_path / "sessions.jsonl", train=8, heldout=4), model_folder)
    done = run.finish(2, "trainer.save_freq=2", *OPTIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    validation, *steps = run.records()
    assert 0.0 <= validation["heldout/reward"] <= 1.0
    assert [(record["step"], record["train/failure"]) for record in steps] == [(1, 0.0), (2, 0.0)]
    assert all(record["train/grad_norm"] > 0.0 for record in steps)
    start, policy = (load_file(folder / "model.safetensors") for folder in (model_folder, run.out / "policy"))
    assert policy.keys() == start.keys()
    assert all(tensor.dtype == torch.float32 for tensor in policy.values())
    assert 0.0 < max(float((policy[name] - start[name]).abs().max()) for name in start) < 0.02
    assert (run.out / "policy" / "README.md").is_file() and (run.out / "policy" / "episode.json").is_file()
    await_true(lambda: not run.processes(), 120.0)


@pytest.mark.slow
def test_two_ranks_that_were_killed_take_the_steps_of_one_that_was_not(tmp_path: Path, model_folder: Path) -> None:
    # Two steps an epoch, and one session that does not fill a batch.
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=9, heldout=4)
    one = Run(tmp_path / "one", sessions, model_folder)
    two = Run(tmp_path / "two", sessions, model_folder)
    stop(one)
    kill_and_finish(two)

    first, second = one.records(), two.records()
    assert [record["step"] for record in second] == list(range(STEPS + 1))
    assert "heldout/reward" in second[0] and "heldout/reward" in second[-1]
    assert [record["data/order"] for record in second[1:]] == one.expected_orders(STEPS)
    for record in second[1:]:
        assert 0.0 <= record["train/reward"] <= 1.0
        assert record["train/failure"] == 0.0
        assert record["train/count/target_operations"] == 2.0
    # Of the step in which the launcher was killed only what the checkpoint's manifest knows may be left.
    whole = [record["step"] for record in second[1:] if "train/grad_norm" in record]
    assert len(whole) >= STEPS - 1 and 1 in whole
    assert one.verl_figure("actor/loss", 1) != 0.0
    for step in range(1, COMPARED + 1):
        # The same rollouts and the same update. Sums in another order differ in their last bits, which Adam makes larger.
        tolerance = 1e-5 if step == 1 else 1e-3
        assert first[step]["data/order"] == second[step]["data/order"]
        assert first[step]["train/reward"] == pytest.approx(second[step]["train/reward"], rel=tolerance)
        if step in whole:
            for record in (first[step], second[step]):
                assert abs(record["train/kl_to_sampler"]) < 1e-5, "the sampler and the trainer must be the same policy"
                assert record["train/grad_norm"] > 0.0
            for name in ("train/response_tokens", "train/grad_norm"):
                assert first[step][name] == pytest.approx(second[step][name], rel=tolerance), (name, step)
            assert one.verl_figure("actor/loss", step) == pytest.approx(two.verl_figure("actor/loss", step), rel=tolerance)

    assert (two.out / "policy" / "model.safetensors").is_file()

    other = two.finish(STEPS + 1, *OPTIONS, *TWO_RANKS, "actor_rollout_ref.actor.optim.lr=1e-3")
    assert other.returncode == 2
    assert "another configuration" in other.stderr


def stop(run: Run) -> None:
    """Ask it to stop, twice, when the steps to compare are done; the last of them may be all that there is."""
    process = run.start(50, *OPTIONS)
    run.await_step(COMPARED, process)
    os.kill(process.pid, signal.SIGUSR1)
    os.kill(process.pid, signal.SIGUSR1)
    output, errors = process.communicate()
    assert process.returncode == NOT_FINISHED, output + errors
    done = run.records()[-1]["step"]
    assert COMPARED <= done < 50
    assert f"stopped with a checkpoint after step {done} of 50" in output and "the same command goes on" in output
    assert latest_complete(run.out / "grpo" / "checkpoints") == run.out / "grpo" / "checkpoints" / f"global_step_{done}"
    await_true(lambda: not run.processes(), 120.0)


def kill_and_finish(run: Run) -> None:
    """Kill the launcher without warning in some step after the first; the same command goes on."""
    process = run.start(STEPS, *OPTIONS, *TWO_RANKS)
    run.await_step(1, process)
    time.sleep(0.7 * random.random())
    process.kill()
    process.communicate()
    await_true(lambda: not run.processes(), 120.0)

    # A checkpoint that was cut off must not be taken for a whole one, whatever verl's own note says.
    broken = run.out / "grpo" / "checkpoints" / "global_step_9" / "actor"
    broken.mkdir(parents=True)
    (broken / "model_world_size_2_rank_0.pt").write_bytes(b"PK")
    (broken.parents[1] / "latest_checkpointed_iteration.txt").write_text("9")
    done = run.finish(STEPS, *OPTIONS, *TWO_RANKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stage 1/4 data: done before" in done.stdout
    assert any(f"going on after step {step}\n" in done.stdout for step in range(1, STEPS)), done.stdout
    assert not broken.exists()
    await_true(lambda: not run.processes(), 120.0)


@pytest.mark.slow
def test_a_run_that_was_stopped_moved_and_ended_by_a_gate_exports_its_best(tmp_path: Path, model_folder: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=8, heldout=4)
    options = (*OPTIONS, "trainer.max_actor_ckpt_to_keep=1")
    before = Run(tmp_path / "before", sessions, model_folder)
    process = before.start(50, *options)
    before.await_step(3, process)
    os.kill(process.pid, signal.SIGUSR1)
    output, errors = process.communicate()
    assert process.returncode == NOT_FINISHED, output + errors
    kept = checkpoints(before)
    best = max(step for step in kept if step % 2 == 0)  # of the validated steps, which all earn nothing
    assert len(kept) <= 2, "the newest and the best"

    run = replace(before, out=tmp_path / "moved")
    before.out.rename(run.out)
    # As if that step had earned all there is; the next validation is then a fall.
    lines = [record | ({"heldout/reward": 1.0} if record["step"] == best else {}) for record in run.records()]
    (run.out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = run.finish(50, *options)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"going on after step {kept[-1]}\n" in ended.stdout and "moved" in ended.stdout
    assert "stopped at a gate" in ended.stderr and "the held-out reward fell from 1.000 to 0.000" in ended.stderr
    last = run.records()[-1]["step"]
    assert checkpoints(run) == [best, last] and kept[-1] < last < kept[-1] + 4

    done = run.finish(last + 1, *options, "deltamem.gates.heldout_drop=null")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"export: step {best}, the best of those kept by held-out reward (1.000)" in done.stdout
    assert checkpoints(run) == [best, last + 1]
    assert f"step {best}" in (run.out / "policy" / "README.md").read_text().split("\n## ", 1)[0]
    await_true(lambda: not run.processes(), 120.0)


def checkpoints(run: Run) -> list[int]:
    """The steps that are saved."""
    return sorted(step_of(path) for path in (run.out / "grpo" / "checkpoints").glob("global_step_*"))


@pytest.mark.slow
def test_failing_rollouts_end_the_run_with_one_sentence(tmp_path: Path, model_folder: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=8, heldout=4)
    done = Run(tmp_path / "run", sessions, model_folder).finish(2, "data.max_prompt_length=40")
    assert done.returncode == 1
    assert "rollouts of one step failed" in done.stderr and "max_prompt_length=40" in done.stderr
    assert "Traceback" not in done.stderr
