"""DeltaMem: one agent that keeps a person's long-term memory (arXiv 2604.01560).

What an application needs can be imported from here. The names are looked up when they are used, so that importing the
package costs nothing and training never loads what only serving needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltamem.bank.base import Hit
    from deltamem.bank.store import MemoryStore
    from deltamem.edits import Add, Retract, Update
    from deltamem.errors import DeltaMemError
    from deltamem.ingest import Outcome, Transition
    from deltamem.llm import LLM
    from deltamem.manager import ManagerSettings, MemoryManager, SyncMemoryManager
    from deltamem.memory import Memory, MemoryState, Metadata
    from deltamem.policy import EndpointPolicy
    from deltamem.sessions import Session, Turn

__version__ = "0.1.0"

_HOMES = {
    "Add": "edits",
    "DeltaMemError": "errors",
    "EndpointPolicy": "policy",
    "Hit": "bank.base",
    "LLM": "llm",
    "ManagerSettings": "manager",
    "Memory": "memory",
    "MemoryManager": "manager",
    "MemoryState": "memory",
    "MemoryStore": "bank.store",
    "Metadata": "memory",
    "Outcome": "ingest",
    "Retract": "edits",
    "Session": "sessions",
    "SyncMemoryManager": "manager",
    "Transition": "ingest",
    "Turn": "sessions",
    "Update": "edits",
}

__all__ = [
    "LLM",
    "Add",
    "DeltaMemError",
    "EndpointPolicy",
    "Hit",
    "ManagerSettings",
    "Memory",
    "MemoryManager",
    "MemoryState",
    "MemoryStore",
    "Metadata",
    "Outcome",
    "Retract",
    "Session",
    "SyncMemoryManager",
    "Transition",
    "Turn",
    "Update",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
