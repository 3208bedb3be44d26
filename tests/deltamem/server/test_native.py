"""The native routes: what a manager does, over real HTTP."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from server_cases import ANN, LONG, Server, a_session, ok, problem, serving, until

TIME = "2026-03-02T09:00:00"


@pytest.fixture
def http(server: Server) -> httpx.Client:
    return server.client()


def test_a_session_is_read_and_found(http: httpx.Client) -> None:
    done = ok(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Boston.", wait=LONG, metadata={"topic": "home"})))
    assert (done["outcome"], done["position"], done["changes"][0]["after"]) == ("applied", 1, "Ann's city is Boston.")
    again = ok(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Boston.", metadata={"topic": "home"})))
    assert (again["outcome"], again["position"]) == ("known", 1)
    assert "another" in problem(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Oslo.")), 409)

    [result] = ok(http.post(f"{ANN}/search", json={"queries": ["Ann's city"], "filters": {"topic": "home"}}))["results"]
    [hit] = result["memories"]
    assert (hit["id"], hit["text"], hit["metadata"]) == ("m1", "Ann's city is Boston.", {"topic": "home"})
    assert hit["time"] == "2026-03-01T09:00:00" and 0 < hit["similarity"] <= 1
    [nothing] = ok(http.post(f"{ANN}/search", json={"queries": ["city"], "filters": {"topic": "work"}}))["results"]
    assert nothing["memories"] == []

    blame = ok(http.get(f"{ANN}/memories/{hit['uuid']}/blame"))
    assert blame["memory"]["id"] == "m1" and blame["origins"][0]["turns"][0]["content"] == "My city is Boston."


def test_who_does_not_wait_gets_a_job(http: httpx.Client) -> None:
    taken = http.post(f"{ANN}/sessions", json=a_session(1, "My city is Boston."))
    job = ok(taken, 202)
    assert taken.headers["location"] == f"{ANN}/jobs/{job['id']}"
    until(lambda: http.get(taken.headers["location"]).json()["state"] == "done")
    assert ok(http.get(taken.headers["location"]))["position"] == 1
    assert ok(http.get(f"{ANN}/jobs"))["jobs"] == []
    assert [one["id"] for one in ok(http.get(f"{ANN}/jobs", params={"state": ["done", "failed"]}))["jobs"]] == [job["id"]]


def test_memories_are_written_without_a_model(http: httpx.Client) -> None:
    given = [{"text": "Ann has a dog.", "time": TIME, "metadata": {"n": 1, "tags": ["a"]}}, {"text": "Ann likes tea."}]
    added = ok(http.post(f"{ANN}/memories", json={"memories": given}), 201)
    assert [one["id"] for one in added["memories"]] == ["m1", "m2"] and added["kind"] == "edit"
    uuid = added["memories"][0]["uuid"]
    assert ok(http.get(f"{ANN}/memories/{uuid}"))["metadata"] == {"n": 1, "tags": ["a"]}
    changed = ok(http.patch(f"{ANN}/memories/{uuid}", json={"text": "Ann has a cat."}))
    assert changed["changes"][0]["before"] == "Ann has a dog."
    assert ok(http.get(f"{ANN}/memories/m1", params={"at": "@1"}))["text"] == "Ann has a dog."
    assert ok(http.delete(f"{ANN}/memories/m1"))["changes"][0]["event"] == "REMOVE"
    problem(http.get(f"{ANN}/memories/m1"), 404)
    steps = ok(http.get(f"{ANN}/memories/{uuid}/history"))["steps"]
    assert [step["event"] for step in steps] == ["ADD", "UPDATE", "REMOVE"] and steps[0]["actor"] == "local"
    assert ok(http.delete(f"{ANN}/memories/m1", params={"mode": "erase"}))["kind"] == "forget"
    assert all(step["erased"] for step in ok(http.get(f"{ANN}/memories/m1/history"))["steps"])


def test_pages_follow_each_other(http: httpx.Client) -> None:
    texts = [{"text": f"Fact {number}.", "metadata": {"even": number % 2 == 0}} for number in range(7)]
    ok(http.post(f"{ANN}/memories", json={"memories": texts}), 201)
    seen, cursor = [], None
    while True:
        page = ok(http.get(f"{ANN}/memories", params={"limit": 3} | ({"cursor": cursor} if cursor else {})))
        seen += [one["text"] for one in page["memories"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [f"Fact {number}." for number in range(7)]
    even = ok(http.get(f"{ANN}/memories", params={"filters": '{"even": true}'}))["memories"]
    assert [one["id"] for one in even] == ["m1", "m3", "m5", "m7"]


BAD_INPUT: list[tuple[str, str, dict[str, Any], int]] = [
    ("POST", "search", {"content": b"{"}, 400),
    ("POST", "search", {"content": b"\xff\xfe"}, 400),
    ("POST", "search", {"content": b"[" * 100_000}, 400),
    ("POST", "search", {"json": []}, 422),
    ("POST", "search", {"json": {"queries": ["x"], "k": "5"}}, 422),
    ("POST", "search", {"json": {"queries": ["x"], "limit": 5}}, 422),
    ("POST", "search", {"json": {"queries": ["x"], "k": 10**9}}, 422),
    ("POST", "search", {"json": {"queries": ["x"] * 21}}, 422),
    ("POST", "search", {"json": {"queries": ["x"], "filters": {"a": {"near": 1}}}}, 400),
    ("POST", "search", {"json": {"queries": [1]}}, 422),
    ("POST", "search", {"content": b'{"queries": ["\\ud800"]}'}, 422),
    ("POST", "search", {"json": {"queries": None}}, 422),
    ("POST", "search", {"json": {"queries": ["x", None]}}, 422),
    ("POST", "sessions", {"json": {"id": "s", "time": "yesterday", "turns": []}}, 422),
    ("POST", "sessions", {"json": a_session(1, "x", wait=1e9)}, 422),
    ("POST", "sessions", {"json": a_session(1, "x", owner="bob")}, 422),
    ("POST", "memories", {"json": {"memories": [{"text": " ", "time": TIME}]}}, 400),
    ("POST", "memories", {"json": {"memories": [{"text": "x", "metadata": {"a": {"b": 1}}}]}}, 422),
    ("POST", "memories", {"json": {"memories": [{"text": "x", "metadata": {"AND": 1}}]}}, 400),
    ("POST", "memories", {"content": b'{"memories": [{"text": "x", "metadata": {"a": NaN}}]}'}, 400),
    ("POST", "memories", {"content": b'{"memories": [{"text": "x", "metadata": {"\\ud800": 1}}]}'}, 400),
    ("PATCH", "memories/m1", {"json": {}}, 422),
    ("PATCH", "memories/m1", {"json": {"text": None, "metadata": None}}, 422),
    ("GET", "memories", {"params": {"at": "never"}}, 404),
    ("GET", "memories", {"params": {"at": "@99999999999999999999"}}, 404),
    ("GET", "memories", {"params": {"cursor": "x"}}, 422),
    ("GET", "memories", {"params": {"filters": "["}}, 422),
    ("GET", "memories", {"params": {"page": "2"}}, 422),
    ("GET", "memories/m99", {}, 404),
    ("GET", "memories/%ff", {}, 400),
    ("GET", "jobs/none", {}, 404),
    ("PUT", "memories", {}, 405),
    ("GET", "nothing", {}, 404),
]


def test_bad_input_is_one_sentence(http: httpx.Client) -> None:
    ok(http.post(f"{ANN}/memories", json={"memories": [{"text": "Ann has a dog."}]}), 201)
    for method, path, sent, status in BAD_INPUT:
        headers = {"content-type": "application/json"} if "content" in sent else {}
        said = problem(http.request(method, f"{ANN}/{path}", headers=headers, **sent), status)
        assert "Traceback" not in said and "dog" not in said
    assert [one["text"] for one in ok(http.get(f"{ANN}/memories"))["memories"]] == ["Ann has a dog."]


def test_blank_queries_are_refused_alike(http: httpx.Client) -> None:
    ok(http.post(f"{ANN}/memories", json={"memories": [{"text": "Ann has a dog."}]}), 201)
    for blank in ("", " \n", "\u200b", "\ufeff \u3164"):
        said = problem(http.post(f"{ANN}/search", json={"queries": ["dog", blank]}), 400)
        assert said == "the query is blank; say what to look for"
        problem(http.post(f"{ANN}/memories", json={"memories": [{"text": blank}]}), 422 if blank == "" else 400)


def test_null_stands_for_what_is_left_out(http: httpx.Client) -> None:
    noted = {"text": "Ann has a dog.", "time": None, "metadata": None}
    ok(http.post(f"{ANN}/memories", json={"memories": [noted]}), 201)
    assert ok(http.get(f"{ANN}/memories"))["memories"][0]["metadata"] == {}
    [result] = ok(http.post(f"{ANN}/search", json={"queries": ["dog"], "k": None, "filters": None}))["results"]
    assert len(result["memories"]) == 1
    ok(http.post(f"{ANN}/sessions", json=a_session(1, "Hello.", wait=None, metadata=None, person=None)), 202)
    schemas = ok(http.get("/openapi.json"))["components"]["schemas"]
    described = Draft202012Validator({"components": {"schemas": schemas}, "$ref": "#/components/schemas/SearchIn"})
    assert described.is_valid({"queries": ["x"], "k": None}) and not described.is_valid({"queries": None})
    assert not described.is_valid({"queries": ["x"], "k": 0}) and not described.is_valid({"queries": ["\u200b"]})


def test_a_mistyped_key_of_a_filter_is_named(http: httpx.Client) -> None:
    ok(http.post(f"{ANN}/memories", json={"memories": [{"text": "Ann has a dog.", "metadata": {"topic": "pets"}}]}), 201)
    for answer in (
        http.post(f"{ANN}/search", json={"queries": ["dog"], "filters": {"tpoic": "pets"}}),
        http.get(f"{ANN}/memories", params={"filters": '{"tpoic": "pets"}'}),
    ):
        assert "'tpoic'; did you mean 'topic'?" in problem(answer, 400)


CHANGES: list[tuple[dict[str, Any], bool]] = [
    ({"text": "Ann has a cat."}, True),
    ({"text": None, "metadata": {}}, True),
    ({"time": TIME + "Z", "text": None}, True),
    ({}, False),
    ({"text": None}, False),
    ({"text": ""}, False),
    ({"text": " \t\u00a0\u2003"}, False),
    ({"text": "\x1c\x85"}, False),
]


def test_the_description_refuses_what_the_server_refuses(http: httpx.Client) -> None:
    ok(http.post(f"{ANN}/memories", json={"memories": [{"text": "Ann has a dog."}]}), 201)
    update = Draft202012Validator(ok(http.get("/openapi.json")) | {"$ref": "#/components/schemas/UpdateIn"})
    for change, good in CHANGES:
        assert update.is_valid(change) is good, change
        assert http.patch(f"{ANN}/memories/m1", json=change).is_success is good, change


def test_a_server_without_a_model_says_so(tmp_path: Path) -> None:
    with serving(tmp_path / "bank", model=False) as server:
        assert "no model" in problem(server.client().post(f"{ANN}/sessions", json=a_session(1, "x")), 503)
        ok(server.client().post(f"{ANN}/memories", json={"memories": [{"text": "Ann has a dog."}]}), 201)
