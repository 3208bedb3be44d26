"""Health, metrics, the switch that pauses the model, the whole memory of an owner, and what stays after erasure: nothing."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from job_cases import Failing, Gate, refused
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rule_model import rules
from scripted_server import serve
from server_cases import ANN, LONG, Server, a_session, ok, problem, serving, until

from deltamem.jobs import WorkerSettings
from deltamem.llm import LLM
from deltamem.policy import EndpointPolicy
from deltamem.server.keys import Scope
from deltamem.server.service import ServerSettings


@pytest.fixture
def http(server: Server) -> httpx.Client:
    client = server.client()
    for number, city in enumerate(("Boston", "Denver"), start=1):
        ok(client.post(f"{ANN}/sessions", json=a_session(number, f"My city is {city}.", wait=LONG)))
    return client


def test_points_of_the_past(http: httpx.Client) -> None:
    found = ok(http.get(f"{ANN}/diff", params={"before": "s1"}))
    assert (found["before"], found["after"], found["added"]) == (1, 2, [])
    assert found["changed"][0]["after"]["text"] == "Ann's city is Denver."
    assert ok(http.get(f"{ANN}/audit")) == {"memories": 1, "without_source": 0, "findings": [], "complete": True}
    entry = ok(http.post(f"{ANN}/rollback", json={"to": "2026-03-01T10:00"}))
    assert (entry["kind"], entry["restored"], entry["changes"][0]["after"]) == ("rollback", 1, "Ann's city is Boston.")
    owner = ok(http.get(ANN))
    assert (owner["memories"], owner["position"], owner["jobs"]["done"]) == (1, 3, 2)


def test_an_export_is_read_back(http: httpx.Client) -> None:
    exported = http.get(f"{ANN}/export")
    assert exported.headers["content-type"] == "application/x-ndjson"
    assert "another" not in problem(http.post("/v1/owners/bob/import", content=exported.content), 400)
    assert ok(http.post("/v1/owners/bob/import?rename=true", content=exported.content))["entries"] == 2
    assert ok(http.get("/v1/owners/bob/memories"))["memories"] == ok(http.get(f"{ANN}/memories"))["memories"]
    problem(http.post("/v1/owners/bob/import?rename=true", content=exported.content), 409)
    problem(http.post("/v1/owners/cem/import", content=b"\xff"), 400)
    problem(http.get("/v1/owners/cem/memories"), 404)
    assert ok(http.get("/v1/owners")) == {"owners": ["ann", "bob"]}


def test_erasure_leaves_nothing_in_any_file(server: Server, http: httpx.Client) -> None:
    http.put("/v1/admin/model", json={"paused": True})
    waits = a_session(3, "Quokkaville is where I live. My city is Quokkaville.", metadata={"note": "quokkanote"})
    ok(http.post(f"{ANN}/sessions", json=waits), 202)
    added = ok(http.post(f"{ANN}/memories", json={"memories": [{"text": "Ann keeps a quokkapet."}]}), 201)["memories"][0]
    ok(http.delete(f"{ANN}/memories/{added['uuid']}", params={"mode": "erase"}))
    assert not _found(server.folder, "quokkapet")
    assert _found(server.folder, "Quokkaville")
    erased = ok(http.delete(ANN))
    assert erased["memories"] == 1 and erased["entries"] == 4
    problem(http.get(f"{ANN}/memories"), 404)
    for secret in ("Quokkaville", "quokkanote", "Boston", "Denver", added["uuid"]):
        assert not _found(server.folder, secret)
    http.put("/v1/admin/model", json={"paused": False})
    done = ok(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Oslo.", wait=LONG)))  # the owner begins again
    assert done["position"] == 1
    [memory] = ok(http.get(f"{ANN}/memories"))["memories"]
    assert memory["text"] == "Ann's city is Oslo."


def _found(folder: Path, secret: str) -> list[str]:
    forms = (secret.encode(), secret.encode("utf-16-le"))
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert {"journal.sqlite3", "keys.sqlite3"} <= {file.name for file in files}
    return [file.name for file in files if any(form in file.read_bytes() for form in forms)]


def test_twenty_retries_are_applied_once(server: Server) -> None:
    server.client()
    with ThreadPoolExecutor(20) as pool:
        clients = [server.client() for _ in range(20)]
        start = threading.Barrier(20)

        def send(client: httpx.Client) -> dict[str, object]:
            start.wait()
            return dict(ok(client.post(f"{ANN}/sessions", json=a_session(1, "My city is Boston.", wait=LONG))))

        answers = list(pool.map(send, clients))
    assert {answer["position"] for answer in answers} == {1}
    assert server.service.store.journal.owner("ann").head == 1


def test_a_paused_model_is_not_asked(server: Server, http: httpx.Client) -> None:
    assert ok(http.put("/v1/admin/model", json={"paused": True})) == {
        **{"name": "rules", "mode": "react", "paused": True, "waiting": 0},
        "reason": "rules does not say how it was trained, so it is taken to write the turns itself",
    }
    job = ok(http.post(f"{ANN}/sessions", json=a_session(3, "My city is Oslo.", wait=0.2)), 202)
    assert (job["state"], job["attempts"]) == ("queued", 0)
    assert ok(http.get("/health/ready")) == {"status": "ok", "model": True, "paused": True}
    assert ok(http.get("/v1/admin/model"))["waiting"] == 1
    ok(http.put("/v1/admin/model", json={"paused": False}))
    until(lambda: http.get(f"{ANN}/jobs/{job['id']}").json()["state"] == "done")
    ann = server.client(server.key("ann"))
    problem(ann.put("/v1/admin/model", json={"paused": True}), 403)
    problem(ann.get("/metrics"), 403)
    problem(server.client(server.key(scopes=[Scope.READ])).get("/v1/admin/model"), 403)


def test_a_model_that_is_down_makes_the_job_wait(tmp_path: Path) -> None:
    slow = ServerSettings(worker=WorkerSettings(poll=0.02, first_delay=1000, longest_delay=1000))
    with serving(tmp_path / "bank", Failing(refused(503)), settings=slow) as server:
        http = server.client()
        job = ok(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Boston.", wait=LONG)), 202)
        assert (job["state"], job["attempts"], job["last_error"]) == ("queued", 1, "the endpoint answered 503")
        assert job["retry_at"] > job["updated_at"]


def test_stopping_hands_back_what_is_not_read(tmp_path: Path) -> None:
    gate = Gate()
    quick = ServerSettings(worker=WorkerSettings(parallel=1, poll=0.02, grace=0.05))
    with ThreadPoolExecutor(2) as pool, serving(tmp_path / "bank", gate, settings=quick) as server:
        http = server.client()
        reading = a_session(1, "My city is Boston.", wait=LONG)
        waiting = [pool.submit(http.post, f"/v1/owners/{name}/sessions", json=reading) for name in ("ann", "bob")]
        until(lambda: gate.inside and sum(server.service.queue.counts().values()) == 2)
        assert server.service.loop is not None
        asyncio.run_coroutine_threadsafe(server.service.stop(), server.service.loop).result(LONG)
        assert [one.result(LONG).json()["state"] for one in waiting] == ["queued", "queued"]
        problem(http.get("/health/ready"), 503)
        assert ok(http.get("/health/live")) == {"status": "ok"}
    with serving(tmp_path / "bank") as server:
        http = server.client()
        until(lambda: http.get("/v1/owners/bob").json()["jobs"]["done"] == 1)
        until(lambda: http.get("/v1/owners/ann").json()["jobs"]["done"] == 1)


def test_metrics_and_log_name_nobody(server: Server, http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    token = server.key()
    with caplog.at_level("INFO", "deltamem.access"):
        ok(server.client(token).get(f"{ANN}/memories", params={"filters": '{"topic": "secret"}'}))
        server.client(token).request("HACK", f"{ANN}/memories")
    [line] = [one for one in caplog.messages if one.startswith("GET")]
    assert line.startswith("GET /v1/owners/{owner}/memories 200")
    assert not any(word in caplog.text for word in ("ann", "secret", token))
    figures = server.client(token).get("/metrics").text
    assert 'deltamem_jobs{state="done"} 2.0' in figures and "deltamem_paused 0.0" in figures
    assert 'deltamem_requests_total{method="GET",route="/v1/owners/{owner}/memories",status="200"} ' in figures
    assert "ann" not in figures and "HACK" not in figures


def test_the_description_is_whole(server: Server) -> None:
    described = ok(server.client().get("/openapi.json"))
    written = json.dumps(described)
    named = {part.partition('"')[0] for part in written.split("#/components/schemas/")[1:]}
    assert named <= described["components"]["schemas"].keys()
    assert ok(server.client().post(f"{ANN}/memories", json={"memories": [{"text": "x"}]}), 201)
    refused_method = server.client().put(f"{ANN}/memories/m1")
    assert refused_method.status_code == 405 and refused_method.headers["allow"] == "DELETE, GET, PATCH"
    operations = [one for path in described["paths"].values() for one in path.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    assert all(one["description"] for one in operations)


def test_spans_name_nobody(server: Server) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    problem(server.client().get(f"{ANN}/memories", params={"filters": '{"topic": "secret"}'}), 404)
    [span] = spans.get_finished_spans()
    route = "/v1/owners/{owner}/memories"
    assert span.name == f"GET {route}" and span.attributes is not None
    assert (span.attributes["http.route"], span.attributes["http.response.status_code"]) == (route, 404)
    assert "ann" not in span.to_json() and "secret" not in span.to_json()


def test_a_model_that_was_not_trained_is_asked_in_assisted_mode(tmp_path: Path) -> None:
    with serve(rules) as model, serving(tmp_path / "bank", EndpointPolicy(LLM(model.url, "tiny"))) as running:
        client = running.client()
        for number, (event, city) in enumerate((("ADD", "Boston"), ("UPDATE", "Denver")), start=1):
            done = ok(client.post(f"{ANN}/sessions", json=a_session(number, f"My city is {city}.", wait=LONG)))
            assert [(one["event"], one["after"]) for one in done["changes"]] == [(event, f"Ann's city is {city}.")]
        found = ok(client.get("/v1/admin/model"))
    assert (found["mode"], found["reason"]) == ("assisted", f"tiny at {model.url} is not known to be trained for DeltaMem")
    assert {body["response_format"]["json_schema"]["name"] for body in model.requests} == {"facts", "comparison"}


def test_without_a_model_there_is_no_mode(tmp_path: Path) -> None:
    with serving(tmp_path / "bank", model=False) as running:
        found = ok(running.client().get("/v1/admin/model"))
    assert (found["name"], found["mode"], found["reason"]) == (None, None, None)
