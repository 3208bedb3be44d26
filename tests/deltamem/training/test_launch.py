"""Stages that run once, rollouts that fail, and the reason of a failed run in one sentence."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_cases import write_checkpoint
from lazy import names
from omegaconf import OmegaConf
from preflight_cases import changed, placed
from rich.console import Console

from deltamem.errors import DeltaMemError
from deltamem.runs import RunStoppedError, Stage, run_stages
from deltamem.training import launch
from deltamem.training.launch import TrainingFailedError, changed_since, last_words, run_grpo, summary
from deltamem.training.metrics import read_metrics

check_failures = names("deltamem.training.replay_buffer", "check_failures")
reason = names("deltamem.training.trainer_process", "reason")


def test_stages_run_once_and_again_when_their_inputs_change(tmp_path: Path) -> None:
    ran: list[str] = []

    def run(**inputs: int) -> list[str]:
        """The stages that ran, of those named, each with its input."""
        ran.clear()

        def work(name: str) -> None:
            ran.append(name)
            if inputs[name] < 0:
                raise DeltaMemError("no")
            (tmp_path / name).touch()

        stages = [Stage(name, {"x": value}, partial(work, name), tmp_path / name) for name, value in inputs.items()]
        run_stages(stages, tmp_path / "stages", lambda _line: None)
        return list(ran)

    assert run(a=1, b=1) == ["a", "b"]
    assert run(a=1, b=1) == []
    assert run(a=1, b=2) == ["b"]
    assert run(a=2, b=2) == ["a", "b"], "b depends on a"
    (tmp_path / "a").unlink()
    assert run(a=2, b=2) == ["a"]
    for _ in range(2):  # a failed stage is not done
        with pytest.raises(DeltaMemError, match="no"):
            run(a=-1)


def test_a_run_goes_on_with_other_resources_and_says_so_but_with_nothing_else(tmp_path: Path) -> None:
    path, model = tmp_path / "grpo" / "identity.json", "actor_rollout_ref"
    spared = {
        **{f"{model}.rollout.gpu_memory_utilization": 0.3, f"{model}.actor.ppo_max_token_len_per_gpu": 9000},
        **{"deltamem.embedder.device": "cuda:0", "deltamem.max_failure_rate": 0.2, "ray_kwargs.ray_init.num_cpus": 16},
        **{f"{model}.actor.fsdp_config.optimizer_offload": True, "trainer.total_epochs": 2},
    }

    def changes(values: Mapping[str, Any], resuming: bool = True) -> list[str]:
        return changed_since(path, changed(values)[0], resuming=resuming)

    assert changes({}, resuming=False) == changes({}) == []
    said = changes(spared)
    assert f"{model}.rollout.gpu_memory_utilization=0.3 (was 0.45)" in said
    assert {change.partition("=")[0] for change in said} == spared.keys()
    for other, sentence in (
        ({"data.train_batch_size": 32, f"{model}.actor.ppo_mini_batch_size": 32}, r"_size=32 \(was 64\) and 1 more"),
        ({"trainer.n_gpus_per_node": 2}, r"n_gpus_per_node=2 \(was 1\)\)"),
        ({"deltamem.seed": 2}, "seed=2"),
    ):
        with pytest.raises(DeltaMemError, match=sentence):
            changes(spared | other)
    path.write_text("{")
    with pytest.raises(DeltaMemError, match="another configuration"):
        changes(spared)


def test_a_run_goes_on_after_its_folder_was_moved_and_with_keys_that_are_new(tmp_path: Path) -> None:
    groups = ("+experiment=qwen0_6b", "deltamem.out=/PLACE", "deltamem.sessions=/PLACE/data/sessions.jsonl")
    old, moved, model = tmp_path / "old", tmp_path / "moved", tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")

    def changes(out: Path, given: Sequence[str] = (), *, resuming: bool = True, **values: Any) -> list[str]:
        named = {"actor_rollout_ref.model.path": str(model)} | {key.replace("__", "."): one for key, one in values.items()}
        config, _ = placed(out, *groups, values=named)
        return changed_since(out / "identity.json", config, resuming=resuming, given=given)

    changes(old, resuming=False)
    old.rename(moved)
    model = model.rename(tmp_path / "elsewhere")
    said = changes(moved)
    assert f'actor_rollout_ref.model.path="{model}" (was "{tmp_path / "model"}")' in said and len(said) == 1
    # Where a run is reported, profiled and dumped says nothing about what it computes.
    for key in ("trainer.rollout_data_dir", "global_profiler.tool", "actor_rollout_ref.actor.profiler.enable"):
        assert [one.partition("=")[0] for one in changes(moved, **{key: "x"})] == [key]
        changes(moved)
    # A key that a newer version adds has its default, unless the command line names it.
    assert changes(moved, data__later__option=1) == ["data.later.option=1 (was not set)"]
    for given in ("data.later.more", "data.later"):
        with pytest.raises(DeltaMemError, match=r"later\.more=2"):
            changes(moved, [given], data__later__option=1, data__later__more=2)
    with pytest.raises(DeltaMemError, match=r"data\.later\.option=no more"):
        changes(moved)
    (model / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(DeltaMemError, match=r"files of actor_rollout_ref\.model\.path"):
        changes(moved, data__later__option=1)


def test_validated_steps_that_are_not_saved_are_told() -> None:
    pairs = [(15, 15), (1, 15), (-1, 15), (15, -1), (15, 10)]
    configs = [OmegaConf.create({"save_freq": saves, "test_freq": tests}) for saves, tests in pairs]
    found = [launch.unsaved_validations(config) for config in configs]
    assert found[:-1] == [None] * 4 and "only every 30th is saved" in (found[-1] or "")


def test_what_the_command_line_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch._given_keys() == [], "without Hydra"
    overrides = ["+experiment=qwen8b", "reward@deltamem.reward=repaired", "++data.seed=2", "deltamem.out=a=b"]
    found = SimpleNamespace(overrides=SimpleNamespace(task=overrides))
    monkeypatch.setattr(launch, "HydraConfig", SimpleNamespace(initialized=lambda: True, get=lambda: found))
    assert launch._given_keys() == ["experiment", "deltamem.reward", "data.seed", "deltamem.out"]


Launched = Callable[[str], None]


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launched:
    """Runs a program in the trainer's place; by the clock it is as many minutes as the file ``minutes`` has bytes."""
    values = {"trainer.save_freq": -1, "trainer.total_training_steps": 1, "deltamem.start_minutes": 30}
    values |= {"deltamem.stall_minutes": 60}
    config, settings = placed(tmp_path, "+experiment=tiny", "deltamem.out=/PLACE", values=values)
    start = subprocess.Popen

    def popen(_: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return start([sys.executable, "-c", program, str(tmp_path)], **options)

    program = ""
    minutes = tmp_path / "minutes"
    minutes.touch()
    clock = SimpleNamespace(monotonic=lambda: 60.0 * minutes.stat().st_size)
    monkeypatch.setattr(launch.subprocess, "Popen", popen)
    monkeypatch.setattr(launch, "time", clock)
    (tmp_path / "logs").mkdir()

    def run(given: str) -> None:
        nonlocal program
        program = (
            "import sys, time; from pathlib import Path; folder = Path(sys.argv[1]); pulse = folder / 'grpo' / 'pulse'\n"
            f"def later(minutes): (folder / 'minutes').open('a').write(' ' * minutes)\n{given}"
        )
        run_grpo(config, settings, Console(file=io.StringIO()))

    return run


def test_a_trainer_that_does_not_begin_is_ended_with_a_sentence(launched: Launched) -> None:
    with pytest.raises(TrainingFailedError, match=r"start_minutes=30; Ray may wait for CPUs.*: waiting for CPUs \(full"):
        launched("print('waiting for CPUs', flush=True); later(31); time.sleep(7200)")


def test_a_trainer_that_gives_signs_of_life_may_take_as_long_as_it_likes(launched: Launched, tmp_path: Path) -> None:
    # They are the sampler's. They are looked for once more when the trainer has ended.
    left = tmp_path / "validation" / ".step_000015.jsonl.partial"
    left.parent.mkdir()
    left.touch()
    launched("pulse.touch()\nfor _ in range(3): later(50); pulse.touch(); time.sleep(1.2)")
    assert (tmp_path / "minutes").stat().st_size == 150
    assert not left.exists(), "what a killed validation left"


def test_a_trainer_that_hangs_is_ended_with_a_sentence(launched: Launched) -> None:
    with pytest.raises(TrainingFailedError, match=r"no progress for deltamem.stall_minutes=60, .*: update_actor \(full"):
        launched("print('update_actor', flush=True); pulse.touch(); time.sleep(2); later(61); time.sleep(7200)")


def test_a_sign_of_an_earlier_start_does_not_count(launched: Launched, tmp_path: Path) -> None:
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo" / "pulse").touch()
    with pytest.raises(TrainingFailedError, match="start_minutes=30"):
        launched("later(31); time.sleep(7200)")


@pytest.mark.parametrize(
    ("given", "used"),
    [(["console", "wandb"], ["console", "wandb", "file"]), ("tensorboard", ["tensorboard", "file"]), (["file"], ["file"])],
)
def test_metrics_and_alarms_need_no_logger_of_the_users(given: Any, used: list[str]) -> None:
    config, _ = changed({"trainer.logger": given})
    assert list(launch._for_verl(config, None, {}, True).trainer.logger) == used


def test_a_request_that_reaches_the_whole_job_is_the_launchers_alone(launched: Launched, tmp_path: Path) -> None:
    # The trainer takes most of a minute to import verl, before which it has no handler.
    launched("import os, signal; os.kill(os.getpid(), signal.SIGUSR1); (folder / 'grpo' / 'pulse').touch()")
    assert (tmp_path / "grpo" / "pulse").exists(), "it lived on"


_REPORTS = """
import json
def report(step, **figures):
    attempt = len(list((folder / "logs").glob("grpo_*.log")))
    with (folder / "logs" / f"grpo_{attempt}.jsonl").open("a") as file:
        print(json.dumps({"step": step, "data": figures}), file=file)
(folder / "grpo" / "pulse").touch()
"""
_STOPS = """
while not (folder / "grpo" / "stop").exists(): time.sleep(0.05)
sys.exit(75)
"""


def test_a_gate_asks_the_trainer_to_stop_and_is_a_failure(launched: Launched) -> None:
    # The validation before training is enough, whatever the step that is under way brings.
    cut = "report(0, **{'val-aux/deltamem/count/violations/token_limit/mean@1': 0.6}); report(1)"
    with pytest.raises(TrainingFailedError, match=r"stopped at a gate, with .* saved: step 0: a token limit ended 60% of"):
        launched(f"{_REPORTS}{cut}{_STOPS}")


def test_a_validation_that_a_killed_process_lost_is_made_up_for(launched: Launched, tmp_path: Path) -> None:
    launched(_REPORTS)
    # Killed between the checkpoint of the last step and its validation.
    write_checkpoint(tmp_path / "grpo" / "checkpoints", 1)
    launched(f"{_REPORTS}report(1, **{{'val-core/deltamem/reward/mean@1': 0.25}})")
    assert OmegaConf.load(tmp_path / "grpo" / "config.yaml").trainer.val_before_train is True
    [line] = read_metrics(tmp_path / "metrics.jsonl")
    assert line == {"step": 1, "train/reward": 0.5, "heldout/reward": 0.25}
    launched("sys.exit(1)")  # is not started again


def test_a_gate_that_is_met_at_the_end_throws_nothing_away(launched: Launched, tmp_path: Path) -> None:
    launched(f"{_REPORTS}report(0, **{{'val-aux/deltamem/count/violations/token_limit/mean@1': 0.6}})")
    [line] = read_metrics(tmp_path / "metrics.jsonl")
    assert line["heldout/count/violations/token_limit"] == 0.6


def test_a_request_of_a_person_is_no_failure(launched: Launched) -> None:
    with pytest.raises(RunStoppedError, match="stopped before the first step"):
        launched(f"{_REPORTS}(folder / 'grpo' / 'stop').touch(){_STOPS}")


def test_a_stopped_run_says_where_it_stands() -> None:
    assert (
        summary([], 36) == summary([{"step": 0}], 36) == "stopped before the first step was done; the same command goes on"
    )
    records = [{"step": 0, "heldout/reward": 0.1}, {"step": 1, "train/reward": 0.2}, {"step": 2, "train/reward": 0.3}]
    assert summary(records, 36) == (
        "stopped with a checkpoint after step 2 of 36, reward 0.200 (step 1) -> 0.300 (step 2), "
        "held-out reward 0.100 (step 0) -> 0.100 (step 0); the same command goes on"
    )


def test_failure_threshold() -> None:
    check_failures(Counter({"a": 1}), 20, 0.05)
    with pytest.raises(DeltaMemError, match=r"2 of 20 rollouts .* most often: a"):
        check_failures(Counter({"a": 2}), 20, 0.05)


def test_reasons_are_told_in_one_line(tmp_path: Path) -> None:
    remote = RuntimeError("remote stack\ntrace")
    remote.cause = DeltaMemError("the row is bad")  # type: ignore[attr-defined]
    assert reason(remote) == "the row is bad"
    assert reason(ValueError("first\nlast")) == "ValueError: last"
    assert "no space left" in reason(OSError(errno.ENOSPC, "No space left on device"))
    log = tmp_path / "log"
    log.write_text("noise\nerror: the row is bad\n(worker) bye\n")
    assert last_words(log) == "the row is bad"
    log.write_text("noise\nKilled\n")
    assert last_words(log) == "Killed"
