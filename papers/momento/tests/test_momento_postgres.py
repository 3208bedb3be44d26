"""What a run cannot choose: how servers end, databases that go away, full disks, two runs at once."""

from __future__ import annotations

import json
import os
import resource
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
from momento_cases import CATALOGUE, MARA, reset

from deltamem.config import CONFIGS, composed, validated
from deltamem.errors import DeltaMemError
from deltamem.runs import RecordFile
from papers.momento.__main__ import MomentoConfig, main
from papers.momento.agent import ScriptedAgent
from papers.momento.database import DatabaseFailedError, open_database
from papers.momento.postgres import PostgresDatabase, private_postgres
from papers.momento.postgres_server import MOST_MEMORY
from papers.momento.tools import call
from papers.momento.trial import TrialRecord
from papers.momento.world import World

psutil = pytest.importorskip("psutil")
pytest.importorskip("pgserver", reason="pgserver, which brings PostgreSQL, is not installed")

RUN = """
import sys
from papers.momento.postgres import private_postgres
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
from papers.momento.postgres import private_postgres
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


def configured(out: Path, *overrides: str) -> MomentoConfig:
    named = [f"out={out}", "system=oracle", "limit=6", "trials=2", *overrides]
    return validated(composed("momento", named, CONFIGS), MomentoConfig)


def records(out: Path) -> list[TrialRecord]:
    return [TrialRecord.model_validate_json(line) for line in (out / "trials.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_whose_database_goes_away_scores_nothing_and_goes_on_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg")
    turn, turns = ScriptedAgent.turn, []

    async def killing(self: ScriptedAgent, *said: Any) -> str:
        turns.append(said)
        if len(turns) == 6:
            server.send_signal(signal.SIGQUIT)
            server.wait(60)
        return await turn(self, *said)

    monkeypatch.setattr(ScriptedAgent, "turn", killing)
    with private_postgres() as url:
        _, server = served(url)
        with pytest.raises(DeltaMemError, match="the database failed: "):
            main(configured(tmp_path, f"database='{url}'", "parallel=2"))
    done = records(tmp_path)
    assert 0 < len([one for one in done if one.error is None]) < 12
    assert all(one.scores.passed if one.scores else one.error for one in done)  # none is a zero
    assert json.loads((tmp_path / "summary.json").read_bytes())["partial"]
    with private_postgres() as url:
        assert main(configured(tmp_path, f"database='{url}'")) == 0
    assert {(one.task, one.trial) for one in records(tmp_path) if one.scores and one.scores.passed} == {
        (task, trial) for task in range(6) for trial in (1, 2)
    }


def test_a_call_without_a_database_has_no_result() -> None:
    psycopg = pytest.importorskip("psycopg")
    with private_postgres() as url, open_database(url) as database:
        world = reset(World(database, CATALOGUE))
        _, server = served(url)
        server.send_signal(signal.SIGQUIT)
        server.wait(60)
        with pytest.raises((DatabaseFailedError, psycopg.OperationalError)):
            call(world, "execute_sql", {"query": "SELECT id FROM orders"})
        with pytest.raises(DatabaseFailedError):
            world.hashes(MARA)


def test_nothing_is_left_where_the_role_may_not_do_enough() -> None:
    psycopg = pytest.importorskip("psycopg")
    with private_postgres() as url, psycopg.connect(url, autocommit=True) as server:
        server.execute("CREATE ROLE poor LOGIN CREATEDB")
        with pytest.raises(DeltaMemError, match=r"PostgreSQL cannot be used: .*permission denied"):
            PostgresDatabase(url.replace("//postgres:", "//poor:"))
        with open_database(url):
            pass
        assert server.execute("SELECT datname FROM pg_database WHERE datname LIKE 'momento%'").fetchall() == []
        assert server.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE 'momento%'").fetchall() == []


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(tmp_path: Path, database: str) -> None:
    def run(most: int) -> subprocess.CompletedProcess[str]:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

        named = ["system=oracle", "trials=12", f"out={tmp_path}", f"database={database}"]
        command = [sys.executable, "-m", "papers.momento", *named]
        return subprocess.run(command, cwd=CONFIGS.parent, preexec_fn=limit, capture_output=True, text=True)

    full = run(200_000)
    assert full.returncode == 2 and "Traceback" not in full.stderr and len(full.stderr.strip().splitlines()) == 1, (
        full.stderr
    )
    if database == "postgres":  # which cannot even begin
        assert "File too large" in full.stderr
    else:
        assert 0 < len((tmp_path / "trials.jsonl").read_bytes()) <= 200_000
        assert run(resource.RLIM_INFINITY).returncode == 0
        assert len({one.key for one in records(tmp_path) if one.scores and one.scores.passed}) == 648


def test_two_runs_in_one_folder_at_once_are_one_sentence(tmp_path: Path) -> None:
    with (
        RecordFile(tmp_path / "trials.jsonl", TrialRecord, lambda record: record.key),
        pytest.raises(DeltaMemError, match="in use by another process"),
    ):
        main(configured(tmp_path))
    assert main(configured(tmp_path)) == 0
