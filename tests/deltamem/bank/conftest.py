"""A real Chroma server, started once a session."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from scripted_server import unused_url


@pytest.fixture(scope="session")
def chroma_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, url = tmp_path_factory.mktemp("chroma-server"), unused_url().removesuffix("/v1")
    program = Path(sys.executable).with_name("chroma")
    command = [program, "run", "--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--path", folder / "data"]
    environment = os.environ | {"ANONYMIZED_TELEMETRY": "False"}
    log = folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environment)
    try:
        for _ in range(1200):
            assert server.poll() is None, log.read_text(errors="replace")
            with suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{url}/api/v2/heartbeat", timeout=5).close()
                break
            time.sleep(0.1)
        else:
            raise AssertionError(f"the Chroma server did not start: {log.read_text(errors='replace')}")
        yield url
    finally:
        server.kill()
        server.wait()
