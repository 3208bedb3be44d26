"""The program that serves a GGUF file, without llama.cpp: it says where once it answers, and ends with who started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import llama_server
import pytest
from llama_server import ROOT, serve

FAKE = """
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

def CommonParams():
    return SimpleNamespace(model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace())

class Server:
    def __init__(self, params):
        print("llama.cpp reports this on standard output", flush=True)
        told = {"names": sorted(params.model_alias), "slots": params.n_parallel, "context": params.n_ctx}

        class Handler(BaseHTTPRequestHandler):
            asked = 0

            def do_GET(self):
                Handler.asked += 1
                self.send_response(503 if Handler.asked == 1 else 200)  # it loads the model
                self.end_headers()
                self.wfile.write(json.dumps(told).encode())

        server = ThreadingHTTPServer((params.hostnames[0], params.port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.listening_address = "http://%s:%d" % server.server_address
"""
STARTS = """
import sys
from pathlib import Path
import llama_server
llama_server.PYTHON = sys.executable
with llama_server.serve(*map(Path, sys.argv[1:]), window=8) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "xllamacpp.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(ROOT / "tests"))))
    monkeypatch.setattr(llama_server, "PYTHON", Path(sys.executable))
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF")
    return path


def answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


def test_it_answers_as_long_as_the_block_lasts(model: Path, tmp_path: Path) -> None:
    with serve(model, tmp_path / "log", window=100, slots=3) as url:
        assert httpx.get(f"{url}/models").json() == {"names": ["small"], "slots": 3, "context": 300}
    assert not answers(url)
    assert "llama.cpp reports this" in (tmp_path / "log").read_text()


def test_a_server_that_does_not_come_up_says_why(model: Path, tmp_path: Path) -> None:
    said = pytest.raises(RuntimeError, match=r"(?s)did not come up.*absent\.gguf: no such file")
    with said, serve(tmp_path / "absent.gguf", tmp_path / "log", window=100):
        pass


def test_it_ends_when_its_parent_is_killed(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS, str(model), str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert answers(f"{url}/models")
        parent.send_signal(signal.SIGKILL)
        while answers(f"{url}/models"):
            time.sleep(0.1)
