"""Serving one model after the other on this machine, with ``vllm serve`` or a program that takes the same arguments."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from deltamem.errors import DeltaMemError
from eval.sweep.study import SweepSettings

_STOP_SECONDS = 10.0  # Before a server that was asked to end is killed


@contextmanager
def served(model: str, settings: SweepSettings, log: Path) -> Iterator[None]:
    """Serve a model on a port of 127.0.0.1 within the block, which begins when the server is healthy.

    SIGTERM ends the server too, which would hold its GPU otherwise; and a server that ends ends the block, which would go on
    with a memory that has gaps.

    Raises:
        DeltaMemError: If there is no such program, the port is taken, or the server ends or is not healthy in time.
    """
    port = settings.port
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the last server may still close
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise DeltaMemError(
                f"port {port} is taken, perhaps by a server that outlived its sweep, and {model} is to be served there"
            ) from error
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [settings.serve, "serve", model, "--host", "127.0.0.1", "--port", str(port), *settings.serve_args]
    with log.open("ab") as file:
        try:
            server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            raise DeltaMemError(f"serve={settings.serve} cannot be run: {error.strerror}") from error
    stopping = threading.Event()

    def watch() -> None:
        server.wait()
        if not stopping.is_set():
            os.kill(os.getpid(), signal.SIGTERM)  # interrupts whatever the block does, and no task can take it for its own

    watching = threading.Thread(target=watch, daemon=True)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        _await_health(server, f"http://127.0.0.1:{port}/health", model, settings.start_minutes, log)
        watching.start()
        yield
    except SystemExit:
        if (code := server.poll()) is None:
            raise
        raise DeltaMemError(f"the server of {model} ended with exit code {code}; see {log}") from None
    finally:
        stopping.set()
        _stop(server)
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _await_health(server: subprocess.Popen[bytes], url: str, model: str, minutes: float, log: Path) -> None:
    local = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
    deadline = time.monotonic() + 60 * minutes
    while time.monotonic() < deadline:
        if (code := server.poll()) is not None:
            raise DeltaMemError(f"the server of {model} ended with exit code {code}; see {log}")
        with suppress(OSError), local.open(url, timeout=5):
            return
        time.sleep(0.2)
    raise DeltaMemError(f"the server of {model} is not healthy after {minutes:g} minutes; see {log}, and start_minutes=...")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the whole group: the workers hold the GPUs, and may outlive the one that was started."""
    for number, seconds in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, 1.0)):
        deadline = time.monotonic() + seconds
        try:
            os.killpg(server.pid, number)
            while time.monotonic() < deadline:
                server.poll()  # else the group would live on as a zombie
                os.killpg(server.pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            return
