"""Stages that run once, rollouts that fail, and the reason of a failed run in one sentence."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deltamem.errors import DeltaMemError
from deltamem.runs import Stage, run_stages
from deltamem.training.launch import last_words
from deltamem.training.replay_buffer import check_failures
from deltamem.training.trainer_process import reason


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
