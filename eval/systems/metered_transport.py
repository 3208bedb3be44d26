"""Counts and keeps the model calls of other people's libraries, below their OpenAI client.

    transport = MeteredTransport(Meter(), AnswerShelf(cache, scope="conv-1.Ana"))
    client = openai.OpenAI(base_url=..., http_client=httpx.Client(transport=transport))

A library that is measured keeps its own client, prompts and way of asking. What its requests cost is counted where they
leave the process, in the same way for every library, and answers are kept in the run's response cache, so that a second run
costs nothing. Only a chat completion or an embedding counts as an answer: errors, and bodies that are neither, pass through
as they came, uncounted and unkept, so that the client's own retries work.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass

import httpx

from eval.systems.answer_shelf import EMBEDDINGS, AnswerShelf
from eval.systems.protocol import Usage


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
        shelf: AnswerShelf,
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
        shelf: AnswerShelf,
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
