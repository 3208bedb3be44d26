"""Task groups under the faster loop."""

import asyncio

import pytest

from deltamem.errors import DeltaMemError
from deltamem.runs import faster_loop, run_tasks


async def fails(after: float, message: str) -> None:
    await asyncio.sleep(after)
    raise DeltaMemError(message)


async def both() -> None:
    async with asyncio.TaskGroup() as outer:
        outer.create_task(fails(10, "late"))
        async with asyncio.TaskGroup() as inner:
            inner.create_task(fails(0, "first"))


def test_gives_the_result_and_runs_on_uvloop() -> None:
    async def module() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run_tasks(module) == ("uvloop" if faster_loop() else "asyncio.unix_events")


def test_what_failed_first_comes_out_of_its_groups() -> None:
    with pytest.raises(DeltaMemError, match="first"):
        run_tasks(both)
