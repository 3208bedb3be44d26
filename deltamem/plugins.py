"""What lives beside the core is found by entry points: systems under test, benchmarks, commands, routes and stores.

A plug-in is one line of ``[project.entry-points."deltamem.GROUP"]`` in the ``pyproject.toml`` of its distribution; the group
says which protocol its object fulfils:

- ``deltamem.commands``: `deltamem.cli.app.CommandGroup`
- ``deltamem.routes``: `deltamem.server.app.Routes`
- ``deltamem.stores``: `deltamem.journal.beside.StoreKind`
- ``deltamem.systems``: `eval.systems.base.SystemKind`
- ``deltamem.benchmarks``: a subclass of `eval.benchmark.Benchmark`
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from deltamem.errors import DeltaMemError


@cache
def _entries(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in sorted(entry_points(group=f"deltamem.{group}"), key=lambda entry: entry.name)}


def names(group: str) -> list[str]:
    """Names of the plug-ins of a group, sorted; those whose package was removed included."""
    return list(_entries(group))


def load(group: str, name: str) -> Any:
    """The object of a plug-in.

    Raises:
        DeltaMemError: If there is no such plug-in, or its package was removed.
    """
    entry = _entries(group).get(name)
    if entry is None:
        raise DeltaMemError(f"{name!r} is none of the {group}; there are: {', '.join(names(group)) or 'none'}")
    try:
        return entry.load()
    except ModuleNotFoundError as error:
        if not _removed(entry, error):
            raise
        raise DeltaMemError(f"{name!r} is not installed: there is no package {error.name}") from error


def load_all(group: str) -> dict[str, Any]:
    """The objects of all plug-ins of a group by name, without those whose package was removed."""
    loaded = {}
    for name, entry in _entries(group).items():
        try:
            loaded[name] = entry.load()
        except ModuleNotFoundError as error:
            if not _removed(entry, error):
                raise
    return loaded


def _removed(entry: EntryPoint, error: ModuleNotFoundError) -> bool:
    """Whether what is missing is the plug-in itself and not a library that it needs."""
    return error.name is not None and f"{entry.module}.".startswith(f"{error.name}.")
