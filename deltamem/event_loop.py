"""The event loop of commands that wait for many answers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def faster_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop, which the extras ``synth`` and ``eval`` install; None where there is none (Windows)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run_tasks(main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine that has task groups.

    Raises:
        BaseException: What failed first, instead of the groups that it came in.
    """
    with asyncio.Runner(loop_factory=faster_loop()) as runner:
        try:
            return runner.run(main())
        except BaseExceptionGroup as group:
            raise _first_cause(group) from group


def _first_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
