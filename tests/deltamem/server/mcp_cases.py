"""How the tests of MCP speak to it: in this process, over HTTP, and over standard input and output."""

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from episode_texts import WordEmbedder
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult
from process_cases import CHEAP, environment
from server_cases import Server

from deltamem.bank.store import MemoryStore
from deltamem.policy import Policy
from deltamem.server.keys import Key, Scope
from deltamem.server.mcp import MemoryServer
from deltamem.server.mcp_tools import PERSON, MCPCaller
from deltamem.server.routes import OwnerKind
from deltamem.server.service import Service

OLD, NEW = "legacy", "auto"
"""How the client speaks: the protocol with a handshake, or the one of 2026-07-28 without."""
both = pytest.mark.parametrize("mode", [OLD, NEW])
MONDAY = "2026-03-02T09:00:00"


class Person:
    """Answers the questions of a client's person, and keeps them."""

    def __init__(self, action: str = "accept", confirm: bool = True) -> None:
        self.answer = ElicitResult(action=action, content={"confirm": confirm} if action == "accept" else None)  # type: ignore[arg-type]
        self.asked: list[str] = []

    async def __call__(self, context: object, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        return self.answer


@asynccontextmanager
async def connected(
    mode: str = NEW,
    *,
    policy: Policy | None = None,
    person: Person | None = None,
    scopes: Sequence[Scope] = tuple(Scope),
    owner: str = "ann",
    kind: OwnerKind = PERSON,
) -> AsyncIterator[Client]:
    """A client of the memory of an owner, in this process; by default without a model."""
    with MemoryStore.in_memory(WordEmbedder()) as store:
        async with Service(store, policy) as service:
            caller = MCPCaller(Key("k", "tester", frozenset({owner}), frozenset(scopes), datetime.now(UTC)), owner)
            memory = MemoryServer(service, lambda: caller, kind)
            async with Client(memory, mode=mode, elicitation_callback=person) as client:
                yield client


async def call(client: Client, tool: str, **arguments: object) -> Any:
    """What a tool returned, as structured output; it must succeed."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content  # type: ignore[union-attr]
    return result.structured_content


async def refusal(client: Client, tool: str, **arguments: object) -> str:
    """The one sentence of a tool that failed."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert result.is_error
    assert result.structured_content is None
    (content,) = result.content
    said: str = content.text  # type: ignore[union-attr]
    assert "\n" not in said and "Traceback" not in said
    return said


async def texts(client: Client) -> list[str]:
    return [memory["text"] for memory in (await call(client, "get_memories"))["memories"]]


@asynccontextmanager
async def over_http(
    server: Server, token: str | None, mode: str = NEW, person: Person | None = None, **headers: str
) -> AsyncIterator[Client]:
    bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=bearer | headers, timeout=60) as http,
        Client(
            streamable_http_client(f"{server.url}/mcp", http_client=http), mode=mode, elicitation_callback=person
        ) as client,
    ):
        yield client


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
SPEAKS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def started(bank: Path, *arguments: str, program: str = CHEAP, owner: str = "Ann") -> StdioServerParameters:
    command = ["-c", program, "mcp", "--bank", str(bank), "--owner", owner, *arguments]
    return StdioServerParameters(command=sys.executable, args=command, env=environment())
