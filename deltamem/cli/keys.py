"""The commands `keys ...`: API keys of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

import typer

from deltamem.cli.options import Options
from deltamem.cli.output import Pieces, utf8
from deltamem.errors import DeltaMemError
from deltamem.server.keys import KEYS_FILE, Key, Keys, Scope


def open_keys(options: Options, *, create: bool = False) -> Keys:
    """The API keys of a bank, which looking never makes."""
    path = options.bank / KEYS_FILE
    if create:
        options.bank.mkdir(parents=True, exist_ok=True)
    elif not path.is_file():
        raise DeltaMemError(f"{options.bank}: no API keys there; `deltamem keys create` makes one")
    return Keys.open(path)


def _record(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "owners": None if key.owners is None else sorted(key.owners),
        "scopes": sorted(key.scopes),
        "created_at": key.created_at.isoformat(),
        "revoked_at": None if key.revoked_at is None else key.revoked_at.isoformat(),
    }


def _line(key: Key) -> Pieces:
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
    with open_keys(options, create=True) as keys:
        key, token = keys.create(utf8(name, "the name"), None if all_owners else owners, scopes)
    options.report(_record(key) | {"token": token}, [_line(key), "", ((f"token  {token}", "bold"),), "it is shown only now"])


def list_keys(options: Options) -> None:
    """Show the API keys, without their tokens."""
    with open_keys(options) as keys:
        found = keys.list()
    options.report({"keys": [_record(key) for key in found]}, map(_line, found))


def revoke_key(options: Options, key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key.")]) -> None:
    """Refuse a key from now on, also by a server that runs."""
    with open_keys(options) as keys:
        key = keys.revoke(utf8(key_id, "the id"))
    options.report(_record(key), [_line(key)])


class KeyCommands:
    """The commands ``deltamem keys ...``."""

    name: ClassVar = "keys"
    help: ClassVar = "API keys of the server: make, list and revoke them."
    commands: ClassVar[Mapping[str, Callable[..., int | None]]] = {
        "create": create_key,
        "list": list_keys,
        "revoke": revoke_key,
    }
