"""Stages, checkpoints, metrics and the launcher's words."""

from __future__ import annotations

import errno
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from deltamem.errors import DeltaMemError
from deltamem.stages import Stage, run_stages
from deltamem.training.rollout.replay_buffer import check_failures, rollout_metrics
from deltamem.training.run.checkpoints import check_space, latest_complete, parameter_count, remove_incomplete
from deltamem.training.run.child import reason
from deltamem.training.run.launch import last_words
from deltamem.training.run.progress import MetricsFile, Tail, convert, read_metrics


def write_checkpoint(folder: Path, step: int) -> Path:
    checkpoint = folder / f"global_step_{step}"
    (checkpoint / "actor").mkdir(parents=True)
    for kind in ("model", "optim", "extra_state"):
        torch.save({"a": torch.ones(3)}, checkpoint / "actor" / f"{kind}_world_size_1_rank_0.pt")
    torch.save({}, checkpoint / "data.pt")
    (checkpoint / "actor" / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    return checkpoint


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    assert latest_complete(tmp_path) is None
    write_checkpoint(tmp_path, 9)
    write_checkpoint(tmp_path, 10)
    cut_off = write_checkpoint(tmp_path, 11) / "actor" / "optim_world_size_1_rank_0.pt"
    cut_off.write_bytes(cut_off.read_bytes()[:-40])
    (write_checkpoint(tmp_path, 12) / "data.pt").unlink()
    assert latest_complete(tmp_path) == tmp_path / "global_step_10"
    remove_incomplete(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"global_step_9", "global_step_10"}


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_no_space_is_one_sentence_before_the_start(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = parameter_count(model_folder)
    assert parameters is not None
    need = parameters * (12 * 3 + 4)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**9, 0, need - 1))
    with pytest.raises(DeltaMemError, match="need about"):
        check_space(tmp_path, model_folder, keep=2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**9, 0, need))
    check_space(tmp_path, model_folder, keep=2)
    check_space(tmp_path, Path("Qwen/Qwen3-8B"), keep=2)  # nothing is known of a model that is not a folder


def test_stages_run_once_and_again_when_their_inputs_change(tmp_path: Path) -> None:
    ran: list[str] = []

    def stage(name: str, **inputs: Any) -> Stage:
        output = tmp_path / name

        def work() -> None:
            ran.append(name)
            output.write_text(name)

        return Stage(name, inputs, work, output)

    def run(*stages: Stage) -> list[str]:
        ran.clear()
        run_stages(stages, tmp_path / "stages", lambda _line: None)
        return list(ran)

    assert run(stage("a", x=1), stage("b", y=1)) == ["a", "b"]
    assert run(stage("a", x=1), stage("b", y=1)) == []
    assert run(stage("a", x=1), stage("b", y=2)) == ["b"]
    assert run(stage("a", x=2), stage("b", y=2)) == ["a", "b"], "b depends on a"
    (tmp_path / "a").unlink()
    assert run(stage("a", x=2), stage("b", y=2)) == ["a"]


def test_a_failed_stage_is_not_done(tmp_path: Path) -> None:
    def fail() -> None:
        raise DeltaMemError("no")

    with pytest.raises(DeltaMemError, match="no"):
        run_stages([Stage("a", {}, fail, tmp_path)], tmp_path / "stages", lambda _line: None)
    assert list((tmp_path / "stages").iterdir()) == []


def test_metrics_are_renamed_and_not_repeated_after_a_resume(tmp_path: Path) -> None:
    data = {
        "deltamem/reward": 0.5,
        "val-core/deltamem/reward/mean@1": 0.4,
        "val-aux/deltamem/count/queries/mean@1": 2.0,
        "timing_s/step": 3.0,
        "perf/mfu/actor": 0.0,
    }
    record = convert(4, data)
    assert record == {
        "step": 4,
        "train/reward": 0.5,
        "heldout/reward": 0.4,
        "heldout/count/queries": 2.0,
        "seconds/step": 3.0,
    }
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, from_step=None)
    for step in range(6):
        first.add({"step": step})
    second = MetricsFile(path, from_step=3)  # steps 4 and 5 were lost with the process
    for step in (3, 4, 5):
        second.add({"step": step, "again": True})
    assert [entry["step"] for entry in read_metrics(path)] == [0, 1, 2, 3, 4, 5]
    assert [entry["step"] for entry in read_metrics(path) if "again" in entry] == [4, 5]


def test_tail_takes_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "verl.jsonl"
    tail = Tail(path)
    assert list(tail.records()) == []
    path.write_text(json.dumps({"step": 1, "data": {}}) + '\n{"step": 2, "da')
    assert [record["step"] for record in tail.records()] == [1]
    path.write_text(json.dumps({"step": 1, "data": {}}) + "\n" + json.dumps({"step": 2, "data": {}}) + "\n")
    assert [record["step"] for record in tail.records()] == [2]


def test_failure_threshold_and_rates() -> None:
    check_failures(Counter({"a": 1}), 20, 0.05)
    with pytest.raises(DeltaMemError, match=r"2 of 20 rollouts .* most often: a"):
        check_failures(Counter({"a": 2}), 20, 0.05)
    figures = [
        {"format": 1.0, "count/add_for_update": 1.0, "count/due_updates": 2.0},
        {"format": 0.0, "count/add_for_update": 0.0, "count/due_updates": 1.0},
        {"failure": 1.0},
    ]
    rates = {"add_for_update": ("count/add_for_update", "count/due_updates"), "none": ("count/x", "count/y")}
    means = rollout_metrics(figures, rates)
    assert means["format"] == 0.5
    assert means["add_for_update"] == pytest.approx(1 / 3)
    assert "none" not in means


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
