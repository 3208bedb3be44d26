"""What a plug-in adds to the server: routes, something that runs beside them, and tools for MCP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from fastapi import APIRouter
from mcp_types import ToolAnnotations

from deltamem.server.service import Service


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool of MCP; its description is the function's docstring, its arguments are the function's."""

    function: Callable[..., Any]
    title: str
    annotations: ToolAnnotations
    needs_model: bool = False


@dataclass(frozen=True, slots=True)
class OwnerKind:
    """A kind of owners to whom MCP offers tools of their own."""

    noun: str
    """Who owns the memory, such as person or agent."""
    includes: Callable[[str], bool]
    """Whether an owner is of this kind."""
    instructions: str
    """What a client's model reads about the server."""
    tools: tuple[ToolSpec, ...]
    """Offered before those that all owners have."""


class Routes(Protocol):
    """The routes of a plug-in, made once for each application; entry points of ``deltamem.routes`` name such classes.

    It finds its settings, if it has any, in ``service.settings.plugins`` by its name.
    """

    service: Service
    owner_kind: ClassVar[OwnerKind | None] = None
    """Owners for whom the plug-in has tools for MCP; None if it has none."""

    def __init__(self, service: Service) -> None:
        """Bind the service, which does not run yet.

        Raises:
            DeltaMemError: If the settings cannot be used.
        """
        self.service = service

    @abstractmethod
    def router(self) -> APIRouter:
        """The routes."""

    def running(self) -> AbstractAsyncContextManager[object]:
        """Entered while the server runs, in its event loop."""
        return nullcontext()
