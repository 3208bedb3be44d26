"""The memory of one owner for programs that speak the Model Context Protocol: tools, resources and a prompt.

The same server stands behind `deltamem mcp` (standard input and output, one owner) and behind ``/mcp`` of `deltamem serve`
(streamable HTTP), where the API key names the owner.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import anyio.to_thread
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError, UnexpectedResourceError
from mcp.server.mcpserver.tools import Tool
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolResult,
    GetPromptResult,
    InputRequiredResult,
)
from pydantic import AnyUrl, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from deltamem import plugins
from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError, NotFoundError
from deltamem.server import operations
from deltamem.server.access import identify, named_owner
from deltamem.server.keys import Key, Scope
from deltamem.server.mcp_tools import PERSON, TOOLS, MCPCaller, MCPState, complaint, recall, remembered, sentence
from deltamem.server.routes import OwnerKind, ToolSpec
from deltamem.server.service import Service


def owner_kinds() -> list[OwnerKind]:
    """Those of plug-ins, and last the one that everybody is of."""
    return [kind for routes in plugins.load_all("routes").values() if (kind := routes.owner_kind) is not None] + [PERSON]


def _tool(spec: ToolSpec) -> Tool:
    """A tool that refuses arguments which it does not have, such as an owner, instead of ignoring them."""
    description = " ".join((spec.function.__doc__ or "").split())
    tool = Tool.from_function(spec.function, title=spec.title, description=description, annotations=spec.annotations)
    base = tool.fn_metadata.arg_model
    tool.fn_metadata.arg_model = type(
        base.__name__, (operations.RequestModel, base), {"model_config": ConfigDict(extra="forbid"), "__module__": __name__}
    )
    tool.parameters = tool.fn_metadata.arg_model.model_json_schema(by_alias=True)
    return tool


class MemoryServer(MCPServer[MCPState]):
    """Words every error as one sentence for whoever called, without anything of what lies inside."""

    def __init__(
        self,
        service: Service,
        caller: Callable[[], MCPCaller],
        kind: OwnerKind = PERSON,
        begin: Callable[[], None] | None = None,
    ) -> None:
        """Make the server; it does not listen yet. `caller` says who asks just now; `begin` is called when it is served."""
        state = MCPState(service, caller, kind.noun)
        tools = [spec for spec in (*kind.tools, *TOOLS) if service.has_model or not spec.needs_model]

        @asynccontextmanager
        async def lifespan(server: MCPServer[MCPState]) -> AsyncIterator[MCPState]:
            if begin is not None:
                begin()
            yield state

        super().__init__(
            "deltamem",
            title="DeltaMem",
            description=f"The long-term memory of one {kind.noun}.",
            instructions=kind.instructions,
            version=version("deltamem"),
            tools=[_tool(spec) for spec in tools],
            lifespan=lifespan,
            # What tells a client that something has changed is shared by all owners.
            subscriptions=False,
            log_level="WARNING",
        )

        async def present() -> str:
            """All memories as they are now, as JSON."""
            page = await anyio.to_thread.run_sync(operations.page, service, await state.memory(Scope.READ))
            return page.model_dump_json(include={"memories"})

        self.resource("memory://state", name="state", title="All memories", mime_type="application/json")(present)
        self.resource("memory://memory/{id}", name="memory", title="One memory", mime_type="application/json")(remembered)
        if kind is PERSON:
            self.prompt("recall", title="What is remembered")(recall)

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[MCPState, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            raise ToolError(sentence(error)) from error.__cause__

    async def read_resource(
        self, uri: AnyUrl | str, context: Context[MCPState, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        """Read a resource."""
        try:
            return await super().read_resource(uri, context)
        except UnexpectedResourceError as error:
            kind = ResourceNotFoundError if isinstance(error.__cause__, NotFoundError) else ResourceError
            raise kind(sentence(error)) from error.__cause__

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Context[MCPState, Any] | None = None
    ) -> GetPromptResult | InputRequiredResult:
        """Fill in a prompt."""
        try:
            return await super().get_prompt(name, arguments, context)
        except ValueError as error:
            # `recall` words its own; what is left are names and arguments that there are not.
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            said = complaint(cause) if isinstance(cause, ValidationError) else str(error)
            raise MCPError(INVALID_PARAMS, said) from error


async def serve_stdio(service: Service, owner: str, actor: str) -> None:
    """Serve the memory of one owner over standard input and output, until the input ends; the service must run."""
    key = Key("stdio", actor, frozenset({owner}), frozenset(Scope), datetime.now(UTC))
    caller = MCPCaller(key, owner)
    # Loading the embedding model takes longer than some clients wait for a tool. It begins when standard output is safe.
    loading = threading.Thread(target=_load, args=(service.store.embedder,), daemon=True)
    try:
        kind = next(kind for kind in owner_kinds() if kind.includes(owner))
        await MemoryServer(service, lambda: caller, kind, loading.start).run_stdio_async()
    except* BrokenPipeError:  # the client does not listen any more, which is another end
        pass


def _load(embedder: Embedder) -> None:
    with suppress(DeltaMemError):  # the first search says what is missing
        embedder.queries(["memory"])


_CALLER: ContextVar[MCPCaller] = ContextVar("caller")


class MCPEndpoint:
    """What answers at ``/mcp`` and ``/mcp/``, as an ASGI application: streamable HTTP in the old and in the new version."""

    def __init__(self, service: Service) -> None:
        """Bind the service; nothing is answered outside of `running`."""
        self._servers = [(kind, MemoryServer(service, _CALLER.get, kind)) for kind in owner_kinds()]
        self._max_body = service.settings.max_body_bytes

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests."""
        async with AsyncExitStack() as stack:
            for _, server in self._servers:
                server.streamable_http_app(
                    max_request_body_size=self._max_body,
                    # `identify` checks the key, or without keys that host and origin are this machine.
                    transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
                )
                await stack.enter_async_context(server.session_manager.run())
            yield

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        key = identify(request)
        caller = MCPCaller(key, named_owner(request, key))
        # By this the SDK binds its sessions and what it lets clients carry to one key and one owner.
        token = AccessToken(token="", client_id=caller.key.id, scopes=sorted(caller.key.scopes), subject=caller.owner)
        reset = _CALLER.set(caller)
        try:
            server = next(server for kind, server in self._servers if kind.includes(caller.owner))
            app = AuthContextMiddleware(server.session_manager.handle_request)
            await app({**scope, "user": AuthenticatedUser(token)}, receive, send)
        finally:
            _CALLER.reset(reset)


class MCPRoute(Route):
    """The route of `MCPEndpoint`; like FastAPI's, it leaves its name for the access log."""

    def __init__(self, endpoint: MCPEndpoint, path: str) -> None:
        """Lead a path to it."""
        super().__init__(path, endpoint, include_in_schema=False)

    def matches(self, scope: ASGIScope) -> tuple[Match, ASGIScope]:
        """Whether a request is for this route."""
        match, found = super().matches(scope)
        return match, found if match is Match.NONE else {**found, "route": self}
