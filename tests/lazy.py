"""Names of heavy libraries that are imported when they are first used, so that collecting tests loads none."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for a module or for a name in one: what is got or called here is got or called there."""

    def __init__(self, module: str, name: str | None = None) -> None:
        self.__dict__.update(_module=module, _name=name)

    def _real(self) -> Any:
        module = importlib.import_module(self._module)
        return module if self._name is None else getattr(module, self._name)

    def __getattr__(self, name: str) -> Any:
        # What pytest asks every name of a module for while it collects.
        if name.startswith("__") or name == "_mock_name":
            raise AttributeError(name)
        return getattr(self._real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"patch {self._module}.{name} by that dotted name")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real()(*args, **kwargs)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._real())


def lazy(module: str) -> Any:
    """A module."""
    return Lazy(module)


def names(module: str, listed: str) -> Any:
    """Classes and functions of a module by their names; a single one, or a list of them."""
    made = [Lazy(module, name) for name in listed.split()]
    return made[0] if len(made) == 1 else made
