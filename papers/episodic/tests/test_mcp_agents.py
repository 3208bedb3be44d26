"""Tools of MCP for agents: what was learned, and reading a conversation; people have others."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from episodic_cases import BOOKING, Reviewer, answer
from mcp import Client
from mcp_cases import INITIALIZE, SPEAKS, call, connected, over_http, refusal, started, texts
from scripted_server import completion, serve
from server_cases import serving

from deltamem.policy import Policy
from deltamem.server.keys import Scope
from papers.episodic.routes import EpisodeRoutes


def agents(policy: Policy | None = None, scopes: Sequence[Scope] = tuple(Scope)) -> AbstractAsyncContextManager[Client]:
    """A client of the lessons of an agent, in this process."""
    kind = EpisodeRoutes.owner_kind
    assert kind is not None
    return connected(policy=policy, scopes=scopes, owner="agent:support", kind=kind)


TICKET = {"id": "t1", "time": "2026-04-05T20:01:00", "messages": BOOKING}


async def test_an_agent_learns_and_recalls() -> None:
    async with agents(Reviewer()) as client:
        assert (await call(client, "recall_episodes", task="order a meal"))["text"] == ""
        done = await call(client, "ingest_trajectory", **TICKET)
        assert (done["outcome"], len(done["episodes"]), [one["event"] for one in done["changes"]]) == (
            "applied",
            2,
            ["ADD", "UPDATE"],
        )
        assert (await call(client, "ingest_trajectory", **TICKET))["outcome"] == "known"
        found = await call(client, "recall_episodes", task="order a meal", episodes=1)
        assert [one["reflection"]["title"] for one in found["reflections"]] == ["Check opening hours first"]
        assert len(found["episodes"]) == 1 and "Check opening hours first" in found["text"]
        assert len((await call(client, "memory_history", memory_id="m5"))["steps"]) == 2
        assert "nothing that an agent" in await refusal(client, "ingest_trajectory", **TICKET | {"messages": BOOKING[:2]})
        assert "messages.0.role" in await refusal(client, "ingest_trajectory", **TICKET | {"messages": [{"role": "x"}]})
        assert "owner: there is no such argument" in await refusal(client, "recall_episodes", task="x", owner="agent:other")
        assert await refusal(client, "recall_episodes", task=" ") != ""


async def test_tools_are_for_agents_or_for_people() -> None:
    async def names(client: Client) -> set[str]:
        return {tool.name for tool in (await client.list_tools()).tools}

    async with connected() as person, agents() as without, agents(Reviewer()) as agent:
        people = await names(person)
        assert await names(without) == people - {"add_memory"} | {"recall_episodes"}
        assert await names(agent) == await names(without) | {"ingest_trajectory"}
        assert "Unknown tool" in await refusal(person, "recall_episodes", task="x")
        assert "Unknown tool" in await refusal(agent, "add_memory", text="x")
        assert (await agent.list_prompts()).prompts == []
    async with agents(Reviewer(), [Scope.READ]) as reader:
        assert "lacks the scope write" in await refusal(reader, "ingest_trajectory", **TICKET)


async def test_http_serves_agents_and_people_each_their_own(tmp_path: Path) -> None:
    with serving(tmp_path, Reviewer()) as server:
        ann, support = server.key("ann"), server.key("agent:support")
        async with over_http(server, support) as client:
            assert (await call(client, "ingest_trajectory", **TICKET))["outcome"] == "applied"
            assert (await call(client, "recall_episodes", task="order a meal"))["reflections"]
        async with over_http(server, ann) as client:
            assert "Unknown tool" in await refusal(client, "recall_episodes", task="order a meal")
            assert await texts(client) == []
        named = server.client(ann, **SPEAKS, **{"X-DeltaMem-Owner": "agent:support"})
        assert named.post("/mcp", json=INITIALIZE).status_code == 404


@pytest.mark.slow
async def test_stdio_for_an_agent(tmp_path: Path) -> None:
    with serve(
        lambda body: completion("Hello.", tokens=1) if body["max_tokens"] == 1 else completion(answer(body["messages"]))
    ) as model:
        there = started(tmp_path / "bank", "--base-url", model.url, "--model", "tiny", owner="agent:support")
        async with Client(there) as client:
            assert (await call(client, "ingest_trajectory", **TICKET))["outcome"] == "applied"
    async with Client(started(tmp_path / "bank", owner="agent:support")) as client:
        assert "Check opening hours" in (await call(client, "recall_episodes", task="order a meal"))["text"]
        assert "ingest_trajectory" not in {tool.name for tool in (await client.list_tools()).tools}
    async with Client(started(tmp_path / "bank")) as client:
        assert "Unknown tool" in await refusal(client, "recall_episodes", task="order a meal")
