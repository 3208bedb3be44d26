"""The person's day by native routes, MCP and commands: offsets stay, and what has no time is dated where they are."""

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from episode_texts import WordEmbedder
from mcp import Client
from mcp.client.stdio import stdio_client
from mcp_cases import call, connected, over_http, started
from rule_model import RulePolicy
from server_cases import ANN, LONG, Server, a_session, ok, problem
from typer.testing import CliRunner

from deltamem import zones
from deltamem.cli.app import app
from deltamem.sessions import read_dialogues

GIVEN = ("2026-06-01T21:30:00-05:00", "2026-06-01T21:30:00", "2026-06-02T02:30:00+00:00", "2026-11-01T01:30:00+05:45")
EVENING = datetime(2026, 6, 2, 2, 30, tzinfo=UTC)
CLOCKS = [
    # The zone of the owner, that of the request, what the clock shows, and who named the zone.
    (None, None, "2026-06-02T02:30:00+00:00", {"name": "UTC", "source": "default"}),
    ("America/Denver", None, "2026-06-01T20:30:00-06:00", {"name": "America/Denver", "source": "owner"}),
    ("America/Denver", "Asia/Tokyo", "2026-06-02T11:30:00+09:00", {"name": "Asia/Tokyo", "source": "request"}),
    (None, "America/New_York", "2026-06-01T22:30:00-04:00", {"name": "America/New_York", "source": "request"}),
]
clocks = pytest.mark.parametrize(("owners", "requested", "clock", "zone"), CLOCKS)


@pytest.fixture(autouse=True)
def evening(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(zones, "utc_now", lambda: EVENING)
    yield


def headers(requested: str | None) -> dict[str, str]:
    return {} if requested is None else {"X-Timezone": requested}


@pytest.mark.parametrize("time", GIVEN)
async def test_a_time_that_is_given_stays_as_it_is(server: Server, time: str) -> None:
    http = server.client(**{"X-Timezone": "Asia/Tokyo", "X-DeltaMem-Owner": "ann"})
    ok(http.patch(ANN, json={"timezone": "America/Denver"}))
    done = ok(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Boston.", wait=LONG) | {"time": time}))
    assert done["time"] == time
    written = ok(http.post(f"{ANN}/memories", json={"memories": [{"text": "Ann runs.", "time": time}]}), 201)
    assert written["memories"][0]["time"] == time and written["timezone"] is None
    async with over_http(server, None, **{"X-Timezone": "Asia/Tokyo", "X-DeltaMem-Owner": "ann"}) as client:
        added = await call(client, "add_memory", text="My dog is Rex.", time=time)
        assert (added["time"], added["timezone"]) == (time, None)
    assert {memory["time"] for memory in ok(http.get(f"{ANN}/memories"))["memories"]} == {time}
    seen = datetime.fromisoformat(time)
    for point in (seen, seen.replace(tzinfo=None)):
        assert len(ok(http.get(f"{ANN}/memories", params={"at": point.isoformat()}))["memories"]) == 3


async def test_a_time_in_small_letters(server: Server) -> None:
    """RFC 3339 has it."""
    time, read = "2026-06-01t21:30:00z", "2026-06-01T21:30:00+00:00"
    http = server.client(**{"X-DeltaMem-Owner": "ann"})
    done = ok(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Boston.", wait=LONG) | {"time": time}))
    assert done["time"] == read
    assert len(ok(http.get(f"{ANN}/memories", params={"at": time}))["memories"]) == 1
    async with over_http(server, None, **{"X-DeltaMem-Owner": "ann"}) as client:
        assert (await call(client, "add_memory", text="My dog is Rex.", time=time))["time"] == read
    line = {"id": "s", "time": time, "turns": [{"role": "user", "content": "Hello"}]}
    [session] = read_dialogues(io.StringIO(json.dumps(line)), "ann", "Ann")
    assert session.time.isoformat() == read


@clocks
async def test_without_a_time_the_persons_clock_counts(
    server: Server, owners: str | None, requested: str | None, clock: str, zone: dict[str, str]
) -> None:
    http = server.client(**headers(requested))
    assert ok(http.patch(ANN, json={"timezone": owners}))["timezone"] == owners
    written = ok(http.post(f"{ANN}/memories", json={"memories": [{"text": "Ann runs."}]}), 201)
    assert (written["memories"][0]["time"], written["timezone"]) == (clock, zone)
    async with over_http(server, None, **{"X-DeltaMem-Owner": "ann"}, **headers(requested)) as client:
        added = await call(client, "add_memory", text="My city is Boston.", session_id="s")
        assert (added["time"], added["timezone"]) == (clock, zone)
    # Sent again from elsewhere it is the session that it was.
    async with over_http(server, None, **{"X-DeltaMem-Owner": "ann", "X-Timezone": "Pacific/Apia"}) as client:
        again = await call(client, "add_memory", text="My city is Boston.", session_id="s")
        assert (again["time"], again["timezone"], again["outcome"]) == (clock, None, "known")
    assert ok(http.get(ANN))["timezone"] == owners


async def test_a_client_of_mcp_may_name_another_zone_with_each_request(server: Server) -> None:
    http = server.client(**{"X-DeltaMem-Owner": "ann", "Accept": "application/json, text/event-stream"})
    version = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    begun = http.post("/mcp", json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": version})
    session = {name: value for name, value in begun.headers.items() if name == "mcp-session-id"}
    for number, zone in enumerate(("America/Denver", "Asia/Tokyo"), start=1):
        asked = {"name": "add_memory", "arguments": {"text": f"My city is Boston {number}."}}
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": asked}
        assert zone in http.post("/mcp", json=body, headers=session | headers(zone)).text


def test_a_zone_that_there_is_not_is_400_whatever_is_asked(server: Server) -> None:
    http = server.client()
    for method, path in (("GET", ANN), ("POST", "/mcp"), ("POST", f"{ANN}/search"), ("GET", "/health/live")):
        said = problem(http.request(method, path, headers={"X-Timezone": "Mars/Base"}), 400)
        assert said == "X-Timezone: 'Mars/Base' is no IANA name of a time zone such as Europe/Berlin"
    assert "Mars" in problem(http.patch(ANN, json={"timezone": "Mars/Base"}), 400)
    problem(http.patch(ANN, json={"timezone": ""}), 422)
    assert not server.service.known("ann")
    memory = {"memories": [{"text": "Ann runs."}]}
    for other, status in (("America/Denver", 400), ("Asia/Tokyo", 201)):
        zones = [("X-Timezone", "Asia/Tokyo"), ("X-Timezone", other)]
        said = httpx.post(f"{server.url}{ANN}/memories", json=memory, headers=zones)
        assert said.status_code == status, said.text


async def test_a_server_without_a_model_dates_what_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    for policy in (None, RulePolicy()):
        async with connected(policy=policy) as client:
            added = await call(client, "add_memory", text="My city is Boston.")
            assert (added["time"], added["timezone"]["source"]) == ("2026-06-02T02:30:00+00:00", "default")


async def test_over_stdio_the_machines_zone_counts(tmp_path: Path) -> None:
    async def zone(*arguments: str) -> Any:
        asked = started(tmp_path / "bank", *arguments)
        asked.env = {**(asked.env or {}), "TZ": "LOC-13"}
        async with Client(stdio_client(asked)) as client:
            return (await call(client, "add_memory", text="Ann runs."))["timezone"]

    assert await zone() == {"name": "LOC-13", "source": "machine"}
    assert await zone("--timezone", "Asia/Tokyo") == {"name": "Asia/Tokyo", "source": "setting"}


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltamem.embedding.load_embedder", lambda name, **settings: WordEmbedder())

    def run(*arguments: str, code: int = 0) -> Any:
        done = CliRunner().invoke(app, [*arguments, "--bank", str(tmp_path / "bank"), "--owner", "ann", "--json"])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout) if code == 0 else done.stderr

    def times() -> list[str]:
        return [memory["time"] for memory in run("show")["memories"]]

    assert "Mars/Base" in run("remember", "Ann runs.", "--timezone", "Mars/Base", code=2)
    assert not (tmp_path / "bank").exists()
    assert run("remember", "Ann runs.", "--time", GIVEN[0].replace("T", "t"))["timezone"] is None
    assert run("remember", "Ann swims.")["timezone"]["source"] == "machine"
    assert run("remember", "Ann reads.", "--timezone", "America/Denver")["timezone"]["source"] == "setting"
    assert run("timezone") == {"owner": "ann", "timezone": None}
    assert run("timezone", "Asia/Tokyo") == {"owner": "ann", "timezone": "Asia/Tokyo"}
    monkeypatch.setenv("DELTAMEM_TIMEZONE", "America/Denver")
    assert run("remember", "Ann rows.")["timezone"] == {"name": "Asia/Tokyo", "source": "owner"}
    assert "Mars/Base" in run("timezone", "Mars/Base", code=2)
    assert "either" in run("timezone", "Asia/Tokyo", "--remove", code=2)
    assert run("timezone", "--remove")["timezone"] is None
    assert run("remember", "Ann sings.")["timezone"] == {"name": "America/Denver", "source": "setting"}
    assert times()[0] == GIVEN[0]
    assert times()[2:] == ["2026-06-01T20:30:00-06:00", "2026-06-02T11:30:00+09:00", "2026-06-01T20:30:00-06:00"]
