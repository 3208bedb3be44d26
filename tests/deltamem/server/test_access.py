"""Keys, scopes, rates and body limits: what is another's cannot be told from what does not exist."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from server_cases import LONG, Server, serving

from deltamem.errors import DeltaMemError
from deltamem.server.access import Access
from deltamem.server.keys import Keys, Scope
from deltamem.server.service import ServerSettings

SECRET = "Bob keeps bees."
ROUTES = [
    ("POST", "sessions", {"json": {"id": "s", "time": "2026-03-02T09:00:00Z", "turns": [{"role": "user", "content": "x"}]}}),
    ("GET", "jobs", {}),
    ("GET", "jobs/{job}", {}),
    ("GET", "memories", {}),
    ("POST", "memories", {"json": {"memories": [{"text": "x"}]}}),
    ("GET", "memories/{memory}", {}),
    ("PATCH", "memories/{memory}", {"json": {"text": "x"}}),
    ("DELETE", "memories/{memory}", {}),
    ("DELETE", "memories/{memory}?mode=erase", {}),
    ("GET", "memories/{memory}/history", {}),
    ("GET", "memories/{memory}/blame", {}),
    ("POST", "search", {"json": {"queries": ["bees"]}}),
    ("POST", "episodes", {"json": {"id": "t", "time": "2026-03-02T09:00:00Z", "messages": [{"role": "assistant"}]}}),
    ("GET", "episodes", {}),
    ("GET", "reflections", {}),
    ("POST", "recall", {"json": {"task": "x"}}),
    ("GET", "diff?before=@1", {}),
    ("GET", "export", {}),
    ("GET", "audit", {}),
    ("POST", "rollback", {"json": {"to": "s1"}}),
    ("POST", "import?rename=true", {"content": b"{}"}),
    ("GET", "", {}),
    ("DELETE", "", {}),
]


@pytest.fixture
def ann(server: Server) -> httpx.Client:
    """Ann's client; she has a memory."""
    client = server.client(server.key("ann"))
    assert client.post("/v1/owners/ann/memories", json={"memories": [{"text": "Ann has a dog."}]}).status_code == 201
    return client


@pytest.fixture
def bobs(server: Server) -> dict[str, str]:
    """Ids of Bob's: a memory by its UUID, and a job."""
    bob = server.client(server.key("bob"))
    said = [{"role": "user", "content": "My pet is a bee."}]
    bob.post("/v1/owners/bob/sessions", json={"id": "s1", "time": "2026-03-02T09:00:00", "turns": said, "wait": LONG})
    job = bob.get("/v1/owners/bob/jobs", params={"state": "done"}).json()["jobs"][0]["id"]
    added = bob.post("/v1/owners/bob/memories", json={"memories": [{"text": SECRET}]}).json()
    return {"job": job, "memory": added["memories"][0]["uuid"]}


def everything(server: Server) -> list[tuple[str, list[Any], list[str]]]:
    journal = server.service.store.journal
    return [(name, list(journal.owner(name).entries()), journal.owner(name).jobs()) for name in journal.owners()]


def test_what_is_foreign_is_like_what_does_not_exist(server: Server, ann: httpx.Client, bobs: dict[str, str]) -> None:
    before = everything(server)
    made_up = {"memory": "00000000-0000-4000-8000-000000000000", "job": "0" * 32}
    for method, path, sent in ROUTES:
        for owner, other in (("bob", "nobody"), *([("ann", "ann")] if "{" in path else [])):
            foreign = ann.request(method, f"/v1/owners/{owner}/{path.format(**bobs)}".removesuffix("/"), **sent)
            unknown = ann.request(method, f"/v1/owners/{other}/{path.format(**made_up)}".removesuffix("/"), **sent)
            assert foreign.status_code == unknown.status_code == 404, (method, path, owner)
            assert foreign.content == unknown.content and SECRET.encode() not in foreign.content
        assert everything(server) == before, (method, path)


def test_scopes(server: Server) -> None:
    server.client(server.key("ann")).post("/v1/owners/ann/memories", json={"memories": [{"text": "Ann has a dog."}]})
    reader = server.client(server.key("ann", scopes=[Scope.READ]))
    assert reader.get("/v1/owners/ann/memories").status_code == 200
    assert reader.patch("/v1/owners/ann/memories/m1", json={"text": "x"}).status_code == 403
    writer = server.client(server.key("ann", scopes=[Scope.WRITE]))
    assert writer.get("/v1/owners/ann/memories").status_code == 403
    assert writer.patch("/v1/owners/ann/memories/m1", json={"text": "x"}).status_code == 200
    assert writer.delete("/v1/owners/ann/memories/m1?mode=erase").status_code == 403


def test_every_way_to_send_a_token(server: Server) -> None:
    token, path = server.key("ann"), "/v1/owners/ann/memories"
    server.client(token).post(path, json={"memories": [{"text": "Ann has a dog."}]})
    for headers in ({"Authorization": f"Bearer {token}"}, {"Authorization": f"Token {token}"}, {"X-API-Key": token}):
        assert httpx.get(server.url + path, headers=headers).status_code == 200
    for headers in ({}, {"Authorization": f"Basic {token}"}, {"X-API-Key": "dm_wrong"}):
        refused = httpx.get(server.url + path, headers=headers)
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"


def test_keys_change_while_the_server_runs(server: Server) -> None:
    path = "/v1/owners/ann/memories"
    assert server.client().post(path, json={"memories": [{"text": "Ann has a dog."}]}).status_code == 201
    with Keys.open(server.keys.path) as elsewhere:
        key, token = elsewhere.create("phone", ["ann"], [Scope.READ])
        assert server.client().get(path).status_code == 401
        assert server.client(token).get(path).status_code == 200
        elsewhere.revoke(key.id)
    assert server.client(token).get(path).status_code == 401
    assert server.client().get(path).status_code == 401  # the last key is gone, and the server stays closed
    assert token.encode() not in b"".join(file.read_bytes() for file in server.folder.rglob("*") if file.is_file())


def test_a_page_of_another_site_reaches_nothing(server: Server) -> None:
    path = "/v1/owners/ann/memories"
    assert server.client(Origin="https://example.com").get(path).status_code == 403
    assert server.client(Host="example.com").get(path).status_code == 403
    assert server.client(Origin=server.url).get(path).status_code == 404


def test_above_the_rate_a_key_waits(tmp_path: Path) -> None:
    with serving(tmp_path / "bank", settings=ServerSettings(rate_limit="3/hour")) as server:
        ann, bob = server.client(server.key("ann")), server.client(server.key("bob"))
        answers = [ann.get("/v1/owners/ann/memories") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [404] * 3 + [429] * 2
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 3601
        assert bob.get("/v1/owners/bob/memories").status_code == 404
        wrong = server.client("dm_wrong")
        assert [wrong.get("/v1/owners/ann/memories").status_code for _ in range(4)] == [401] * 3 + [429]
    with pytest.raises(DeltaMemError, match="no rate"):
        Access(None, "many")


def test_large_bodies_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "bank", settings=ServerSettings(max_body_bytes=1000)) as server:
        http, large = server.client(server.key()), b" " * 50_000_000
        path, kind = "/v1/owners/ann/memories", {"content-type": "application/json"}
        pieces = (large[start : start + 100_000] for start in range(0, len(large), 100_000))
        for body in (large, pieces):
            refused = http.post(path, content=body, headers=kind)
            assert refused.status_code == 413 and refused.headers["content-type"] == "application/problem+json"
        assert http.post(path, json={"memories": [{"text": "Ann has a dog."}]}).status_code == 201


def test_pages_of_other_sites_learn_nothing_and_nonsense_is_no_defect(server: Server) -> None:
    path = "/v1/owners/ann/memories"
    server.client().post(path, json={"memories": [{"text": "Ann has a dog."}]})
    # What <img> and <script> of another site send: without an origin, but they would hear whether it is there.
    assert server.client(**{"Sec-Fetch-Site": "cross-site"}).get(path).status_code == 403
    assert server.client(**{"Sec-Fetch-Site": "same-origin"}).get(path).status_code == 200
    assert server.client(**{"Sec-Fetch-Site": "none"}).get(path).status_code == 200
    for headers in ({"Host": "[::1"}, {"Host": ""}, {"Origin": "http://[::1"}, {"Origin": "null"}, {"Origin": ""}):
        assert server.client(**headers).get(path).status_code == 403


def test_only_an_import_may_be_large(tmp_path: Path) -> None:
    with serving(tmp_path / "bank", settings=ServerSettings(max_body_bytes=1000, max_import_bytes=3000)) as server:
        stranger, large = server.client("dm_wrong"), b" " * 2000
        server.key()
        for method, path in (("PUT", "/memories/import"), ("PATCH", "/v1/owners/ann/memories/import"), ("POST", "/import")):
            assert stranger.request(method, path, content=large).status_code == 413
        path = "/v1/owners/ann/import"
        assert stranger.post(path, content=large).status_code == 401
        assert [server.client(server.key()).post(path, content=large * n).status_code for n in (1, 2)] == [400, 413]
