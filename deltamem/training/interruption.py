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

from omegaconf import DictConfig

from deltamem.errors import DeltaMemError

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


Result = TypeVar("Result")


def apart(work: Callable[..., Result], *arguments: Any) -> Result:
    """Run a function in a process of its own, for what CUDA takes of a GPU stays taken until a process ends.

    SIGINT and SIGUSR1 do not reach that process: they are for this one to handle. It ends with this one, however that ends.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_follow_parent) as pool:
        # Blocked signals stay blocked in a new process. They may reach all processes of a terminal or a job.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1})
        try:
            future = pool.submit(work, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
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
    """The trainer has saved a checkpoint on request, and ends."""


class SaveAndStop:
    """Makes the trainer save at the end of the step in which the request comes, and end before the next."""

    def __init__(self, request: Path, config: DictConfig | Any) -> None:
        """Watch for the file of a request; of the trainer's own `config` it reads ``trainer.save_freq`` at every step."""
        self._request = request
        self._config = config
        self._saves = False

    def before_step(self) -> None:
        """Call before a training step; raises `StoppedError` if the step before was the last, and was saved."""
        if self._saves:
            raise StoppedError("a checkpoint was asked for and saved; the same command goes on from there")

    def during_step(self) -> None:
        """Call while a training step is under way, before its end."""
        if self._request.exists():
            self._saves = True
            # verl saves where the step is a multiple of this.
            self._config.trainer.save_freq = 1
