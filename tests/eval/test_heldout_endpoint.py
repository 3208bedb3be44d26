from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

import pytest
from heldout_cases import WordEmbedder, outputs, people, search
from scripted_server import Answer, completion, serve

from deltamem.endpoint_policy import EndpointPolicy
from deltamem.episode import EpisodeConfig, Message
from deltamem.errors import DeltaMemError
from deltamem.rollout import run_episodes

HELLO = [Message(role="user", content="hello")]


def error(status: int, message: str) -> Answer:
    return status, {"error": {"message": message, "type": "x", "code": None}}


async def test_completion_carries_text_tokens_and_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    with serve(lambda body: completion("hi", finish="length", tokens=3)) as (url, seen):
        policy = EndpointPolicy(url, "tiny", api_key_env="MY_KEY", temperature=0.5, max_tokens=9, seed=4)
        assert await policy.complete(HELLO) == ("hi", True, 3)
    (request,) = seen
    assert request["_path"] == "/v1/chat/completions" and request["_key"] == "Bearer secret"
    assert {key: request[key] for key in ("model", "temperature", "max_tokens", "seed")} == {
        "model": "tiny",
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 4,
    }


async def test_no_seed_is_not_sent() -> None:
    with serve(lambda body: completion("hi")) as (url, seen):
        await EndpointPolicy(url, "tiny").complete(HELLO)
    assert "seed" not in seen[0]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_in_a_field_of_its_own_is_put_back(field: str) -> None:
    with serve(lambda body: completion("<outputs>{}</outputs>", **{field: "hm"})) as (url, _):
        text = (await EndpointPolicy(url, "tiny").complete(HELLO)).text
    assert text == "<think>hm</think>\n<outputs>{}</outputs>"


async def test_empty_content_is_an_empty_text() -> None:
    with serve(lambda body: completion(None)) as (url, _):
        assert (await EndpointPolicy(url, "tiny").complete(HELLO)).text == ""


async def test_server_errors_are_retried() -> None:
    answers = iter([error(503, "busy"), completion("hi")])
    with serve(lambda body: next(answers)) as (url, seen):
        assert (await EndpointPolicy(url, "tiny").complete(HELLO)).text == "hi"
    assert len(seen) == 2


async def test_requests_in_flight_are_bounded() -> None:
    running = peak = 0
    lock = threading.Lock()

    def answer(body: dict[str, Any]) -> Answer:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return completion("hi")

    with serve(answer) as (url, _):
        policy = EndpointPolicy(url, "tiny", max_concurrency=2)
        await asyncio.gather(*(policy.complete(HELLO) for _ in range(8)))
    assert peak == 2


@pytest.mark.parametrize("tool_role", ["tool", "user"])
async def test_search_results_are_sent_in_the_role_asked_for(tool_role: str) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return completion(search("baker") if len(body["messages"]) == 2 else outputs())

    with serve(answer) as (url, seen):
        policy = EndpointPolicy(url, "tiny", tool_role=tool_role)  # type: ignore[arg-type]
        (rollout,) = await run_episodes(people(1, 1), policy, WordEmbedder(), EpisodeConfig())
    assert rollout.trajectory.failure is None and rollout.trajectory.operations == () and rollout.tokens == 14
    sent = seen[1]["messages"][3]
    assert sent["role"] == tool_role and '"id": "m1"' in sent["content"]
    assert sent["content"].startswith("<tool_response>") == (tool_role == "user")


async def test_a_refused_request_fails_its_episode_only() -> None:
    def answer(body: dict[str, Any]) -> Answer:
        if "Person1" in body["messages"][1]["content"]:
            return error(400, "context too long")
        return completion(outputs())

    with serve(answer) as (url, _):
        rollouts = await run_episodes(people(3, 1), EndpointPolicy(url, "tiny"), WordEmbedder(), EpisodeConfig())
    assert [rollout.trajectory.failure is None for rollout in rollouts] == [True, False, True]
    assert "context too long" in (rollouts[1].trajectory.failure or "")


async def test_an_answer_without_a_choice_is_an_error() -> None:
    status, payload = completion("hi")
    with (
        serve(lambda body: (status, payload | {"choices": []})) as (url, _),
        pytest.raises(DeltaMemError, match="without a choice"),
    ):
        await EndpointPolicy(url, "tiny").complete(HELLO)


async def test_check_accepts_a_working_endpoint() -> None:
    with serve(lambda body: completion("")) as (url, seen):
        await EndpointPolicy(url, "tiny").check()
    assert [message["role"] for message in seen[0]["messages"]] == ["system", "user", "assistant", "tool"]
    assert seen[0]["max_tokens"] == 1


async def test_check_names_an_endpoint_that_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(DeltaMemError, match=f"endpoint {url} cannot be reached"):
        await EndpointPolicy(url, "tiny", max_retries=0).check()


async def test_check_says_when_no_answer_comes_in_time() -> None:
    def answer(body: dict[str, Any]) -> Answer:
        time.sleep(0.5)
        return completion("late")

    with serve(answer) as (url, _), pytest.raises(DeltaMemError, match="no answer in time"):
        await EndpointPolicy(url, "tiny", timeout=0.1, max_retries=0).check()


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [
        (401, "bad key", r"refused the key in \$OPENAI_API_KEY: .*bad key"),
        (404, "no model tiny", "refused a test request to model 'tiny': .*no model tiny"),
    ],
)
async def test_check_says_why_it_was_refused(status: int, message: str, said: str) -> None:
    with serve(lambda body: error(status, message)) as (url, _), pytest.raises(DeltaMemError, match=said):
        await EndpointPolicy(url, "tiny").check()


async def test_a_url_without_a_scheme_is_unreachable() -> None:
    with pytest.raises(DeltaMemError, match="cannot be reached"):
        await EndpointPolicy("localhost:1/v1", "tiny", max_retries=0).check()
