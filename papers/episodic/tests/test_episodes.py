"""The routes of agents, over real HTTP."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from episodic_cases import BOOKING, Reviewer
from server_cases import LONG, Server, ok, problem, serving

from deltamem.episode import Message
from deltamem.policy import Completion
from deltamem.server.keys import Scope

AGENT = "/v1/owners/agent:support"
TICKET = {"id": "t1", "time": "2026-04-05T20:01:00", "messages": BOOKING}


def test_an_agent_learns_over_http(tmp_path: Path) -> None:
    model = Reviewer()
    with serving(tmp_path / "bank", model) as server:
        server.client().put("/v1/admin/model", json={"paused": True})
        assert "paused" in problem(server.client().post(f"{AGENT}/episodes", json=TICKET), 503)
        server.client().put("/v1/admin/model", json={"paused": False})
        http = server.client(server.key("agent:support"))
        done = ok(http.post(f"{AGENT}/episodes", json=TICKET))
        assert (done["outcome"], done["usage"]["calls"], len(done["episodes"])) == ("applied", 5, 2)
        assert [change["event"] for change in done["changes"]] == ["ADD", "UPDATE"]
        assert ok(http.post(f"{AGENT}/episodes", json=TICKET))["outcome"] == "known" and len(model.asked) == 5
        assert [one["id"] for one in ok(http.get(f"{AGENT}/episodes"))["episodes"]] == ["m4", "m6"]
        [kept] = ok(http.get(f"{AGENT}/reflections"))["reflections"]
        assert (kept["id"], kept["confidence"]) == ("m5", 0.8)
        found = ok(http.post(f"{AGENT}/recall", json={"task": "order a meal", "k": 1.0, "episodes": 0}))
        assert found["reflections"][0]["reflection"] == kept and found["episodes"] == [] and kept["hints"] in found["text"]
        # The native routes of the same owner.
        assert len(ok(http.get(f"{AGENT}/memories/m5/history"))["steps"]) == 2
        assert ok(http.post(f"{AGENT}/rollback", json={"to": "t1#reflections-1"}))["kind"] == "rollback"
        assert ok(http.get(f"{AGENT}/reflections"))["reflections"][0]["confidence"] == 0.7
        # Somebody else's key sees nothing, not even that there is something.
        other = server.client(server.key("agent:other"))
        problem(other.get(f"{AGENT}/reflections"), 404)
        problem(other.post(f"{AGENT}/episodes", json=TICKET), 404)
        reader = server.client(server.key("agent:support", scopes={Scope.READ}))
        problem(reader.post(f"{AGENT}/episodes", json=TICKET), 403)
        assert ok(reader.post(f"{AGENT}/recall", json={"task": "order a meal"}))["reflections"]


class Hanging(Reviewer):
    """A model that does not answer any more after some answers."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.left = answers
        self.hangs = threading.Event()

    async def complete(self, messages: Sequence[Message]) -> Completion:
        if not self.left:
            self.hangs.set()
            await asyncio.Event().wait()
        self.left -= 1
        return await super().complete(messages)


def test_an_erasure_does_not_wait_for_a_model_that_does_not_answer(tmp_path: Path) -> None:
    model = Hanging(3)
    with serving(tmp_path / "bank", model) as server, ThreadPoolExecutor(1) as pool:
        http = server.client(server.key("agent:support"))
        for erase in ("/memories/m4?mode=erase", ""):
            model.left = 3
            model.hangs.clear()
            reading = pool.submit(http.post, f"{AGENT}/episodes", json=TICKET | {"id": f"t{erase}"})
            assert model.hangs.wait(LONG)
            assert server.client(server.key("agent:support")).delete(f"{AGENT}{erase}").status_code == 200
            assert "broken off" in problem(reading.result(LONG), 503)
        model.left = 9
        assert ok(http.post(f"{AGENT}/episodes", json=TICKET))["outcome"] == "applied"


def test_the_end_of_a_server_does_not_wait_either(tmp_path: Path) -> None:
    model = Hanging(3)
    with ThreadPoolExecutor(1) as pool, serving(tmp_path / "bank", model) as server:
        http = server.client()
        reading = pool.submit(http.post, f"{AGENT}/episodes", json=TICKET)
        assert model.hangs.wait(LONG)
        asyncio.run_coroutine_threadsafe(server.service.stop(), server.service.loop).result(LONG)
        assert "broken off" in problem(reading.result(LONG), 503)
    rest = Reviewer()
    with serving(tmp_path / "bank", rest) as server:
        assert ok(server.client().post(f"{AGENT}/episodes", json=TICKET))["outcome"] == "applied" and len(rest.asked) == 2


def test_what_is_wrong_is_said(server: Server) -> None:
    http = server.client()
    for path, sent, status, said in (
        ("/v1/owners/ann/episodes", TICKET, 422, "agent:NAME"),
        ("/v1/owners/agent:/episodes", TICKET, 422, "agent:NAME"),
        (f"{AGENT}/episodes", TICKET | {"messages": []}, 422, "messages"),
        (f"{AGENT}/episodes", TICKET | {"messages": BOOKING[:2]}, 400, "nothing that an agent said"),
        (f"{AGENT}/episodes", TICKET | {"messages": [{"role": "narrator"}]}, 422, "role"),
        (f"{AGENT}/episodes", TICKET | {"id": "a#turns-1"}, 400, "stage"),
        (f"{AGENT}/episodes", TICKET | {"owner": "ann"}, 422, "no such field"),
        (f"{AGENT}/recall", {"task": "x"}, 404, "nothing here"),
    ):
        assert said in problem(http.post(path, json=sent), status), said


def test_without_a_model_nothing_is_read(tmp_path: Path) -> None:
    with serving(tmp_path / "bank", model=False) as server:
        assert "no model" in problem(server.client().post(f"{AGENT}/episodes", json=TICKET), 503)
