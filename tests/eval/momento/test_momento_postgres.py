"""The private PostgreSQL: nothing is left of it, however a run ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from momento_cases import CATALOGUE, reset

from deltamem.config import CONFIGS
from deltamem.errors import DeltaMemError
from eval.momento.database import open_database
from eval.momento.postgres import private_postgres
from eval.momento.postgres_server import MOST_MEMORY
from eval.momento.tools import call
from eval.momento.world import World

psutil = pytest.importorskip("psutil")
pytest.importorskip("pgserver", reason="pgserver, which brings PostgreSQL, is not installed")

RUN = """
import sys
from eval.momento.postgres import private_postgres
with private_postgres() as url:
    print(url, flush=True)
    sys.stdin.read()
"""
KILLED_WHILE_IT_STARTS = """
import os, signal, sys, threading
def hook(event, details):
    if event == "subprocess.Popen":
        print(details[1][-1], flush=True)  # the folder
        threading.Timer(DELAY, os.kill, (os.getpid(), signal.SIGKILL)).start()
from eval.momento.postgres import private_postgres
sys.addaudithook(hook)
with private_postgres() as url:
    sys.stdin.read()
"""


def started(program: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", program], cwd=CONFIGS.parent, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def served(url: str) -> tuple[Path, Any]:
    """Folder and process of a private server."""
    folder = Path(parse_qs(urlsplit(url.strip()).query)["host"][0])
    return folder, psutil.Process(int((folder / "postmaster.pid").read_text().splitlines()[0]))


def is_used(folder: Path) -> bool:
    return any(str(folder) in (one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))


@pytest.mark.slow
@pytest.mark.parametrize("ended", ["killed", "interrupted", "finished"])
def test_nothing_is_left_of_a_private_server(ended: str) -> None:
    with started(RUN) as run:
        assert run.stdin is not None and run.stdout is not None
        folder, server = served(run.stdout.readline())
        assert is_used(folder)
        if ended == "finished":
            run.stdin.close()
        else:
            run.send_signal(signal.SIGKILL if ended == "killed" else signal.SIGINT)
        assert (run.wait(120) == 0) is (ended == "finished")
    while is_used(folder):
        time.sleep(0.05)
    assert not folder.exists() and not server.is_running()


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.2, 1])
def test_nothing_is_left_of_a_server_whose_run_is_killed_while_it_starts(delay: float) -> None:
    with started(KILLED_WHILE_IT_STARTS.replace("DELAY", str(delay))) as run:
        assert run.stdout is not None
        folder = Path(run.stdout.readline().strip())
        assert run.wait(120) == -signal.SIGKILL
    while is_used(folder):
        time.sleep(0.05)
    assert not folder.exists()


def test_a_private_server_that_cannot_start_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"momento-{os.getuid()}.lock").mkdir()  # what has to be locked cannot be
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(DeltaMemError, match=r"could be started: .*lock"), private_postgres():
        pass
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_each_process_of_a_private_server_has_a_limit_of_memory() -> None:
    with private_postgres() as url:
        _, server = served(url)
        for process in (server, *server.children()):
            limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
            assert [line.split()[3] for line in limits if line.startswith("Max data size")] == [str(MOST_MEMORY)]


def test_two_trials_may_begin_at_once_on_one_server() -> None:
    pytest.importorskip("psycopg")

    def begin(_: int) -> str:
        with open_database(url) as database:
            return call(reset(World(database, CATALOGUE)), "execute_sql", {"query": "SELECT count(*) AS n FROM orders"})

    with private_postgres() as url, ThreadPoolExecutor(6) as pool:
        assert {json.loads(result)["rows"][0]["n"] for result in pool.map(begin, range(6))} == {3}
