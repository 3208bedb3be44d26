"""Runs the application with uvicorn and ends it gracefully."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI
from opentelemetry import trace

from deltamem.errors import DeltaMemError
from deltamem.server.service import Service

_LONGEST_REQUESTS = 30
"""Seconds that open requests have to end; the jobs have a time of grace of their own."""
_COLLECT_AFTER = (20_000, 20, 20)
"""Thresholds of the garbage collector, see `_seldom_collecting`."""


class _Server(uvicorn.Server):
    """Stops the worker as soon as the signal comes, and not only when the last request has ended."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._started = started
        self._stopping: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        super().handle_exit(sig, frame)

    def _stop(self) -> None:
        self._stopping = self._stopping or self._loop.create_task(self._service.stop())


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's algorithm off for no other socket: 40 ms on each answer.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(2048)
    except BaseException:
        bound.close()
        raise
    return bound


def event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop: uvloop's where it is installed, which is everywhere but on Windows."""
    return (uvicorn.Config("").get_loop_factory() or asyncio.new_event_loop)()


async def run(app: FastAPI, listening: socket.socket, *, started: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT: then take no more requests, end the open ones, finish or hand back the jobs.

    Args:
        app: Made by `deltamem.server.app.create_app`.
        listening: A bound socket.
        started: Called once requests are answered.
    """
    config = uvicorn.Config(
        app,
        access_log=False,  # the application writes its own, without what was asked
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=_LONGEST_REQUESTS,
    )
    # Uvicorn repeats the signal when it has ended, which must not end us before the store is closed.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with _seldom_collecting():
            await _Server(config, app.state.service, started).serve(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Keep the garbage collector from walking through all that is remembered whenever many requests are under way.

    With 64 of them it did so several times a second, 250 ms each with 100,000 memories, and found nothing.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextmanager
def tracing() -> Iterator[None]:
    """Send spans to a collector while the block runs, if ``OTEL_EXPORTER_OTLP_ENDPOINT`` names one."""
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise DeltaMemError("sending spans needs packages: pip install 'deltamem[otel]'") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "deltamem"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
