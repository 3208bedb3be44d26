from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from llm_cases import FIXED, GOOD, PLACE, TASK, llm_settings, open_pool
from scripted_server import Reply, completion, failure, present_day, replies, serve, too_long, unused_url

from deltamem.errors import ContextLengthError, DeltaMemError, LLMError
from deltamem.llm import Answer
from deltamem.runs import JsonLinesStore
from synth.llm.pool import EndpointPool
from synth.llm.writer import LLMWriter

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synth.llm.pool._FIRST_REST", 0.05)


def ask(pool: EndpointPool, text: str = "hello", priority: tuple[int, int] = (0, 0)) -> Coroutine[Any, Any, Answer]:
    messages = [{"role": "user", "content": text}]
    return pool.chat(messages, priority=priority, seed=1, name="x", schema=SCHEMA)


def said(requests: list[dict[str, Any]]) -> list[str]:
    return [request["messages"][0]["content"] for request in requests]


async def test_who_is_furthest_goes_first_and_then_who_came_first() -> None:
    all_wait = threading.Event()

    def script(body: dict[str, Any]) -> Reply:
        all_wait.wait(60)
        return completion("hi")

    with serve(script) as server:
        async with open_pool(server.url, slots=1) as pool:
            first = asyncio.create_task(ask(pool, "first", (9, 0)))
            while not pool.in_flight:
                await asyncio.sleep(0.01)
            order = [("p2", (2, 0)), ("p1 early", (1, -3)), ("p1 late", (1, -7)), ("p1 late too", (1, -7)), ("p0", (0, 0))]
            others = [asyncio.create_task(ask(pool, text, priority)) for text, priority in order]
            while pool.waiting < len(order):
                await asyncio.sleep(0.01)
            all_wait.set()
            await asyncio.gather(first, *others)
    assert said(server.requests) == ["first", "p0", "p1 late", "p1 late too", "p1 early", "p2"]


async def test_cancelled_requests_give_their_slots_back() -> None:
    draw = random.Random(5)
    with serve(lambda _: completion("a", delay=0.005)) as server:
        async with open_pool(server.url, slots=4) as pool:
            asked = [asyncio.create_task(ask(pool, priority=(draw.randrange(5), 0))) for _ in range(80)]
            for _ in range(60):
                await asyncio.sleep(0)
                draw.choice(asked).cancel()
                if draw.random() < 0.3:
                    await asyncio.sleep(0.003)
            await asyncio.gather(*asked, return_exceptions=True)
            assert (pool.in_flight, pool.waiting) == (0, 0)
            await asyncio.wait_for(asyncio.gather(*(ask(pool) for _ in range(8))), 60)


async def test_no_request_is_lost_to_a_server_that_fails_now_and_then(store: JsonLinesStore) -> None:
    draw, one_at_a_time = random.Random(7), threading.Lock()
    bad = [failure(500), failure(429), completion("late", delay=9), completion("{"), completion('{"name": "Mira Tamm"}')]

    def script(body: dict[str, Any]) -> Reply:
        with one_at_a_time:
            return draw.choice(bad) if draw.random() < 0.2 else completion(GOOD)

    changes: dict[str, Any] = {"slots": 8, "timeout": 0.8, "repairs": 6}
    with serve(script) as one, serve(script) as two:
        async with open_pool(one.url, two.url, **changes) as pool:
            writer = LLMWriter(llm_settings(one.url, two.url, **changes), pool, store, seed=1)
            places = [type(PLACE)(number, 0, f"{number}") for number in range(60)]
            written = await asyncio.gather(*(writer.write(TASK, place) for place in places))
    assert [each.answer for each in written] == [FIXED] * 60
    assert any(len(each.verdicts) > 1 for each in written) and pool.retries > 0


async def test_an_endpoint_that_recovers_is_used_again() -> None:
    up = asyncio.Event()
    one_script = lambda _: completion("a", delay=0.02) if up.is_set() else failure(503)  # noqa: E731
    with serve(one_script) as one, serve(lambda _: completion("b", delay=0.02)) as two:
        async with open_pool(one.url, two.url, slots=2) as pool:
            answers = await asyncio.gather(*(ask(pool) for _ in range(8)))
            assert {answer.text for answer in answers} == {"b"}
            up.set()
            async with asyncio.timeout(120):
                while {answer.text for answer in answers} != {"a", "b"}:
                    answers = await asyncio.gather(*(ask(pool) for _ in range(4)))


async def test_when_nobody_answers_all_who_wait_are_told_once_patience_is_used_up() -> None:
    url = unused_url()
    async with open_pool(url, slots=2, patience=1.0) as pool:
        loop = asyncio.get_running_loop()
        began = loop.time()
        errors = await asyncio.gather(*(ask(pool) for _ in range(30)), return_exceptions=True)
        assert all(isinstance(error, LLMError) and f"endpoint {url} cannot be reached" in str(error) for error in errors)
        assert 1.0 <= loop.time() - began < 14  # two at a time, each with a patience of its own, would be 15 s
        assert (pool.in_flight, pool.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("reply", "error"), [(too_long(), ContextLengthError), (failure(401), LLMError), (failure(400), LLMError)]
)
async def test_what_cannot_pass_is_told_at_once(reply: Reply, error: type[LLMError]) -> None:
    with serve(lambda _: reply) as server:
        async with open_pool(server.url) as pool:
            with pytest.raises(error):
                await ask(pool)
            assert len(server.requests) == 1 and pool.in_flight == 0


def server_knowing(*known: str) -> Any:
    def script(body: dict[str, Any]) -> Reply:
        kind = body.get("response_format", {"type": "none"})["type"]
        return (
            completion("hi", delay=0.01) if kind in known else failure(400, f"response_format.type {kind} is not supported")
        )

    return script


@pytest.mark.parametrize("known", ["json_schema", "json_object", "none"])
async def test_auto_steps_down_to_what_a_server_knows_and_remembers_it(known: str, caplog: pytest.LogCaptureFixture) -> None:
    with serve(server_knowing(known)) as server, serve(server_knowing("json_schema")) as other:
        async with open_pool(server.url, other.url, slots=4) as pool:
            with caplog.at_level(logging.WARNING, "synth.llm.pool"):
                await asyncio.gather(*(ask(pool) for _ in range(16)))
            before = len(server.requests)
            await asyncio.gather(*(ask(pool) for _ in range(4)))
            assert pool.structured == {server.url: known, other.url: "json_schema"}
            refused = ["json_schema", "json_object", "none"].index(known)
            assert len(server.requests) - before <= 4
            assert sum("response format" in record.message for record in caplog.records) == refused
            assert (pool.retries > 0) == (refused > 0)


async def test_check_says_what_is_wrong_with_each_endpoint() -> None:
    url = unused_url()
    with serve(lambda _: completion("hi"), models=[{"id": "big"}, {"id": "small"}]) as server:
        async with open_pool(url, server.url) as pool:
            with pytest.raises(DeltaMemError) as caught:
                await pool.check()
    message = str(caught.value)
    assert message.startswith("no endpoint can be used: ") and f"endpoint {url} cannot be reached" in message
    assert f"endpoint {server.url} serves big, small, not 'tiny'" in message


THOUGHTFUL = {
    "counted": completion(GOOD, tokens=90, reasoning_tokens=30),
    "delivered": completion(GOOD, tokens=90, reasoning_content="Let me see what fits the seed, and what does not."),
    "in the text": completion(f"<think>Let me see what fits the seed, and what does not.</think>{GOOD}", tokens=90),
    "hidden": completion(GOOD, tokens=len(GOOD)),
}


async def test_a_server_that_silently_does_not_think_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    silent, thinking = completion(GOOD, tokens=90), THOUGHTFUL["counted"]
    with serve(replies(silent, silent, silent, silent, thinking, silent)) as server:
        async with open_pool(server.url) as pool:
            for _ in range(5):
                await ask(pool)
            assert not caplog.records  # one thought among them
            for _ in range(9):
                await ask(pool)
    (record,) = caplog.records
    assert "5 answers in a row without a trace of thinking" in record.getMessage() and server.url in record.getMessage()


async def test_an_endpoint_that_refuses_options_is_asked_without_them_and_keeps_its_schema() -> None:
    """Its format is another matter, and requests that wait learn from those that were first."""
    with serve(present_day(completion("a"))) as server:
        async with open_pool(server.url, slots=2, temperature=0.7, max_tokens=9000) as pool:
            answers = await asyncio.gather(*(ask(pool) for _ in range(12)))
            assert {answer.text for answer in answers} == {"a"} and set(pool.structured.values()) == {"json_schema"}
        assert len(server.requests) <= 12 + 2 * 4
        last = server.requests[-1]
        assert last["max_completion_tokens"] == 4096 and not {"max_tokens", "temperature", "seed"} & set(last)
        asked = len(server.requests)
        async with open_pool(server.url, temperature=None, top_p=None, reasoning_effort=None, max_tokens=None) as pool:
            await ask(pool)
    assert len(server.requests) == asked + 1
    assert {name for name in server.requests[-1] if not name.startswith("_")} == {"model", "messages", "response_format"}
