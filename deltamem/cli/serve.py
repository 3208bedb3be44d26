"""The commands of the server: serve, pause and resume."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from deltamem.cli.keys import open_keys
from deltamem.cli.model import available_model, episode_of, load_embedder
from deltamem.cli.options import Options, check_bank, store
from deltamem.cli.output import Display, note
from deltamem.errors import DeltaMemError
from deltamem.journal.journal import JOURNAL_FILE, Journal

if TYPE_CHECKING:
    from deltamem.server.keys import Keys
    from deltamem.server.service import ServerSettings

_INSTALL = "the server needs packages that are not installed; install them with: pip install 'deltamem[serve]'"


def serve(
    options: Options,
    host: Annotated[str, typer.Option("--host", envvar="DELTAMEM_HOST", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", envvar="DELTAMEM_PORT", min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 8377,
    rate: Annotated[
        str, typer.Option("--rate", envvar="DELTAMEM_RATE", metavar="RATE", help="What one key may ask; 'off' for no limit.")
    ] = "1200/minute",
    body: Annotated[
        int, typer.Option("--max-body", envvar="DELTAMEM_MAX_BODY", min=1, metavar="MIB", help="Largest request body.")
    ] = 8,
    parallel: Annotated[
        int,
        typer.Option("--parallel", envvar="DELTAMEM_PARALLEL", min=1, metavar="N", help="Sessions that are read at once."),
    ] = 4,
    *,
    further: Mapping[str, object],
) -> None:
    """Serve the memories of many owners over HTTP; see docs/serving.md.

    Without an API key (`deltamem keys create`) it serves this machine only. Without a model it stores and searches, and
    reads no sessions.
    """
    try:
        from deltamem.jobs import WorkerSettings
        from deltamem.server.access import is_loopback
        from deltamem.server.runner import event_loop
        from deltamem.server.service import ServerSettings
    except ImportError as error:
        raise DeltaMemError(_INSTALL) from error
    with open_keys(options, create=True) as keys:
        if keys.none and not is_loopback(host):
            raise DeltaMemError(
                f"{host} can be reached from other machines, and there is no API key; make one with: deltamem keys create"
            )
        settings = ServerSettings(
            max_body_bytes=body * 2**20,
            rate_limit=None if rate == "off" else rate,
            worker=WorkerSettings(parallel=parallel),
            plugins=further,
        )
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(_serve(options, keys, host, port, settings))


async def _serve(options: Options, keys: Keys, host: str, port: int, settings: ServerSettings) -> None:
    from deltamem.manager import ManagerSettings
    from deltamem.server.app import create_app
    from deltamem.server.runner import listen, run, tracing

    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("deltamem").setLevel(logging.INFO)
    try:
        listening = listen(host, port)
    except OSError as error:
        raise DeltaMemError(f"cannot listen at {host} port {port}: {error.strerror or error}") from error
    episode = episode_of(options.checkpoint)
    async with available_model(options, thinking=episode.thinking) as (policy, window):
        with Display() as display, store(options, create=True, progress=display.rebuilding) as opened:
            await asyncio.to_thread(load_embedder, opened)
            manager = ManagerSettings(options.person, episode, window_tokens=window)
            app = create_app(opened, policy, keys=keys, settings=settings, manager_settings=manager)
            address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
            how = "no model" if policy is None else policy.name
            who = "no API keys, so for this machine only" if keys.none else "API keys are required"
            with tracing():
                await run(app, listening, started=lambda: note(f"serving {options.bank} at {address} ({how}; {who})"))


def pause(options: Options) -> None:
    """Ask the model nothing from now on; sessions are still taken on and wait. A server that runs obeys at once."""
    _switch(options, paused=True)


def resume(options: Options) -> None:
    """Go on reading sessions after `pause`."""
    _switch(options, paused=False)


def _switch(options: Options, *, paused: bool) -> None:
    check_bank(options)
    with Journal.open(options.bank / JOURNAL_FILE) as journal:
        journal.queue.pause(paused)
        counts = journal.queue.counts()
    waiting = sum(count for state, count in counts.items() if state in ("queued", "running"))
    sentence = f"{'paused' if paused else 'going on'}; {waiting} sessions wait"
    options.report({"paused": paused, "waiting": waiting}, [sentence])
