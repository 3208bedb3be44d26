"""The command `mcp`: one owner's memory for a program on this machine that speaks the Model Context Protocol."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Annotated, Any

import typer

from deltamem.cli.model import available_model, episode_of
from deltamem.cli.options import Options, store
from deltamem.cli.output import Display, utf8
from deltamem.errors import DeltaMemError

_GRACE = 1.0


def mcp(
    options: Options,
    actor: Annotated[
        str, typer.Option("--actor", envvar="DELTAMEM_ACTOR", metavar="NAME", help="Who writes; the journal records it.")
    ] = "mcp",
) -> None:
    """Serve the memory to an MCP client over standard input and output; see docs/serving.md.

    Clients start this command themselves. Without a model, what is added is stored word for word.
    """
    owner = options.required_owner
    try:
        import deltamem.server.mcp  # noqa: F401 - whether it is installed
    except ImportError as error:
        raise DeltaMemError(
            "MCP needs packages that are not installed; install them with: pip install 'deltamem[serve]'"
        ) from error
    code = asyncio.run(_mcp(options, owner, utf8(actor, "the actor")))
    sys.stderr.flush()
    # The bank is closed. What is left are threads that wait for input or load the embedding model, and cannot be stopped.
    os._exit(code)


async def _mcp(options: Options, owner: str, actor: str) -> int:
    from deltamem.jobs import WorkerSettings
    from deltamem.manager import ManagerSettings
    from deltamem.server.mcp import serve_stdio
    from deltamem.server.service import ServerSettings, Service

    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    episode = episode_of(options.checkpoint)
    # Clients kill what has not ended after some seconds. A session that is handed back is read at the next start.
    settings = ServerSettings(worker=WorkerSettings(grace=_GRACE))
    async with AsyncExitStack() as stack:
        with _diverted():
            policy, window = await stack.enter_async_context(available_model(options, thinking=episode.thinking))
            display = stack.enter_context(Display())
            opened = stack.enter_context(store(options, create=True, progress=display.rebuilding))
            manager = ManagerSettings(options.person, episode, window_tokens=window)
            service = await stack.enter_async_context(Service(opened, policy, manager, settings))
        return await _until_ended(serve_stdio(service, owner, actor))


@contextmanager
def _diverted() -> Iterator[None]:
    """Lead what libraries write to standard output to standard error; while it serves, the SDK does the same."""
    wire = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(wire, 1)
        os.close(wire)


async def _until_ended(serving: Coroutine[Any, Any, None]) -> int:
    """Serve until the input ends or a signal comes, which the SDK does not notice while it waits for input."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    task, waiting = asyncio.ensure_future(serving), asyncio.ensure_future(stopped.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
    return 0
