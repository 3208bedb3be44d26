"""The commands serve, keys, pause and resume; a real process, killed and stopped."""

import asyncio
import gc
import signal
import socket
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from episode_texts import WordEmbedder
from server_cases import LONG, conversed, process
from typer.testing import CliRunner, Result

from deltamem.bank.store import MemoryStore
from deltamem.cli.app import app
from deltamem.cli.model import load_embedder
from deltamem.errors import EmbedderUnavailableError
from deltamem.server.keys import Keys
from deltamem.server.runner import event_loop, listen

RUNNER = CliRunner()


def run(*arguments: str) -> Result:
    return RUNNER.invoke(app, list(arguments), prog_name="deltamem", catch_exceptions=False)


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DELTAMEM_BANK", str(tmp_path / "bank"))
    return tmp_path / "bank"


def test_keys_are_made_listed_and_revoked(bank: Path) -> None:
    assert run("keys", "list").exit_code == 2 and not bank.exists()
    made = run("keys", "create", "phone", "--owner", "Ann", "--also", "Bob")
    token = made.stdout.partition("token  ")[2].split()[0]
    with Keys.open(bank / "keys.sqlite3") as keys:
        key = keys.find(token)
        assert key is not None and key.owners == {"Ann", "Bob"} and key.scopes == {"read", "write"}
    listed = run("keys", "list").stdout
    assert key.id in listed and token not in listed
    assert b"Bob" in b"".join(file.read_bytes() for file in bank.iterdir())
    assert "revoked" in run("keys", "revoke", key.id).stdout
    assert b"Bob" not in b"".join(file.read_bytes() for file in bank.iterdir()), "the name of an owner who was erased"
    assert "Bob" not in run("keys", "list").stdout and "phone" in run("keys", "list").stdout
    assert run("keys", "revoke", "nothing").exit_code == 2
    assert run("keys", "create", "phone").exit_code == 2
    assert run("keys", "create", "phone", "--all-owners", "--scope", "everything").exit_code == 2


def test_without_a_key_no_other_machine_is_served(bank: Path) -> None:
    refused = run("serve", "--host", "0.0.0.0")
    assert refused.exit_code == 2 and "no API key" in refused.stderr


@pytest.mark.parametrize(("name", "waits"), [("http://127.0.0.1:9/v1#model", True), ("no-such-model", False)])
def test_only_an_endpoint_may_still_come(name: str, waits: bool, capsys: pytest.CaptureFixture[str]) -> None:
    embedder = WordEmbedder()
    with MemoryStore.in_memory(embedder) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedder, "name", name, raising=False)
        patch.setattr(embedder, "queries", Mock(side_effect=EmbedderUnavailableError("nobody there")))
        with nullcontext() if waits else pytest.raises(EmbedderUnavailableError):
            load_embedder(store)
    assert ("does not answer yet: nobody there" in capsys.readouterr().err) == waits


def test_without_its_embedder_a_server_ends_with_a_sentence(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = WordEmbedder()
    monkeypatch.setattr(embedder, "queries", Mock(side_effect=EmbedderUnavailableError("no such model")))
    monkeypatch.setattr("deltamem.embedding.load_embedder", lambda name, **settings: embedder)
    monkeypatch.setattr("deltamem.server.runner.run", AsyncMock())
    done = run("serve", "--port", "0")
    assert done.exit_code != 0 and done.stderr.splitlines()[-1].endswith("no such model") and "Traceback" not in done.stderr


def test_answers_are_sent_at_once() -> None:
    async def accepted() -> int:
        with listen("127.0.0.1", 0) as listening:
            connected: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
            async with await asyncio.start_server(lambda _, writer: connected.set_result(writer), sock=listening):
                _, client = await asyncio.open_connection(*listening.getsockname())
                writer = await connected
                found = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                for one in (client, writer):
                    one.close()
                return int(found)

    assert asyncio.run(accepted()) != 0


def test_while_it_serves_the_collector_rests_and_the_loop_is_the_fast_one(tmp_path: Path) -> None:
    before, seen = gc.get_threshold(), []

    def look(url: str) -> None:
        assert httpx.get(f"{url}/health/live").status_code == 200
        seen.append((gc.get_threshold()[0] > before[0], gc.get_freeze_count() > 0))

    gc.unfreeze()  # what the conftest.py of the root froze
    conversed("deltamem serve --bank bank", look, tmp_path)
    after = gc.get_threshold(), gc.get_freeze_count()
    gc.freeze()
    assert seen == [(True, True)] and after == (before, 0)
    loop = event_loop()
    assert type(loop).__module__ == "uvloop"
    loop.close()


def test_a_process_serves_and_ends_on_a_signal(tmp_path: Path) -> None:
    folder, log = tmp_path / "bank", tmp_path / "log"
    with process(folder, log) as server, server.client() as http:
        added = http.post("/v1/owners/ann/memories", json={"memories": [{"text": "Ann has a dog."}]})
        assert added.status_code == 201
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(LONG) == 0
    assert "Ann" not in log.read_text() and "Traceback" not in log.read_text()
    with MemoryStore.open(folder, WordEmbedder()) as store:
        assert store.owners() == ["ann"]
