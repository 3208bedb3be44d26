"""TensorBoard's own event files read back, and wandb without a network."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from deltamem.errors import DeltaMemError
from deltamem.training.metrics import Trackers, check_trackers, open_trackers


def run(names: list[str], out: Path, steps: range, first_step: int, offset: float = 0.0) -> list[str]:
    """An attempt of a run that logs these steps; returns the warnings."""
    warnings: list[str] = []
    trackers = open_trackers(names, out, first_step=first_step, config={"seed": 1}, warn=warnings.append)
    for step in steps:
        trackers.add({"step": step, "train/reward": step / 10 + offset, "seconds/step": 2.0})
    trackers.close()
    return warnings


def shown(folder: Path) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"train/reward", "seconds/step"}
    return [(event.step, round(event.value, 3)) for event in events.Scalars("train/reward")]


def test_tensorboard_shows_no_step_twice_after_a_resume(tmp_path: Path) -> None:
    assert run(["tensorboard"], tmp_path, range(6), first_step=0) == []
    # The checkpoint was that of step 3; steps 4 and 5 are made again.
    assert run(["tensorboard"], tmp_path, range(4, 8), first_step=4, offset=1.0) == []
    assert shown(tmp_path / "tensorboard") == [
        (0, 0.0),
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
        (4, 1.4),
        (5, 1.5),
        (6, 1.6),
        (7, 1.7),
    ]


def test_tensorboard_begins_anew_with_the_run(tmp_path: Path) -> None:
    run(["tensorboard"], tmp_path, range(3), first_step=0)
    run(["tensorboard"], tmp_path, range(2), first_step=0, offset=1.0)
    assert shown(tmp_path / "tensorboard") == [(0, 1.0), (1, 1.1)]


@pytest.fixture
def fresh_wandb() -> Iterator[None]:
    """wandb reads its environment once in a process."""
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.mark.usefixtures("fresh_wandb")
def test_wandb_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert run(["wandb"], tmp_path, range(2), first_step=0) == []
    run_id = (tmp_path / "wandb_id").read_text()
    assert run(["wandb"], tmp_path, range(2, 4), first_step=2) == []
    assert (tmp_path / "wandb_id").read_text() == run_id
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert {path.name for path in files} == {f"run-{run_id}.wandb"}
    written = b"".join(path.read_bytes() for path in files)
    assert b"train/reward" in written and b"seconds/step" in written


@pytest.mark.usefixtures("fresh_wandb")
def test_a_wandb_that_nobody_is_logged_in_to_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (warning,) = run(["wandb"], tmp_path, range(2), first_step=0)
    assert warning.startswith("wandb does not start, training goes on without it:") and "\n" not in warning


class Broken:
    """Fails from its second step on."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def log(self, step: int, values: Any) -> None:
        self.calls.append(step)
        if step > 0:
            raise OSError(28, "No space\nleft")

    def close(self) -> None:
        raise RuntimeError("closed already")


def test_a_tracker_that_breaks_is_given_up_with_one_warning() -> None:
    warnings: list[str] = []
    broken = Broken()
    trackers = Trackers(warnings.append)
    trackers.start("it", lambda: broken)
    for step in range(4):
        trackers.add({"step": step})
    trackers.close()
    assert broken.calls == [0, 1]
    assert warnings == ["it failed at step 1, training goes on without it: OSError: [Errno 28] No space left"]


def test_a_tracker_that_cannot_be_closed_is_told() -> None:
    warnings: list[str] = []
    trackers = Trackers(warnings.append)
    trackers.start("it", Broken)
    trackers.close()
    assert warnings == ["it could not be closed: RuntimeError: closed already"]


def test_a_missing_package_is_told_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    check_trackers(["tensorboard", "wandb"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else name)
    with pytest.raises(DeltaMemError, match=r"'deltamem.trackers': wandb is not installed; run: pip install wandb"):
        check_trackers(["tensorboard", "wandb"])
