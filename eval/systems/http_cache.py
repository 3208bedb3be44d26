"""The HTTP layer under the clients of mem0 and LangMem: it counts their calls, caches answers and explains failures."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx
import openai
from pydantic import ValidationError

from deltamem.embedding import Embedder
from deltamem.endpoint import endpoint_traits
from deltamem.errors import DeltaMemError
from deltamem.llm import Answer, ChatReply, ResponseCache, Usage, written
from deltamem.refusals import explain
from eval.config import BenchmarkConfig, ManagerModel
from eval.systems.base import DialogueSession, DialogueTurn, StoreKey, SystemUnavailableError
from eval.systems.kinds import Calls, SystemKind, session_tokens

CHAT = "/chat/completions"
"""How the path of a metered request ends. Systems are given our embedder, so nothing else is asked of the endpoint."""


@dataclass(frozen=True, slots=True)
class HttpCache:
    """Looks up requests in the response cache of the run, for one store."""

    cache: ResponseCache | None  # Where answers are kept; None keeps none
    scope: str  # For whom (see `deltamem.llm`): the store
    # What differs from run to run in the requests of a library, such as random ids; without groups. Requests that differ in
    # nothing else are the same; a cached answer gets the new values for the old ones
    volatile: re.Pattern[str] | None = None
    # Put into the body of every request unless the library sends them itself, for example a seed
    fields: Mapping[str, object] = field(default_factory=dict)

    def entry(self, request: httpx.Request) -> CacheEntry | None:
        """The cache entry of a request; None for requests that are not metered."""
        if request.method != "POST" or not request.url.path.endswith(CHAT):
            return None
        body = {**self.fields, **json.loads(request.content)}
        drawn = (found for part in _strings(body) for found in self.volatile.findall(part)) if self.volatile else ()
        values = tuple(dict.fromkeys(drawn))
        key = {"url": str(request.url), "body": _masked(json.dumps(body, ensure_ascii=False, sort_keys=True), values)}
        model = str(request.url).removesuffix(CHAT), str(body.get("model"))
        if self.cache is not None and (served := self.cache.served.get(model)):
            key["served"] = served
        headers = {name: value for name, value in request.headers.items() if name.lower() != "content-length"}
        # What the endpoint refuses was learned from the request with which the run began.
        fitted = endpoint_traits(*model).terms.known.fit(body)
        sent = httpx.Request(request.method, request.url, headers=headers, json=fitted, extensions=request.extensions)
        return CacheEntry(self.cache, self.scope, key, sent, values)


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


def _strings(part: object) -> Iterator[str]:
    """All strings in a JSON value, in order, apart from keys."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _strings(inner)


def _masked(text: str, values: Sequence[str]) -> str:
    # As text, not as JSON again: a value may stand next to an escape and look like a part of it.
    for number, value in enumerate(values):
        text = text.replace(value, _mask(number))
    return text


def _mask(number: int) -> str:
    """Stands for a volatile text; private-use characters, which no text has."""
    return f"\ue000{number}\ue001"


class Meter:
    """Calls, tokens and searches of the clients and embedders that share it, as those of a store do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usage = Usage()

    def take(self) -> Usage:
        """What was counted since the last time."""
        with self._lock:
            usage, self._usage = self._usage, Usage()
        return usage

    def add(self, usage: Usage) -> None:
        """Count."""
        with self._lock:
            self._usage += usage

    def count(self, body: bytes, *, cached: bool) -> Answer | None:
        """Count the answer in a body that came with status 200, and return it; None if it is none."""
        try:
            answer = ChatReply.model_validate_json(body).answer(0.0)
        except ValidationError:
            return None
        read, written = answer.prompt_tokens, answer.completion_tokens
        self.add(Usage(calls=1, cached=int(cached), prompt_tokens=read, completion_tokens=written))
        return answer


class _Metered:
    """What both transports do with a metered request apart from sending it."""

    def __init__(self, meter: Meter, cache: HttpCache, *, slots: Any = None) -> None:
        super().__init__()
        self._meter = meter
        self._cache = cache
        self._slots = slots or nullcontext()  # Held while a metered request is under way

    def _cached(self, entry: CacheEntry) -> httpx.Response | None:
        body = entry.find()
        return None if body is None or self._meter.count(body, cached=True) is None else _response(body)

    def _received(self, entry: CacheEntry, response: httpx.Response) -> httpx.Response:
        """What is passed on of a response that has been read."""
        if response.status_code != httpx.codes.OK:
            return response
        answer = self._meter.count(response.content, cached=False)
        if answer is not None and not answer.truncated:
            entry.keep(response.content)
        return _response(response.content)


class MeteredTransport(_Metered, httpx.HTTPTransport):
    """Under a synchronous client; threads may share it. Transports that share slots keep to their limit together."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer from the cache, or send."""
        entry = self._cache.entry(request)
        if entry is None:
            return super().handle_request(request)
        if (cached := self._cached(entry)) is not None:
            return cached
        with self._slots:
            response = super().handle_request(entry.request)
            response.read()
        return self._received(entry, response)


class AsyncMeteredTransport(_Metered, httpx.AsyncHTTPTransport):
    """Under an asynchronous client; see `MeteredTransport`."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer from the cache, or send."""
        entry = self._cache.entry(request)
        if entry is None:
            return await super().handle_async_request(request)
        # SQLite may wait for the disk or for another process: not in the event loop.
        if (cached := await asyncio.to_thread(self._cached, entry)) is not None:
            return cached
        async with self._slots:
            response = await super().handle_async_request(entry.request)
            await response.aread()
        return await written(asyncio.get_running_loop().run_in_executor(None, self._received, entry, response))


def _response(body: bytes) -> httpx.Response:
    """A fresh response: the one that came has been read and decoded already."""
    return httpx.Response(httpx.codes.OK, headers={"Content-Type": "application/json"}, content=body)


_HOPELESS = (openai.APIConnectionError, openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)
"""Failures that do not depend on the session."""


class Peer:
    """A memory system of others, which brings its own OpenAI client."""

    name: str
    modules: tuple[str, ...]  # What must be installed
    volatile: re.Pattern[str]  # See `HttpCache`
    per_speaker = True
    ranked = True

    def __init__(self, embedder: Embedder, settings: ManagerModel, cache: ResponseCache | None, *, seed: int) -> None:
        """Describe the system; nothing is imported or sent yet.

        The `embedder` is used in place of the system's own, so that queries get the same prompts in all systems; the `seed`
        is that of the model's sampling. Fails if a package is missing, or the settings cannot be right.
        """
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                raise DeltaMemError(
                    f'system={self.name} needs the Python module {module}; install it with: pip install "deltamem[peers]"'
                )
        llm = settings.client("manager", None)
        self.embedder = embedder
        self.settings = settings
        self.model = llm.model
        # Never without a key, because clients refuse to go without.
        self.api_key = os.environ.get(settings.api_key_env, "").strip() or "none"
        self.base_url = llm.base_url
        self._cache = cache
        self._fields = {"seed": seed} | settings.extra_body
        self._reached = False  # Whether the endpoint has answered in this process

    def http_cache(self, key: StoreKey) -> HttpCache:
        """For the transport of a store's client."""
        return HttpCache(self._cache, key.id, self.volatile, self._fields)

    def usage(self, meter: Meter) -> Usage:
        """What a session cost that succeeded."""
        usage = meter.take()
        self._reached |= usage.calls > usage.cached
        return usage

    def explain(self, error: BaseException, what: str) -> DeltaMemError:
        """The error to raise for what a library raised while it did `what`, in one sentence.

        Failures of the endpoint read the same for all systems; one that has never answered and will not is a
        `SystemUnavailableError`.
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
        return SystemUnavailableError(str(explained)) if isinstance(cause, _HOPELESS) and not self._reached else explained


def spoken_date(time: datetime) -> str:
    """A date as models read it best, for example ``8 May 2023, 13:56``."""
    return f"{time.day} {time:%B %Y}, {time:%H:%M}"


def message_groups(turns: Sequence[DialogueTurn], size: int | None) -> list[Sequence[DialogueTurn]]:
    """The turns in groups of a size; None means all in one."""
    size = size or max(len(turns), 1)
    return [turns[start : start + size] for start in range(0, len(turns), size)]


class PeerKind(SystemKind):
    """A kind of `Peer`."""

    per_speaker = True
    with_model = True
    prompt_tokens: int  # Of the peer's own prompt and tools, measured with a scripted model (tests/eval/system_scripts.py)

    def calls(self, session: DialogueSession, store: StoreKey, config: BenchmarkConfig) -> Iterator[Calls]:
        """One for each group of messages."""
        groups = len(message_groups(session.turns, store.batch_turns))
        yield Calls(groups, session_tokens(session) + groups * self.prompt_tokens, PEER_WRITTEN)


PEER_WRITTEN = 80
"""Tokens that a peer's model is assumed to write for a group of messages."""
