"""How the tests of the server run it: over real HTTP on the loopback, in this process or in one of its own.

with serving(folder) as server:
    server.client(server.key("ann")).post("/v1/owners/ann/search", json={"queries": ["city"]})
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from episode_texts import WordEmbedder
from process_cases import COMMAND, INTERRUPTIBLE, environment
from rule_model import RulePolicy
from typer.testing import CliRunner

from deltamem.bank.store import MemoryStore
from deltamem.cli.app import app
from deltamem.jobs import WorkerSettings
from deltamem.policy import Policy
from deltamem.server.app import create_app
from deltamem.server.keys import KEYS_FILE, Keys, Scope
from deltamem.server.service import ServerSettings, Service

QUICK = WorkerSettings(poll=0.02, first_delay=0.0, longest_delay=0.0, grace=5.0)
LONG = 60.0
ANN = "/v1/owners/ann"
ALL = frozenset(Scope)


@dataclass
class Server:
    """A running server."""

    url: str
    folder: Path
    keys: Keys
    """None at first, so that it is open."""
    service: Service
    clients: list[httpx.Client] = field(default_factory=list)

    def key(self, *owners: str, scopes: Collection[Scope] = ALL) -> str:
        """The token of a new key; without owners for all of them."""
        return self.keys.create(f"key of {', '.join(owners) or 'all'}", owners or None, scopes)[1]

    def clear(self) -> None:
        """Erase all owners, keys and clients, which takes a tenth of what starting a server does."""
        for client in self.clients:
            client.close()
        self.clients.clear()
        service = self.service
        service.pause(False)
        assert service.loop is not None
        for owner in service.store.journal.owners():
            erasing = service.forget_owner(service.manager_of(owner))
            asyncio.run_coroutine_threadsafe(erasing, service.loop).result(LONG)
        with sqlite3.connect(self.keys.path) as connection:
            connection.execute("DELETE FROM keys")

    def client(self, token: str | None = None, **headers: str) -> httpx.Client:
        """A client that sends a token; it is closed with the server."""
        bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
        # Without the certificates of the world, which take longer to load than most requests.
        client = httpx.Client(base_url=self.url, headers=bearer | headers, timeout=LONG, verify=False)
        self.clients.append(client)
        return client


@contextmanager
def serving(
    folder: Path, policy: Policy | None = None, *, model: bool = True, settings: ServerSettings | None = None
) -> Iterator[Server]:
    """Serve a store in this process, in a thread; by default with the model that is made of rules."""
    settings = settings or ServerSettings(worker=QUICK, rate_limit=None)
    with MemoryStore.open(folder, WordEmbedder()) as store, Keys.open(folder / KEYS_FILE) as keys:
        made = create_app(store, (policy or RulePolicy()) if model else None, keys=keys, settings=settings)
        config = uvicorn.Config(made, port=0, log_config=None, access_log=False, timeout_graceful_shutdown=5)
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        until(lambda: running.started or not thread.is_alive())
        port = running.servers[0].sockets[0].getsockname()[1]
        server = Server(f"http://127.0.0.1:{port}", folder, keys, made.state.service)
        try:
            yield server
        finally:
            for client in server.clients:
                client.close()
            running.should_exit = True
            thread.join(LONG)
            assert not thread.is_alive()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server") / "bank") as running:
        yield running


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """With the model that is made of rules, and open until a key is made; nothing is left of the tests before."""
    yield shared_server
    shared_server.clear()


def until(holds: Any) -> None:
    """Wait for something that is sure to come."""
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def ok(response: httpx.Response, status: int = 200) -> Any:
    assert response.status_code == status, response.text
    return response.json()


def problem(response: httpx.Response, status: int) -> str:
    """The sentence of a problem."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body.keys() == {"type", "title", "status", "detail"} and body["status"] == status
    assert body["detail"] and "\n" not in body["detail"]
    return str(body["detail"])


def a_session(number: int, text: str, **further: object) -> dict[str, object]:
    turns = [{"role": "user", "content": text}]
    return {"id": f"s{number}", "time": f"2026-03-0{number}T09:00:00", "turns": turns, "person": "Ann", **further}


def written(http: httpx.Client, *texts: str, owner: str = "ann", **further: object) -> list[dict[str, Any]]:
    given = {"memories": [{"text": text, **further} for text in texts]}
    return list(ok(http.post(f"/v1/owners/{owner}/memories", json=given), 201)["memories"])


def everything(server: Server) -> list[tuple[str, list[Any], list[Any]]]:
    """What the journal holds: entries and jobs of each owner."""
    journal = server.service.store.journal
    return [(name, list(journal.owner(name).entries()), journal.owner(name).jobs()) for name in journal.owners()]


@dataclass
class Process:
    """A server in a process of its own, which writes to a log."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def client(self, token: str | None = None) -> httpx.Client:
        """A client that sends a token."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=LONG)


@contextmanager
def process(folder: Path, log: Path, *arguments: str) -> Iterator[Process]:
    """Run `deltamem serve` with an embedder that needs no model; it is killed at the end, should it still run."""
    command = [*COMMAND, "serve", "--bank", str(folder), "--port", "0", *arguments]
    with log.open("wb") as out:
        child = subprocess.Popen(command, env=environment(), stdout=out, stderr=out, preexec_fn=INTERRUPTIBLE)
    try:
        until(lambda: child.poll() is not None or " at http://" in log.read_text())
        assert child.poll() is None, log.read_text()
        yield Process(log.read_text().partition(" at ")[2].split()[0], child, log)
    finally:
        child.kill()
        child.wait()


def block(page: str, language: str, containing: str) -> str:
    """The only block of a page in a language that contains a text."""
    (found,) = (code for code in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if containing in code)
    assert isinstance(found, str)
    return found


def conversed(command: str, talk: Callable[[str], object], folder: Path) -> str:
    """Run a line of a shell that serves, in this process and in a folder, talk to its address, and end it by a signal.

    What was printed meanwhile is returned.
    """
    words = shlex.split(command)
    variables = {"DELTAMEM_PORT": "0", "DELTAMEM_MODEL": "tiny"}
    while "=" in words[0]:
        name, _, variables[name] = words.pop(0).partition("=")
    address: Future[str] = Future()
    frozen = gc.get_freeze_count() > 0

    def noted(message: str) -> None:
        if message.startswith("serving "):
            address.set_result(message.partition(" at ")[2].split()[0])

    def talking() -> None:
        url = address.result()
        try:
            talk(url)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("deltamem.cli.serve.note", noted)
        patch.setattr("deltamem.embedding.load_embedder", lambda name, **settings: WordEmbedder())
        patch.setattr("sse_starlette.sse.AppStatus.should_exit", False)  # which the signal sets, for good
        talked = pool.submit(talking)
        # So that the signal harms nobody should the server have ended by itself meanwhile.
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            done = CliRunner().invoke(app, words[1:], env=variables)
            if not address.done():
                address.set_exception(AssertionError(done.output))
            talked.result()
        finally:
            signal.signal(signal.SIGTERM, before)
    if frozen:
        gc.freeze()  # as the conftest.py of the root left it
    assert done.exit_code == 0, done.output
    return done.stdout
