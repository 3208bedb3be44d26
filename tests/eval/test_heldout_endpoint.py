from __future__ import annotations

from typing import Any

import pytest
from episode_texts import WordEmbedder, outputs, search
from heldout_cases import people
from scripted_server import Reply, completion, failure, serve

from deltamem.episode import EpisodeConfig, Violation
from deltamem.llm import LLM
from deltamem.policy import EndpointPolicy, ToolRole, run_episodes


@pytest.mark.parametrize("tool_role", ["tool", "user"])
async def test_search_results_are_sent_in_the_role_asked_for(tool_role: ToolRole) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        return completion(search("baker") if len(body["messages"]) == 2 else outputs())

    with serve(answer) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny"), tool_role=tool_role)
        (rollout,) = await run_episodes(people(1, 1), policy, WordEmbedder(), EpisodeConfig())
    assert rollout.trajectory.failure is None and rollout.trajectory.operations == () and rollout.tokens == 14
    sent = server.requests[1]["messages"][3]
    assert sent["role"] == tool_role and '"id": "m1"' in sent["content"]
    assert sent["content"].startswith("<tool_response>") == (tool_role == "user")


async def test_an_unreadable_turn_is_answered_and_the_episode_goes_on() -> None:
    said = ["hm", search("baker"), outputs()]

    def answer(body: dict[str, Any]) -> Reply:
        return completion(said[len(body["messages"]) // 2 - 1])

    with serve(answer) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny"))
        (rollout,) = await run_episodes(people(1, 1), policy, WordEmbedder(), EpisodeConfig(max_invalid_calls=1))
    trajectory = rollout.trajectory
    assert trajectory.operations == () and trajectory.retrieved_ids and Violation.NO_ACTION in trajectory.violations
    assert [message["role"] for message in trajectory.messages[2:]] == ["assistant", "tool"] * 2 + ["assistant"]
    assert "error" in server.requests[1]["messages"][-1]["content"]


async def test_a_refused_request_fails_its_episode_only() -> None:
    def answer(body: dict[str, Any]) -> Reply:
        return failure(400, "no room") if "Person1" in body["messages"][1]["content"] else completion(outputs())

    with serve(answer) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny"))
        rollouts = await run_episodes(people(3, 1), policy, WordEmbedder(), EpisodeConfig())
    assert [rollout.trajectory.failure is None for rollout in rollouts] == [True, False, True]
    assert "no room" in (rollouts[1].trajectory.failure or "")
