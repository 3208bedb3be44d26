"""How the tests of the proxy run it: an upstream over real HTTP that answers by a script, and what clients send.

with models() as upstream, proxying(folder, upstream) as server:
    server.client(**headers()).post(CHAT, json=chat("My dog's name?"))
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
from server_cases import QUICK, Server, ok, serving, until

from deltamem.journal.jobs import JobState
from deltamem.journal.journal import Journal
from deltamem.journal.owner import OwnerJournal
from deltamem.server.service import ServerSettings
from integrations.openai_proxy.buffer import Conversations
from integrations.openai_proxy.settings import ProxySettings

CHAT = "/proxy/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You are kind."}


@dataclass
class Asked:
    """A request as the upstream got it."""

    body: bytes
    headers: dict[str, str]
    path: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def last(self) -> Any:
        return self.json["messages"][-1]["content"]


@dataclass
class Upstream:
    """A server of models that answers as it is told; an answer that raises a ConnectionError is cut there."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    """Set when a client left before its answer was written."""

    def answers(self, answer: Chunks, status: int = 200, **headers: str) -> None:
        """Say how the next requests are answered."""
        self.answer, self.status, self.headers = answer, status, headers


Chunks = Callable[[Asked], Iterator[bytes]]


def said(text: str, **message: object) -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text, **message}}
    return json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}).encode()


def event(content: str | None, finish: str | None = None) -> bytes:
    delta = {} if content is None else {"content": content}
    chunk: dict[str, object] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunk |= {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


def echo(asked: Asked) -> Iterator[bytes]:
    """Answers "I see." in one piece, or in several if a stream is wanted."""
    if re.search(rb'"stream": ?true', asked.body):
        yield event("I ")
        # Cut where it may be cut: within an event.
        yield event("see.")[:20]
        yield event("see.")[20:]
        yield event(None, "stop")
        yield b"data: [DONE]\n\n"
    else:
        yield said("I see.")


@contextmanager
def models(answer: Chunks = echo) -> Iterator[Upstream]:
    """Serve a script."""
    upstream = Upstream()
    upstream.answers(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def begin(self, body: bytes, kind: str, status: int, headers: dict[str, str]) -> Asked:
            asked = Asked(body, {name.lower(): value for name, value in self.headers.items()}, self.path)
            upstream.asked.append(asked)
            self.send_response(status)
            for name, value in ({"Content-Type": kind, "Transfer-Encoding": "chunked"} | headers).items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            return asked

        def send(self, chunk: bytes) -> None:
            self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            self.wfile.flush()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kind = "text/event-stream" if re.search(rb'"stream": ?true', body) else "application/json"
            asked = self.begin(body, kind, upstream.status, upstream.headers)
            try:
                for chunk in upstream.answer(asked):
                    self.send(chunk)
                self.send(b"")
            except ConnectionError:
                upstream.gone.set()
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True

        def do_GET(self) -> None:
            self.begin(b"", "application/json", 200, {})
            listed = {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}]}
            self.send(json.dumps(listed).encode())
            self.send(b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    upstream.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield upstream
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def proxying(folder: Path, upstream: Upstream, idle: float = 3600.0, **options: Any) -> Iterator[Server]:
    proxy = ProxySettings(upstream.url, **{"upstream_key": "upstream-key", "idle": idle} | options)
    settings = ServerSettings(worker=QUICK, rate_limit=None, plugins={"openai_proxy": proxy})
    with serving(folder / "bank", settings=settings) as server:
        yield server


def chat(*texts: str, **further: object) -> dict[str, Any]:
    """A request: a system message, then the person and the assistant in turns."""
    turns = [{"role": role, "content": text} for role, text in zip(cycle(("user", "assistant")), texts, strict=False)]
    return {"model": "m", "messages": [SYSTEM, *turns], **further}


def know(server: Server, *texts: str, owner: str = "ann") -> None:
    memories = [{"text": text, "time": "2026-04-05T20:00:00"} for text in texts]
    token = None if server.keys.none else server.key(owner)
    ok(server.client(token).post(f"/v1/owners/{owner}/memories", json={"memories": memories}), 201)


def ask_stream(http: httpx.Client, body: Any, session: str = "s") -> bytes:
    with http.stream("POST", CHAT, json=body, headers=headers(session)) as response:
        return b"".join(response.iter_raw())


def end(server: Server) -> None:
    """Let all conversations end now."""
    server.service.store.journal.beside(Conversations).end_idle(timedelta(0))
    journal = server.service.store.journal
    until(lambda: not any(journal.owner(o).jobs("queued", "running") for o in journal.owners()))  # type: ignore[arg-type]


def dialogues(server: Server, owner: str = "ann") -> list[list[str]]:
    return [[turn.content for turn in turns] for _, turns in server.service.store.journal.owner(owner).dialogues()]


def kept(journal: Journal, owner: OwnerJournal) -> dict[str, list[str]]:
    """The sessions that the conversations become when they end now."""
    journal.beside(Conversations).end_idle(timedelta(0))
    sessions = [session for job in owner.jobs(JobState.QUEUED) if (session := owner.job_session(job.id)) is not None]
    return {
        session.id: [("a:" if turn.role == "assistant" else "") + turn.content for turn in session.dialogue]
        for session in sessions
    }


def headers(session: str | None = "s", owner: str | None = "ann", **further: str) -> dict[str, str]:
    named = {"X-DeltaMem-Owner": owner, "X-DeltaMem-Session": session, "X-DeltaMem-Person": "Ann"}
    return {name: value for name, value in named.items() if value is not None} | further


REMEMBERED = (
    "\n\n<memories>\nRemembered of Ann from earlier conversations, with dates; not said just now:\n"
    "- 2026/04/05: Ann has a dog named Rex.\n</memories>"
)
