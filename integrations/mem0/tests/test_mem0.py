"""mem0's own clients, unmodified, against the server over real HTTP."""

import itertools
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from rule_model import rules
from scripted_server import serve
from server_cases import ANN, LONG, Server, everything, ok, process, serving, until, written

from deltamem import zones
from deltamem.journal.jobs import JobState
from deltamem.journal.owner import OwnerJournal
from deltamem.server.keys import Scope
from deltamem.server.service import ServerSettings

# Before mem0 is imported: no telemetry, and no folder of its own in the home directory.
os.environ["MEM0_TELEMETRY"] = "False"

CITY = "My city is Boston."
MOVED = "My city is Denver."


@pytest.fixture(scope="module")
def mem0(tmp_path_factory: pytest.TempPathFactory) -> Any:
    os.environ.setdefault("MEM0_DIR", str(tmp_path_factory.mktemp("mem0")))
    return pytest.importorskip("mem0", reason="mem0's client is in the extra peers")


@pytest.fixture
def ann(server: Server, mem0: Any) -> Any:
    return mem0.MemoryClient(api_key=server.key("ann"), host=server.url)


def ended(client: Any, event_id: str) -> dict[str, Any]:
    """The event once it is over, as a client of mem0's waits for it."""
    end = time.monotonic() + LONG
    while True:
        event: dict[str, Any] = client.client.get(f"/v1/event/{event_id}/").raise_for_status().json()
        if event["status"] not in ("PENDING", "RUNNING"):
            return event
        assert time.monotonic() < end
        time.sleep(0.02)


def held(server: Server, *words: bytes) -> bool:
    """Whether any file of the store holds one of some words."""
    files = b"".join(file.read_bytes() for file in server.folder.rglob("*") if file.is_file())
    return any(word in files for word in words)


def test_what_is_said_is_remembered_found_rewritten_and_erased(ann: Any, server: Server) -> None:
    queued = ann.add(CITY, user_id="ann", agent_id="guide", timestamp=1772442000, metadata={"topic": "home"})
    assert queued["status"] in ("PENDING", "RUNNING", "SUCCEEDED")
    event = ended(ann, queued["event_id"])
    assert event["status"] == "SUCCEEDED" and event["results"][0]["memory"] == "ann's city is Boston."
    memory_id = event["results"][0]["id"]

    again = ann.add(CITY, user_id="ann", agent_id="guide", timestamp=1772442000, metadata={"topic": "home"})
    assert again["status"] == "SUCCEEDED" and again["event_id"] == queued["event_id"]
    moved = ended(ann, ann.add([{"role": "user", "content": MOVED}], user_id="ann", timestamp=1772528400)["event_id"])
    assert [(one["id"], one["event"]) for one in moved["results"]] == [(memory_id, "UPDATE")]

    memory = ann.get(memory_id)
    assert memory == ann.get_all(filters={"user_id": "ann"})["results"][0]
    assert memory["memory"] == "ann's city is Denver." and memory["user_id"] == "ann" and memory["agent_id"] == "guide"
    assert memory["metadata"] == {"topic": "home"} and memory["created_at"] < memory["updated_at"]
    hit = ann.search("Where is ann's city?", filters={"AND": [{"user_id": "ann"}, {"agent_id": "guide"}]})["results"][0]
    assert hit.pop("score") > 0 and hit == memory
    assert ann.search("city", filters={"user_id": "ann", "agent_id": "other"}) == {"results": []}

    history = ann.history(memory_id)
    assert [step["event"] for step in history] == ["ADD", "UPDATE"]
    assert history[1]["old_memory"] == "ann's city is Boston." and history[1]["new_memory"] == memory["memory"]
    assert history[1]["input"] == [{"role": "user", "content": MOVED}]

    written = ann.update(memory_id, text="Ann lives in Reno.", metadata={"sure": True})
    assert written["memory"] == "Ann lives in Reno." and written["metadata"] == {"topic": "home", "sure": True}
    assert written["agent_id"] == "guide"
    assert "message" in ann.delete(memory_id)
    assert ann.get_all(filters={"user_id": "ann"})["results"] == []


def test_written_as_given(ann: Any) -> None:
    said = [{"role": "user", "content": "I like tea."}, {"role": "assistant", "content": "Tea it is."}]
    done = ann.add(said, user_id="ann", infer=False, run_id="r1", app_id="phone", timestamp="2026-03-02")
    assert done["status"] == "SUCCEEDED"
    assert [one["memory"] for one in done["results"]] == ["I like tea.", "Tea it is."]
    memory = ann.get(done["results"][0]["id"])
    assert (memory["run_id"], memory["app_id"], memory["agent_id"]) == ("r1", "phone", None)
    assert memory["created_at"] == memory["updated_at"] == "2026-03-02T00:00:00+00:00"


def test_deleting_erases(ann: Any, server: Server) -> None:
    event = ended(ann, ann.add("My secret is heliotrope.", user_id="ann")["event_id"])
    ann.delete(event["results"][0]["id"], delete_linked=True)
    assert not held(server, b"heliotrope")


def test_the_same_request_is_read_once(ann: Any, server: Server, mem0: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, all_looked, look = itertools.count(), threading.Barrier(8, timeout=LONG), OwnerJournal.session_time

    def looks(journal: OwnerJournal, session_id: str) -> datetime | None:
        found = look(journal, session_id)
        if next(looked) < 8:
            all_looked.wait()  # each finds that nobody has given it before
        return found

    monkeypatch.setattr(OwnerJournal, "session_time", looks)
    monkeypatch.setattr(zones, "utc_now", map(datetime.fromtimestamp, itertools.count(), itertools.repeat(UTC)).__next__)
    http = httpx.Client(headers={"Idempotency-Key": "talk-1"}, timeout=LONG)
    keyed = mem0.MemoryClient(api_key=server.key("ann"), host=server.url, client=http)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: keyed.add(CITY, user_id="ann"), range(8)))
    assert len({answer["event_id"] for answer in answers}) == 1
    assert ended(ann, answers[0]["event_id"])["metadata"]["session_id"] == "talk-1"
    assert [entry.session_id for entry in server.service.store.journal.owner("ann").entries()] == ["talk-1"]
    with pytest.raises(mem0.exceptions.ValidationError, match="'talk-1' was given before"):
        keyed.add("My city is Reno.", user_id="ann")
    with pytest.raises(mem0.exceptions.ValidationError, match="Idempotency-Key is not supported"):
        keyed.add(CITY, user_id="ann", infer=False)


def test_an_event_shows_how_far_its_job_is(ann: Any, server: Server) -> None:
    server.service.pause(True)
    event_id = ann.add(CITY, filters={"user_id": "ann"})["event_id"]
    waiting = ann.client.get(f"/v1/event/{event_id}/").json()
    assert waiting["status"] == "PENDING" and waiting["results"] == [] and waiting["completed_at"] is None
    server.service.pause(False)
    assert ended(ann, event_id)["latency"] >= 0
    assert [job.state for job in server.service.manager_of("ann").journal.jobs()] == [JobState.DONE]


def test_filters(ann: Any) -> None:
    for number, topic in enumerate(("home", "work", "food")):
        noted = {"topic": topic, "rank": number, "tags": ["a", topic]}
        when = f"2026-03-0{number + 1}"
        ann.add(f"Sentence about {topic}.", user_id="ann", infer=False, timestamp=when, metadata=noted)
    ann.add("Said to the guide.", user_id="ann", infer=False, timestamp="2026-03-09", agent_id="guide")

    def found(*conditions: dict[str, Any], **options: Any) -> list[str]:
        listed = ann.get_all(filters={"AND": [{"user_id": "ann"}, *conditions]}, **options)["results"]
        searched = ann.search("sentence", filters={"AND": [{"user_id": "ann"}, *conditions]}, **options)["results"]
        assert {one["id"] for one in listed} == {one["id"] for one in searched} or options
        return [one["metadata"].get("topic", "guide") for one in listed]

    assert found() == ["home", "work", "food", "guide"]
    assert found({"metadata": {"topic": "work"}}) == found({"topic": "work"}) == ["work"]
    assert found({"metadata": {"later": 1}}) == [], "which no memory has yet"
    assert found({"rank": {"gte": 1, "lt": 2}}) == ["work"]
    assert found({"topic": {"in": ["home", "food"]}}) == ["home", "food"]
    assert found({"topic": {"nin": ["home", "food"]}}, {"agent_id": None}) == ["work"]
    assert found({"tags": {"contains": "food"}}) == ["food"]
    assert found({"OR": [{"topic": "home"}, {"agent_id": "guide"}]}) == ["home", "guide"]
    assert found({"NOT": [{"topic": "home"}, {"topic": "work"}]}) == ["food", "guide"]
    assert found({"agent_id": "*"}) == ["guide"] and found({"agent_id": {"ne": "guide"}}) == ["home", "work", "food"]
    assert found({"keywords": {"icontains": "ABOUT W"}}) == ["work"]
    assert found({"created_at": {"gt": "2026-03-01", "lte": "2026-03-03T00:00:00Z"}}) == ["work", "food"]
    everything = ann.get_all(filters={"user_id": {"in": ["ann"]}})["results"]
    assert found({"memory_ids": [everything[2]["id"]]}) == ["food"]
    listed = ann.get_all(filters={"user_id": "ann"}, start_date="2026-03-02", end_date="2026-03-03")
    assert [one["metadata"]["topic"] for one in listed["results"]] == ["work", "food"]


def test_pages(ann: Any) -> None:
    ann.add([{"role": "user", "content": f"Sentence {number}."} for number in range(5)], user_id="ann", infer=False)
    first = ann.get_all(filters={"user_id": "ann"}, page=1, page_size=2)
    assert first["count"] == 5 and first["previous"] is None and len(first["results"]) == 2
    last = ann.get_all(filters={"user_id": "ann"}, page=3, page_size=2)
    assert last["next"] is None and [one["memory"] for one in last["results"]] == ["Sentence 4."]
    following = ann.client.post(first["next"], json={"filters": {"user_id": "ann"}}).json()
    assert following["results"][0]["memory"] == "Sentence 2."
    few = ann.search("Sentence 3", filters={"user_id": "ann"}, top_k=2, fields=["memory", "score"])["results"]
    assert len(few) == 2 and set(few[0]) == {"id", "memory", "score"} and few[0]["score"] >= few[1]["score"]
    assert ann.search("Sentence 3", filters={"user_id": "ann"}, threshold=few[0]["score"])["results"][1:] == []


def test_several_at_once(ann: Any, mem0: Any) -> None:
    said = [{"role": "user", "content": f"Sentence {number}."} for number in range(3)]
    ids = [one["id"] for one in ann.add(said, user_id="ann", infer=False)["results"]]
    ann.batch_update([{"memory_id": ids[0], "text": "First."}, {"memory_id": ids[1], "metadata": {"sure": True}}])
    assert ann.get(ids[0])["memory"] == "First." and ann.get(ids[1])["metadata"] == {"sure": True}
    unknown = "00000000-0000-4000-8000-000000000000"
    with pytest.raises(mem0.exceptions.MemoryNotFoundError):
        ann.batch_update([{"memory_id": ids[0], "text": "Never."}, {"memory_id": unknown, "text": "Never."}])
    with pytest.raises(mem0.exceptions.MemoryNotFoundError):
        ann.batch_delete([{"memory_id": ids[0]}, {"memory_id": unknown}])
    assert ann.get(ids[0])["memory"] == "First."
    ann.batch_delete([{"memory_id": one} for one in (*ids[:2], ids[0])])
    assert [one["id"] for one in ann.get_all(filters={"user_id": "ann"})["results"]] == ids[2:]


def test_users_agents_and_runs(server: Server, mem0: Any, ann: Any) -> None:
    everybody = mem0.MemoryClient(api_key=server.key(), host=server.url)
    ann.add("Ann likes tea.", user_id="ann", infer=False, agent_id="guide")
    ann.add("Ann likes jam.", user_id="ann", infer=False, run_id="r1")
    everybody.add("Bob likes tea.", user_id="bob", infer=False, agent_id="guide")
    listed = [(one["type"], one["name"], one["total_memories"]) for one in everybody.users()["results"]]
    assert listed == [("agent", "guide", 2), ("run", "r1", 1), ("user", "ann", 2), ("user", "bob", 1)]
    assert [one["name"] for one in ann.users()["results"]] == ["guide", "r1", "ann"]
    assert len(everybody.search("tea", filters={"user_id": {"in": ["ann", "bob"]}, "agent_id": "guide"})["results"]) == 2

    ann.delete_all(user_id="ann", run_id="r1")
    assert [one["memory"] for one in ann.get_all(filters={"user_id": "ann"})["results"]] == ["Ann likes tea."]
    ann.delete_users(agent_id="guide")  # of Ann's only
    assert [one["name"] for one in everybody.users()["results"]] == ["guide", "ann", "bob"]
    ann.delete_users(user_id="ann")
    with pytest.raises(mem0.exceptions.MemoryNotFoundError):
        ann.delete_users(user_id="ann")
    assert ann.search("tea", filters={"user_id": "ann"}) == {"results": []}
    everybody.reset()
    assert server.service.store.journal.owners() == []


async def test_the_asynchronous_client(server: Server, mem0: Any) -> None:
    client = mem0.AsyncMemoryClient(api_key=server.key("ann"), host=server.url)
    added = await client.add(CITY, user_id="ann", async_mode=False)
    assert added["status"] == "SUCCEEDED"
    memory_id = added["results"][0]["id"]
    assert (await client.search("city", filters={"user_id": "ann"}))["results"][0]["id"] == memory_id
    await client.update(memory_id, text="Ann lives in Reno.", timestamp=1772442000)
    assert (await client.get(memory_id))["updated_at"] == "2026-03-02T09:00:00+00:00"
    assert [step["event"] for step in await client.history(memory_id)] == ["ADD", "UPDATE"]
    assert (await client.get_all(filters={"user_id": "ann"}, page=1, page_size=10))["count"] == 1
    await client.delete_all(user_id="ann")
    with pytest.raises(mem0.exceptions.MemoryNotFoundError):
        await client.delete(memory_id)
    await client.async_client.aclose()


def test_scopes(server: Server, mem0: Any, ann: Any) -> None:
    memory_id = ann.add("I like tea.", user_id="ann", infer=False)["results"][0]["id"]

    def refused(scopes: list[Scope], missing: str, *calls: tuple[str, tuple[Any, ...], dict[str, str]]) -> None:
        client = mem0.MemoryClient(api_key=server.key("ann", scopes=scopes), host=server.url)
        assert client.get(memory_id)["memory"] == "I like tea."
        for method, given, named in calls:
            with pytest.raises(mem0.exceptions.AuthenticationError, match=f"lacks the scope {missing}"):
                getattr(client, method)(*given, **named)

    refused(
        [Scope.READ],
        "write",
        ("add", ("I like coffee.",), {"user_id": "ann"}),
        ("update", (memory_id,), {"text": "I like coffee."}),
        ("batch_update", ([{"memory_id": memory_id, "text": "I like coffee."}],), {}),
    )
    refused(
        [Scope.READ, Scope.WRITE],
        "admin",
        ("delete", (memory_id,), {}),
        ("batch_delete", ([{"memory_id": memory_id}],), {}),
        ("delete_all", (), {"user_id": "ann"}),
        ("delete_users", (), {"user_id": "ann"}),
        ("delete_users", (), {"agent_id": "guide"}),
    )
    assert ann.get(memory_id)["memory"] == "I like tea."
    with pytest.raises(ValueError, match="not known here"):
        mem0.MemoryClient(api_key="dm_wrong", host=server.url)


TURN = [{"role": "user", "content": "x"}]
OF_BOB = [
    ("GET", "/v1/memories/{memory}/", None),
    ("PUT", "/v1/memories/{memory}/", {"text": "x"}),
    ("DELETE", "/v1/memories/{memory}/", None),
    ("GET", "/v1/memories/{memory}/history/", None),
    ("GET", "/v1/event/{event}/", None),
    ("PUT", "/v1/batch/", {"memories": [{"memory_id": "{memory}", "text": "x"}]}),
    ("DELETE", "/v1/batch/", {"memories": [{"memory_id": "{memory}"}]}),
    ("GET", "/memories/{memory}", None),
    ("PUT", "/memories/{memory}", {"text": "x"}),
    ("DELETE", "/memories/{memory}", None),
    ("GET", "/memories/{memory}/history", None),
    ("POST", "/v3/memories/add/", {"user_id": "{user}", "messages": TURN}),
    ("POST", "/v3/memories/add/", {"user_id": "{user}", "messages": TURN, "infer": False}),
    ("POST", "/v3/memories/search/", {"query": "bees", "filters": {"user_id": "{user}"}}),
    ("POST", "/v3/memories/search/", {"query": "bees", "filters": {"user_id": {"in": ["ann", "{user}"]}}}),
    ("POST", "/v3/memories/", {"filters": {"AND": [{"user_id": "{user}"}]}}),
    ("DELETE", "/v1/memories/?user_id={user}", None),
    ("DELETE", "/v1/memories/?user_id={user}&agent_id=guide", None),
    ("DELETE", "/v2/entities/user/{user}/", None),
    ("DELETE", "/v1/entities/user/{user}/", None),
    ("POST", "/memories", {"user_id": "{user}", "messages": TURN}),
    ("GET", "/memories?user_id={user}", None),
    ("DELETE", "/memories?user_id={user}", None),
    ("POST", "/search", {"query": "bees", "user_id": "{user}"}),
]


def test_what_is_anothers_is_like_what_does_not_exist(server: Server) -> None:
    ann, bob = server.client(server.key("ann")), server.client(server.key("bob"))
    said = {"messages": [{"role": "user", "content": "My pet is a bee."}], "user_id": "bob", "agent_id": "guide"}
    added = bob.post("/memories", json=said).json()
    ann.post("/memories", json={"messages": TURN, "user_id": "ann", "infer": False})
    bobs = {"memory": added["results"][0]["id"], "event": added["event_id"], "user": "bob"}
    nobodys = {"memory": "00000000-0000-4000-8000-000000000000", "event": "0" * 32, "user": "nobody"}
    before = everything(server)

    def ask(method: str, path: str, body: Any, names: dict[str, str]) -> tuple[int, bytes]:
        text = json.dumps(body)
        for name, value in names.items():
            path, text = path.replace(f"{{{name}}}", value), text.replace(f"{{{name}}}", value)
        given = None if body is None else text.encode()
        sent = ann.request(method, path, content=given, headers={"Content-Type": "application/json"})
        return sent.status_code, sent.content

    for method, path, body in OF_BOB:
        foreign = ask(method, path, body, bobs)
        assert foreign[0] == 404 and foreign == ask(method, path, body, nobodys), (method, path, foreign)
    inside = {"user_id": "ann", "OR": [{"user_id": "bob"}, {"agent_id": "guide"}]}
    assert ann.post("/v3/memories/", json={"filters": inside}).json()["results"] == []
    assert before == everything(server)
    for method, path, body in OF_BOB[:5]:
        path = path.format(**bobs)
        sent = bob.request(method, path, json=body)
        assert sent.status_code == (404 if sent.request.method == "GET" and "history" in path else 200)


REFUSED: list[tuple[str, str, Any, str]] = [
    *(
        ("POST", "/v3/memories/add/", {"messages": TURN, "user_id": "ann", name: value}, f"{name} is not supported")
        for name, value in {
            "custom_categories": [{"a": "b"}],
            "custom_instructions": "x",
            "agent_custom_instructions": "x",
            "expiration_date": "2026-03-02",
            "structured_data_schema": {},
            "immutable": True,
            "enable_graph": True,
            "invented": 1,
        }.items()
    ),
    *(
        ("POST", "/v3/memories/search/", {"query": "x", "filters": {"user_id": "ann"}, name: value}, name)
        for name, value in {
            "rerank": True,
            "keyword_search": True,
            "latest_only": False,
            "reference_date": "2026-03-02",
            "categories": ["a"],
            "metadata": {"a": 1},
            "source": "x",
            "user_id": "ann",
            "fields": ["hash"],
            "top_k": 0,
        }.items()
    ),
    *(
        ("POST", "/v3/memories/", {"filters": {"user_id": "ann", **filters}}, said)
        for filters, said in (
            ({"categories": {"in": ["a"]}}, "categories is not supported"),
            ({"feedback": "POSITIVE"}, "feedback is not supported"),
            ({"rank": {"near": 1}}, "'near'"),
            ({"keywords": "tea"}, "keywords"),
            ({"created_at": {"gte": "soon"}}, "created_at"),
            ({"run_id": {"eq": "*"}}, "wildcard"),
            ({"AND": {"a": 1}}, "AND"),
            ({"memory_ids": "x"}, "memory_ids"),
            ({"usr_id": "ann"}, "'usr_id'; did you mean 'user_id'"),
            ({"agentId": "guide"}, "'agentId'; did you mean 'agent_id'"),
            ({"NOT": [{"runid": "r"}]}, "'runid'; did you mean 'run_id'"),
            ({"invented": 1}, "there is no 'invented'"),
        )
    ),
    ("POST", "/v3/memories/", {"filters": {"agent_id": "guide"}}, "user_id is missing"),
    ("POST", "/v3/memories/", {"filters": {"OR": [{"user_id": "ann"}, {"agent_id": "guide"}]}}, "user_id is missing"),
    ("POST", "/v3/memories/", {"filters": {"user_id": "*"}}, "wildcard"),
    ("POST", "/v3/memories/", {"filters": {"user_id": {"ne": "bob"}}}, "user_id"),
    ("POST", "/v3/memories/", {}, "filters"),
    ("POST", "/v3/memories/?page=0", {"filters": {"user_id": "ann"}}, "page"),
    ("POST", "/v3/memories/?version=v2", {"filters": {"user_id": "ann"}}, "version is not supported"),
    ("POST", "/v3/memories/add/", {"messages": TURN, "agent_id": "guide"}, "user_id is missing"),
    ("POST", "/v3/memories/add/", {"messages": TURN, "user_id": "ann", "filters": {"user_id": "bob"}}, "user_id"),
    ("POST", "/v3/memories/add/", {"messages": TURN, "user_id": "ann", "filters": {"topic": "x"}}, "filters.topic"),
    ("POST", "/v3/memories/add/", {"messages": [{"role": "system", "content": "x"}], "user_id": "ann"}, "role"),
    ("POST", "/v3/memories/add/", {"messages": [{"role": "user", "content": [{}]}], "user_id": "ann"}, "content"),
    ("POST", "/v3/memories/add/", {"messages": [], "user_id": "ann"}, "messages"),
    ("POST", "/v3/memories/add/", {"messages": TURN, "user_id": "ann", "metadata": {"a": {"b": 1}}}, "metadata"),
    ("POST", "/v3/memories/add/", {"messages": TURN, "user_id": "ann", "metadata": {"agent_id": "x"}}, "metadata.agent_id"),
    ("POST", "/v3/memories/add/", {"messages": TURN, "user_id": "ann", "timestamp": 1e300}, "timestamp"),
    ("POST", "/v3/memories/add/", {"messages": TURN, "user_id": "\ud800"}, "user_id"),
    ("POST", "/v3/memories/", {"filters": {"user_id": "\ud800"}}, "user_id"),
    ("PUT", "/v1/memories/{memory}/", {"expiration_date": None}, "nothing to change"),
    ("PUT", "/v1/memories/{memory}/", {"expiration_date": "2026-03-02"}, "expiration_date"),
    ("PUT", "/v1/memories/{memory}/", {"data": "x"}, "data is not supported"),
    ("DELETE", "/v1/memories/", None, "user_id is missing"),
    ("DELETE", "/v1/memories/?agent_id=guide", None, "user_id is missing"),
    ("DELETE", "/v1/memories/?filters=x", None, "filters is not supported"),
    ("DELETE", "/v2/entities/planet/earth/", None, "planet"),
    ("POST", "/v1/exports/", {}, "export"),
    ("POST", "/v1/exports/get/", {}, "export"),
    ("POST", "/v1/summary/", {}, "summary"),
    ("POST", "/v1/feedback/", {}, "feedback"),
    ("GET", "/v2/entities/user/ann/profile/", None, "profile"),
    ("POST", "/v2/profiles/jobs/", {}, "profile"),
    ("GET", "/api/v1/orgs/organizations/deltamem/projects/deltamem/", None, "project"),
    ("GET", "/api/v1/webhooks/projects/deltamem/", None, "webhook"),
    ("POST", "/configure", {}, "configuring"),
    ("POST", "/reset", None, "reset"),
    ("POST", "/search", {"query": "x", "user_id": "ann", "limit": 2, "top_k": 3}, "limit"),
    ("POST", "/search", {"query": "x", "user_id": "ann", "filters": {"agnet_id": "guide"}}, "'agnet_id'"),
    *(
        (method, path, {"query": query} | whose, "the query is blank; say what to look for")
        for query in ("", " ", "\u200b")
        for method, path, whose in (
            ("POST", "/search", {"user_id": "nobody"}),
            ("POST", "/v3/memories/search/", {"filters": {"user_id": "ann"}}),
        )
    ),
]


def test_what_is_not_supported_is_refused_by_its_name(server: Server) -> None:
    ann = server.client(server.key("ann"))
    added = ann.post("/memories", json={"messages": TURN, "user_id": "ann", "infer": False}).json()
    before = everything(server)
    for method, path, body, said in REFUSED:
        given = None if body is None else json.dumps(body).encode()
        path = path.replace("{memory}", added["results"][0]["id"])
        refused = ann.request(method, path, content=given, headers={"Content-Type": "application/json"})
        assert refused.status_code == 400 and said in refused.json()["detail"], (method, path, body, refused.text)
        assert refused.headers["content-type"] == "application/json"
    assert ann.post("/v3/memories/add/", content=b"{").status_code == 400
    assert everything(server) == before


def test_the_self_hosted_dialect(server: Server) -> None:
    client = server.client(**{"X-API-Key": server.key("ann")})
    said = {"messages": [{"role": "user", "content": CITY}], "user_id": "ann", "run_id": "r1", "metadata": {"topic": "home"}}
    added = client.post("/memories", json=said).json()
    assert [(one["event"], one["memory"]) for one in added["results"]] == [("ADD", "ann's city is Boston.")]
    memory_id = added["results"][0]["id"]
    assert client.get("/memories", params={"user_id": "ann", "run_id": "r1"}).json()["results"][0]["id"] == memory_id
    assert client.get("/memories", params={"user_id": "ann", "run_id": "r2"}).json() == {"results": []}
    found = client.post("/search", json={"query": "city", "user_id": "ann", "filters": {"topic": "home"}, "limit": 3}).json()
    assert [one["id"] for one in found["results"]] == [memory_id]
    assert "message" in client.put(f"/memories/{memory_id}", json={"text": "Ann lives in Reno."}).json()
    assert client.get(f"/memories/{memory_id}").json()["memory"] == "Ann lives in Reno."
    assert len(client.get(f"/memories/{memory_id}/history").json()) == 2
    assert client.delete(f"/memories/{memory_id}").status_code == 200
    assert client.delete("/memories", params={"user_id": "ann"}).status_code == 200
    assert server.service.store.journal.owners() == []


def test_an_id_that_two_users_have_is_a_conflict(server: Server, mem0: Any, ann: Any) -> None:
    memory_id = ann.add("I like tea.", user_id="ann", infer=False)["results"][0]["id"]
    everybody = mem0.MemoryClient(api_key=server.key(), host=server.url)
    export = everybody.client.get("/v1/owners/ann/export").content
    assert everybody.client.post("/v1/owners/bob/import?rename=true", content=export).status_code == 200
    with pytest.raises(mem0.exceptions.ValidationError, match="several users"):
        everybody.get(memory_id)
    assert ann.get(memory_id)["user_id"] == "ann"


def test_above_the_rate_the_client_hears_when_to_come_back(tmp_path: Path, mem0: Any) -> None:
    with serving(tmp_path / "bank", settings=ServerSettings(rate_limit="1/hour")) as server:
        ann = mem0.MemoryClient(api_key=server.key("ann"), host=server.url)  # which is the one request
        with pytest.raises(mem0.exceptions.RateLimitError) as caught:
            ann.get_all(filters={"user_id": "ann"})
        assert 1 <= caught.value.debug_info["retry_after"] <= 3601


def test_the_example_of_the_page(server: Server, mem0: Any) -> None:
    page = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    code = page.partition("test_mem0.py runs this block -->\n```python\n")[2].partition("```")[0]
    exec(code.replace("http://127.0.0.1:8377", server.url), {})
    until(lambda: [job.state for job in server.service.manager_of("ann").journal.jobs()] == [JobState.DONE])


@pytest.mark.slow
def test_an_event_outlives_a_kill(tmp_path: Path, mem0: Any) -> None:
    with serve(rules) as model:
        arguments = ("--base-url", model.url, "--model", "tiny")
        with process(tmp_path / "bank", tmp_path / "log", *arguments) as server:
            client = mem0.MemoryClient(api_key="any", host=server.url)
            events = [client.add(f"My city is Town{n}.", user_id="ann", timestamp=n)["event_id"] for n in (1, 2)]
            server.process.kill()
        with process(tmp_path / "bank", tmp_path / "log2", *arguments) as server:
            client = mem0.MemoryClient(api_key="any", host=server.url)
            assert [ended(client, event_id)["status"] for event_id in events] == ["SUCCEEDED"] * 2
            assert client.add("My city is Town1.", user_id="ann", timestamp=1)["event_id"] == events[0]
            [memory] = client.get_all(filters={"user_id": "ann"})["results"]
            assert memory["memory"] == "ann's city is Town2."
            assert [step["event"] for step in client.history(memory["id"])] == ["ADD", "UPDATE"]


def test_times_at_the_ends_of_the_calendar(server: Server) -> None:
    http = server.client()
    for when in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        [memory] = written(http, f"It was {when}.", time=when)
        assert ok(http.get(f"/memories/{memory['uuid']}"))["created_at"]
    dated = {"filters": {"user_id": "ann", "created_at": {"lte": "0001-01-02T00:00:00Z"}}}
    assert [one["id"] for one in ok(http.post("/v3/memories/", json=dated))["results"]] != [memory["uuid"]]
    assert len(ok(http.get("/memories", params={"user_id": "ann"}))["results"]) == 2
    assert ok(http.get("/v1/entities/"))["results"][0]["name"] == "ann"


def test_metadata_is_written_over_what_stands_when_it_is_written(server: Server) -> None:
    http = server.client()
    [memory] = written(http, "Ann has a dog.", metadata={"kept": 1, "old": 1})
    changes = [{"memory_id": memory["uuid"], "metadata": given} for given in ({"old": 2}, {"new": 3})]
    ok(http.put("/v1/batch/", json={"memories": changes}))
    assert ok(http.get(f"/memories/{memory['uuid']}"))["metadata"] == {"kept": 1, "old": 2, "new": 3}


def test_several_are_erased_at_the_cost_of_one(server: Server) -> None:
    """Each erasure rewrites the file, in which time nobody is answered."""
    http = server.client()
    said = [f"Ann keeps quokka {number}." for number in range(5)]
    ids = [memory["uuid"] for memory in written(http, *said, metadata={"agent_id": "guide"})]
    ok(http.patch(f"{ANN}/memories/m1", json={"text": "Ann keeps a wombat."}))
    ok(http.delete(f"{ANN}/memories/m2", params={"mode": "erase"}))
    statements: list[str] = []
    connection = server.service.store.journal._database._connection
    connection.set_trace_callback(statements.append)
    ok(http.request("DELETE", "/v1/batch/", json={"memories": [{"memory_id": one} for one in (ids[0], ids[2], ids[0])]}))
    ok(http.delete("/memories", params={"user_id": "ann", "agent_id": "guide"}))
    connection.set_trace_callback(None)
    assert statements.count("VACUUM") == 2
    assert ok(http.get(f"{ANN}/memories"))["memories"] == []
    kinds = [entry.kind for entry in server.service.store.journal.owner("ann").entries()]
    assert kinds == ["edit", "edit", *["forget"] * 5] and server.service.store.journal.owner("ann").verify() == []
    assert not held(server, b"quokka", b"wombat")
    assert written(http, "Ann has a dog.")[0]["id"] == "m6"
    [result] = ok(http.post(f"{ANN}/search", json={"queries": ["quokka"]}))["results"]
    assert [memory["id"] for memory in result["memories"]] == ["m6"]
