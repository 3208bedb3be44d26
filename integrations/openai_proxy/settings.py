"""Settings of the proxy, which are also options of ``deltamem serve``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """How the proxy works; times in seconds."""

    upstream: Annotated[
        str | None,
        typer.Option("--upstream", envvar="DELTAMEM_UPSTREAM", metavar="URL", help="Server that /proxy/v1 stands before."),
    ] = None
    """Base URL of the server, up to and including ``/v1``; None for a server that is no proxy."""
    upstream_key: str | None = field(default_factory=lambda: os.environ.get("DELTAMEM_UPSTREAM_KEY"), repr=False)
    """Sent to it as ``Authorization: Bearer``. The caller's own is sent if this is None and the server has no API keys."""
    memories: int = 5
    """How many are recalled at most."""
    idle: Annotated[
        float,
        typer.Option("--idle", envvar="DELTAMEM_IDLE", min=0.0, metavar="SECONDS", help="When a conversation has ended."),
    ] = 600.0
    """How long nothing is said until a conversation is read as a session."""
    recall: float = 5.0
    """How long a request waits for what is remembered."""
    connect: float = 10.0
    answer: float = 600.0
    """How long the upstream may be silent."""
