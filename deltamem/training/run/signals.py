"""What signals mean to a run.

SIGUSR1 asks for a checkpoint and an end; SIGTERM and Ctrl-C end at once. In each case the same command goes on later.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

NOT_FINISHED = os.EX_TEMPFAIL
"""Exit code of a run that was asked to end and goes on when the same command is given again."""


def listen() -> None:
    """Let SIGTERM and SIGUSR1 end this process in order, with exit codes 143 and `NOT_FINISHED`."""
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGUSR1, _asked)


def _terminated(*_arguments: Any) -> NoReturn:
    print("terminated; the same command goes on from the last complete checkpoint", file=sys.stderr)
    raise SystemExit(128 + signal.SIGTERM)


def _asked(*_arguments: Any) -> NoReturn:
    # Stages outside of GRPO begin again, so there is nothing to wait for.
    print("stopped; the same command goes on with the stage that was under way", file=sys.stderr)
    raise SystemExit(NOT_FINISHED)


@contextmanager
def on_request(action: Callable[[], None]) -> Iterator[None]:
    """Let SIGUSR1 do something else for a while; a repetition does it again."""
    before = signal.signal(signal.SIGUSR1, lambda *_arguments: action())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
