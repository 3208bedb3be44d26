"""The commands of the server: serve, keys, pause and resume."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from deltamem.cli.model import available_model, episode_of, load_embedder
from deltamem.cli.options import Options, check_bank, store
from deltamem.cli.output import Display, Line, note, utf8
from deltamem.errors import DeltaMemError
from deltamem.journal.journal import JOURNAL_FILE, Journal

if TYPE_CHECKING:
    from deltamem.server.keys import Key, Keys, Scope
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
    with store_keys(options) as keys:
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


def store_keys(options: Options) -> Keys:
    """The API keys of a bank, which is made if there is none."""
    from deltamem.server.keys import KEYS_FILE, Keys

    options.bank.mkdir(parents=True, exist_ok=True)
    return Keys.open(options.bank / KEYS_FILE)


def _key_record(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "owners": None if key.owners is None else sorted(key.owners),
        "scopes": sorted(key.scopes),
        "created_at": key.created_at.isoformat(),
        "revoked_at": None if key.revoked_at is None else key.revoked_at.isoformat(),
    }


def _key_line(key: Key) -> Line:
    owners = "all owners" if key.owners is None else ", ".join(sorted(key.owners)) or "no owner any more"
    revoked = "" if key.revoked_at is None else "  revoked"
    return (
        (key.id, "cyan"),
        (f"  {key.name}", ""),
        (f"  {owners}", "blue"),
        (f"  {' '.join(sorted(key.scopes))}{revoked}", ""),
    )


_SCOPES = ("read", "write")


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
    from deltamem.server.keys import Scope

    named = [utf8(owner, "the owner") for owner in ([options.owner] if options.owner else []) + (also or [])]
    if not all_owners and not named:
        raise DeltaMemError("whose memory shall the key open? name --owner NAME, or --all-owners")
    scopes = _scopes(scope or _SCOPES, Scope)
    with store_keys(options) as keys:
        key, token = keys.create(utf8(name, "the name"), None if all_owners else named, scopes)
    lines = [_key_line(key), "", ((f"token  {token}", "bold"),), "it is shown only now"]
    options.report(_key_record(key) | {"token": token}, lines)


def _scopes(given: tuple[str, ...] | list[str], kind: type[Scope]) -> list[Scope]:
    try:
        return [kind(one) for one in given]
    except ValueError:
        raise DeltaMemError(f"--scope: expected {', '.join(kind)}, not {' '.join(given)}") from None


def list_keys(options: Options) -> None:
    """Show the API keys, without their tokens."""
    check_bank_or_keys(options)
    with store_keys(options) as keys:
        found = keys.list()
    options.report({"keys": [_key_record(key) for key in found]}, map(_key_line, found))


def revoke_key(options: Options, key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key.")]) -> None:
    """Refuse a key from now on, also by a server that runs."""
    check_bank_or_keys(options)
    with store_keys(options) as keys:
        key = keys.revoke(utf8(key_id, "the id"))
    options.report(_key_record(key), [_key_line(key)])


def check_bank_or_keys(options: Options) -> None:
    """Make sure that there is a file of keys, so that looking never makes one."""
    from deltamem.server.keys import KEYS_FILE

    if not (options.bank / KEYS_FILE).is_file():
        raise DeltaMemError(f"{options.bank}: no API keys there; `deltamem keys create` makes one")


def pause(options: Options) -> None:
    """Ask the model nothing from now on; sessions are still taken on and wait. A server that runs obeys at once."""
    _pause(options, True)


def resume(options: Options) -> None:
    """Go on reading sessions after `pause`."""
    _pause(options, False)


def _pause(options: Options, paused: bool) -> None:
    check_bank(options)
    with Journal.open(options.bank / JOURNAL_FILE) as journal:
        journal.queue.pause(paused)
        counts = journal.queue.counts()
    waiting = sum(count for state, count in counts.items() if state in ("queued", "running"))
    sentence = f"{'paused' if paused else 'going on'}; {waiting} sessions wait"
    options.report({"paused": paused, "waiting": waiting}, [((sentence, ""),)])


class KeyCommands:
    """The commands ``deltamem keys ...``."""

    name: ClassVar = "keys"
    help: ClassVar = "API keys of the server: make, list and revoke them."
    commands: ClassVar[Mapping[str, Callable[..., int | None]]] = {
        "create": create_key,
        "list": list_keys,
        "revoke": revoke_key,
    }
