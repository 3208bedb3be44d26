"""The commands that offer the memory to programs: serve, its API keys, pause and resume, and mcp."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from deltamem.cli.commands import Actor
from deltamem.cli.model import load_embedder, opened_bank
from deltamem.cli.options import Options, check_bank
from deltamem.cli.output import Line, Pieces, note, utf8
from deltamem.errors import DeltaMemError
from deltamem.journal.jobs import JobState
from deltamem.journal.journal import JOURNAL_FILE, Journal
from deltamem.server.keys import KEYS_FILE, Key, Keys, Scope

if TYPE_CHECKING:
    from deltamem.server.service import ServerSettings

_MCP_GRACE = 1.0
"""Seconds. Clients of MCP kill what has not ended after some; a session that is handed back is read at the next start."""


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
    with _packages("the server needs"):
        from deltamem.jobs import WorkerSettings
        from deltamem.server.access import is_loopback
        from deltamem.server.runner import event_loop
        from deltamem.server.service import ServerSettings
    with _open_keys(options, create=True) as keys:
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


@contextmanager
def _packages(who: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        message = f"{who} packages that are not installed; install them with: pip install 'deltamem[serve]'"
        raise DeltaMemError(message) from error


async def _serve(options: Options, keys: Keys, host: str, port: int, settings: ServerSettings) -> None:
    from deltamem.policy import choose_mode
    from deltamem.server.app import create_app
    from deltamem.server.runner import listen, run, tracing

    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("deltamem").setLevel(logging.INFO)
    try:
        listening = listen(host, port)
    except OSError as error:
        raise DeltaMemError(f"cannot listen at {host} port {port}: {error.strerror or error}") from error
    async with opened_bank(options, needs_model=False, serves=True) as (opened, policy, manager, _):
        await asyncio.to_thread(load_embedder, opened)
        app = create_app(opened, policy, keys=keys, settings=settings, manager_settings=manager)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        how = "no model" if policy is None else f"{policy.name}, {choose_mode(manager.mode, policy).mode}"
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
    waiting = counts[JobState.QUEUED] + counts[JobState.RUNNING]
    sentence = f"{'paused' if paused else 'going on'}; {waiting} sessions wait"
    options.report({"paused": paused, "waiting": waiting}, [sentence])


def mcp(options: Options, actor: Actor = "mcp") -> None:
    """Serve the memory to an MCP client over standard input and output; see docs/serving.md.

    Clients start this command themselves. Without a model, what is added is stored word for word.
    """
    owner = options.required_owner
    with _packages("MCP needs"):
        import deltamem.server.mcp  # noqa: F401 - whether it is installed
    code = asyncio.run(_mcp(options, owner, utf8(actor, "the actor")))
    sys.stderr.flush()
    # The bank is closed. What is left are threads that wait for input or load the embedding model, and cannot be stopped.
    os._exit(code)


async def _mcp(options: Options, owner: str, actor: str) -> int:
    from deltamem.jobs import WorkerSettings
    from deltamem.server.mcp import serve_stdio
    from deltamem.server.service import ServerSettings, Service

    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    settings = ServerSettings(worker=WorkerSettings(grace=_MCP_GRACE))
    async with AsyncExitStack() as stack:
        with _diverted():
            opened, policy, manager, _ = await stack.enter_async_context(opened_bank(options, needs_model=False))
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


def _open_keys(options: Options, *, create: bool = False) -> Keys:
    """The API keys of a bank, which looking never makes."""
    path = options.bank / KEYS_FILE
    if create:
        options.bank.mkdir(parents=True, exist_ok=True)
    elif not path.is_file():
        raise DeltaMemError(f"{options.bank}: no API keys there; `deltamem keys create` makes one")
    return Keys.open(path)


def _key_record(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "owners": None if key.owners is None else sorted(key.owners),
        "scopes": sorted(key.scopes),
        "created_at": key.created_at.isoformat(),
        "revoked_at": None if key.revoked_at is None else key.revoked_at.isoformat(),
    }


def _key_line(key: Key) -> Pieces:
    owners = "all owners" if key.owners is None else ", ".join(sorted(key.owners)) or "no owner any more"
    scopes = f"  {' '.join(sorted(key.scopes))}{'' if key.revoked_at is None else '  revoked'}"
    return (key.id, "cyan"), (f"  {key.name}", ""), (f"  {owners}", "blue"), (scopes, "")


def create_key(
    options: Options,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of whoever gets it; the journal records it.")],
    also: Annotated[
        list[str] | None, typer.Option("--also", metavar="OWNER", help="Another owner; may be repeated.")
    ] = None,
    all_owners: Annotated[bool, typer.Option("--all-owners", help="A key to the memory of all owners.")] = False,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="read, write or admin; may be repeated. [default: read write]")
    ] = None,
) -> None:
    """Make an API key for the memory of --owner. Its token is shown once and stored nowhere."""
    owners = [utf8(owner, "the owner") for owner in ([options.owner] if options.owner else []) + (also or [])]
    if not all_owners and not owners:
        raise DeltaMemError("whose memory shall the key open? name --owner NAME, or --all-owners")
    try:
        scopes = [Scope(one) for one in scope or ("read", "write")]
    except ValueError:
        raise DeltaMemError(f"--scope: expected {', '.join(Scope)}, not {' '.join(scope or ())}") from None
    with _open_keys(options, create=True) as keys:
        key, token = keys.create(utf8(name, "the name"), None if all_owners else owners, scopes)
    shown: list[Line] = [_key_line(key), "", ((f"token  {token}", "bold"),), "it is shown only now"]
    options.report(_key_record(key) | {"token": token}, shown)


def list_keys(options: Options) -> None:
    """Show the API keys, without their tokens."""
    with _open_keys(options) as keys:
        found = keys.list()
    options.report({"keys": [_key_record(key) for key in found]}, map(_key_line, found))


def revoke_key(options: Options, key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key.")]) -> None:
    """Refuse a key from now on, also by a server that runs."""
    with _open_keys(options) as keys:
        key = keys.revoke(utf8(key_id, "the id"))
    options.report(_key_record(key), [_key_line(key)])


class KeyCommands:
    """The commands ``deltamem keys ...``."""

    name: ClassVar = "keys"
    help: ClassVar = "API keys of the server: make, list and revoke them."
    commands: ClassVar[Mapping[str, Callable[..., int | None]]] = {
        "create": create_key,
        "list": list_keys,
        "revoke": revoke_key,
    }
