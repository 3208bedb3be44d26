"""A real vLLM server on the CPU as a child process, and a tiny model for it to serve.

vLLM lives in a virtual environment of its own (``make vllm``), because it pins many libraries. The tests speak HTTP with it
and nothing else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from lazy import names
from offline_people import labelled
from scripted_server import reserved_port

from deltamem.episode import EpisodeConfig
from deltamem.training.config import TinyModelConfig

build = names("deltamem.training.tiny", "build")

COMPACT = EpisodeConfig("manager_compact", "session_compact", memory_fields=("text", "time", "id"))
WINDOW = 2048
NAME = "tiny"

_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}
_START_SECONDS, _STOP_SECONDS, _TRACKER_SECONDS = 600, 30, 5


def vllm_python() -> Path | None:
    """The interpreter of the environment that vLLM is installed in: ``$DELTAMEM_VLLM_PYTHON`` or that of ``make vllm``."""
    named = os.environ.get("DELTAMEM_VLLM_PYTHON")
    python = Path(named) if named else Path(__file__).parents[1] / ".venv-vllm" / "bin" / "python"
    return python if python.is_file() else None


def write_tiny_model(folder: Path, *, window: int = WINDOW, vocabulary: int = 800) -> None:
    """Write a random Qwen3 checkpoint that reads `window` tokens, with a tokenizer that knows the wire format."""
    # vLLM's attention for the CPU has no kernel for heads of fewer than 32 dimensions, so those stay at their default.
    sizes = TinyModelConfig(layers=2, mlp_size=128, vocabulary=vocabulary, context=window)
    build(folder, labelled(30, 3, seed=3), COMPACT, sizes, seed=0)


@contextmanager
def serve(python: Path, model: Path, log: Path, *, window: int = WINDOW, cache: int = 64) -> Iterator[str]:
    """Serve a model on a free port of this machine; yields the base URL. The server's output goes to `log`.

    `window` is the longest conversation in tokens; `cache` are the MiB for keys and values of all conversations at once, of
    which one of the tiny model takes half a KiB a token. A server that does not come up is a `RuntimeError`.
    """
    held = reserved_port()
    port = held.getsockname()[1]
    # Not the command `vllm`, which looks for a distribution of that name: the CPU build is called vllm-cpu.
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(window), "--max-num-seqs", "32"]
    command += ["--enforce-eager", "--kv-cache-memory-bytes", str(cache * 2**20)]
    # A request with a seed whose prompt is read in chunks kills the engine of vLLM 0.30 on a CPU, where random generators
    # cannot be wound back ("CPU Generator does not use offset").
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(window)]
    # With the default back end a random model never leaves the white space between two JSON tokens.
    command += ["--structured-outputs-config", '{"backend": "guidance", "disable_any_whitespace": true}']
    with log.open("wb") as output:
        # A group of its own: the server has children, and the whole group has to end.
        server = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | _ENVIRONMENT, start_new_session=True
        )
        try:
            _await_health(server, port, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            _stop(server)
            held.close()


def _await_health(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/health").is_success:
                return
        time.sleep(0.2)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    raise RuntimeError("vLLM did not come up:\n" + "\n".join(lines[-30:]))


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and then what is left of its group."""
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        # The last to go is Python's resource tracker, which removes the shared memory of the others. Orphans that nobody
        # waits for, as in a container without an init process, stay in the group for good.
        deadline = time.monotonic() + _TRACKER_SECONDS
        while time.monotonic() < deadline:
            os.killpg(server.pid, 0)
            time.sleep(0.1)
        os.killpg(server.pid, signal.SIGKILL)
