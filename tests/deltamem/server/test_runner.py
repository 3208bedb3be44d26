"""What holds while the server runs."""

import asyncio
import gc
import os
import signal
from pathlib import Path

import httpx
from episode_texts import WordEmbedder

from deltamem.bank.store import MemoryStore
from deltamem.server.app import create_app
from deltamem.server.runner import event_loop, listen, run


def test_while_it_serves_the_collector_rests_and_the_loop_is_the_fast_one(tmp_path: Path) -> None:
    gc.unfreeze()  # what tests/conftest.py froze
    before = gc.get_threshold(), 0
    seen = []

    async def serve() -> None:
        listening = listen("127.0.0.1", 0)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/health/live"
        started = asyncio.Event()
        with MemoryStore.open(tmp_path, WordEmbedder()) as store:
            serving = asyncio.create_task(run(create_app(store, None, keys=None), listening, started=started.set))
            await started.wait()
            async with httpx.AsyncClient() as client:
                assert (await client.get(address)).status_code == 200
            seen.append((gc.get_threshold()[0] > before[0][0], gc.get_freeze_count() > before[1]))
            seen.append(type(asyncio.get_running_loop()).__module__)
            os.kill(os.getpid(), signal.SIGTERM)
            await serving

    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(serve())
    assert seen == [(True, True), "uvloop"]
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
