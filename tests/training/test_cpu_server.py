"""The sampler of verl on a CPU, without verl's trainer around it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from deltamem.training.cpu.server import CpuServer


async def test_a_cancelled_request_does_not_stop_the_others(model_folder: Path) -> None:
    server = CpuServer(model_path=str(model_folder), max_length=64, max_batch=8, seed=0, threads=1)

    def ask(name: str) -> asyncio.Task[object]:
        return asyncio.create_task(server.generate([5, 6, 7], {"max_tokens": 4, "temperature": 1.0}, name))

    given_up, waiting = ask("given up"), ask("waiting")
    await asyncio.sleep(0)
    given_up.cancel()
    answer = await asyncio.wait_for(waiting, timeout=60)
    assert 1 <= len(answer.token_ids) <= 4  # type: ignore[attr-defined]
    later = await asyncio.wait_for(ask("later"), timeout=60)
    assert later.token_ids  # type: ignore[attr-defined]
