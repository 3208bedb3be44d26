"""Calls of OpenAI's own client over the metered transports: counted, kept, and told apart from failures."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import Reply, Script, completion, failure, present_day, replies, serve, unused_url

from deltamem.llm import LLM, ResponseCache, Usage
from eval.systems.http_cache import AsyncMeteredTransport, HttpCache, Meter, MeteredTransport

HELLO: Any = [{"role": "user", "content": "Hello."}]
IDS = re.compile(r"[0-9a-f]{8}")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[ResponseCache]:
    cache = ResponseCache(tmp_path / "responses.sqlite")
    yield cache
    cache.close()


@pytest.fixture(scope="module")
def long_kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResponseCache]:
    cache = ResponseCache(tmp_path_factory.mktemp("cache") / "responses.sqlite")
    yield cache
    cache.close()


def client(url: str, meter: Meter, cache: ResponseCache | None, scope: str = "a", **options: Any) -> openai.OpenAI:
    http: Any = httpx.Client(transport=MeteredTransport(meter, HttpCache(cache, scope, **options)))
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=http)


def ask(client: openai.OpenAI, content: str = "Hello.", **options: Any) -> str | None:
    messages: Any = [{"role": "user", "content": content}]
    return client.chat.completions.create(model="tiny", messages=messages, **options).choices[0].message.content


def answering(*contents: str | None, **options: Any) -> Script:
    return replies(*(completion(content, tokens=5, prompt_tokens=11, **options) for content in contents))


def test_a_kept_answer_costs_no_request_and_another_request_or_scope_is_asked_again(cache: ResponseCache) -> None:
    asked: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
        ({}, {}, False),
        ({}, {}, True),
        ({"content": "Hallo."}, {}, False),
        ({"temperature": 1}, {}, False),
        ({"seed": 3}, {}, False),
        ({}, {"scope": "b"}, False),
        ({}, {"fields": {"seed": 2}}, False),
    ]
    with serve(answering("one")) as server:
        for request, options, kept in asked:
            meter = Meter()
            with client(server.url, meter, cache, **{"fields": {"seed": 1}} | options) as openai_client:
                assert [model.id for model in openai_client.models.list()] == ["tiny"], "other requests pass through"
                assert ask(openai_client, **request) == "one"
            assert meter.take() == Usage(calls=1, cached=int(kept), prompt_tokens=11, completion_tokens=5)
        # What a library sends itself is not replaced.
        assert [body["seed"] for body in server.requests] == [1, 1, 1, 3, 1, 2]
        assert server.requests[0]["messages"] == HELLO and server.requests[0]["_key"] == "Bearer none"
    # Another model of the same name is not given the answers of the first.
    with serve(answering("first", "second", "third")) as server, client(server.url, Meter(), cache) as openai_client:
        said = [ask(openai_client)]
        for identity in ("a", "b", "a"):
            cache.served[server.url, "tiny"] = identity
            said.append(ask(openai_client))
        assert said == ["first", "second", "third", "second"]


def test_the_client_repeats_what_failed_on_the_way_and_one_answer_counts() -> None:
    meter = Meter()
    script = replies(failure(503, retry_after="0"), completion("lost", cut=True), completion("fine"))
    with serve(script) as server, client(server.url, meter, None).with_options(max_retries=2) as openai_client:
        assert ask(openai_client) == "fine"
        assert len(server.requests) == 3 and meter.take().calls == 1


async def test_what_was_learned_of_the_endpoint_holds_for_other_clients(cache: ResponseCache) -> None:
    with serve(present_day(completion("fine"))) as server:
        llm = LLM(server.url, "tiny")
        await llm.check(HELLO, max_tokens=16, temperature=0.0)
        await llm.close()
        with client(server.url, Meter(), cache) as openai_client:
            assert ask(openai_client, temperature=0.0, max_tokens=300) == "fine"
    assert server.requests[-1]["max_completion_tokens"] == 300 and "temperature" not in server.requests[-1]


BARE = {"choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "half"}}]}


@pytest.mark.parametrize(
    ("reply", "counted"),
    [
        (failure(500), Usage()),
        (
            completion("half a", finish="length", tokens=5, prompt_tokens=11),
            Usage(calls=1, prompt_tokens=11, completion_tokens=5),
        ),
        (Reply(BARE | {"usage": None}), Usage(calls=1)),
    ],
    ids=["broken", "cut", "cut and without tokens"],
)
def test_what_failed_or_was_cut_off_passes_through_and_is_not_kept(
    cache: ResponseCache, reply: Reply, counted: Usage
) -> None:
    meter = Meter()
    with serve(replies(reply, completion("fine"))) as server, client(server.url, meter, cache) as openai_client:
        with nullcontext() if counted.calls else pytest.raises(openai.APIStatusError):
            assert (ask(openai_client) or "").startswith("half")
        assert meter.take() == counted
        assert ask(openai_client) == "fine" and meter.take().calls == 1


def test_what_is_no_completion_is_neither_counted_nor_kept(cache: ResponseCache) -> None:
    meter, bodies = Meter(), [b"", b"<html>", b"[]", {"choices": []}, {"choices": ["?"]}, {"object": "error"}]
    with (
        serve(replies(*map(Reply, bodies), completion("fine"))) as server,
        client(server.url, meter, cache) as openai_client,
        httpx.Client(transport=MeteredTransport(meter, HttpCache(cache, "a"))) as raw,
    ):
        for body in bodies:
            first = raw.post(f"{server.url}/chat/completions", json={"model": "tiny", "messages": HELLO})
            assert first.content == (body if isinstance(body, bytes) else json.dumps(body).encode())
        assert meter.take() == Usage()
        assert ask(openai_client) == "fine"


def test_requests_that_differ_in_what_is_drawn_anew_are_the_same(cache: ResponseCache) -> None:
    """A library names memories by random ids and the answer points to one of them."""
    meter = Meter()

    def script(body: dict[str, Any]) -> Reply:
        second = IDS.findall(body["messages"][0]["content"])[1]
        return completion(json.dumps({"change": second, "to": "“Tee” \\ über"}))

    with serve(script) as server, client(server.url, meter, cache, volatile=IDS) as openai_client:
        first = ask(openai_client, "11111111: tea, 22222222: dog, 11111111 again")
        second = ask(openai_client, "33333333: tea, 44444444: dog, 33333333 again")
        swapped = ask(openai_client, "33333333: tea, 44444444: dog, 44444444 again")
        assert len(server.requests) == 2
        assert server.requests[1]["messages"][0]["content"].endswith("44444444 again")
    assert first is not None and second is not None
    assert json.loads(first)["change"] == "22222222"
    assert json.loads(second) == {"change": "44444444", "to": "“Tee” \\ über"} == json.loads(swapped or "")
    assert meter.take().cached == 1


def test_transports_share_their_slots() -> None:
    slots = threading.Semaphore(1)

    def script(body: dict[str, Any]) -> Reply:
        return completion("one too many" if slots.acquire(blocking=False) else "alone")

    with serve(script) as server:
        for _ in range(2):
            http: Any = httpx.Client(transport=MeteredTransport(Meter(), HttpCache(None, "a"), slots=slots))
            with openai.OpenAI(base_url=server.url, api_key="none", http_client=http) as openai_client:
                assert ask(openai_client) == "alone"


async def test_the_asynchronous_transport_does_the_same(cache: ResponseCache) -> None:
    script = replies(failure(500), completion("fine", tokens=5, prompt_tokens=11, delay=0.2))
    with serve(script) as server:
        meter = Meter()
        cached = HttpCache(cache, "a", volatile=IDS, fields={"seed": 4})
        http: Any = httpx.AsyncClient(transport=AsyncMeteredTransport(meter, cached, slots=asyncio.Semaphore(3)))
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0, http_client=http) as asked:
            create: Any = asked.chat.completions.create
            with pytest.raises(openai.InternalServerError):
                await create(model="tiny", messages=HELLO)
            contents = [[{"role": "user", "content": f"Hello, {letter}."}] for letter in "abcdefgh"]
            made = await asyncio.gather(*(create(model="tiny", messages=content) for content in contents))
            assert [reply.choices[0].message.content for reply in made] == ["fine"] * 8
            assert meter.take() == Usage(calls=8, prompt_tokens=88, completion_tokens=40) and server.peak == 3
            again = await create(model="tiny", messages=contents[0])
            assert again.choices[0].message.content == "fine"
            assert meter.take() == Usage(calls=1, cached=1, prompt_tokens=11, completion_tokens=5)
            assert len(server.requests) == 9 and {request["seed"] for request in server.requests} == {4}
        with client(server.url, meter, cache, fields={"seed": 4}) as openai_client:
            assert await asyncio.to_thread(ask, openai_client, "Hello, a.") == "fine" and meter.take().cached == 1
    with client(unused_url(), meter, None) as openai_client, pytest.raises(openai.APIConnectionError):
        await asyncio.to_thread(ask, openai_client)
    assert meter.take() == Usage()


@settings(max_examples=40)
@given(texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=4), ids=st.integers(0, 3))
def test_whatever_is_asked_comes_back_from_the_cache(long_kept: ResponseCache, texts: list[str], ids: int) -> None:
    """Any text, with ids between, survives the masks."""
    cached = HttpCache(long_kept, "a", volatile=IDS)
    drawn = [f"{number:08x}" for number in range(ids)]
    body = {"messages": [{"content": text + "|".join(drawn)} for text in texts]}
    entry = cached.entry(httpx.Request("POST", "http://x/v1/chat/completions", json=body))
    answer = json.dumps({"choices": [{"text": texts, "ids": drawn}]}, ensure_ascii=False).encode()
    assert entry is not None
    entry.keep(answer)
    assert entry.find() == answer
