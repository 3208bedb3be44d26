"""What a run cannot choose: how servers end, databases that go away, full disks, two runs at once."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest
from momento_cases import CATALOGUE, MARA, Finished, finish, quick, reset
from process_cases import INTERRUPTIBLE

from deltamem.config import CONFIGS
from deltamem.errors import DeltaMemError
from papers.momento.agent import ScriptedAgent
from papers.momento.policies import DatabaseFailedError
from papers.momento.tools import call
from papers.momento.world import World

pytest.importorskip("pgserver", reason="pgserver, which brings PostgreSQL, is not installed")
psycopg = pytest.importorskip("psycopg")

from papers.momento.database import ServiceDatabase, open_databases, private_postgres  # noqa: E402
from papers.momento.postgres_server import MOST_MEMORY  # noqa: E402

RUN = """
import sys
from papers.momento.database import private_postgres
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
from papers.momento.database import private_postgres
sys.addaudithook(hook)
with private_postgres() as url:
    sys.stdin.read()
"""


def started(program: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=CONFIGS.parent, text=True, preexec_fn=INTERRUPTIBLE, **pipes
    )  # type: ignore[call-overload,no-any-return]


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
    assert not folder.exists() and has_ended(server)


def has_ended(process: psutil.Process) -> bool:
    """Whether a process runs no more; an orphan stays a zombie until the first process of the machine looks after it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


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


@pytest.mark.slow
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """The limit on the size of files stands for the full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))

    command = [sys.executable, "-m", "papers.momento", "system=oracle", "limit=1", f"out={tmp_path / 'out'}"]
    full = subprocess.run(command, cwd=CONFIGS.parent, preexec_fn=limit, capture_output=True, text=True, timeout=300)
    assert full.returncode == 2 and len(full.stderr.strip().splitlines()) == 1, full.stderr
    assert "no private PostgreSQL could be started" in full.stderr and "File too large" in full.stderr


def test_each_process_of_a_private_server_has_a_limit_of_memory(server_url: str) -> None:
    _, server = served(server_url)
    for process in (server, *server.children()):
        try:
            limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            assert process is not server
            continue  # a worker that autovacuum needed for a moment
        assert [line.split()[3] for line in limits if line.startswith("Max data size")] == [str(MOST_MEMORY)]


@pytest.mark.slow
def test_a_server_that_goes_away_ends_a_run_and_the_next_one_does_the_rest(
    tmp_path: Path, databases: list[ServiceDatabase]
) -> None:
    turn, turns = ScriptedAgent.turn, []

    async def killing(self: ScriptedAgent, *said: Any) -> str:
        turns.append(said)
        if len(turns) == 6:
            server.send_signal(signal.SIGQUIT)
            while server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
        return await turn(self, *said)

    chosen = ("system=oracle", "limit=4", "trials=2")
    with private_postgres() as url, open_databases(url, 3) as (own, *others):
        world = reset(World(own, CATALOGUE))
        _, server = served(url)
        with quick(others) as patched, pytest.raises(DeltaMemError, match="the database failed: "):
            patched.setattr(ScriptedAgent, "turn", killing)
            finish(tmp_path, *chosen)
        with pytest.raises((DatabaseFailedError, psycopg.OperationalError)):
            call(world, "execute_sql", {"query": "SELECT id FROM orders"})
        with pytest.raises(DatabaseFailedError):
            world.hashes(MARA)
    first = Finished(tmp_path, 0, "", "")
    assert 0 < len(first.trials) < 8 and all(trial.scores and trial.scores.passed for trial in first.trials.values())
    assert first.summary["partial"]
    kept = (tmp_path / "questions.jsonl").read_bytes()
    with quick(databases[1:]):
        last = finish(tmp_path, *chosen)
    assert last.code == 0 and (tmp_path / "questions.jsonl").read_bytes().startswith(kept)
    assert len(last.trials) == 8 and last.passed() == 1


def test_nothing_is_left_on_a_server_whatever_happens(server_url: str) -> None:
    def left() -> list[Any]:
        query = "SELECT datname FROM pg_database WHERE datname LIKE 'momento%' UNION SELECT rolname FROM pg_roles "
        return server.execute(f"{query} WHERE rolname LIKE 'momento%'".encode()).fetchall()

    with psycopg.connect(server_url, autocommit=True) as server:
        before = left()
        server.execute("CREATE ROLE poor LOGIN CREATEDB")
        poor = server_url.replace("//postgres:", "//poor:")
        with pytest.raises(DeltaMemError, match=r"PostgreSQL cannot be used: .*permission denied"), open_databases(poor, 1):
            pass
        with open_databases(server_url, 1):
            assert len(left()) == len(before) + 5
        assert left() == before
        server.execute("DROP ROLE poor")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Postgres", "there are: postgres"),
        ("postgresql://x@/x?host=/nowhere", "PostgreSQL cannot be used"),
        ("postgres://[", "PostgreSQL cannot be used"),
    ],
)
def test_unknown_databases_and_servers_are_one_sentence(name: str, reason: str) -> None:
    with pytest.raises(DeltaMemError, match=reason) as raised, open_databases(name, 1):
        pass
    assert "\n" not in str(raised.value)
