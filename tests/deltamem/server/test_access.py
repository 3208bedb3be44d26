"""Keys, scopes, rates and body limits: what is another's cannot be told from what does not exist."""

from pathlib import Path

import httpx
import pytest
from server_cases import ANN, LONG, Server, everything, serving, written

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
    written(client, "Ann has a dog.")
    return client


@pytest.fixture
def bobs(server: Server) -> dict[str, str]:
    """Ids of Bob's: a memory by its UUID, and a job."""
    bob = server.client(server.key("bob"))
    said = [{"role": "user", "content": "My pet is a bee."}]
    bob.post("/v1/owners/bob/sessions", json={"id": "s1", "time": "2026-03-02T09:00:00", "turns": said, "wait": LONG})
    job = bob.get("/v1/owners/bob/jobs", params={"state": "done"}).json()["jobs"][0]["id"]
    return {"job": job, "memory": written(bob, SECRET, owner="bob")[0]["uuid"]}


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


def test_scopes(server: Server, ann: httpx.Client) -> None:
    memory = f"{ANN}/memories/m1"
    reader = server.client(server.key("ann", scopes=[Scope.READ]))
    assert reader.get(memory).status_code == 200
    assert reader.patch(memory, json={"text": "x"}).status_code == 403
    writer = server.client(server.key("ann", scopes=[Scope.WRITE]))
    assert writer.get(memory).status_code == 403
    assert writer.patch(memory, json={"text": "x"}).status_code == 200
    assert writer.delete(memory, params={"mode": "erase"}).status_code == 403


def test_every_way_to_send_a_token(server: Server, ann: httpx.Client) -> None:
    token = ann.headers["authorization"].removeprefix("Bearer ")
    for headers in ({"Authorization": f"Bearer {token}"}, {"Authorization": f"Token {token}"}, {"X-API-Key": token}):
        assert server.client(**headers).get(f"{ANN}/memories").status_code == 200
    for headers in ({}, {"Authorization": f"Basic {token}"}, {"X-API-Key": "dm_wrong"}):
        refused = server.client(**headers).get(f"{ANN}/memories")
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"


def test_keys_change_while_the_server_runs(server: Server) -> None:
    path = f"{ANN}/memories"
    written(server.client(), "Ann has a dog.")
    with Keys.open(server.keys.path) as elsewhere:
        key, token = elsewhere.create("phone", ["ann"], [Scope.READ])
        assert server.client().get(path).status_code == 401
        assert server.client(token).get(path).status_code == 200
        elsewhere.revoke(key.id)
    assert server.client(token).get(path).status_code == 401
    assert server.client().get(path).status_code == 401  # the last key is gone, and the server stays closed
    assert token.encode() not in b"".join(file.read_bytes() for file in server.folder.rglob("*") if file.is_file())


def test_a_page_of_another_site_reaches_and_learns_nothing(server: Server) -> None:
    path = f"{ANN}/memories"
    assert server.client(Origin=server.url).get(path).status_code == 404
    written(server.client(), "Ann has a dog.")
    foreign: list[dict[str, str]] = [
        *({"Origin": origin} for origin in ("https://example.com", "http://[::1", "null", "")),
        *({"Host": host} for host in ("example.com", "[::1", "")),
        # What <img> and <script> of another site send: without an origin, but they would hear whether it is there.
        {"Sec-Fetch-Site": "cross-site"},
    ]
    for headers in foreign:
        assert server.client(**headers).get(path).status_code == 403, headers
    for site in ("same-origin", "none"):
        assert server.client(**{"Sec-Fetch-Site": site}).get(path).status_code == 200


def test_above_the_rate_a_key_waits(tmp_path: Path) -> None:
    with serving(tmp_path / "bank", settings=ServerSettings(rate_limit="3/hour")) as server:
        ann, bob = server.client(server.key("ann")), server.client(server.key("bob"))
        answers = [ann.get(f"{ANN}/memories") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [404] * 3 + [429] * 2
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 3601
        assert bob.get("/v1/owners/bob/memories").status_code == 404
        wrong = server.client("dm_wrong")
        assert [wrong.get(f"{ANN}/memories").status_code for _ in range(4)] == [401] * 3 + [429]
    with pytest.raises(DeltaMemError, match="no rate"):
        Access(None, "many")


def test_large_bodies_are_refused_and_only_an_import_may_be_larger(tmp_path: Path) -> None:
    with serving(tmp_path / "bank", settings=ServerSettings(max_body_bytes=1000, max_import_bytes=3000)) as server:
        http, stranger, large = server.client(server.key("ann")), server.client("dm_wrong"), b" " * 2000
        for path in (f"{ANN}/memories", "/mcp"):
            for body in (b" " * 50_000_000, (b" " * 100_000 for _ in range(500))):
                refused = http.post(path, content=body, headers={"content-type": "application/json"})
                assert refused.status_code == 413, (path, refused.text)
        for method, path in (("PUT", "/memories/import"), ("PATCH", f"{ANN}/memories/import"), ("POST", "/import")):
            assert stranger.request(method, path, content=large).status_code == 413
        path = f"{ANN}/import"
        assert stranger.post(path, content=large).status_code == 401
        assert [http.post(path, content=large * n).status_code for n in (1, 2)] == [400, 413]
        written(http, "Ann has a dog.")
