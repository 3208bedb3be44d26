from __future__ import annotations

import importlib.util

import pytest
from scripted_server import Reply, completion, failure, replies, serve, unused_url

from deltamem.errors import DeltaMemError, LLMError
from deltamem.llm import LLM, Answer, Usage, is_passing

pytest.importorskip("aiohttp")
HELLO = [{"role": "user", "content": "hello"}]


async def ask(url: str, **options: float) -> tuple[Answer, Usage]:
    llm = LLM(url, "tiny", aiohttp=True, **{"max_retries": 0} | options)  # type: ignore[arg-type]
    try:
        return await llm.chat(HELLO, temperature=0.0, max_tokens=16), llm.usage
    finally:
        await llm.close()


async def test_answers_and_repeats_are_as_with_httpx() -> None:
    with serve(replies(failure(500, retry_after="0.01"), completion("hi", tokens=3, prompt_tokens=11))) as server:
        answer, usage = await ask(server.url, max_retries=1)
    assert answer == Answer("hi", truncated=False, prompt_tokens=11, completion_tokens=3) and answer.seconds > 0
    assert usage == Usage(requests=1, retries=1, prompt_tokens=11, completion_tokens=3)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(reset=True), "cannot be reached for model 'tiny' .*; is the server up"),
        (completion("half", cut=True), "cannot be reached for model 'tiny' .*payload is not completed"),
        (completion("late", delay=5), "gave no answer in time for model 'tiny'"),
        (failure(500, "broken"), "failed on the request to model 'tiny': Error code: 500 - broken$"),
        (Reply(b"<html>"), "something else than a chat completion: <html>$"),
    ],
)
async def test_failures_are_told_apart(reply: Reply, said: str) -> None:
    with serve(lambda body: reply) as server, pytest.raises(LLMError, match=said) as told:
        await ask(server.url, timeout=0.2)
    assert is_passing(told.value)


async def test_an_endpoint_that_is_not_there_is_named() -> None:
    url = unused_url()
    with pytest.raises(LLMError, match=f"endpoint {url} cannot be reached .*; is the server up") as told:
        await ask(url)
    assert is_passing(told.value)


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeltaMemError, match=r"pip install 'openai\[aiohttp\]'"):
        LLM("http://localhost:1/v1", "tiny", aiohttp=True)
