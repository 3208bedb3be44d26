"""A real llama.cpp server on this machine: the program that serves a GGUF file, and how tests start it.

    .venv-llama/bin/python tests/llama_server.py models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf --port 8101 --window 8192

It prints its base URL once it answers, and ends with the process that started it. llama.cpp lives in a virtual environment
of its own (``make models``), so this file needs the standard library, and as a program the package ``xllamacpp``.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv-llama" / "bin" / "python"
_HOST, _STOP_SECONDS = "127.0.0.1", 10


@contextmanager
def serve(file: Path, log: Path, *, window: int, slots: int = 1) -> Iterator[str]:
    """Serve a model under the name of its file; yields the base URL. What llama.cpp reports goes to `log`.

    `window` is the longest conversation in tokens, of each of `slots` at once. A server that does not come up is a
    `RuntimeError`.
    """
    command: list[str | Path] = [PYTHON, __file__, file, "--window", str(window), "--slots", str(slots)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True) as server:
        try:
            assert server.stdout is not None
            if not (url := server.stdout.readline().strip()):
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                raise RuntimeError("llama.cpp did not come up:\n" + "\n".join(lines[-30:]))
            yield url
        finally:
            server.terminate()
            try:
                server.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def _end_with(parent: int) -> None:
    """Wait until the parent is gone, and end this process, whatever llama.cpp's threads do."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def _await_health(address: str) -> None:
    while True:
        with suppress(URLError, TimeoutError), urlopen(f"{address}/health", timeout=5):
            return
        time.sleep(0.1)


def main() -> None:
    """Serve until the parent ends or a signal comes."""
    parser = argparse.ArgumentParser(description="serve a GGUF file on this machine, for OpenAI's clients")
    parser.add_argument("file", type=Path, help="the model")
    parser.add_argument("--name", help="what clients call it; by default the file's name without its end")
    parser.add_argument("--port", type=int, default=0, help="by default a free one")
    parser.add_argument("--slots", type=int, default=1, help="conversations at once")
    parser.add_argument("--window", type=int, default=8192, help="tokens of the longest conversation, of each slot")
    parser.add_argument("--threads", type=int, help="by default as many as this process may use cores")
    given = parser.parse_args()
    if not given.file.is_file():
        parser.error(f"{given.file}: no such file")
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    url_file = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Nobody reads what llama.cpp reports on standard output

    import xllamacpp  # type: ignore[import-not-found]

    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    threads = given.threads or len(affinity(0))
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = str(given.file), {given.name or given.file.stem}
    params.hostnames, params.port = [_HOST], given.port
    params.n_parallel, params.n_ctx, params.use_jinja = given.slots, given.slots * given.window, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    _await_health(server.listening_address)
    print(f"{server.listening_address}/v1", file=url_file, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
