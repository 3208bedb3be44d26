"""What somebody does who wants the server to fail, to tell or to lose something; over real HTTP."""

import resource
import socket
import sqlite3
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import httpx
import pytest
from job_cases import Gate
from rule_model import rules
from scripted_server import serve
from server_cases import ANN, LONG, Server, a_session, ok, problem, process, serving, until, written

from deltamem.errors import StorageError
from deltamem.journal.journal import Journal

ENDS = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00")
"""Times that leave the calendar when they are written in UTC."""


@pytest.fixture
def http(server: Server) -> httpx.Client:
    return server.client()


def test_times_at_the_ends_of_the_calendar_are_times(http: httpx.Client) -> None:
    for last in ENDS:
        [memory] = written(http, f"It was {last}.", time=last)
        assert memory["time"] == last
        session = a_session(1, f"My city is Boston in {last}.", wait=LONG) | {"time": last, "id": last}
        ok(http.post(f"{ANN}/sessions", json=session))
        ok(http.get(f"{ANN}/diff", params={"before": last}))
    exported = http.get(f"{ANN}/export")
    assert ok(http.post("/v1/owners/bob/import?rename=true", content=exported.content))["memories"] == 3


@pytest.mark.parametrize("owner", ["team/ann", "/", "a%2Fb", "a/import", "Å/ü ?#&", "a\x00b\r\nX-Y: 1", "m1", "x" * 255])
def test_any_name_is_an_owner_and_nobody_elses(server: Server, owner: str) -> None:
    path = f"/v1/owners/{quote(owner, safe='')}"
    alike = {unquote(owner), owner.partition("/")[0], f"{owner}/", owner.upper(), owner.replace("/", "%2F")} - {owner, ""}
    mine, other = server.client(server.key(owner)), server.client(server.key(*alike))
    [memory] = ok(mine.post(f"{path}/memories", json={"memories": [{"text": "Secret."}]}), 201)["memories"]
    assert ok(mine.get(path))["owner"] == owner and ok(mine.get("/v1/owners")) == {"owners": [owner]}
    taken = mine.post(f"{path}/sessions", json=a_session(1, "My city is Boston."))
    assert ok(mine.get(taken.headers["location"]))["id"] == ok(taken, 202)["id"]
    for route in ("", "/memories", f"/memories/{memory['uuid']}", "/export", "/jobs"):
        problem(other.get(path + route), 404)
    problem(mine.delete(f"{path}%2F"), 404)
    assert ok(mine.delete(path))["entries"] >= 1


def test_no_session_takes_the_place_of_a_position(http: httpx.Client) -> None:
    for number, city in enumerate(("Boston", "Denver", "Oslo"), start=1):
        ok(http.post(f"{ANN}/sessions", json=a_session(number, f"My city is {city}.", wait=LONG) | {"id": f"@{4 - number}"}))
    assert ok(http.get(f"{ANN}/memories/m1", params={"at": "@1"}))["text"] == "Ann's city is Boston."
    assert ok(http.post(f"{ANN}/rollback", json={"to": "@1"}))["restored"] == 1


def test_who_is_erased_while_the_memory_is_opened_can_begin_again(server: Server, http: httpx.Client) -> None:
    written(http, "Ann has a dog.")
    old = server.service.manager_of("ann")
    uuids = server.service.uuids(old)
    ok(http.delete(ANN))
    # As when another thread had opened the memory just before, and notes it only now.
    server.service._managers["ann"] = old
    [memory] = written(http, "Ann has a cat.")
    assert [one["text"] for one in ok(http.get(f"{ANN}/memories"))["memories"]] == ["Ann has a cat."]
    assert memory["uuid"] not in map(str, uuids.values())


def test_an_erasure_that_fails_may_be_repeated(server: Server, http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    written(http, "Ann has a dog.")

    def full(name: str) -> None:
        raise StorageError(f"{server.folder}: database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(server.service.store.journal, "erase_owner", full)
        assert str(server.folder) not in problem(http.delete(ANN), 503)
    assert [one["text"] for one in ok(http.get(f"{ANN}/memories"))["memories"]] == ["Ann has a dog."]
    assert ok(http.delete(ANN))["memories"] == 1


def test_an_import_leaves_ids_for_what_comes(http: httpx.Client) -> None:
    written(http, "Ann has a dog.")
    exported = http.get(f"{ANN}/export").text
    problem(http.post("/v1/owners/bob/import?rename=true", content=exported.replace('"m1"', '"m999999999999999999"')), 400)
    taken = exported.replace('"m1"', f'"m{2**53}"')
    assert ok(http.post("/v1/owners/bob/import?rename=true", content=taken))["memories"] == 1
    assert written(http, "Bob has a cat.", owner="bob")[0]["id"] == f"m{2**53 + 1}"


@pytest.mark.parametrize("path", ["/v1/owners/ann/memories", "/v1/owners/ann/import"])
def test_a_client_that_leaves_is_no_defect(server: Server, path: str, caplog: pytest.LogCaptureFixture) -> None:
    address = (urlsplit(server.url).hostname, urlsplit(server.url).port)
    with caplog.at_level("INFO", "deltamem"):
        with socket.create_connection(address) as left:
            left.sendall(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{{".encode())
        until(lambda: any(line.startswith("POST") for line in caplog.messages))
    assert all(record.levelname == "INFO" for record in caplog.records if record.name.startswith("deltamem"))
    assert server.client(Host="127.0.0.1").get("/health/live").status_code == 200


def test_erasing_does_not_wait_for_a_model_that_does_not_answer(tmp_path: Path) -> None:
    gate = Gate()
    with serving(tmp_path / "bank", gate) as server:
        http = server.client()
        gate.open.set()
        ok(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Boston.", wait=LONG)))
        gate.open.clear()
        said = a_session(2, "You said that Ann's city is Boston. My pet is a quokka.")
        job = ok(http.post(f"{ANN}/sessions", json=said), 202)
        until(lambda: gate.inside)
        problem(http.delete(f"{ANN}/memories/m9", params={"mode": "erase"}), 404)
        assert ok(http.get(f"{ANN}/jobs/{job['id']}"))["attempts"] == 1
        ok(http.delete(f"{ANN}/memories/m1", params={"mode": "erase"}))
        until(lambda: gate.inside)  # it is read again, without what was erased
        assert ok(http.get(f"{ANN}/jobs/{job['id']}"))["attempts"] == 2
        ok(http.delete(ANN))
        problem(http.get(f"{ANN}/jobs/{job['id']}"), 404)
        assert not any(b"quokka" in file.read_bytes() for file in server.folder.rglob("*") if file.is_file())
        assert server.service.loop is not None
        server.service.loop.call_soon_threadsafe(gate.open.set)
        done = ok(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Oslo.", wait=LONG)))
        assert done["position"] == 1


def test_a_file_that_somebody_else_holds_is_not_the_fault_of_who_asks(server: Server, http: httpx.Client) -> None:
    written(http, "Ann has a dog.")
    with sqlite3.connect(server.folder / "journal.sqlite3", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        refused = http.post(f"{ANN}/memories", json={"memories": [{"text": "Ann has a cat."}]})
        assert "journal" not in problem(refused, 503) and refused.headers["retry-after"]
        assert [one["text"] for one in ok(http.get(f"{ANN}/memories"))["memories"]] == ["Ann has a dog."]
        other.execute("ROLLBACK")
    other.close()
    written(http, "Ann has a cat.")


@pytest.mark.slow
def test_on_a_full_disk_nothing_that_was_acknowledged_is_lost(tmp_path: Path) -> None:
    """The limit on the size of files stands for the full disk: writing fails, then there is room again."""
    folder = tmp_path / "bank"
    with serve(rules) as model:
        arguments = ("--base-url", model.url, "--model", "tiny")
        with process(folder, tmp_path / "log", *arguments) as server, server.client() as http:
            taken = [ok(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Boston.")), 202)]
            until(lambda: http.get(f"{ANN}/jobs/{taken[0]['id']}").json()["state"] == "done")
            http.put("/v1/admin/model", json={"paused": True})
            taken.append(ok(http.post(f"{ANN}/sessions", json=a_session(2, "My city is Denver.")), 202))

            def room(size: int) -> None:
                resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

            room(4096)
            refused = http.post(f"{ANN}/sessions", json=a_session(3, "My city is Oslo."))
            assert str(folder) not in problem(refused, 503)
            problem(http.post(f"{ANN}/memories", json={"memories": [{"text": "Ann has a dog."}]}), 503)
            assert [one["text"] for one in ok(http.get(f"{ANN}/memories"))["memories"]] == ["Ann's city is Boston."]
            problem(http.delete(ANN), 503)
            room(resource.RLIM_INFINITY)
            http.put("/v1/admin/model", json={"paused": False})
            until(lambda: http.get(f"{ANN}/jobs/{taken[1]['id']}").json()["state"] == "done")
            [memory] = ok(http.get(f"{ANN}/memories"))["memories"]
            assert memory["text"] == "Ann's city is Denver."
    with Journal.open(folder / "journal.sqlite3", read_only=True) as journal:
        assert [entry.session_id for entry in journal.owner("ann").entries()] == ["s1", "s2"]
        assert journal.owner("ann").verify() == [] and journal.integrity_check() == []
