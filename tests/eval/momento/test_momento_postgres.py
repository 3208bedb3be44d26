"""The private PostgreSQL: nothing is left of it, however a run ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from momento_cases import CATALOGUE, reset

from deltamem.config import CONFIGS
from eval.momento.database import open_database
from eval.momento.postgres import private_postgres
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
    if event == "subprocess.Popen" and "pg_ctl" in str(details[0]):
        print(details[1][2], flush=True)  # pg_ctl -D FOLDER
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
from eval.momento.postgres import private_postgres
sys.addaudithook(hook)
with private_postgres() as url:
    sys.stdin.read()
"""


def started(program: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", program], cwd=CONFIGS.parent, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("ended", ["killed", "interrupted", "finished"])
def test_nothing_is_left_of_a_private_server(ended: str) -> None:
    with started(RUN) as run:
        assert run.stdin is not None and run.stdout is not None
        folder = Path(parse_qs(urlsplit(run.stdout.readline().strip()).query)["host"][0])
        server = psutil.Process(int((folder / "postmaster.pid").read_text().splitlines()[0]))
        (watchdog,) = psutil.Process(run.pid).children()
        if ended == "finished":
            run.stdin.close()
        else:
            run.send_signal(signal.SIGKILL if ended == "killed" else signal.SIGINT)
        assert (run.wait(120) == 0) is (ended == "finished")
    _, alive = psutil.wait_procs([watchdog, server], timeout=120)
    assert not alive and not folder.exists()


@pytest.mark.slow
def test_nothing_is_left_of_a_server_whose_run_is_killed_while_it_starts() -> None:
    with started(KILLED_WHILE_IT_STARTS) as run:
        assert run.stdout is not None
        folder = Path(run.stdout.readline().strip())
        watchdog = psutil.Process(run.pid).children()[0]
        assert run.wait(120) == -signal.SIGKILL
    _, alive = psutil.wait_procs([watchdog], timeout=120)
    assert not alive and not folder.exists()
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(folder) in (one.info["cmdline"] or ())]


def test_two_trials_may_begin_at_once_on_one_server() -> None:
    pytest.importorskip("psycopg")

    def begin(_: int) -> str:
        with open_database(url) as database:
            return call(reset(World(database, CATALOGUE)), "execute_sql", {"query": "SELECT count(*) AS n FROM orders"})

    with private_postgres() as url, ThreadPoolExecutor(6) as pool:
        assert {json.loads(result)["rows"][0]["n"] for result in pool.map(begin, range(6))} == {3}
