"""The proxy: chat completions of any OpenAI-compatible server, with what is remembered of the person.

``/proxy/v1/chat/completions`` appends memories to the person's last message and nothing anywhere else: every byte before it
goes on as it came, so that the upstream's prompt cache holds. Answers come back byte for byte. What was said waits in the
journal's file and is read as one session when the conversation has been quiet for a while. A memory that fails never holds
up a conversation: the request goes on as it came, and the response says ``X-DeltaMem-Memory: error``.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import re
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
import httpx
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from deltamem.blank import is_blank
from deltamem.errors import DeltaMemError
from deltamem.manager import MemoryManager
from deltamem.recall import recalled_text, text_of
from deltamem.server.access import Caller, allow, header_text, named_owner
from deltamem.server.keys import Scope
from deltamem.server.problems import Problem, not_found
from deltamem.server.routes import Routes
from deltamem.server.service import Service
from deltamem.sessions import Turn
from deltamem.zones import HEADER, Zone, requested_zone
from integrations.openai_proxy.buffer import AnswerPlace, Conversations
from integrations.openai_proxy.settings import ProxySettings

logger = logging.getLogger(__name__)

_MODES = ("on", "read", "off")
_LARGEST_ANSWER = 8 * 2**20
"""Bytes of an answer that are looked at; one that is larger goes through and is not remembered."""

_GOES_ON = {"", "null", "none", "not_finished"}
_BROKEN_OFF = re.compile("error|abort|cancel|interrupt|fail|time_?(?:out|limit)|insufficient_system_resource")
"""In the reasons of servers for ending an answer that is not whole. One that met its limit of tokens was said as it is."""

# What concerns one connection only, what httpx writes itself, and what is meant for us.
_HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "proxy-connection"}
_NOT_SENT = frozenset(
    {"host", "content-length", "authorization", "x-api-key", "proxy-authorization", "accept-encoding", "cookie", "expect"}
    | {HEADER.lower()}
    | _HOP_BY_HOP
)
_NOT_RETURNED = frozenset({"proxy-authenticate", "set-cookie", "date", "server"} | _HOP_BY_HOP)


class ProxyRoutes(Routes):
    """The connections to the upstream, and the watch over conversations that have ended."""

    def __init__(self, service: Service) -> None:
        """Bind a service; nothing runs before the proxy does."""
        super().__init__(service)
        settings = service.settings.plugins.get("openai_proxy", ProxySettings())
        assert isinstance(settings, ProxySettings)
        self.settings = settings
        if settings.upstream is None:
            return
        url = httpx.URL(settings.upstream)
        if url.scheme not in ("http", "https") or not url.host:
            raise DeltaMemError(f"{settings.upstream!r} is no address of a server such as http://localhost:8000/v1")
        timeout = httpx.Timeout(settings.answer, connect=settings.connect)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self.client = httpx.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False, trust_env=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Turn conversations that have ended into sessions, if there is an upstream."""
        if self.settings.upstream is None:
            yield
            return
        watch = asyncio.create_task(self._end_conversations())
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await self.client.aclose()

    async def _end_conversations(self) -> None:
        idle = timedelta(seconds=self.settings.idle)
        while True:
            await asyncio.sleep(min(10.0, max(0.02, self.settings.idle / 4)))
            try:
                if await asyncio.to_thread(self.service.store.journal.beside(Conversations).end_idle, idle):
                    self.service.wake()
            except Exception as error:
                _log("read of the conversations that have ended", error)

    def router(self) -> APIRouter:
        """The routes. They are the upstream's, so they are not in the description of this server."""
        routes = APIRouter(prefix="/proxy/v1", include_in_schema=False)
        routes.post("/chat/completions")(self.chat_completions)
        routes.get("/models")(self.models)
        routes.get("/models/{name:path}")(self.model)
        return routes

    async def chat_completions(self, request: Request, key: Caller) -> Response:
        """Answer a conversation with what is remembered, and keep what is said."""
        self._require_upstream()
        body = await request.body()
        mode = request.headers.get("x-deltamem-mode", "on")
        if mode not in _MODES:
            raise Problem(400, f"X-DeltaMem-Mode is on, read or off, not {mode!r}")
        owner = named_owner(request, key)
        for scope in (Scope.READ, Scope.WRITE) if mode == "on" else (Scope.READ,):
            allow(key, scope)
        if mode == "on" and not self.service.has_model:
            mode = "read"
        name, person = header_text(request, "X-DeltaMem-Session"), header_text(request, "X-DeltaMem-Person")
        kept = None
        if mode == "on" or (mode == "read" and await anyio.to_thread.run_sync(self.service.known, owner)):
            try:
                manager = await anyio.to_thread.run_sync(self.service.manager_of, owner)
                conversation = _Conversation(manager, person or manager.person_name, name, requested_zone(request.headers))
                body = await self._with_memories(conversation, body)
                kept = conversation if mode == "on" and any(turn.content.strip() for turn in conversation.turns) else None
            except Exception as error:
                mode = "error"
                _log("recalled", error)
        return await self._forward(request, "chat/completions", body, mode, kept)

    async def models(self, request: Request, key: Caller) -> Response:
        """The upstream's models."""
        allow(key, Scope.READ)
        return await self._forward(request, "models")

    async def model(self, name: str, request: Request, key: Caller) -> Response:
        """One of the upstream's models."""
        allow(key, Scope.READ)
        # The upstream's key must open nothing else: no other path, and no query in disguise.
        if {"", ".", ".."}.intersection(name.split("/")):
            raise not_found()
        return await self._forward(request, f"models/{quote(name)}")

    def _require_upstream(self) -> str:
        if self.settings.upstream is None:
            raise Problem(503, "this server is no proxy: it was started without --upstream")
        return self.settings.upstream.rstrip("/")

    async def _with_memories(self, conversation: _Conversation, body: bytes) -> bytes:
        """The body with what is remembered; its turns are noted in the conversation."""
        # In threads, because images make bodies large.
        text = body.decode()
        messages = (await anyio.to_thread.run_sync(json.loads, text))["messages"]
        places = [place for place, message in enumerate(messages) if message.get("role") == "user"]
        if not places:
            return body
        query, manager = text_of(messages[places[-1]].get("content")), conversation.manager
        addition = ""
        conversation.head = await anyio.to_thread.run_sync(lambda: manager.journal.head)
        if conversation.head and not is_blank(query):
            async with asyncio.timeout(self.settings.recall):
                hits = await manager.search(query, self.settings.memories)
            addition = recalled_text([hit.memory for hit in hits], conversation.person)
        spoken = (message for message in messages if message.get("role") in ("user", "assistant"))
        conversation.turns = [Turn(message["role"], text_of(message.get("content"))) for message in spoken]
        conversation.tools = messages[-1].get("role") in ("tool", "function")
        if not addition:
            return body
        return (await anyio.to_thread.run_sync(_appended, text, places[-1], addition)).encode()

    async def _forward(
        self,
        request: Request,
        path: str,
        body: bytes | None = None,
        mode: str | None = None,
        conversation: _Conversation | None = None,
    ) -> Response:
        """Send a request on and the answer back, and keep what was said once the upstream has taken it."""
        url = httpx.URL(f"{self._require_upstream()}/{path}", query=request.url.query.encode() or None)
        sent = self.client.build_request(request.method, url, headers=self._request_headers(request), content=body)
        ours = {} if mode is None else {"X-DeltaMem-Memory": mode}
        try:
            upstream = await _answered(self.client.send(sent, stream=True), request)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it but the log
        except httpx.TimeoutException:
            raise Problem(504, "the model's server does not answer in time", ours) from None
        except httpx.HTTPError:
            raise Problem(502, "the model's server cannot be reached", ours) from None
        answer = None
        try:
            if conversation is not None and upstream.is_success:
                try:
                    place, zone = await asyncio.to_thread(conversation.keep)
                    if place is None:
                        ours["X-DeltaMem-Memory"] = "read"
                    else:
                        ours["X-DeltaMem-Timezone"] = f"{zone.name}; source={zone.source}"
                        answer = _KeptAnswer(conversation, place)
                except Exception as error:
                    ours["X-DeltaMem-Memory"] = "error"
                    _log("kept", error)
            headers = [(name, value) for name, value in upstream.headers.raw if name.decode().lower() not in _NOT_RETURNED]
            return _Relay(upstream, answer, [*headers, *((name.encode(), value.encode()) for name, value in ours.items())])
        except BaseException:
            await _close(upstream)
            raise

    def _request_headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        headers = [
            (name, value)
            for name, value in request.headers.raw
            if name.decode("latin-1") not in _NOT_SENT and not name.startswith(b"x-deltamem-")
        ]
        # As it is written, so that the answer can be read and still be sent on byte for byte.
        headers.append((b"accept-encoding", b"identity"))
        authorization = request.headers.get("authorization")
        if self.settings.upstream_key is not None:
            headers.append((b"authorization", f"Bearer {self.settings.upstream_key}".encode()))
        elif request.app.state.access.open and authorization is not None:
            headers.append((b"authorization", authorization.encode("latin-1")))
        return headers


@dataclass
class _Conversation:
    """What a request is about."""

    manager: MemoryManager
    person: str
    name: str | None
    timezone: str | None
    """The zone that the request names."""
    turns: list[Turn] = field(default_factory=list)
    tools: bool = False
    """Whether it ends with what a tool found."""
    head: int = 0
    """The last position of the journal when memories were recalled."""

    def keep(self) -> tuple[AnswerPlace | None, Zone]:
        """Keep what was said; returns where the answer belongs, and the zone that dates it."""
        owned = self.manager.owned
        with owned.writing():
            kept, (now, zone) = owned.journal.files.beside(Conversations), owned.now(self.timezone)
            return kept.keep(owned.journal, self.name, self.turns, self.person, now, tools=self.tools), zone

    def keep_answer(self, place: AnswerPlace, text: str) -> None:
        """Keep the answer to it."""
        owned = self.manager.owned
        with owned.writing():
            kept = owned.journal.files.beside(Conversations)
            kept.answer(owned.journal, place, text, since=self.head)


async def _answered(sending: Coroutine[Any, Any, httpx.Response], request: Request) -> httpx.Response:
    """The upstream's answer, unless the client leaves before: then the upstream need not think on."""
    answer, left = asyncio.ensure_future(sending), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return await answer
    finally:
        left.cancel()
        if not answer.done():
            answer.cancel()
        await asyncio.gather(answer, left, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _close(upstream: httpx.Response) -> None:
    with anyio.CancelScope(shield=True):
        await upstream.aclose()


class _Relay(StreamingResponse):
    """The upstream's answer; the connection ends with it, also when the client leaves."""

    def __init__(self, upstream: httpx.Response, answer: _KeptAnswer | None, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(_relayed(upstream, answer), upstream.status_code)
        self.raw_headers = [(name.lower(), value) for name, value in headers]
        self._upstream = upstream
        self._answer = answer

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except httpx.HTTPError as error:
            # Without an end, so that uvicorn cuts the connection and the client sees that it broke off, too.
            logger.warning("the model's server broke off an answer: %s", type(error).__name__)
        finally:
            await _close(self._upstream)
            if self._answer is not None:
                # Clients leave, and servers break off, between the last word and the end of a stream.
                with anyio.CancelScope(shield=True):
                    await self._answer.keep()


@dataclass
class _KeptAnswer:
    """Reads an answer along as it goes by, and keeps it, once, before the last of it has been sent on."""

    conversation: _Conversation
    place: AnswerPlace
    events: bool | None = None
    """Whether it is a stream of server-sent events, not a single object; None before its first byte."""
    rest: bytearray = field(default_factory=bytearray)
    pending: bytes = b""
    """The lines of an event that goes on."""
    texts: dict[int, list[str]] = field(default_factory=dict)
    """What was read of each choice."""
    finished: set[int] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)
    size: int = 0
    over: bool = False
    """Whether nothing more is to be kept."""

    def read(self, chunk: bytes) -> bool:
        """Read some bytes; returns whether they end the stream."""
        self.size += len(chunk)
        if self.over or self.size > _LARGEST_ANSWER:
            self.over, self.texts, self.rest = True, {}, bytearray()
            return False
        self.rest += chunk
        if self.events is None and (begun := self.rest.lstrip(b" \t\r\n" + codecs.BOM_UTF8)):
            # As it is, not as it is called: some servers call their streams text/plain.
            self.events, self.rest = not begun.startswith(b"{"), begun
        if not self.events:
            return False
        # A long line in many pieces is split once.
        *lines, self.rest = self.rest.split(b"\n") if b"\n" in chunk else (self.rest,)
        if len(self.rest) < 16 and self.rest.removeprefix(b"data:").strip() == b"[DONE]":
            lines.append(self.rest)  # the rest of the line adds nothing
            self.rest = bytearray()
        ends = [self._read_line(bytes(line)) for line in lines]
        return any(ends)

    def _read_line(self, line: bytes) -> bool:
        line = line.strip()
        if line.startswith(b"error:") or (line.startswith(b"event:") and line.endswith(b"error")):
            self.over = True
        if not line.startswith(b"data:"):
            self.pending = self.pending if line else b""
            return False
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            # Some servers never say why an answer ends.
            self.finished.update(self.texts)
            return True
        # An object may have several lines; a line may be an object of its own though no empty one follows.
        if self._read_object(data) or self._read_object(self.pending + data):
            self.pending = b""
        elif len(self.pending) < 2**16:
            self.pending += data
        return False

    def _read_object(self, data: bytes | bytearray) -> bool:
        """Read the whole answer, or an event of a stream; returns whether it is an object."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return False
        if not isinstance(value, dict):
            return False
        if value.get("error") or "error" in (value.get("object"), value.get("type")):
            self.over = True  # broken off, though the stream may be ended in form
        choices = value.get("choices")
        for number, choice in enumerate(choices if isinstance(choices, list) else ()):
            if not isinstance(choice, dict):
                continue
            index = choice.get("index")
            number = index if isinstance(index, int) else number
            said = self.texts.setdefault(number, [])
            # Some servers end a stream with the whole message.
            message = choice.get("delta") if self.events else choice.get("message")
            message = message or (None if "".join(said) else choice.get("message"))
            if isinstance(message, dict):
                said.append(text_of(message.get("content")))
            self._finish([number], choice.get("finish_reason"))
        self._finish(self.texts, value.get("finish_reason"))
        if not self.events:
            self.finished.update(self.texts)  # an object is whole
        return True

    def _finish(self, numbers: Iterable[int], reason: object) -> None:
        text = str(reason or "").strip().casefold()
        if _BROKEN_OFF.search(text):
            self.broken.update(numbers)
        elif text not in _GOES_ON:
            self.finished.update(numbers)

    def end(self) -> None:
        """Read what is left when the upstream has come to its end."""
        if self.events:
            self._read_line(bytes(self.rest))
        else:
            self._read_object(self.rest)

    async def keep(self) -> None:
        """Keep the first choice if it came to its end."""
        first = min(self.texts, default=None)
        if self.over or first is None or first not in self.finished - self.broken:
            return
        self.over = True
        try:
            await asyncio.to_thread(self.conversation.keep_answer, self.place, "".join(self.texts[first]))
        except Exception as error:
            _log("kept", error)


async def _relayed(upstream: httpx.Response, answer: _KeptAnswer | None) -> AsyncIterator[bytes]:
    held = b""
    async for chunk in upstream.aiter_raw():
        if answer is None:
            yield chunk
            continue
        if answer.read(chunk):
            await answer.keep()
        # The last bytes of an object go out when it is kept, so that whoever has it all can rely on that.
        if held:
            yield held
        held = b"" if answer.events else chunk
        if answer.events:
            yield chunk
    if answer is not None:
        answer.end()
        await answer.keep()
        if held:
            yield held


def _log(what: str, error: Exception) -> None:
    # Only our own errors by their sentence: others may quote what was said.
    logger.warning("nothing was %s: %s", what, error if isinstance(error, DeltaMemError) else type(error).__name__)


_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def _skip(text: str, place: int) -> int:
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]


def _values(text: str, place: int) -> Iterator[tuple[str, int, int]]:
    """Key, begin and end of each value of the object that begins at a place of valid JSON; of a list without keys."""
    keyed, key = text[place] == "{", ""
    place = _skip(text, place + 1)
    while text[place] not in "}]":
        if keyed:
            key, place = _DECODER.raw_decode(text, place)
            place = _skip(text, _skip(text, place) + 1)
        _, end = _DECODER.raw_decode(text, place)
        yield key, place, end
        place = _skip(text, end)
        place = _skip(text, place + 1) if text[place] == "," else place


def _appended(text: str, number: int, addition: str) -> str:
    """A request with a text at the end of one of its messages, or as one more of its parts; all else is as it was."""
    # As in json.loads, the last of equal keys counts.
    messages = {key: begin for key, begin, _ in _values(text, _skip(text, 0))}["messages"]
    _, begin, _ = list(_values(text, messages))[number]
    start, end = {key: (start, end) for key, start, end in _values(text, begin)}["content"]
    if text[start] == '"':
        return text[: end - 1] + json.dumps(addition)[1:-1] + text[end - 1 :]
    part = json.dumps({"type": "text", "text": addition.lstrip("\n")})
    comma = ", " if any(True for _ in _values(text, start)) else ""
    return text[: end - 1] + comma + part + text[end - 1 :]
