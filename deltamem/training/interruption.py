"""How a run is ended or kept alone: signals, save and stop, a process apart and its end, the folder's lock."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from deltamem.errors import DeltaMemError
from deltamem.training.checkpoints import latest_complete, step_of

_LOOK_AGAIN_SECONDS = 0.2


@contextmanager
def locked(path: Path, *, patience: float) -> Iterator[int]:
    """Hold the lock of a file; the kernel releases it when the last process that holds it has ended, however it ended.

    Not `filelock`: that keeps its descriptor private, and a child process must inherit it to hold the lock until it ends.
    Waits `patience` seconds for another holder, and yields the file descriptor.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise DeltaMemError(
                        f"{path.parent}: another run is at work there; wait for it, end it, or choose another deltamem.out"
                    ) from None
                time.sleep(_LOOK_AGAIN_SECONDS)
        yield file.fileno()


_ORDERLY_SECONDS = 20.0
"""How long the end after SIGTERM may take."""


def end_with_parent() -> None:
    """End this process group soon after the parent has ended, however that happened.

    The parent holds the other end of this process's standard input, and this process leads its group.
    """

    def watch() -> None:
        # Nothing is ever written: this returns when the kernel closes the parent's end.
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORDERLY_SECONDS)
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()


NOT_FINISHED = os.EX_TEMPFAIL
"""Exit code of a run that stopped on request; the same command continues it."""


def listen() -> None:
    """Let SIGTERM and SIGUSR1 end this process cleanly, with exit codes 143 and `NOT_FINISHED`."""

    def end(sentence: str, code: int) -> None:
        print(sentence, file=sys.stderr)
        raise SystemExit(code)

    complete = "terminated; the same command goes on from the last complete checkpoint"
    # Stages without checkpoints start over, so there is nothing to wait for.
    stage = "stopped; the same command goes on with the stage that was under way"
    signal.signal(signal.SIGTERM, lambda *_arguments: end(complete, 128 + signal.SIGTERM))
    signal.signal(signal.SIGUSR1, lambda *_arguments: end(stage, NOT_FINISHED))


@contextmanager
def on_request(action: Callable[[], None]) -> Iterator[None]:
    """Let SIGUSR1 call `action` inside the block, every time that it comes."""
    before = signal.signal(signal.SIGUSR1, lambda *_arguments: action())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def blocked(*numbers: signal.Signals) -> Iterator[None]:
    """Block signals inside; they stay blocked in processes that are started there.

    A signal may reach all processes of a terminal or a job, also those that have no handler yet.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


Result = TypeVar("Result")


def apart(work: Callable[..., Result], *arguments: Any) -> Result:
    """Run a function in a process of its own, for what CUDA takes of a GPU stays taken until a process ends.

    SIGINT and SIGUSR1 do not reach that process: they are for this one to handle. It ends with this one, however that ends.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_follow_parent) as pool:
        with blocked(signal.SIGINT, signal.SIGUSR1):
            future = pool.submit(work, *arguments)
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise DeltaMemError(
                "a process of the run was killed, perhaps because memory ran out; the same command goes on"
            ) from error
        except BaseException:
            for child in active_children():
                child.terminate()
            raise


def _follow_parent() -> None:
    """In a process of `apart`: let SIGTERM end the work in an orderly way, and end without a parent."""
    signal.signal(signal.SIGTERM, lambda *_arguments: sys.exit(128 + signal.SIGTERM))
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()


class StoppedError(DeltaMemError):
    """The trainer ends on request; all that it has learned is in a checkpoint."""


class SaveAndStop:
    """Makes the trainer save at the end of the step in which a request comes, wherever in the step it is, and end then."""

    def __init__(self, request: Path, config: DictConfig | Any) -> None:
        """Watch for the file of a request; ``trainer.save_freq`` in the trainer's own `config` then follows it."""
        self._request = request
        self._checkpoints = Path(config.trainer.default_local_dir)
        frequency = config.trainer.save_freq
        # verl looks at the frequency when a step ends, and an interpolation is computed at every look.
        OmegaConf.register_new_resolver("save_freq_now", lambda: 1 if request.exists() else frequency, replace=True)
        config.trainer.save_freq = "${save_freq_now:}"

    def check(self, step: int) -> None:
        """Call before training step `step` and while it samples.

        Raises:
            StoppedError: If there is a request, and all steps before this one are in a checkpoint.
        """
        if self._request.exists():
            last = latest_complete(self._checkpoints)
            if step - 1 == (0 if last is None else step_of(last)):
                raise StoppedError("a request to stop; what was learned is saved, and the same command goes on from there")
