"""The HTTP transport under other systems' clients: counts their calls and caches their answers."""

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
from typing import Any, Self

import httpx
import openai

from deltamem.errors import DeltaMemError
from deltamem.llm import ResponseCache, explain
from eval.config import ManagerModel
from eval.systems.base import DialogueTurn, SystemUnavailableError, Usage

CHAT, EMBEDDINGS = "/chat/completions", "/embeddings"
"""How the paths end that are answered from the shelf."""


class HttpCache:
    """Answers in the response cache of the run, for one scope."""

    def __init__(
        self,
        cache: ResponseCache | None,
        scope: str,
        *,
        passing: re.Pattern[str] | None = None,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """Describe how requests are recognised.

        Args:
            cache: Where answers are kept; None keeps none.
            scope: For whom (see `deltamem.llm`): the store.
            passing: What a library puts into the text of a request and draws anew in each run, for example ids or today's
                date; without groups. Requests that differ in nothing else are the same, and in the answer the old draw
                gives way to the new.
            fields: Put into the body of every chat request unless the library sends them itself, for example a seed.
        """
        self._cache = cache
        self._scope = scope
        self._passing = passing
        self._fields = dict(fields or {})

    def page(self, request: httpx.Request) -> CacheEntry | None:
        """Where the answer to a request is kept; None for requests that are not metered."""
        path = request.url.path
        if request.method != "POST" or not path.endswith((CHAT, EMBEDDINGS)):
            return None
        try:
            body = json.loads(request.content)
        except ValueError:
            return None
        if not isinstance(body, dict):
            return None
        if path.endswith(CHAT):
            body = self._fields | body
        drawn = _drawn(body, self._passing)
        text = json.dumps(body, ensure_ascii=False, sort_keys=True)
        # As text, not as JSON again: what is masked may stand next to an escape and look like a part of it.
        key = {"url": str(request.url), "body": _masked(text, drawn)}
        return CacheEntry(self._cache, self._scope, key, body, drawn)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The place of one answer.

    Attributes:
        cache: As in `AnswerShelf`.
        scope: As in `AnswerShelf`.
        key: What the answer is kept under.
        body: Of the request, as it is sent.
        drawn: Passing texts of the request, in the order in which they first occur.
    """

    cache: ResponseCache | None
    scope: str
    key: dict[str, str]
    body: dict[str, Any]
    drawn: tuple[str, ...]

    def find(self) -> bytes | None:
        """The body of the kept answer, with the passing texts of this request."""
        kept = self.cache.get(self.scope, self.key) if self.cache is not None else None
        if kept is None:
            return None
        text: str = kept["body"]
        for number, drawn in enumerate(self.drawn):
            text = text.replace(_mask(number), drawn)
        return text.encode()

    def keep(self, body: bytes) -> None:
        """Keep an answer."""
        if self.cache is not None:
            self.cache.put(self.scope, self.key, {"body": _masked(body.decode(), self.drawn)})


def _drawn(body: object, passing: re.Pattern[str] | None) -> tuple[str, ...]:
    """The passing texts in the strings of a body, each once."""
    if passing is None:
        return ()
    found: dict[str, None] = {}
    parts = [body]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            found.update(dict.fromkeys(passing.findall(part)))
        elif isinstance(part, dict):
            parts.extend(reversed(part.values()))
        elif isinstance(part, list):
            parts.extend(reversed(part))
    return tuple(found)


def _masked(text: str, drawn: Sequence[str]) -> str:
    for number, passing in enumerate(drawn):
        text = text.replace(passing, _mask(number))
    return text


def _mask(number: int) -> str:
    """Stands for a passing text; private-use characters, which no text has."""
    return f"\ue000{number}\ue001"


class Meter:
    """What went through the transports that share it; one for each store tells stores apart."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usage = Usage()
        self._embeddings = 0

    @property
    def embeddings(self) -> int:
        """Calls of an embedding endpoint so far; systems that are given our embedder make none."""
        return self._embeddings

    def take(self) -> Usage:
        """Chat calls and their tokens since the last time."""
        with self._lock:
            usage, self._usage = self._usage, Usage()
        return usage

    def count(self, answer: _Answer, *, cached: bool) -> None:
        """Count an answer."""
        with self._lock:
            if answer.embedding:
                self._embeddings += 1
            else:
                self._usage += Usage(1, int(cached), answer.prompt_tokens, answer.completion_tokens)


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer that counts.

    Attributes:
        embedding: Whether it is an embedding and not a completion.
        prompt_tokens: As the server counts them.
        completion_tokens: Likewise.
        whole: Whether it ended by itself; an answer that was cut off is not kept.
    """

    embedding: bool
    prompt_tokens: int
    completion_tokens: int
    whole: bool

    @classmethod
    def read(cls, path: str, body: bytes) -> _Answer | None:
        """The answer in a body that came with status 200, or None if there is none."""
        try:
            reply = json.loads(body)
        except ValueError:
            return None
        embedding = path.endswith(EMBEDDINGS)
        parts = reply.get("data" if embedding else "choices") if isinstance(reply, dict) else None
        if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
            return None
        tokens = reply.get("usage") or {}
        return cls(
            embedding=embedding,
            prompt_tokens=int(tokens.get("prompt_tokens") or 0),
            completion_tokens=int(tokens.get("completion_tokens") or 0),
            whole=not any(part.get("finish_reason") == "length" for part in parts),
        )


class MeteredTransport(httpx.BaseTransport):
    """Under a client that waits; threads may share it."""

    def __init__(
        self,
        meter: Meter,
        shelf: HttpCache,
        *,
        slots: AbstractContextManager[object] | None = None,
        inner: httpx.BaseTransport | None = None,
    ) -> None:
        """Count into `meter`, look up in `shelf`.

        Args:
            meter: What is counted.
            shelf: Where answers are kept.
            slots: Held while a metered request is under way, so that transports together keep to a limit.
            inner: What sends; None means the network.
        """
        self._meter = meter
        self._shelf = shelf
        self._slots = slots or nullcontext()
        self._inner = inner or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer from the shelf, or send."""
        page = self._shelf.page(request)
        if page is None:
            return self._inner.handle_request(request)
        path = request.url.path
        body = page.find()
        if body is not None and (answer := _Answer.read(path, body)) is not None:
            self._meter.count(answer, cached=True)
            return _response(body)
        with self._slots:
            response = self._inner.handle_request(_with_body(request, page.body))
            if response.status_code != httpx.codes.OK:
                return response
            try:
                body = response.read()
            finally:
                response.close()
        answer = _Answer.read(path, body)
        if answer is not None:
            self._meter.count(answer, cached=False)
            if answer.whole:
                page.keep(body)
        return _response(body)

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


class AsyncMeteredTransport(httpx.AsyncBaseTransport):
    """Under a client of an event loop; see `MeteredTransport`."""

    def __init__(
        self,
        meter: Meter,
        shelf: HttpCache,
        *,
        slots: AbstractAsyncContextManager[object] | None = None,
        inner: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """As `MeteredTransport`."""
        self._meter = meter
        self._shelf = shelf
        self._slots = slots or nullcontext()
        self._inner = inner or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer from the shelf, or send."""
        page = self._shelf.page(request)
        if page is None:
            return await self._inner.handle_async_request(request)
        path = request.url.path
        # SQLite may wait for the disk or for another process: not in the event loop.
        body = await asyncio.to_thread(page.find)
        if body is not None and (answer := _Answer.read(path, body)) is not None:
            self._meter.count(answer, cached=True)
            return _response(body)
        async with self._slots:
            response = await self._inner.handle_async_request(_with_body(request, page.body))
            if response.status_code != httpx.codes.OK:
                return response
            try:
                body = await response.aread()
            finally:
                await response.aclose()
        answer = _Answer.read(path, body)
        if answer is not None:
            self._meter.count(answer, cached=False)
            if answer.whole:
                await asyncio.to_thread(page.keep, body)
        return _response(body)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def _response(body: bytes) -> httpx.Response:
    """A fresh response: the one that came has been read and decoded already."""
    return httpx.Response(httpx.codes.OK, headers={"Content-Type": "application/json"}, content=body)


def _with_body(request: httpx.Request, body: Mapping[str, object]) -> httpx.Request:
    headers = {name: value for name, value in request.headers.items() if name.lower() != "content-length"}
    content = json.dumps(body).encode()
    return httpx.Request(request.method, request.url, headers=headers, content=content, extensions=request.extensions)


_HOPELESS = (
    openai.APIConnectionError,
    openai.AuthenticationError,
    openai.PermissionDeniedError,
    openai.NotFoundError,
)
"""Failures that do not depend on the session."""


@dataclass(slots=True)
class PeerEndpoint:
    """An endpoint as a client of OpenAI's is told of it.

    Attributes:
        base_url: Up to and including ``/v1``.
        model: Name under which the endpoint serves the model.
        api_key: Never empty, because clients refuse to go without.
        settings: The configuration it comes from.
        reached: Whether it has answered in this process.
    """

    base_url: str
    model: str
    api_key: str
    settings: ManagerModel
    reached: bool = False

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

    def told(self, error: BaseException, what: str) -> DeltaMemError:
        """A failure of a library in one sentence; if it is the endpoint's, in the words that are used for all systems.

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
        told = explain(
            cause, endpoint=self.base_url, model=self.model, api_key=self.api_key, api_key_env=self.settings.api_key_env
        )
        return SystemUnavailableError(str(told)) if isinstance(cause, _HOPELESS) and not self.reached else told


def require_peer(system: str, *modules: str) -> None:
    """Make sure that the packages of a system are installed, without importing them.

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
