"""The HTTP layer under the clients of mem0 and LangMem: it counts their calls, caches answers and explains failures."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import httpx
import openai

from deltamem.errors import DeltaMemError
from deltamem.llm import ResponseCache, explain
from eval.config import ManagerModel
from eval.systems.base import DialogueTurn, SystemUnavailableError, Usage

CHAT = "/chat/completions"
"""How the path of a metered request ends. Systems are given our embedder, so nothing else is asked of the endpoint."""


class HttpCache:
    """Looks up requests in the response cache of the run, for one store."""

    def __init__(
        self,
        cache: ResponseCache | None,
        scope: str,
        *,
        volatile: re.Pattern[str] | None = None,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """Describe how requests are recognised.

        Args:
            cache: Where answers are kept; None keeps none.
            scope: For whom (see `deltamem.llm`): the store.
            volatile: What a library puts into requests and what differs from run to run, for example random ids or today's
                date; without groups. Requests that differ in nothing else are the same, and in a cached answer the old
                values are replaced by the new ones.
            fields: Put into the body of every request unless the library sends them itself, for example a seed.
        """
        self._cache = cache
        self._scope = scope
        self._volatile = volatile
        self._fields = dict(fields or {})

    def entry(self, request: httpx.Request) -> CacheEntry | None:
        """The cache entry of a request; None for requests that are not metered."""
        if request.method != "POST" or not request.url.path.endswith(CHAT):
            return None
        try:
            body = json.loads(request.content)
        except ValueError:
            return None
        if not isinstance(body, dict):
            return None
        body = self._fields | body
        values = _volatile_values(body, self._volatile)
        text = json.dumps(body, ensure_ascii=False, sort_keys=True)
        # Masked as text, not as JSON again: a value may stand next to an escape and look like a part of it.
        key = {"url": str(request.url), "body": _masked(text, values)}
        if self._cache is not None:
            model = str(request.url).removesuffix(CHAT), str(body.get("model"))
            if served := self._cache.served.get(model):
                key["served"] = served
        headers = {name: value for name, value in request.headers.items() if name.lower() != "content-length"}
        content = json.dumps(body).encode()
        sent = httpx.Request(request.method, request.url, headers=headers, content=content, extensions=request.extensions)
        return CacheEntry(self._cache, self._scope, key, sent, values)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Where the answer to one request is kept."""

    cache: ResponseCache | None
    scope: str
    key: dict[str, str]
    request: httpx.Request  # As it is sent
    values: tuple[str, ...]  # The volatile texts of the request, in the order in which they first occur

    def find(self) -> bytes | None:
        """The body of the cached answer, with the volatile texts of this request."""
        cached = self.cache.get(self.scope, self.key) if self.cache is not None else None
        if cached is None:
            return None
        text: str = cached["body"]
        for number, value in enumerate(self.values):
            text = text.replace(_mask(number), value)
        return text.encode()

    def keep(self, body: bytes) -> None:
        """Cache an answer."""
        if self.cache is not None:
            self.cache.put(self.scope, self.key, {"body": _masked(body.decode(), self.values)})


def _volatile_values(body: object, volatile: re.Pattern[str] | None) -> tuple[str, ...]:
    """The volatile texts in the strings of a body, each once."""
    if volatile is None:
        return ()
    found: dict[str, None] = {}
    parts = [body]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            found.update(dict.fromkeys(volatile.findall(part)))
        elif isinstance(part, dict):
            parts.extend(reversed(part.values()))
        elif isinstance(part, list):
            parts.extend(reversed(part))
    return tuple(found)


def _masked(text: str, values: Sequence[str]) -> str:
    for number, value in enumerate(values):
        text = text.replace(value, _mask(number))
    return text


def _mask(number: int) -> str:
    """Stands for a volatile text; private-use characters, which no text has."""
    return f"\ue000{number}\ue001"


class Meter:
    """Calls and tokens of the transports that share it; each store has its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usage = Usage()

    def take(self) -> Usage:
        """Calls and their tokens since the last time."""
        with self._lock:
            usage, self._usage = self._usage, Usage()
        return usage

    def count(self, answer: _Answer, *, cached: bool) -> None:
        """Count an answer."""
        with self._lock:
            self._usage += Usage(1, int(cached), answer.prompt_tokens, answer.completion_tokens)


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer that counts; tokens are as the server counts them."""

    prompt_tokens: int
    completion_tokens: int
    complete: bool  # Whether it ended by itself; an answer that was cut off is not cached

    @classmethod
    def read(cls, body: bytes) -> _Answer | None:
        """The answer in a body that came with status 200, or None if there is none."""
        try:
            reply = json.loads(body)
        except ValueError:
            return None
        choices = reply.get("choices") if isinstance(reply, dict) else None
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
            return None
        tokens = reply.get("usage") or {}
        return cls(
            prompt_tokens=int(tokens.get("prompt_tokens") or 0),
            completion_tokens=int(tokens.get("completion_tokens") or 0),
            complete=not any(choice.get("finish_reason") == "length" for choice in choices),
        )


class _Metered:
    """What both transports do with a metered request apart from sending it."""

    def __init__(self, meter: Meter, cache: HttpCache) -> None:
        self._meter = meter
        self._cache = cache

    def _cached(self, entry: CacheEntry) -> httpx.Response | None:
        body = entry.find()
        answer = None if body is None else _Answer.read(body)
        if body is None or answer is None:
            return None
        self._meter.count(answer, cached=True)
        return _response(body)

    def _received(self, entry: CacheEntry, body: bytes) -> httpx.Response:
        answer = _Answer.read(body)
        if answer is not None:
            self._meter.count(answer, cached=False)
            if answer.complete:
                entry.keep(body)
        return _response(body)


class MeteredTransport(_Metered, httpx.BaseTransport):
    """Under a synchronous client; threads may share it.

    `slots` are held while a metered request is under way, so that transports together keep to a limit.
    """

    def __init__(self, meter: Meter, cache: HttpCache, *, slots: AbstractContextManager[object] | None = None) -> None:
        """Count into `meter`, look up in `cache`."""
        super().__init__(meter, cache)
        self._slots = slots or nullcontext()
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer from the cache, or send."""
        entry = self._cache.entry(request)
        if entry is None:
            return self._inner.handle_request(request)
        if (cached := self._cached(entry)) is not None:
            return cached
        with self._slots:
            response = self._inner.handle_request(entry.request)
            if response.status_code != httpx.codes.OK:
                return response
            try:
                body = response.read()
            finally:
                response.close()
        return self._received(entry, body)

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


class AsyncMeteredTransport(_Metered, httpx.AsyncBaseTransport):
    """Under an asynchronous client; see `MeteredTransport`."""

    def __init__(self, meter: Meter, cache: HttpCache, *, slots: AbstractAsyncContextManager[object] | None = None) -> None:
        """As `MeteredTransport`."""
        super().__init__(meter, cache)
        self._slots = slots or nullcontext()
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer from the cache, or send."""
        entry = self._cache.entry(request)
        if entry is None:
            return await self._inner.handle_async_request(request)
        # SQLite may wait for the disk or for another process: not in the event loop.
        if (cached := await asyncio.to_thread(self._cached, entry)) is not None:
            return cached
        async with self._slots:
            response = await self._inner.handle_async_request(entry.request)
            if response.status_code != httpx.codes.OK:
                return response
            try:
                body = await response.aread()
            finally:
                await response.aclose()
        return await asyncio.to_thread(self._received, entry, body)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def _response(body: bytes) -> httpx.Response:
    """A fresh response: the one that came has been read and decoded already."""
    return httpx.Response(httpx.codes.OK, headers={"Content-Type": "application/json"}, content=body)


_HOPELESS = (openai.APIConnectionError, openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)
"""Failures that do not depend on the session."""


@dataclass(slots=True)
class PeerEndpoint:
    """The model endpoint of a system that brings its own OpenAI client."""

    base_url: str  # Up to and including `/v1`
    model: str
    api_key: str  # Never empty, because clients refuse to go without
    settings: ManagerModel
    reached: bool = False  # Whether it has answered in this process

    @classmethod
    def of(cls, settings: ManagerModel) -> Self:
        """The endpoint of a configuration.

        Raises:
            DeltaMemError: If URL, model or key are missing or wrong.
        """
        llm = settings.client("manager", None)
        return cls(llm.base_url, llm.model, os.environ.get(settings.api_key_env, "").strip() or "none", settings)

    def note(self, usage: Usage) -> None:
        """Note that calls succeeded."""
        self.reached = self.reached or usage.calls > usage.cached

    def explain(self, error: BaseException, what: str) -> DeltaMemError:
        """A failure of a library in one sentence; failures of the endpoint read the same for all systems.

        Args:
            error: What the library raised.
            what: What it was doing.

        Returns:
            The error to raise; a `SystemUnavailableError` if the endpoint has never answered and will not.
        """
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, openai.OpenAIError | DeltaMemError):
            cause = cause.__cause__
        if isinstance(cause, DeltaMemError):  # of our embedder
            return cause
        if cause is None:
            return DeltaMemError(f"{what} failed: {type(error).__name__}: {error}")
        explained = explain(
            cause, endpoint=self.base_url, model=self.model, api_key=self.api_key, api_key_env=self.settings.api_key_env
        )
        return SystemUnavailableError(str(explained)) if isinstance(cause, _HOPELESS) and not self.reached else explained


def require_peer(system: str, *modules: str) -> None:
    """Check that the packages of a system are installed, without importing them.

    Raises:
        DeltaMemError: If one is missing; names the command that installs it.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise DeltaMemError(
            f'system={system} needs the Python module {missing[0]}; install it with: pip install "deltamem[peers]"'
        )


def spoken_date(time: datetime) -> str:
    """A date as models read it best, for example ``8 May 2023, 13:56``."""
    return f"{time.day} {time:%B %Y}, {time:%H:%M}"


def message_groups(turns: Sequence[DialogueTurn], size: int | None) -> list[Sequence[DialogueTurn]]:
    """The turns in groups of a size; None means all in one."""
    size = size or max(len(turns), 1)
    return [turns[start : start + size] for start in range(0, len(turns), size)]
