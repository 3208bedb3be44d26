"""The application: the service, the access to it, and all routes."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, RedirectResponse
from opentelemetry.trace import SpanKind, get_tracer, use_span
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deltamem import plugins, zones
from deltamem.bank.store import MemoryStore
from deltamem.manager import ManagerSettings
from deltamem.page import live_page
from deltamem.policy import Policy
from deltamem.server import admin, native
from deltamem.server.access import SLASH, Access
from deltamem.server.keys import Keys
from deltamem.server.mcp import MCPEndpoint, MCPRoute
from deltamem.server.operations import FILTER, SCHEMAS
from deltamem.server.problems import TOO_LARGE, Problem, ProblemRecord, install, problem_of, render
from deltamem.server.routes import Routes
from deltamem.server.service import ServerSettings, Service

_tracer = get_tracer("deltamem.server")
access_log = logging.getLogger("deltamem.access")
_IMPORT = re.compile(r"/v1/owners/[^/]+/import")
_OWNER = re.compile(rb"/v1/owners/([^/?]*%2f[^/?]*)([^?]*)", re.IGNORECASE)


def create_app(
    store: MemoryStore,
    policy: Policy | None,
    *,
    keys: Keys | None,
    settings: ServerSettings | None = None,
    manager_settings: ManagerSettings | None = None,
) -> FastAPI:
    """Make the application; whoever runs it closes the store and the keys afterwards.

    Args:
        store: The memory of all owners.
        policy: The model that reads sessions; None for a server that only stores and searches.
        keys: Who may call; None, or a file in which no key was ever made, for everybody on this machine.
        settings: Limits and times.
        manager_settings: How sessions are read.

    Raises:
        DeltaMemError: If the rate limit or a plug-in's settings cannot be used.
    """
    settings = settings or ServerSettings()
    service = Service(store, policy, manager_settings, settings)
    mcp = MCPEndpoint(service)
    plugged: list[Routes] = [kind(service) for kind in plugins.load_all("routes").values()]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service, mcp.running(), AsyncExitStack() as stack:
            for routes in plugged:
                await stack.enter_async_context(routes.running())
            yield

    app = Application(
        title="DeltaMem",
        version=version("deltamem"),
        description="Long-term memory of people: sessions are read by a model, memories searched, explained and taken back.",
        lifespan=lifespan,
        redirect_slashes=False,
        redoc_url=None,
        docs_url=None,  # its page would load scripts from elsewhere
        generate_unique_id_function=lambda route: route.name,
        separate_input_output_schemas=False,
        # Its own spans and logs would hold paths, queries and what was refused, so names and texts of people.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    app.state.service = service
    app.state.access = Access(keys, settings.rate_limit)
    app.state.metrics = admin.Metrics(service)
    install(app)
    app.add_middleware(Gate, max_body=settings.max_body_bytes, max_import=settings.max_import_bytes)
    for router in (native.router(), *(routes.router() for routes in plugged), admin.router(), _page_router()):
        app.include_router(router)
    # Clients are set up with either, and lose what they send where the one redirects to the other.
    app.router.routes += [MCPRoute(mcp, "/mcp"), MCPRoute(mcp, "/mcp/")]
    return app


class Application(FastAPI):
    """An application whose description is whole."""

    def openapi(self) -> dict[str, Any]:
        """The description."""
        if self.openapi_schema is None:
            described = super().openapi()
            described["components"]["schemas"] |= {"ProblemRecord": ProblemRecord.model_json_schema(), **SCHEMAS}
            for path in described["paths"].values():
                for operation in path.values():
                    for parameter in operation.get("parameters", ()):
                        # JSON in a query parameter, which is content and no plain text.
                        if parameter["name"] == "filters":
                            del parameter["schema"]
                            parameter["content"] = {"application/json": {"schema": FILTER}}
        assert self.openapi_schema is not None
        return self.openapi_schema

    def methods(self, path: str) -> str:
        """The methods that a path takes, as the header Allow lists them."""
        return ", ".join(sorted(method.upper() for method in self.openapi()["paths"].get(path, {})))


class Gate:
    """Before all else: refuses what cannot be read, answers defects, counts, traces and writes the access log.

    A line of the log, like a span, names method, route, status, time and key. Paths and queries are left out: they name
    people and may quote what is remembered.
    """

    def __init__(self, app: ASGIApp, max_body: int, max_import: int) -> None:
        """Wrap an application."""
        self._app = app
        self._max_body = max_body
        self._max_import = max_import

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status, received = time.perf_counter(), 0, 0
        scope = {**scope, "path": _routed(scope)}
        imports = scope["method"] == "POST" and _IMPORT.fullmatch(scope["path"])
        limit = self._max_import if imports else self._max_body

        async def receiving() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise Problem(413, TOO_LARGE)
            return message

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        span = _tracer.start_span("request", kind=SpanKind.SERVER)
        try:
            _check(scope, limit)
            with use_span(span, record_exception=False, set_status_on_exception=False):
                await self._app(scope, receiving, sending)
        except Exception as error:
            problem = problem_of(error)
            if status:  # the response is under way and can only be cut
                raise
            await render(problem)(scope, receive, sending)
        finally:
            route, key = getattr(scope.get("route"), "path", "(no route)"), scope.get("state", {}).get("key")
            seconds = time.perf_counter() - begin
            scope["app"].state.metrics.count(scope["method"], route, status, seconds)
            span.update_name(f"{scope['method']} {route}")
            span.set_attributes({"http.request.method": scope["method"], "http.route": route})
            span.set_attributes({"http.response.status_code": status, "deltamem.key": "" if key is None else key.id})
            span.end()
            access_log.info(
                "%s %s %d %.1f ms %s", scope["method"], route, status, seconds * 1000, "-" if key is None else key.id
            )


def _routed(scope: Scope) -> str:
    """The path to route by: an encoded slash belongs to the name of the owner that it stands in."""
    match = _OWNER.match(scope.get("raw_path") or b"")
    if match is None:
        return str(scope["path"])
    name, rest = (unquote(part.decode("ascii", "replace")) for part in match.groups())
    return f"/v1/owners/{name.replace('/', SLASH)}{rest}"


def _check(scope: Scope, limit: int) -> None:
    try:
        for part in (scope.get("raw_path", b""), scope["query_string"]):
            unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise Problem(400, "the address is not valid UTF-8") from None
    requested = {value.decode("latin-1") for name, value in scope["headers"] if name == zones.HEADER.lower().encode()}
    if len(requested) > 1:
        raise Problem(400, f"{zones.HEADER} is there more than once")
    # Whatever is asked: a mistake in it shall not show only when something comes without a time.
    for zone in requested:
        zones.named_zone(zone, "request")
    for name, value in scope["headers"]:
        # Before it is sent; a body that does not say how long it is, is counted as it comes.
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise Problem(413, TOO_LARGE)


def _page_router() -> APIRouter:
    """The viewer of ``deltamem view`` over the native routes; it holds nothing that somebody said, so it needs no key."""
    text, policy = live_page()
    headers = {
        # The page has the same policy in itself, where it cannot say who may put it into a frame.
        "Content-Security-Policy": f"{policy}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
    routes = APIRouter(include_in_schema=False)

    @routes.get("/ui")
    async def page() -> HTMLResponse:
        return HTMLResponse(text, headers=headers)

    @routes.get("/ui/")
    async def without_slash() -> RedirectResponse:
        """The page asks for what lies beside it, so that it works under any path of a proxy."""
        return RedirectResponse("../ui")

    return routes
