"""What an interruption may leave behind: a request to stop, a trainer without its launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from deltamem.errors import DeltaMemError
from deltamem.training.interruption import NOT_FINISHED, SaveAndStop, StoppedError, apart, locked, on_request


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
        "import time; from deltamem.training.interruption import listen; listen(); print(1, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=300)
    assert process.returncode == code
    assert errors.count("\n") == 1 and "the same command goes on" in errors


def refuse() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGINT)
    raise DeltaMemError("no")


def test_work_apart_gives_its_result_its_error_or_a_sentence_of_its_end() -> None:
    assert apart(os.getpid) != os.getpid()
    with pytest.raises(DeltaMemError, match="no"):  # and signals do not reach it
        apart(refuse)
    with pytest.raises(DeltaMemError, match="was killed, perhaps because memory ran out"):
        apart(os._exit, 1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def await_end(process: int) -> None:
    """Return when a process has ended, also if nobody waits for it."""
    with suppress(OSError):  # it may go between two looks, or while it is looked at
        while ") Z " not in Path(f"/proc/{process}/stat").read_text():
            time.sleep(0.1)


_APART = """
from deltamem.training.interruption import apart, listen
listen()
apart(exec, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGINT"])
def test_work_apart_ends_with_whoever_began_it(name: str) -> None:
    program = [sys.executable, "-c", _APART]
    process = subprocess.Popen(
        program,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # A shell without job control starts what it puts into the background deaf to interrupts, and that is inherited.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(getattr(signal, name))
    process.wait()
    await_end(child)


_LAUNCHER = """
import subprocess, sys, time
from pathlib import Path
from deltamem.training.interruption import locked
with locked(Path(sys.argv[1]), patience=0.0) as lock:
    command = [sys.executable, "-c", sys.argv[2]]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(lock,), start_new_session=True)
    print(child.pid, flush=True)
    time.sleep(600)
"""
_CHILD = "import deltamem.training.interruption as parent, time; parent.end_with_parent(); time.sleep(600)"


def launch(path: Path, child: str) -> tuple[subprocess.Popen[str], int]:
    """A launcher that holds the lock, and the id of its child."""
    command = [sys.executable, "-c", _LAUNCHER, str(path), child]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    return launcher, int(launcher.stdout.readline())


@pytest.mark.slow
def test_a_trainer_ends_with_its_launcher_and_holds_the_lock_until_then(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    end = tmp_path / "end"
    launcher, _ = launch(path, f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(0.05)")
    launcher.kill()
    launcher.wait()
    with pytest.raises(DeltaMemError, match="another run is at work"), locked(path, patience=0.0):
        pass
    end.touch()
    with locked(path, patience=120.0):
        pass

    launcher, child = launch(path, _CHILD)
    time.sleep(0.5)
    assert Path(f"/proc/{child}").exists()
    launcher.kill()
    launcher.wait()
    with locked(path, patience=120.0):
        await_end(child)
