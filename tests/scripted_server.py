"""A real local HTTP server that speaks as much of the OpenAI protocol as this library needs; its answers are scripted.

    with serve(replies(failure(500), completion("hi"))) as server:
        LLM(server.url, "tiny")          # in this process or in a child

The script gets the body of each request and returns a `Reply`: good, slow, failing, cut in transit, or nonsense.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What the server does with one request."""

    body: object = b""  # Sent as JSON, or as it is if it is bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)  # Besides content type and length
    delay: float = 0.0  # Seconds before the answer
    cut: bool = False  # Whether the connection is closed after half of the body
    reset: bool = False  # Whether it is reset instead of an answer


Script = Callable[[dict[str, Any]], Reply]


def completion(
    content: str | None,
    *,
    finish: str = "stop",
    tokens: int = 7,
    prompt_tokens: int = 1,
    reasoning_tokens: int | None = None,
    delay: float = 0.0,
    cut: bool = False,
    **message: object,
) -> Reply:
    """A chat completion with one choice; further arguments become fields of the message."""
    usage: dict[str, object] = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    usage["total_tokens"] = prompt_tokens + tokens
    if reasoning_tokens is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    body = {
        "id": "c1",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}],
        "usage": usage,
    }
    return Reply(body, delay=delay, cut=cut)


def failure(status: int, message: str = "broken", *, code: str | None = None, **headers: str) -> Reply:
    """An error as OpenAI and vLLM word it; `headers` with underscores for hyphens, for example ``retry_after="1"``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply({"error": {"message": message, "type": "x", "code": code}}, status, named)


def is_check(body: Mapping[str, Any]) -> bool:
    """Whether a request only makes sure that the model is there, and is the same."""
    return body.get("max_tokens") == 1 or "lighthouse keeper" in body["messages"][0]["content"]


def too_long() -> Reply:
    """How vLLM refuses a prompt that does not fit."""
    return failure(400, "This model's maximum context length is 64 tokens. However, your request has 90 input tokens.")


def present_day(reply: Reply) -> Script:
    """As OpenAI's endpoint for its present models: it refuses one thing after the other, and then gives a reply."""

    def answer(body: dict[str, Any]) -> Reply:
        if "max_tokens" in body:
            said = (
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
            )
            return Reply({"error": {"message": said, "param": "max_tokens", "code": "unsupported_parameter"}}, 400)
        if body.get("temperature", 1) != 1:
            said = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported."
            return Reply({"error": {"message": said, "param": "temperature", "code": "unsupported_value"}}, 400)
        if "seed" in body:
            return failure(400, "Unrecognized request argument supplied: seed")
        most, asked = 4096, body.get("max_completion_tokens", 0)
        if asked > most:
            said = f"max_tokens is too large: {asked}. This model supports at most {most} completion tokens, not {asked}."
            return failure(400, said)
        if asked == 1:
            return failure(400, "Could not finish the message because max_tokens or model output limit was reached.")
        return reply

    return answer


def replies(*script: Reply) -> Script:
    """Give the replies one after the other; the last one stays."""
    lock = threading.Lock()
    left = list(script)

    def answer(body: dict[str, Any]) -> Reply:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return answer


@dataclass
class Served:
    """A running server."""

    url: str  # The base URL, up to and including ``/v1``
    # Bodies of the chat requests as they came, with the header ``_key`` and the ``_path``.
    requests: list[dict[str, Any]] = field(default_factory=list)
    peak: int = 0  # The most chat requests that were under way at once


@contextmanager
def serve(
    script: Script, models: Sequence[Mapping[str, object]] = ({"id": "tiny", "max_model_len": 16384},)
) -> Iterator[Served]:
    """Serve ``/v1/chat/completions`` by the script and ``/v1/models`` on a free port of this machine."""
    lock = threading.Lock()
    stopping = threading.Event()
    running = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open, as those of real servers
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            nonlocal running
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                served.requests.append(body | {"_key": self.headers["Authorization"], "_path": self.path})
                running += 1
                served.peak = max(served.peak, running)
            try:
                reply = script(body)
                stopping.wait(reply.delay)
            finally:
                with lock:  # before the client can hear of it
                    running -= 1
            self._send(reply)

        def do_GET(self) -> None:
            found = self.path == "/v1/models"
            self._send(Reply({"object": "list", "data": list(models)}) if found else failure(404, "not found"))

        def _send(self, reply: Reply) -> None:
            self.close_connection = reply.cut or reply.reset or self.close_connection
            if reply.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            with suppress(ConnectionError):  # the client may have given up
                self.send_response(reply.status)
                for name, value in ({"Content-Type": "application/json"} | dict(reply.headers)).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2] if reply.cut else data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        # Five connections wait by default; what a burst brings beyond that is answered after minutes of TCP's retries.
        request_queue_size = 256

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # clients may hang up, scripts may not fail
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    served = Served(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


def reserved_port() -> socket.socket:
    """A bound socket that does not listen: its port refuses connections, and nobody is given it by chance.

    A server that is told the number may listen there all the same, as servers allow an address to be used again.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


_unused: list[socket.socket] = []


def unused_url() -> str:
    """The base URL of a server that is not there, and does not come while this process lives."""
    _unused.append(reserved_port())
    return f"http://127.0.0.1:{_unused[-1].getsockname()[1]}/v1"
