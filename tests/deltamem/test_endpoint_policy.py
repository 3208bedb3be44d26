"""A model behind an endpoint as a policy, against a real local server."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_server import completion, replies, serve, too_long, unused_url

from deltamem.episode import Message
from deltamem.errors import ContextLengthError, DeltaMemError
from deltamem.llm import LLM, ResponseCache
from deltamem.policy import Completion, EndpointPolicy, ScopedPolicy

HELLO = [Message(role="user", content="hello")]


async def test_completion_carries_text_tokens_and_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    with serve(lambda body: completion("hi", finish="length", tokens=3, prompt_tokens=5)) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny", api_key_env="MY_KEY"), temperature=0.5, max_tokens=9, seed=4)
        assert await policy.complete(HELLO) == Completion("hi", True, 3, prompt_tokens=5, cached=False)
    (request,) = server.requests
    sent = {"model": "tiny", "messages": HELLO, "temperature": 0.5, "max_tokens": 9, "seed": 4}
    assert request == {"_path": "/v1/chat/completions", "_key": "Bearer secret"} | sent
    assert policy.name == f"tiny at {server.url}"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_in_a_field_of_its_own_is_put_back(field: str) -> None:
    with serve(lambda body: completion("<outputs>{}</outputs>", **{field: "hm"})) as server:
        text = (await EndpointPolicy(LLM(server.url, "tiny")).complete(HELLO)).text
    assert text == "<think>hm</think>\n<outputs>{}</outputs>"


@pytest.mark.parametrize(
    ("said", "thinking", "text"),
    [
        ("hm</think><outputs>{}</outputs>", True, "<think>hm</think><outputs>{}</outputs>"),
        ("hm</think><outputs>{}</outputs>", False, "hm</think><outputs>{}</outputs>"),  # nothing was begun
        ("<think>hm</think>x", True, "<think>hm</think>x"),
    ],
)
async def test_thinking_that_the_template_has_begun_is_made_whole(said: str, thinking: bool, text: str) -> None:
    with serve(lambda body: completion(said)) as server:
        assert (await EndpointPolicy(LLM(server.url, "tiny"), thinking=thinking).complete(HELLO)).text == text


async def test_a_model_that_must_not_think_is_told() -> None:
    with serve(lambda body: completion("hi")) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny"), thinking=False)
        await policy.check()
        await policy.complete(HELLO)
        await EndpointPolicy(LLM(server.url, "tiny")).complete(HELLO)
    told = [request.get("chat_template_kwargs") for request in server.requests]
    assert told == [{"enable_thinking": False}, {"enable_thinking": False}, None]


@pytest.mark.parametrize(
    ("tool_role", "sent"), [("tool", ("tool", "[]")), ("user", ("user", "<tool_response>\n[]\n</tool_response>"))]
)
async def test_check_sends_every_kind_of_message(tool_role: str, sent: tuple[str, str]) -> None:
    with serve(lambda body: completion("")) as server:
        await EndpointPolicy(LLM(server.url, "tiny"), tool_role=tool_role).check()  # type: ignore[arg-type]
    messages = server.requests[0]["messages"]
    assert [message["role"] for message in messages[:3]] == ["system", "user", "assistant"]
    assert (messages[3]["role"], messages[3]["content"]) == sent
    assert server.requests[0]["max_tokens"] == 1


async def test_what_the_endpoint_refuses_is_an_error() -> None:
    with serve(lambda body: too_long()) as server, pytest.raises(ContextLengthError, match="does not fit"):
        await EndpointPolicy(LLM(server.url, "tiny")).complete(HELLO)
    url = unused_url()
    with pytest.raises(DeltaMemError, match=f"endpoint {url} cannot be reached"):
        await EndpointPolicy(LLM(url, "tiny", max_retries=0)).check()


async def test_answers_are_cached_by_owner_and_attempt_and_can_be_erased(tmp_path: Path) -> None:
    numbered = replies(*(completion(str(number)) for number in range(9)))
    with serve(numbered) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny", cache=ResponseCache(tmp_path / "cache.sqlite")))
        assert isinstance(policy, ScopedPolicy)

        async def answer(scope: str, sample: int = 0) -> tuple[str, bool]:
            completed = await policy.for_scope(scope, sample).complete(HELLO)
            return completed.text, completed.cached

        for cached in (False, True):
            answers = [await answer("ann"), await answer("bob"), await answer("ann", 1)]
            assert answers == [("0", cached), ("1", cached), ("2", cached)]
        assert policy.forget_scope("ann") == 2
        assert [await answer("ann"), await answer("bob")] == [("3", False), ("1", True)]
        assert (await policy.complete(HELLO)).text == "4"  # bound views leave the policy itself as it was
        assert EndpointPolicy(LLM(server.url, "tiny")).forget_scope("ann") == 0  # no cache, nothing to forget
