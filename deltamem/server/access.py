"""API-key authentication and owner checks for all routes."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import unquote, urlsplit

import anyio.to_thread
from fastapi import Depends, Path, Request
from fastapi.security import APIKeyHeader, HTTPBearer
from limits import RateLimitItem, parse_many
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from pydantic import BeforeValidator, StringConstraints

from deltamem.errors import DeltaMemError
from deltamem.manager import MemoryManager
from deltamem.server.keys import Key, Keys, Scope
from deltamem.server.problems import Problem, not_found
from deltamem.server.service import Service

LOCAL = Key("local", "local", None, frozenset(Scope), datetime.fromtimestamp(0, UTC))
"""Who calls a server without keys: everybody on this machine."""
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


class Access:
    """Finds the key of a request and counts the requests of each key."""

    def __init__(self, keys: Keys | None, rate_limit: str | None) -> None:
        """Without `keys`, or with a file in which none was ever made, the server is open to this machine.

        `rate_limit` is what one key may ask, such as ``600/minute``, several of them separated by ``;``.
        """
        self.keys = keys
        try:
            self._limits: list[RateLimitItem] = parse_many(rate_limit) if rate_limit else []
        except ValueError:
            raise DeltaMemError(f"{rate_limit!r} is no rate such as 600/minute") from None
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    @property
    def open(self) -> bool:
        """Whether everybody on this machine may call, because no key was ever made."""
        return self.keys is None or self.keys.none

    def key(self, request: Request) -> Key:
        """The key of a request; else 401 (no good token), 403 (a browser that another site steers) or 429 (too many)."""
        token = token_of(request)
        if self.open:
            _check_local(request)
            key = LOCAL
        else:
            found = None if self.keys is None or token is None else self.keys.find(token)
            if found is None:
                # Not less than a good key costs; by address, as nothing else is known.
                self._count(f"address {request.client.host if request.client else ''}")
                said = "this server needs an API key, as Authorization: Bearer TOKEN or X-API-Key: TOKEN"
                raise Problem(401, said if token is None else "this API key is not known here or was revoked", _CHALLENGE)
            key = found
        self._count(f"key {key.id}")
        request.state.key = key
        return key

    def _count(self, who: str) -> None:
        for limit in self._limits:
            if not self._limiter.hit(limit, who):
                reset = self._limiter.get_window_stats(limit, who).reset_time
                wait = max(1, int(reset - time.time()) + 1)
                raise Problem(429, f"more requests than {limit}; try again in {wait} seconds", {"Retry-After": str(wait)})


def token_of(request: Request) -> str | None:
    """The token of a request: ``Authorization: Bearer T``, ``Authorization: Token T`` or ``X-API-Key: T``."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "token") and token.strip():
        return token.strip()
    return request.headers.get("x-api-key") or None


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_local(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _check_local(request: Request) -> None:
    """A page of some other site, opened in a browser on this machine, must not reach a server without keys."""
    origin = request.headers.get("origin")
    # Browsers name no origin where a page only shows something, such as a picture, and could learn whether it is there.
    foreign = request.headers.get("sec-fetch-site") == "cross-site" if origin is None else not _is_local(origin)
    hosts = request.headers.getlist("host")
    if foreign or not hosts or not all(_is_local(f"//{host}") for host in hosts):
        raise Problem(403, "without API keys this server answers only to this machine; make one with: deltamem keys create")


def identify(request: Request) -> Key:
    """The key of a request, see `Access.key`."""
    access: Access = request.app.state.access
    return access.key(request)


def allow(key: Key, scope: Scope) -> None:
    """Make sure that a key has a scope; else 403."""
    if scope not in key.scopes:
        raise Problem(403, f"this API key lacks the scope {scope}")


def authorize(service: Service, key: Key, owner: str, scope: Scope, *, create: bool = False) -> MemoryManager:
    """The memory of an owner, for a key with a scope; else 403. It may read the disk: call it in a thread.

    A foreign owner is 404, and so, unless he may be new (`create`), is one of whom nothing is known.
    """
    if not key.opens(owner):
        raise not_found()
    allow(key, scope)
    if not create and not service.known(owner):
        raise not_found()
    return service.manager_of(owner)


OWNER_HEADER = "X-DeltaMem-Owner"
"""Names the owner to routes whose paths do not."""
_LONGEST_NAME = 256


def header_text(request: Request, name: str) -> str | None:
    """A header that may hold any text, percent-encoded; None if it is not there, 400 if it cannot be read."""
    given = request.headers.get(name)
    if given is None:
        return None
    try:
        text = unquote(given, errors="strict")
    except UnicodeDecodeError:
        raise Problem(400, f"{name} is not percent-encoded UTF-8") from None
    if not text.strip() or len(text) > _LONGEST_NAME or not text.isprintable():
        raise Problem(400, f"{name} must be a text of 1 to {_LONGEST_NAME} characters that can be printed")
    return text


def named_owner(request: Request, key: Key) -> str:
    """Whose memory is meant where the path does not say it: by the header, or else the only owner of the key.

    It is 400 if that is not clear, and 404 if the header names somebody whom the key does not open.
    """
    owner = header_text(request, OWNER_HEADER)
    if owner is None:
        if key.owners is None or len(key.owners) != 1:
            raise Problem(400, f"whose memory is meant? name the owner in the header {OWNER_HEADER}")
        return next(iter(key.owners))
    if not key.opens(owner):
        raise not_found()
    return owner


SECURITY = [
    Depends(HTTPBearer(auto_error=False, description="An API key made with `deltamem keys create`.")),
    Depends(APIKeyHeader(name="X-API-Key", auto_error=False)),
]
"""Dependencies that make OpenAPI name the ways to send a key; `token_of` reads the headers."""


async def _caller(request: Request) -> Key:
    return identify(request)


Caller = Annotated[Key, Depends(_caller)]
"""The key of the request, as a FastAPI dependency."""

SLASH = "\udc2f"
"""Stands for a slash in an owner's name while a request is routed. It cannot come in an address, which is UTF-8."""


OwnerName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=_LONGEST_NAME),
    BeforeValidator(lambda given: given.replace(SLASH, "/") if isinstance(given, str) else given),
    Path(description="Whose memory."),
]


def service_of(request: Request) -> Service:
    """The service of the application that a request came to."""
    service: Service = request.app.state.service
    return service


def manager(scope: Scope, *, create: bool = False) -> Callable[..., Awaitable[MemoryManager]]:
    """A FastAPI dependency: the memory of the owner in the path, for a scope; see `authorize`."""

    async def dependency(owner: OwnerName, key: Caller, request: Request) -> MemoryManager:
        service = service_of(request)
        if key.opens(owner) and scope in key.scopes and (known := service.loaded(owner)) is not None:
            return known  # spares most requests a change of threads
        return await anyio.to_thread.run_sync(lambda: authorize(service, key, owner, scope, create=create))

    return dependency


Reading = Annotated[MemoryManager, Depends(manager(Scope.READ))]
Writing = Annotated[MemoryManager, Depends(manager(Scope.WRITE))]
Creating = Annotated[MemoryManager, Depends(manager(Scope.WRITE, create=True))]
"""To write for an owner who may be new."""
Admin = Annotated[MemoryManager, Depends(manager(Scope.ADMIN))]
Importing = Annotated[MemoryManager, Depends(manager(Scope.ADMIN, create=True))]
"""To fill the memory of an owner who may be new, past what a writer may."""


async def _operator(key: Caller) -> Key:
    if key.owners is not None:
        raise Problem(403, "this needs an API key for all owners")
    allow(key, Scope.ADMIN)
    return key


Operator = Annotated[Key, Depends(_operator)]
"""The key of somebody who runs the server: all owners, scope admin."""
