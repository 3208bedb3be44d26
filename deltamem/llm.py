"""The one client of OpenAI-compatible chat endpoints: retries, limits, response cache, token counts.

Retries after a lost connection, a time-out, a body cut in transit, a 408, 409, 429 or 5xx are the openai client's own; it
waits as long as ``Retry-After`` asks, up to two minutes, and gives up at once when more is asked. That client does not look
at what it received with a status of 200, so what is not a chat completion is asked for again here, out of the same budget.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

# The client looks for this module at every request, and finds half of it while another thread is importing it.
import httpx as _httpx  # noqa: F401
import openai
from pydantic import ValidationError

from deltamem.errors import ContextLengthError, DeltaMemError, LLMError
from deltamem.llm_cache import ResponseCache
from deltamem.llm_errors import explain, quoted
from deltamem.llm_wire import Answer, ChatReply, ModelsReply, Reply, ServedModel

__all__ = ["LLM", "Answer", "ContextLengthError", "LLMError", "ServedModel", "Usage", "is_passing"]

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 8.0
"""Seconds to wait before an unreadable answer is asked for again; doubled each time. As the openai client does."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an `LLM` has done so far.

    Attributes:
        requests: Requests for which the endpoint was asked; repeats are not counted again.
        retries: Repeats of requests.
        cached: Answers taken from the cache.
        prompt_tokens: Tokens read by the endpoint; cached answers cost none.
        completion_tokens: Tokens written by the endpoint.
        failures: Requests that ended in an `LLMError`.
    """

    requests: int = 0
    retries: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failures: int = 0


_Reply = TypeVar("_Reply", bound=Reply)


class _RawResponse(Protocol):
    retries_taken: int

    @property
    def content(self) -> bytes: ...


class _Connection(NamedTuple):
    client: openai.AsyncOpenAI
    slots: asyncio.Semaphore


class LLM:
    """A model behind an endpoint; may be used from several event loops, in turn or at once.

    Each loop has its own connections, which `close` closes: call it before the loop ends, or they stay open until they are
    collected as garbage.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        timeout: float = 120.0,
        max_concurrency: int = 16,
        max_retries: int = 4,
        cache: ResponseCache | None = None,
        aiohttp: bool = False,
    ) -> None:
        """Describe the endpoint; nothing is sent yet.

        Args:
            base_url: Up to and including ``/v1``.
            model: Name under which the endpoint serves the model.
            api_key_env: Environment variable that holds the key; local servers need none, so it may be unset.
            timeout: Seconds to wait for the connection, and then for the next bytes of the answer; each try anew.
            max_concurrency: Requests in flight at once, for each event loop. One that waits to be repeated counts, so that
                an overloaded server is not pressed further.
            max_retries: How often a request may be repeated in all.
            cache: Where answers are kept and looked up.
            aiohttp: Whether connections are those of aiohttp, which must be installed. A request then takes a third less
                processor time, which decides how many a process can have in flight; but `close` must not be forgotten,
                because aiohttp complains of connections that are collected as garbage.

        Raises:
            DeltaMemError: If the URL, the model or the key cannot be right, or aiohttp is asked for and missing.
        """
        self.base_url = base_url.rstrip("/")
        self.model = model
        _check_url(self.base_url)
        if not model:
            raise DeltaMemError(f"endpoint {self.base_url}: the name of the model is empty")
        if aiohttp and importlib.util.find_spec("aiohttp") is None:
            raise DeltaMemError("connections of aiohttp need the package; install it with: pip install 'openai[aiohttp]'")
        self._http_client = openai.DefaultAioHttpClient if aiohttp else openai.DefaultAsyncHttpxClient
        self._api_key_env = api_key_env
        self._api_key = os.environ.get(api_key_env, "").strip()
        if not (self._api_key.isascii() and self._api_key.isprintable()):
            raise DeltaMemError(f"${api_key_env} holds no usable key: it has characters that no key has")
        self._timeout = timeout
        self._max_concurrency = max_concurrency
        self._max_retries = max_retries
        self.cache = cache
        self._lock = threading.Lock()
        self._usage = Usage()
        self._connections: dict[asyncio.AbstractEventLoop, _Connection] = {}

    @property
    def usage(self) -> Usage:
        """What has been done so far; the object does not change afterwards."""
        return self._usage

    async def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        temperature: float,
        max_tokens: int | None,
        seed: int | None = None,
        response_format: Mapping[str, object] | None = None,
        extra_body: Mapping[str, object] | None = None,
        scope: str = "",
        sample: int = 0,
    ) -> Answer:
        """Let the model answer a conversation.

        Args:
            messages: With ``role`` and ``content``.
            temperature: Of the sampling.
            max_tokens: Token limit of the answer; None leaves it to the endpoint (vLLM: the rest of the window).
            seed: Of the sampling, for endpoints that take one.
            response_format: As in the OpenAI protocol.
            extra_body: Fields outside the OpenAI protocol.
            scope: For whom the answer is cached; one scope never gets another's answer.
            sample: Number of the draw. Another number asks anew where the cache, or a fixed seed, would repeat the answer.

        Raises:
            ContextLengthError: If the messages and `max_tokens` do not fit the model's window.
            LLMError: If the endpoint gives no usable answer, after the retries.
            DeltaMemError: If the cache cannot be used.
        """
        request: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": float(temperature),
        }
        if max_tokens is not None:
            request["max_tokens"] = max_tokens
        if seed is not None:
            request["seed"] = seed + sample
        if response_format is not None:
            request["response_format"] = dict(response_format)
        if extra_body is not None:
            request["extra_body"] = dict(extra_body)
        if self.cache is None:
            return await self._ask(request)
        # SQLite may wait for the disk or for another process: not in the event loop.
        asked = {"base_url": self.base_url, "sample": sample, **request}
        stored = await asyncio.to_thread(self.cache.get, scope, asked)
        if stored is not None:
            self._count(cached=1)
            return Answer(**stored, truncated=False, cached=True)
        answer = await self._ask(request)
        if not answer.truncated:
            kept = {name: getattr(answer, name) for name in ("text", "reasoning", "prompt_tokens", "completion_tokens")}
            await asyncio.to_thread(self.cache.put, scope, asked, kept)
        return answer

    async def check(
        self, messages: Sequence[Mapping[str, object]], *, extra_body: Mapping[str, object] | None = None
    ) -> None:
        """Make sure that the endpoint answers a conversation, past the cache, at the cost of one token.

        Args:
            messages: With ``role`` and ``content``.
            extra_body: Fields outside the OpenAI protocol.

        Raises:
            LLMError: If it does not; the message says why.
        """
        request: dict[str, Any] = {"model": self.model, "messages": list(messages), "max_tokens": 1}
        await self._ask(request | ({} if extra_body is None else {"extra_body": dict(extra_body)}))

    async def models(self) -> list[ServedModel]:
        """The models that the endpoint serves.

        Raises:
            LLMError: If the endpoint does not tell.
        """
        reply, _ = await self._exchange(ModelsReply, lambda client: client.models.with_raw_response.list())
        return reply.models()

    async def close(self) -> None:
        """Close the connections made in the running event loop; a later request makes new ones."""
        with self._lock:
            connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.client.close()

    async def _ask(self, request: dict[str, Any]) -> Answer:
        # The client walks through all messages and schemas that it knows to be such, which takes as long as sending them.
        body = {name: value for name, value in request.items() if name != "extra_body"} | request.get("extra_body", {})

        def send(client: openai.AsyncOpenAI) -> Awaitable[_RawResponse]:
            create: Callable[..., Awaitable[_RawResponse]] = client.chat.completions.with_raw_response.create
            return create(messages=(), model=self.model, extra_body=body)

        reply, seconds = await self._exchange(ChatReply, send)
        answer = reply.answer(seconds)
        self._count(prompt_tokens=answer.prompt_tokens, completion_tokens=answer.completion_tokens)
        return answer

    async def _exchange(
        self, shape: type[_Reply], send: Callable[[openai.AsyncOpenAI], Awaitable[_RawResponse]]
    ) -> tuple[_Reply, float]:
        """Send a request when a slot is free and read the answer; how many seconds it took from then."""
        connection = self._connection()
        async with connection.slots:
            self._count(requests=1)
            started = time.perf_counter()
            try:
                reply = await self._exchange_until_readable(connection.client, shape, send)
            except LLMError:
                self._count(failures=1)
                raise
            return reply, time.perf_counter() - started

    async def _exchange_until_readable(
        self,
        client: openai.AsyncOpenAI,
        shape: type[_Reply],
        send: Callable[[openai.AsyncOpenAI], Awaitable[_RawResponse]],
    ) -> _Reply:
        left = self._max_retries
        delay = _FIRST_DELAY
        while True:
            try:
                response = await send(client if left == self._max_retries else client.with_options(max_retries=left))
            except openai.OpenAIError as error:
                if isinstance(error, openai.APIError):
                    self._count(retries=int(error.request.headers.get("x-stainless-retry-count", "0")))
                raise explain(
                    error,
                    endpoint=self.base_url,
                    model=self.model,
                    api_key=self._api_key,
                    api_key_env=self._api_key_env,
                ) from error
            except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON lets through
                raise LLMError(
                    f"endpoint {self.base_url}: the request to model {self.model!r} holds text that is not valid Unicode"
                ) from error
            self._count(retries=response.retries_taken)
            left -= response.retries_taken
            try:
                return shape.model_validate_json(response.content)
            except ValidationError as error:
                if left <= 0:
                    body = quoted(response.content.decode(errors="replace"), self._api_key) or "an empty body"
                    raise LLMError(
                        f"endpoint {self.base_url} answered for model {self.model!r} with something else than "
                        f"{shape.expected}: {body}"
                    ) from error
            self._count(retries=1)
            left -= 1
            await asyncio.sleep(delay * random.uniform(0.75, 1))
            delay = min(2 * delay, _LONGEST_DELAY)

    def _connection(self) -> _Connection:
        """Client and slots of the running event loop: sockets and waiting tasks belong to the loop they were made in."""
        loop = asyncio.get_running_loop()
        with self._lock:
            for closed in [known for known in self._connections if known.is_closed()]:
                del self._connections[closed]
            if loop not in self._connections:
                client = openai.AsyncOpenAI(
                    base_url=self.base_url,
                    api_key=self._api_key or "none",
                    timeout=self._timeout,
                    max_retries=self._max_retries,
                    # The client's own default closes itself, when collected, in whatever loop then runs.
                    http_client=self._http_client(),
                )
                self._connections[loop] = _Connection(client, asyncio.Semaphore(self._max_concurrency))
            return self._connections[loop]

    def _count(self, **more: int) -> None:
        with self._lock:
            self._usage = replace(self._usage, **{name: getattr(self._usage, name) + count for name, count in more.items()})


def is_passing(error: LLMError) -> bool:
    """Whether the same request may succeed later, or at another endpoint that serves the same model.

    So it is after a lost connection, a time-out, an answer that could not be read, a 408, 409, 429 or 5xx.
    """
    cause = error.__cause__
    if isinstance(cause, openai.APIStatusError):
        return cause.status_code in (408, 409, 429) or cause.status_code >= 500
    return isinstance(cause, openai.APIConnectionError | ValidationError)


def _check_url(base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        _ = parts.port  # parsed only now
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DeltaMemError(f"{base_url!r} is not the URL of an endpoint; expected something like http://localhost:8000/v1")
    if "@" in parts.netloc:
        # The URL is written into journals and reports.
        raise DeltaMemError(
            f"the URL of the endpoint at {parts.hostname} holds a password; put the key in a variable instead"
        )
