"""What lives beside the core is found by entry points: systems under test, benchmarks, commands, routes and stores.

A plug-in is one line of ``[project.entry-points."deltamem.GROUP"]`` in the ``pyproject.toml`` of its distribution; the group
says which protocol its object fulfils:

- ``deltamem.commands``: a class that fulfils `deltamem.cli.app.CommandGroup`
- ``deltamem.options.COMMAND``: a dataclass of further options of a command, see `deltamem.cli.options.takes_options`; for
  ``search`` with a method ``searcher()`` that gives a `deltamem.bank.store.SearcherKind`, or None
- ``deltamem.routes``: a class that fulfils `deltamem.server.routes.Routes`
- ``deltamem.systems``: an `eval.systems.kinds.SystemKind`
- ``deltamem.searchers``: `deltamem.bank.store.SearcherKind`
- ``deltamem.stores``: a subclass of `deltamem.journal.beside.PluginStore`
- ``deltamem.benchmarks``: a subclass of `eval.benchmark.Benchmark`
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError


@cache
def _entries(group: str) -> dict[str, EntryPoint]:
    found = sorted(entry_points(group=f"deltamem.{group}"), key=lambda entry: entry.name)
    return {entry.name: entry for entry in found if _is_there(entry)}


def _is_there(entry: EntryPoint) -> bool:
    """Whether the module exists, found without importing anything: a folder may be removed from an installation."""
    top, *rest = entry.module.split(".")
    spec = find_spec(top)
    folders = (spec and spec.submodule_search_locations) or ()
    return any(Path(folder, *rest).is_dir() or Path(folder, *rest).with_suffix(".py").is_file() for folder in folders)


def names(group: str) -> list[str]:
    """Names of the plug-ins of a group, sorted."""
    return list(_entries(group))


def load(group: str, name: str) -> Any:
    """The object of a plug-in.

    Raises:
        DeltaMemError: If there is no such plug-in.
    """
    if name not in _entries(group):
        raise DeltaMemError(f"{name!r} is none of the {group}; there are: {', '.join(names(group)) or 'none'}")
    return _entries(group)[name].load()


def load_all(group: str) -> dict[str, Any]:
    """The objects of all plug-ins of a group by name."""
    return {name: entry.load() for name, entry in _entries(group).items()}
