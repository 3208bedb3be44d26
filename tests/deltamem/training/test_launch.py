"""Stages that run once, rollouts that fail, and the reason of a failed run in one sentence."""

from __future__ import annotations

import errno
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from deltamem.errors import DeltaMemError
from deltamem.runs import Stage, run_stages
from deltamem.training.launch import last_words
from deltamem.training.replay_buffer import check_failures
from deltamem.training.trainer_process import reason


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
