"""What an interruption may leave behind: half an epoch, a request to stop, a trainer without its launcher."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.utils import create_rl_sampler

from deltamem.errors import DeltaMemError
from deltamem.training.interruption import NOT_FINISHED, SaveAndStop, StoppedError, locked, on_request
from deltamem.training.launch import summary


class _Loader:
    """Takes batches as verl's trainer does, from the loader that it builds."""

    def __init__(self, rows: int, batch: int, state: bytes | None = None) -> None:
        data = list(range(rows))
        sampler = create_rl_sampler(OmegaConf.create({"shuffle": True, "seed": 5}), data)
        self._loader = StatefulDataLoader(data, batch_size=batch, num_workers=0, drop_last=True, sampler=sampler)
        self._batches: Iterator[Any] | None = None
        if state is not None:
            self._loader.load_state_dict(torch.load(io.BytesIO(state), weights_only=False))

    def take(self) -> list[int]:
        self._batches = self._batches or iter(self._loader)
        if (batch := next(self._batches, None)) is None:
            self._batches = iter(self._loader)
            batch = next(self._batches)
        return list(batch.tolist())

    def saved(self) -> bytes:
        buffer = io.BytesIO()
        torch.save(self._loader.state_dict(), buffer)
        return buffer.getvalue()


@settings(max_examples=25, deadline=None)
@given(
    batches=st.integers(1, 4),
    batch=st.integers(1, 3),
    rest=st.integers(0, 2),
    stops=st.lists(st.booleans(), min_size=11, max_size=11),
)
def test_data_come_in_the_same_order_wherever_a_run_is_interrupted(
    batches: int, batch: int, rest: int, stops: list[bool]
) -> None:
    rows = batches * batch + min(rest, batch - 1)
    straight = _Loader(rows, batch)
    expected = [straight.take() for _ in range(12)]
    loader = _Loader(rows, batch)
    seen = [loader.take()]
    for stop in stops:
        if stop:  # also at, before and after the end of an epoch
            loader = _Loader(rows, batch, loader.saved())
        seen.append(loader.take())
    assert seen == expected
    assert len({number for part in seen[:batches] for number in part}) == batches * batch


def test_a_request_saves_the_step_in_which_it_comes_and_ends_before_the_next(tmp_path: Path) -> None:
    config = OmegaConf.create({"trainer": {"save_freq": 18}})
    request = tmp_path / "stop"
    watch = SaveAndStop(request, config)
    watch.before_step()
    watch.during_step()
    assert config.trainer.save_freq == 18
    with on_request(request.touch):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)  # a repetition changes nothing
    watch.before_step()
    watch.during_step()
    assert config.trainer.save_freq == 1
    with pytest.raises(StoppedError):
        watch.before_step()


@pytest.mark.parametrize(("name", "code"), [("SIGUSR1", NOT_FINISHED), ("SIGTERM", 143)])
def test_outside_of_grpo_a_signal_ends_with_one_sentence(name: str, code: int) -> None:
    program = (
        "import time; from deltamem.training.interruption import listen; listen(); print(1, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert errors.count("\n") == 1 and "the same command goes on" in errors


def test_a_stopped_run_says_where_it_stands() -> None:
    records = [{"step": 0, "heldout/reward": 0.1}, {"step": 1, "train/reward": 0.2}, {"step": 2, "train/reward": 0.3}]
    assert summary(records, 36) == (
        "stopped with a checkpoint after step 2 of 36, reward 0.200 (step 1) -> 0.300 (step 2), "
        "held-out reward 0.100 (step 0) -> 0.100 (step 0); the same command goes on"
    )


_LAUNCHER = """
import subprocess, sys, time
from pathlib import Path
from deltamem.training.interruption import locked
with locked(Path(sys.argv[1]), patience=0.0) as lock:
    command = [sys.executable, "-c", sys.argv[2]]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(lock,), start_new_session=True)
    print(child.pid, flush=True)
    time.sleep(60)
"""
_CHILD = "import deltamem.training.interruption as parent, time; parent.end_with_parent(); time.sleep(60)"


def launch(path: Path, child: str) -> tuple[subprocess.Popen[str], int]:
    """A launcher that holds the lock, and the id of its child."""
    command = [sys.executable, "-c", _LAUNCHER, str(path), child]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    return launcher, int(launcher.stdout.readline())


@pytest.mark.slow
def test_a_trainer_ends_with_its_launcher_and_holds_the_lock_until_then(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    launcher, _ = launch(path, "import time; time.sleep(3)")
    launcher.kill()
    launcher.wait()
    with pytest.raises(DeltaMemError, match="another run is at work"), locked(path, patience=0.0):
        pass
    with locked(path, patience=30.0):  # the child has ended meanwhile
        pass

    launcher, child = launch(path, _CHILD)
    time.sleep(0.5)
    assert Path(f"/proc/{child}").exists()
    launcher.kill()
    launcher.wait()
    with locked(path, patience=20.0):
        assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text()
