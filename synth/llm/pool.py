"""One or several endpoints that serve the same model, used as one: who is asked next, by whom, and what if one fails.

Whoever has the highest priority gets the next free slot, at the endpoint with the most of them. An endpoint that fails
rests; afterwards one request at a time tries it until one succeeds.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from deltamem.errors import ContextLengthError, DeltaMemError, LLMError
from deltamem.llm import LLM, Answer
from deltamem.refusals import is_passing
from synth.config import LLMSettings, Structured
from synth.llm.answers import thinking_tokens

_LOG = logging.getLogger(__name__)

_FIRST_REST, _LONGEST_REST = 1.0, 60.0
"""Seconds that an endpoint, or a request that has failed twice, waits; doubled each time."""
_SILENT = 5
"""Answers in a row without a trace of thinking, from one endpoint, that are worth a warning where thinking is asked for."""
_FORMAT_REFUSED = re.compile(r"response.?format|json.?(schema|object)|grammar|guided|structured.?output", re.IGNORECASE)
_STEPS_DOWN: dict[Structured, Structured] = {"json_schema": "json_object", "json_object": "none"}


@dataclass(eq=False, slots=True)
class _PooledEndpoint:
    llm: LLM
    slots: int
    structured: Structured
    in_flight: int = 0
    failures: int = 0
    answers: int = 0
    resting: bool = False
    thoughtless: int = 0

    @property
    def free(self) -> int:
        return 0 if self.resting else (1 if self.failures else self.slots) - self.in_flight


class EndpointPool:
    """The endpoints; belongs to the event loop that it is used in."""

    def __init__(self, settings: LLMSettings) -> None:
        """Describe the endpoints; nothing is sent yet.

        Raises `DeltaMemError` if there is no URL, or a URL, the model or the key cannot be right.
        """
        if not settings.base_urls:
            raise DeltaMemError("llm.base_urls must name at least one endpoint, for example [http://localhost:8000/v1]")
        self._settings = settings
        options: dict[str, Any] = {
            "api_key_env": settings.api_key_env,
            "timeout": settings.timeout,
            "max_retries": settings.max_retries,
        }
        structured: Structured = "json_schema" if settings.structured == "auto" else settings.structured
        self._endpoints = [
            _PooledEndpoint(LLM(url, settings.model, max_concurrency=settings.slots, **options), settings.slots, structured)
            for url in dict.fromkeys(settings.base_urls)
        ]
        self._queue: list[tuple[tuple[int, int], int, asyncio.Future[_PooledEndpoint]]] = []
        self._numbers = itertools.count()
        self._down_since: float | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._body = settings.body
        self._repeats = 0

    @property
    def in_flight(self) -> int:
        """Requests that endpoints are working on."""
        return sum(endpoint.in_flight for endpoint in self._endpoints)

    @property
    def waiting(self) -> int:
        """Requests that wait for a free slot."""
        return sum(not given.done() for *_, given in self._queue)

    @property
    def retries(self) -> int:
        """Repeated requests, at the same endpoint and at another."""
        return self._repeats + sum(endpoint.llm.usage.retries for endpoint in self._endpoints)

    @property
    def structured(self) -> dict[str, Structured]:
        """The ``response_format`` that each endpoint is asked for by now."""
        return {endpoint.llm.base_url: endpoint.structured for endpoint in self._endpoints}

    async def check(self) -> None:
        """Make sure that there is somebody to ask; endpoints that do not answer begin with a rest.

        Raises `DeltaMemError` if no endpoint answers and serves the model.
        """
        wanted = self._settings.model

        async def problem(endpoint: _PooledEndpoint) -> str:
            try:
                names = [model.id for model in await endpoint.llm.models()]
            except LLMError as error:
                return str(error)
            served = ", ".join(names) or "no model"
            return "" if wanted in names else f"endpoint {endpoint.llm.base_url} serves {served}, not {wanted!r}"

        problems = await asyncio.gather(*map(problem, self._endpoints))
        if all(problems):
            raise DeltaMemError("no endpoint can be used: " + "; ".join(problems))
        for endpoint, found in zip(self._endpoints, problems, strict=True):
            if found:
                _LOG.warning("%s; going on without it for now", found)
                self._rest(endpoint)

    async def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        priority: tuple[int, int],
        seed: int,
        name: str,
        schema: Mapping[str, Any],
    ) -> Answer:
        """Let the model answer a conversation; `schema`, with a `name`, is for servers that can be held to one.

        Smaller priorities come first, equal ones in the order of asking. Raises `ContextLengthError` if the messages do not
        fit the model's window, `LLMError` if the request is refused, or nobody could answer it for `LLMSettings.patience`
        seconds.
        """
        loop = asyncio.get_running_loop()
        failing_since: float | None = None
        for attempt in itertools.count():
            if attempt > 1:
                await asyncio.sleep(_rest_seconds(attempt - 1))
            async with self._slot(priority) as endpoint:
                answers = endpoint.answers
                try:
                    answer = await self._ask(endpoint, messages, seed, name, schema)
                except LLMError as error:
                    if not is_passing(error):
                        self._succeeded(endpoint)  # it does answer
                        raise
                    if endpoint.answers == answers:  # otherwise the endpoint works, and this request has bad luck
                        self._failed(endpoint, error)
                    failing_since = loop.time() if failing_since is None else failing_since
                    if loop.time() - failing_since >= self._settings.patience or self._hopeless():
                        raise
                    self._repeats += 1
                else:
                    self._succeeded(endpoint)
                    return answer
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Close the connections; nobody may be waiting any more."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        await asyncio.gather(*(endpoint.llm.close() for endpoint in self._endpoints))

    async def _ask(
        self,
        endpoint: _PooledEndpoint,
        messages: Sequence[Mapping[str, object]],
        seed: int,
        name: str,
        schema: Mapping[str, Any],
    ) -> Answer:
        """Ask an endpoint, in ever looser response formats until it knows one."""
        settings = self._settings
        while True:
            structured = endpoint.structured
            formats = {
                "none": None,
                "json_object": {"type": "json_object"},
                "json_schema": {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}},
            }
            try:
                answer = await endpoint.llm.chat(
                    messages,
                    temperature=settings.temperature,
                    max_tokens=settings.max_tokens,
                    seed=seed,
                    response_format=formats[structured],
                    extra_body=self._body,
                )
            except LLMError as error:
                refused = _FORMAT_REFUSED.search(str(error)) and not isinstance(error, ContextLengthError)
                if settings.structured != "auto" or structured == "none" or is_passing(error) or not refused:
                    raise
                if endpoint.structured == structured:  # else somebody else was first
                    endpoint.structured = _STEPS_DOWN[structured]
                    _LOG.warning("%s; from now on it is asked for response format %r", error, endpoint.structured)
                self._repeats += 1
            else:
                self._watch_thinking(endpoint, answer)
                return answer

    def _watch_thinking(self, endpoint: _PooledEndpoint, answer: Answer) -> None:
        """Warn once of an endpoint that does not think although it is told to; servers say nothing of it themselves."""
        effort = self._settings.reasoning_effort
        if effort is None or endpoint.thoughtless >= _SILENT:
            return
        endpoint.thoughtless = 0 if thinking_tokens(answer) else endpoint.thoughtless + 1
        if endpoint.thoughtless == _SILENT:
            _LOG.warning(
                "endpoint %s: %d answers in a row without a trace of thinking, though llm.reasoning_effort=%s asks for it; "
                "the server may ignore the field or suppress thinking for structured output (try llm.structured=none)",
                endpoint.llm.base_url,
                _SILENT,
                effort,
            )

    @asynccontextmanager
    async def _slot(self, priority: tuple[int, int]) -> AsyncIterator[_PooledEndpoint]:
        given: asyncio.Future[_PooledEndpoint] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (priority, next(self._numbers), given))
        self._dispatch()
        try:
            endpoint = await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled() and given.exception() is None:
                self._release(given.result())
            raise
        try:
            yield endpoint
        finally:
            self._release(endpoint)

    def _release(self, endpoint: _PooledEndpoint) -> None:
        endpoint.in_flight -= 1
        self._dispatch()

    def _dispatch(self) -> None:
        while self._queue:
            *_, given = self._queue[0]
            endpoint = max(self._endpoints, key=lambda each: each.free)
            if not given.done():  # else cancelled
                if endpoint.free <= 0:
                    return
                endpoint.in_flight += 1
                given.set_result(endpoint)
            heapq.heappop(self._queue)

    def _succeeded(self, endpoint: _PooledEndpoint) -> None:
        endpoint.answers += 1
        endpoint.failures = 0
        self._down_since = None

    def _failed(self, endpoint: _PooledEndpoint, error: LLMError) -> None:
        if endpoint.resting:  # many requests fail together; that is one failure
            return
        _LOG.warning("%s; it rests", error)
        self._rest(endpoint)
        while self._queue and self._hopeless():
            *_, given = heapq.heappop(self._queue)
            if not given.done():
                given.set_exception(LLMError(str(error)))

    def _rest(self, endpoint: _PooledEndpoint) -> None:
        loop = asyncio.get_running_loop()
        endpoint.failures += 1
        endpoint.resting = True
        if self._down_since is None and all(each.failures for each in self._endpoints):
            self._down_since = loop.time()

        def wake() -> None:
            self._timers.discard(timer)
            endpoint.resting = False
            self._dispatch()

        timer = loop.call_later(_rest_seconds(endpoint.failures), wake)
        self._timers.add(timer)

    def _hopeless(self) -> bool:
        """Whether all endpoints have been failing for longer than the patience."""
        now = asyncio.get_running_loop().time()
        return self._down_since is not None and now - self._down_since >= self._settings.patience


def _rest_seconds(failures: int) -> float:
    return min(_FIRST_REST * 2.0 ** (failures - 1), _LONGEST_REST)
