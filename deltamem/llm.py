"""The one client of OpenAI-compatible chat endpoints: retries, limits, response cache, token counts."""

from __future__ import annotations

import asyncio
import codecs
import functools
import hashlib
import importlib.util
import json
import logging
import os
import random
import re
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

# The client looks for it at every request, and another thread may then be half through importing it.
import httpx  # noqa: F401
import openai
from pydantic import BaseModel, Field, ValidationError

from deltamem.config import StrictModel
from deltamem.endpoint import NO_THINKING, AnswerSchema, EndpointTraits, Refusal, endpoint_traits, refusal
from deltamem.errors import ContextLengthError, DeltaMemError, LLMError
from deltamem.refusals import explain, is_unfinished, overflows, quoted, words_of
from deltamem.sqlite import Database, FileKind
from deltamem.window import estimate_tokens

logger = logging.getLogger(__name__)

_PRESUMED_WINDOW = 8192
"""Tokens. Where the window of a model is not known, see `LLM.chat`."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call that a model asks for."""

    id: str
    name: str
    arguments: str  # JSON, if the model wrote any

    def message_part(self) -> dict[str, object]:
        """As an assistant's message in the OpenAI protocol holds it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model wrote."""

    text: str  # The message; empty if there is none
    truncated: bool  # Whether the model stopped at a token limit
    prompt_tokens: int  # As the server counts them, here and below; 0 if it does not
    completion_tokens: int
    cached: bool = False  # Whether the answer comes from the cache, so that the tokens were not spent now
    reasoning: str = ""  # Thinking that the server delivers in a field of its own
    reasoning_tokens: int = 0  # Of `completion_tokens`, those of thinking; 0 if the server does not say
    tool_calls: tuple[ToolCall, ...] = ()  # Of a request with ``tools``
    seconds: float = field(default=0.0, compare=False)
    """From the first try, when a slot was free, till the answer; 0 if cached. Two answers may differ in it and be equal."""

    @property
    def thought(self) -> bool:
        """Whether the model thought before it answered, as far as that shows."""
        return bool(self.reasoning or self.reasoning_tokens) or re.search("</?think>", self.text) is not None

    def as_object(self) -> Answer:
        """The answer to a request for an object, with the object as its text, wherever the server has put it.

        It may be the arguments of a call; a reasoning parser may take it for thoughts of a model that was told not to think.
        """
        if self.tool_calls:
            return replace(self, text=self.tool_calls[0].arguments, tool_calls=())
        if not self.text.strip() and self.reasoning.lstrip().startswith("{"):
            return replace(self, text=self.reasoning, reasoning="")
        return self


class Usage(StrictModel):
    """What calls of language models came to. Tokens are counted by the server; 0 if it reports none."""

    calls: int = 0  # Answers obtained, cached ones included; repeats after a failure are not counted
    cached: int = 0  # How many of them a response cache gave
    prompt_tokens: int = 0  # Read; those of cached answers included, here and below
    completion_tokens: int = 0  # Written
    searches: int = 0  # Queries that the model itself asked a memory

    @classmethod
    def of(cls, answer: Answer) -> Self:
        """Of one answer."""
        return cls(
            calls=1,
            cached=int(answer.cached),
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
        )

    def __add__(self, other: Usage) -> Self:
        return self.model_copy(update={name: getattr(self, name) + count for name, count in other})


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that an endpoint serves."""

    id: str
    context_window: int | None  # In tokens, if the endpoint tells
    # Where the server has it from, as it says: a folder on its machine or a hub name.
    root: str | None = field(default=None, compare=False)
    owned_by: str | None = field(default=None, compare=False)


class Reply(BaseModel):
    """The body of a successful response; `expected` says what it should have been."""

    expected: ClassVar[str]


class _Function(BaseModel):
    name: str
    arguments: str | None = None


class _ToolCall(BaseModel):
    id: str | None = None
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    # vLLM has renamed the field; other servers use either.
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _TokenDetails(BaseModel):
    reasoning_tokens: int | None = None


class _Tokens(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    completion_tokens_details: _TokenDetails | None = None


class ChatReply(Reply):
    """The answer to ``/chat/completions``."""

    expected = "a chat completion"

    choices: list[_Choice] = Field(min_length=1)
    usage: _Tokens | None = None

    def answer(self, seconds: float) -> Answer:
        """The first choice, which took so long."""
        choice = self.choices[0]
        tokens = self.usage or _Tokens()
        return Answer(
            text=choice.message.content or "",
            truncated=choice.finish_reason == "length",
            prompt_tokens=tokens.prompt_tokens or 0,
            completion_tokens=tokens.completion_tokens or 0,
            reasoning=choice.message.reasoning_content or choice.message.reasoning or "",
            reasoning_tokens=(tokens.completion_tokens_details or _TokenDetails()).reasoning_tokens or 0,
            tool_calls=tuple(
                ToolCall(call.id or f"call_{number}", call.function.name, call.function.arguments or "{}")
                for number, call in enumerate(choice.message.tool_calls or ())
            ),
            seconds=seconds,
        )


class _Model(BaseModel):
    id: str
    # vLLM and SGLang; OpenRouter; Groq; llama.cpp. OpenAI itself does not tell.
    max_model_len: int | None = None
    context_length: int | None = None
    context_window: int | None = None
    meta: dict[str, Any] | None = None
    root: str | None = None
    owned_by: str | None = None

    @property
    def window(self) -> int | None:
        said = self.max_model_len or self.context_length or self.context_window or (self.meta or {}).get("n_ctx")
        return said if isinstance(said, int) and said > 0 else None


class ModelsReply(Reply):
    """The answer to ``/models``."""

    expected = "a list of models"

    data: list[_Model]

    def models(self) -> list[ServedModel]:
        """The models in the server's order."""
        return [ServedModel(model.id, model.window, model.root, model.owned_by) for model in self.data]


_BUSY_SECONDS = 30.0  # How long to wait for another process that writes
_CACHE = FileKind(
    "a response cache",
    application_id=0,  # caches were made before there was a mark
    version=0,
    schema="CREATE TABLE answers"
    " (scope TEXT, request TEXT, value TEXT NOT NULL, PRIMARY KEY (scope, request)) WITHOUT ROWID",
    durable=False,
)


class ResponseCache:
    """Answers by scope and request. A scope is the owner whose data the request holds; scopes share nothing.

    A request is all that decides the answer, as JSON values. Whatever cannot be read or written is a `DeltaMemError`.
    """

    def __init__(self, path: Path) -> None:
        """Open the SQLite file, or make it; ``-wal`` and ``-shm`` files lie next to it while it is open.

        Raises:
            DeltaMemError: If it cannot be opened or is not such a cache.
        """
        self.served: dict[tuple[str, str], str] = {}
        """By base URL and name of the model what tells the model that is served there from others of the same name, where
        that is known: part of every key, so that no model is given the answers of another."""
        self._database = Database.open(path, _CACHE, busy_seconds=_BUSY_SECONDS)

    def get(self, scope: str, request: Mapping[str, object]) -> dict[str, Any] | None:
        """The answer to a request, or None."""
        query = "SELECT value FROM answers WHERE scope = ? AND request = ?"
        with self._database.read() as connection:
            found = connection.execute(query, (scope, _digest(request))).fetchone()
        value: dict[str, Any] | None = None if found is None else json.loads(found[0])
        return value

    def put(self, scope: str, request: Mapping[str, object], value: Mapping[str, object]) -> None:
        """Keep an answer."""
        text = json.dumps(value)
        with self._database.write() as connection:
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (scope, _digest(request), text))

    def forget(self, scope: str) -> int:
        """Erase all answers of a scope, so that neither the file nor its WAL holds a byte of them.

        Requests of the scope must have ended before; what comes in afterwards is cached again. Returns how many there were.

        Raises:
            DeltaMemError: If the file cannot be written, or another process reads for so long that its WAL cannot be
                emptied; the answers are then deleted but traces may remain, so try again.
        """
        with self._database.write() as connection:
            count = connection.execute("DELETE FROM answers WHERE scope = ?", (scope,)).rowcount
            self._database.purge_after()
        if self._database.purge_pending:
            raise DeltaMemError(
                f"{self._database.path}: in use by another process, so traces of erased answers remain; try again"
            )
        return count

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def seed_of_request(seed: int | None, sample: int, messages: Sequence[Mapping[str, object]]) -> int | None:
    """The seed of one request (31 bits, which every server takes); None of None.

    Servers draw the same random numbers for every request with the same seed. Sent as it is, one seed would let the first
    words of all conversations hang on one draw: what is likelier than that is then in all of them, and the rest in none.
    """
    if seed is None:
        return None
    return int(_digest([seed, sample, messages])[:8], 16) >> 1


_FIRST_DELAY, _LONGEST_DELAY = 0.5, 8.0
"""Seconds to wait before an unreadable answer is asked for again; doubled each time. As the openai client does."""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """What an `LLM` has done so far. Cached answers cost no tokens."""

    requests: int = 0  # Requests for which the endpoint was asked; repeats are not counted again
    retries: int = 0  # Repeats of requests
    cached: int = 0  # Answers taken from the cache
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failures: int = 0  # Requests that ended in an `LLMError`


_Result = TypeVar("_Result")


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The certificates that openai's client trusts, read once: every client would read them anew, for 40 ms of CPU."""
    library = openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0]  # httpx, or what has come after it
    context: ssl.SSLContext = importlib.import_module(library).create_ssl_context()
    return context


async def written(writing: asyncio.Future[_Result]) -> _Result:
    """What a write gives; a caller who is cancelled waits for its end all the same.

    So what was paid for is kept, and whoever waited for the call may erase it.
    """
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        raise


_Reply = TypeVar("_Reply", bound=Reply)
_Send = Callable[[openai.AsyncOpenAI], Awaitable[Any]]  # Sends a request, and gives the raw response


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
        self._usage = RequestCounts()
        self._connections: dict[asyncio.AbstractEventLoop, _Connection] = {}

    @property
    def traits(self) -> EndpointTraits:
        """What is known of the model at its endpoint; shared with all who ask it in this process."""
        return endpoint_traits(self.base_url, self.model)

    @property
    def usage(self) -> RequestCounts:
        """What has been done so far; the object does not change afterwards."""
        return self._usage

    async def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        temperature: float | None,
        max_tokens: int | None,
        seed: int | None = None,
        response_format: Mapping[str, object] | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        extra_body: Mapping[str, object] | None = None,
        scope: str = "",
        sample: int = 0,
    ) -> Answer:
        """Let the model answer a conversation; messages and options as in the OpenAI protocol, `extra_body` beyond it.

        Without `max_tokens` or `temperature` the endpoint takes its own (vLLM: the rest of the window). Options that it
        refuses by name are left out or sent under their other name from then on (`deltamem.endpoint.Terms`). The answer is
        cached for its `scope`, and one scope never gets another's. Another number of the draw, `sample`, asks anew where the
        cache, or a fixed seed, would repeat the answer. What is sent of a `seed` is `seed_of_request`.

        Raises:
            ContextLengthError: If the messages and `max_tokens` do not fit the model's window. On doubt too: if a refusal
                names no reason, and the messages are estimated above half of the window, or of 8,192 tokens if it is not
                known.
            LLMError: If the endpoint gives no usable answer, after the retries.
            DeltaMemError: If the cache cannot be used.
        """
        request = self._request(
            messages,
            temperature=None if temperature is None else float(temperature),
            max_tokens=max_tokens,
            seed=seed_of_request(seed, sample, messages),
            response_format=response_format,
            tools=tools,
            extra_body=extra_body,
        )
        known = await self._recall(request, scope, sample)
        try:
            return known or await self._ask_and_keep(request, scope, sample)
        except LLMError as error:
            raise self._or_too_long(error, messages) from error.__cause__

    async def chat_object(
        self,
        messages: Sequence[Mapping[str, object]],
        schema: AnswerSchema,
        *,
        temperature: float | None,
        max_tokens: int | None,
        seed: int | None = None,
        extra_body: Mapping[str, object] | None = None,
        scope: str = "",
        sample: int = 0,
    ) -> Answer:
        """Let the model answer with a JSON object, kept to a schema in the best way that the endpoint takes; else as `chat`.

        The way is learned once (`deltamem.endpoint`). The text is what the model wrote, perhaps with thinking; endpoints may
        ignore a schema, so the reader has to check (`deltamem.replies`). The messages should ask for JSON by that word, on
        which OpenAI insists where it is not given the schema. A cached answer counts, in whatever way it was obtained.
        Thoughts eat up the tokens of the answer, so a model that is seen to think is told not to from then on, unless
        `extra_body` says otherwise.

        Raises:
            ContextLengthError, LLMError, DeltaMemError: As `chat`; if no way is taken, that of the first refusal.
        """
        options: dict[str, Any] = {
            "temperature": None if temperature is None else float(temperature),
            "max_tokens": max_tokens,
            "seed": seed_of_request(seed, sample, messages),
            "extra_body": extra_body,
        }
        requests = {way: self._request(**asked, **options) for way, asked in schema.requests(messages).items()}
        for request in requests.values():
            if (known := await self._recall(request, scope, sample)) is not None:
                return known.as_object()
        traits = self.traits

        async def ask(added: Mapping[str, object]) -> Answer:
            send = functools.partial(self._ask_and_keep, scope=scope, sample=sample, added=added)
            ways = {way: functools.partial(send, request) for way, request in requests.items()}
            return (await traits.object_way.ask(ways, refusal)).as_object()

        try:
            if traits.thinks and not traits.thinks_on:
                try:
                    return await ask(NO_THINKING)
                except LLMError as error:
                    if refusal(error) not in (Refusal.DOUBT, Refusal.FORM):
                        raise
                answer = await ask({})
                traits.thinks_on = True  # what we had added was at fault, though the refusal did not name it
            else:
                answer = await ask({})
        except LLMError as error:
            raise self._or_too_long(error, messages) from error.__cause__
        traits.thinks |= answer.thought
        return answer

    def _or_too_long(self, error: LLMError, messages: Sequence[Mapping[str, object]]) -> LLMError:
        """The error, or a `ContextLengthError` in its place where that may be the reason and no other is given."""
        cause = error.__cause__
        window = self.traits.window or _PRESUMED_WINDOW
        estimate = sum(estimate_tokens(str(message.get("content") or "")) for message in messages)
        unexplained = isinstance(cause, openai.BadRequestError | openai.UnprocessableEntityError)
        if not unexplained or refusal(error) is not Refusal.DOUBT or 2 * estimate <= window:
            return error
        return ContextLengthError(f"{error}; the messages, of about {estimate} tokens, may not fit the window")

    def _cache_key(self, request: Mapping[str, object], sample: int) -> dict[str, object]:
        served = self.cache and self.cache.served.get((self.base_url, self.model))
        return {"base_url": self.base_url, "sample": sample, **request} | ({"served": served} if served else {})

    async def _recall(self, request: Mapping[str, object], scope: str, sample: int) -> Answer | None:
        # SQLite may wait for the disk or for another process: not in the event loop.
        key = self._cache_key(request, sample)
        stored = None if self.cache is None else await asyncio.to_thread(self.cache.get, scope, key)
        if stored is None:
            return None
        self._count(cached=1)
        calls = tuple(ToolCall(**call) for call in stored.pop("tool_calls", ()))
        return Answer(**stored, tool_calls=calls, truncated=False, cached=True)

    async def _ask_and_keep(
        self, request: dict[str, Any], scope: str, sample: int, added: Mapping[str, object] = MappingProxyType({})
    ) -> Answer:
        key = self._cache_key(request, sample)  # of now: another model may be served under the name when the answer comes
        answer = await self._ask({**added, **request})
        if self.cache is not None and not answer.truncated:
            kept = {name: getattr(answer, name) for name in ("text", "reasoning", "prompt_tokens", "completion_tokens")}
            if answer.tool_calls:
                kept["tool_calls"] = [asdict(call) for call in answer.tool_calls]
            await written(asyncio.get_running_loop().run_in_executor(None, self.cache.put, scope, key, kept))
        return answer

    async def check(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        max_tokens: int = 1,
        temperature: float | None = None,
        extra_body: Mapping[str, object] | None = None,
    ) -> Answer:
        """Make sure that the endpoint answers a conversation, past the cache, at the cost of a few tokens; as `chat`.

        Raises:
            LLMError: If it does not; the message says why.
        """
        return await self._ask(
            self._request(messages, max_tokens=max_tokens, temperature=temperature, extra_body=extra_body)
        )

    def _request(self, messages: Sequence[Mapping[str, object]], **options: object) -> dict[str, Any]:
        given = {name: value for name, value in options.items() if value is not None}
        return {"model": self.model, "messages": list(messages), **given}

    async def models(self) -> list[ServedModel]:
        """The models that the endpoint serves.

        Raises:
            LLMError: If the endpoint does not tell.
        """
        connection = self._connection()
        async with connection.slots:  # asks no model, so it is not among the counted requests
            reply = await self._exchange(connection.client, ModelsReply, lambda it: it.models.with_raw_response.list())
        served = reply.models()
        for model in served:
            traits = endpoint_traits(self.base_url, model.id)
            traits.window = traits.window or model.context_window
        return served

    async def close(self) -> None:
        """Close the connections made in the running event loop; a later request makes new ones."""
        with self._lock:
            connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.client.close()

    async def _ask(self, request: dict[str, Any]) -> Answer:
        body = {name: value for name, value in request.items() if name != "extra_body"} | request.get("extra_body", {})
        sent = 0

        async def exchange(fitted: dict[str, Any]) -> ChatReply:
            nonlocal sent
            sent += 1

            def send(client: openai.AsyncOpenAI) -> Awaitable[Any]:
                create: Callable[..., Awaitable[Any]] = client.chat.completions.with_raw_response.create
                # The client walks through all messages and schemas that it knows to be such, which takes as long as sending.
                return create(messages=(), model=self.model, extra_body=fitted)

            try:
                return await self._exchange(connection.client, ChatReply, send)
            except LLMError as error:
                if not is_unfinished(error):
                    raise
                return ChatReply(choices=[_Choice(message=_Message(), finish_reason="length")])

        connection = self._connection()
        async with connection.slots:
            self._count(requests=1)
            started = time.perf_counter()
            try:
                reply, learned = await self.traits.terms.ask(body, exchange)
            except LLMError:
                self._count(failures=1)
                raise
            finally:
                self._count(retries=max(0, sent - 1))
            answer = reply.answer(time.perf_counter() - started)
        if learned:
            logger.warning("endpoint %s: requests to model %r go %s", self.base_url, self.model, self.traits.terms.known)
        self._count(prompt_tokens=answer.prompt_tokens, completion_tokens=answer.completion_tokens)
        return answer

    async def _exchange(self, client: openai.AsyncOpenAI, shape: type[_Reply], send: _Send) -> _Reply:
        """Send a request until its answer can be read, as often as it may be repeated."""
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
                return shape.model_validate_json(response.content.removeprefix(codecs.BOM_UTF8))
            except ValidationError as error:
                text = response.content.decode(errors="replace")
                body = quoted(text, self._api_key) or "an empty body"
                words = words_of(text, response.http_request.content)
                if '"error"' in text and overflows(400, words):  # gateways say so with status 200
                    raise ContextLengthError(
                        f"endpoint {self.base_url}: the request does not fit the window of model {self.model!r}: {body}"
                    ) from error
                if left <= 0:
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
                    http_client=self._http_client(verify=_trusted()),
                )
                self._connections[loop] = _Connection(client, asyncio.Semaphore(self._max_concurrency))
            return self._connections[loop]

    def _count(self, **more: int) -> None:
        with self._lock:
            self._usage = replace(self._usage, **{name: getattr(self._usage, name) + count for name, count in more.items()})


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
