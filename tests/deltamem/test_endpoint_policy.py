from __future__ import annotations

from pathlib import Path

import pytest
from scripted_server import completion, failure, replies, serve, too_long, unused_url

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
    assert request == {
        "_path": "/v1/chat/completions",
        "_key": "Bearer secret",
        "model": "tiny",
        "messages": HELLO,
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 4,
    }
    assert policy.name == f"tiny at {server.url}"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_in_a_field_of_its_own_is_put_back(field: str) -> None:
    with serve(lambda body: completion("<outputs>{}</outputs>", **{field: "hm"})) as server:
        text = (await EndpointPolicy(LLM(server.url, "tiny")).complete(HELLO)).text
    assert text == "<think>hm</think>\n<outputs>{}</outputs>"


async def test_thinking_that_the_template_has_begun_is_made_whole() -> None:
    with serve(replies(*(completion("hm</think><outputs>{}</outputs>") for _ in range(2)))) as server:
        llm = LLM(server.url, "tiny")
        assert (await EndpointPolicy(llm).complete(HELLO)).text == "<think>hm</think><outputs>{}</outputs>"
        # Where nothing was to be thought, nothing was begun.
        assert (await EndpointPolicy(llm, thinking=False).complete(HELLO)).text == "hm</think><outputs>{}</outputs>"
    with serve(replies(*(completion("<think>hm</think>x") for _ in range(2)))) as server:
        assert (await EndpointPolicy(LLM(server.url, "tiny")).complete(HELLO)).text == "<think>hm</think>x"


async def test_a_model_that_must_not_think_is_told() -> None:
    with serve(lambda body: completion("hi")) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny"), thinking=False)
        await policy.check()
        await policy.complete(HELLO)
        await EndpointPolicy(LLM(server.url, "tiny")).complete(HELLO)
    told = [request.get("chat_template_kwargs") for request in server.requests]
    assert told == [{"enable_thinking": False}, {"enable_thinking": False}, None]


async def test_a_prompt_that_does_not_fit_is_told_apart() -> None:
    with serve(lambda body: too_long()) as server, pytest.raises(ContextLengthError, match="does not fit"):
        await EndpointPolicy(LLM(server.url, "tiny")).complete(HELLO)


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


async def test_check_names_an_endpoint_that_is_not_there() -> None:
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

        assert [await answer("ann"), await answer("bob"), await answer("ann", 1)] == [
            ("0", False),
            ("1", False),
            ("2", False),
        ]
        assert [await answer("ann"), await answer("bob"), await answer("ann", 1)] == [("0", True), ("1", True), ("2", True)]
        assert policy.forget_scope("ann") == 2
        assert [await answer("ann"), await answer("bob")] == [("3", False), ("1", True)]
        assert (await policy.complete(HELLO)).text == "4"  # bound views leave the policy itself as it was


async def test_without_a_cache_there_is_nothing_to_forget() -> None:
    with serve(replies(failure(400))) as server:
        assert EndpointPolicy(LLM(server.url, "tiny")).forget_scope("ann") == 0
