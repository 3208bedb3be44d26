"""Real runs of verl: an engine that never answers, a killed worker, prompts that are sampled until they have spread."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from lazy import names
from run_cases import Run, await_true
from training_cases import write_sessions

from deltamem.training.checkpoints import latest_complete

EventAccumulator = names("tensorboard.backend.event_processing.event_accumulator", "EventAccumulator")
HERE = Path(__file__).parent
COIN = "deltamem.reward._target_=stalling_engine.coin"


def a_run(folder: Path, model: Path, train: int) -> tuple[Run, Path]:
    """A run whose engine takes the next request for ever where the file is that comes with it."""
    stall = folder / "stall"
    environment = {
        **{"VERL_USE_EXTERNAL_MODULES": "stalling_engine", "PYTHONPATH": str(HERE)},
        **{"DELTAMEM_TEST_STALL": str(stall)},
    }
    sessions = write_sessions(folder / "sessions.jsonl", train=train, heldout=4)
    return Run(folder / "run", sessions, model, environment=environment), stall


def named(run: Run, name: str) -> int:
    """The process of one of Ray's actors."""
    for process in run.processes():
        if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::" + name.encode()):
            return process
    raise AssertionError(f"no {name}")


@pytest.mark.slow
def test_a_run_goes_on_without_an_answer_and_ends_by_itself_without_a_worker(tmp_path: Path, model_folder: Path) -> None:
    run, stall = a_run(tmp_path, model_folder, train=16)
    options = ("trainer.save_freq=100", "trainer.test_freq=-1", "deltamem.stall_minutes=4", "deltamem.max_failure_rate=0.5")
    options += ("trainer.logger=tensorboard", "trainer.log_val_generations=2")
    options += (f"trainer.rollout_data_dir={run.out / 'rollouts'}",)
    stall.touch()  # for the validation before the first step
    process = run.start(50, *options)
    run.await_step(2, process)
    assert not stall.exists() and run.records()[0]["step"] == 0
    assert run.records()[0]["heldout/failure"] == 0.25

    stall.touch()
    await_true(lambda: not stall.exists(), 600.0, process)
    os.kill(named(run, "AgentLoopWorkerTQ"), signal.SIGKILL)
    _, errors = process.communicate()
    done = run.records()[-1]["step"]
    assert process.returncode == 1 and "an agent loop worker has died with its rollouts" in errors
    assert f"step {done} is saved, the same command goes on from there" in errors, errors
    assert latest_complete(run.out / "grpo" / "checkpoints") == run.out / "grpo" / "checkpoints" / f"global_step_{done}"
    await_true(lambda: not run.processes(), 120.0)

    # With the prompts that the lost step had taken.
    again = run.finish(done + 2, *options)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"going on after step {done}" in again.stdout
    records = run.records()
    assert [record["data/order"] for record in records[1:]] == run.expected_orders(done + 2)
    assert all(record["train/failure"] == 0.0 for record in records[1:])
    # What was asked for besides: rollouts as text, and a table of the validation; metrics.jsonl is there without its logger.
    assert len((run.out / "rollouts" / "1.jsonl").read_text().splitlines()) == 8
    events = EventAccumulator(str(run.out / "tensorboard"))
    events.Reload()
    assert any("val/generations" in tag for tag in events.Tags()["tensors"])


DAPO = ("+algorithm=dapo", "deltamem.overlong=null", "actor_rollout_ref.actor.ppo_mini_batch_size=2")
DAPO += ("trainer.save_freq=-1", "trainer.test_freq=-1", "trainer.val_before_train=false")


@pytest.mark.slow
def test_dynamic_sampling_trains_on_prompts_with_spread_alone(tmp_path: Path, model_folder: Path) -> None:
    run, _ = a_run(tmp_path, model_folder, train=16)
    done = run.finish(2, *DAPO, COIN)
    assert done.returncode == 0, done.stdout + done.stderr
    records = run.records()
    assert [record["train/no_signal"] for record in records] == [0.0, 0.0]
    assert all(record["train/reward"] == 0.5 and record["train/grad_norm"] > 0.0 for record in records)
    assert sum(record.get("train/dropped_prompts", 0.0) for record in records) > 0
