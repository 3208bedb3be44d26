"""Modules that are imported when something of them is first used: collecting tests must not load torch or Chroma."""

from importlib import import_module
from typing import Any


class Lazy:
    """Stands for a module, in tests that name it at their top."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
