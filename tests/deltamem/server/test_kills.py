"""Kills and signals while sessions are read: what was taken on is applied exactly once, and nothing of it is in the log."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rule_model import rules
from scripted_server import Reply, is_check, serve
from server_cases import ANN, LONG, a_session, ok, process, until

from deltamem.journal.journal import Journal
from deltamem.server.keys import Keys, Scope

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("requests", "delay"), [(0, 0.0), (1, 0.0), (2, 0.0), (2, 0.02)])
def test_a_session_that_was_taken_on_outlives_a_kill(tmp_path: Path, requests: int, delay: float) -> None:
    """The process is killed after some requests to the model, the last of which is still answered, and a delay."""
    folder, asked = tmp_path / "bank", threading.Semaphore(0)

    def script(body: dict[str, Any]) -> Reply:
        if not is_check(body):
            asked.release()
        return rules(body)

    with serve(script) as model:
        arguments = ("--base-url", model.url, "--model", "tiny")
        with process(folder, tmp_path / "log", *arguments) as server, server.client() as http:
            taken = [ok(http.post(f"{ANN}/sessions", json=a_session(n, f"My city is Town{n}.")), 202) for n in (1, 2)]
            for _ in range(requests):
                assert asked.acquire(timeout=LONG)
            time.sleep(delay)
            server.process.kill()
        with process(folder, tmp_path / "log2", *arguments) as server, server.client() as http:
            until(lambda: all(http.get(f"{ANN}/jobs/{job['id']}").json()["state"] == "done" for job in taken))
            again = ok(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Town1.", wait=LONG)))
            assert again["outcome"] == "known"
            [memory] = ok(http.get(f"{ANN}/memories"))["memories"]
            assert memory["text"] == "Ann's city is Town2."
    with Journal.open(folder / "journal.sqlite3", read_only=True) as journal:
        assert [entry.session_id for entry in journal.owner("ann").entries()] == ["s1", "s2"]
        assert journal.owner("ann").verify() == [] and journal.integrity_check() == []


def test_on_a_signal_open_sessions_are_finished_and_the_rest_waits(tmp_path: Path) -> None:
    folder, log = tmp_path / "bank", tmp_path / "log"
    folder.mkdir()
    with Keys.open(folder / "keys.sqlite3") as keys:
        token = keys.create("phone", ["ann"], list(Scope))[1]
    asked, answering = threading.Event(), threading.Event()

    def script(body: dict[str, Any]) -> Reply:
        if not is_check(body):
            asked.set()
            assert answering.wait(LONG)
        return rules(body)

    with ExitStack() as stack:
        model = stack.enter_context(serve(script))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        server = stack.enter_context(process(folder, log, "--base-url", model.url))
        http = stack.enter_context(server.client(token))
        first = pool.submit(http.post, f"{ANN}/sessions", json=a_session(1, "My pet is a quokka.", wait=LONG))
        assert asked.wait(LONG)
        ok(http.post(f"{ANN}/sessions", json=a_session(2, "My city is Oslo.")), 202)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        answering.set()
        assert ok(first.result(LONG))["outcome"] == "applied"
        assert server.process.wait(LONG) == 0
    written = log.read_text()
    assert not any(secret in written for secret in ("quokka", "Oslo", "ann", token, "Traceback")) and "202" in written
    with Journal.open(folder / "journal.sqlite3", read_only=True) as journal:
        assert [entry.session_id for entry in journal.owner("ann").entries()] == ["s1"]
        assert [(job.session_id, str(job.state)) for job in journal.owner("ann").jobs()] == [
            ("s1", "done"),
            ("s2", "queued"),
        ]


def test_a_model_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    with serve(rules) as model:
        elsewhere = model.url
    arguments = ("--base-url", elsewhere, "--model", "tiny")
    with process(tmp_path / "bank", tmp_path / "log", *arguments) as server, server.client() as http:
        job = ok(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Oslo.")), 202)
        until(lambda: http.get(f"{ANN}/jobs/{job['id']}").json()["retry_at"] is not None)
        assert "tiny" in http.get(f"{ANN}/jobs/{job['id']}").json()["last_error"]
