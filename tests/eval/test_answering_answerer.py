from __future__ import annotations

from pathlib import Path

import pytest
from answering_cases import answerer, contents, model, prompt, request
from scripted_server import Reply, completion, failure, replies, too_long

from eval.records import Cost


async def test_one_message_holds_the_memories_and_the_question() -> None:
    async with model(lambda body: completion(" 8 May 2023\n", tokens=4, prompt_tokens=90)) as (llm, server):
        record = await answerer(llm).answer(request("Ana moved for $5 {today}.", question="When did $context move?"), 0)
    assert (record.text, record.error) == ("8 May 2023", None)
    assert record.cost.seconds > 0
    assert record.cost.model_copy(update={"seconds": 0.0}) == Cost(calls=1, prompt_tokens=90, completion_tokens=4)
    (body,) = server.requests
    (message,) = body["messages"]
    assert message["role"] == "user" and (body["temperature"], body["max_tokens"], body["seed"]) == (0.0, 32, 5)
    assert "Memories of Ana:\n[8 May 2023] Ana moved for $5 {today}.\n" in message["content"]
    assert "When did $context move?" in message["content"]


async def test_options_and_what_was_not_found_are_shown() -> None:
    own = prompt("$context|$question|$options")
    async with model(lambda body: completion("(b)")) as (llm, server):
        await answerer(llm, own).answer(request(question="Q", options=("(a) Tea.", "(b) Milk.")), 0)
    assert contents(server) == ["(nothing was found)|Q|(a) Tea.\n(b) Milk."]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("<think>June? No.</think>\n8 May", "8 May"),
        ("June? No.</think>8 May", "8 May"),
        ("8 May <think>or June", "8 May"),
        ("<think>a</think>b<think>c</think> 8 May", "8 May"),
    ],
)
async def test_thinking_is_no_answer(said: str, kept: str) -> None:
    async with model(lambda body: completion(said)) as (llm, _):
        assert (await answerer(llm).answer(request("x"), 0)).text == kept


async def test_a_cut_answer_is_kept() -> None:
    async with model(lambda body: completion("8 May 20", finish="length")) as (llm, _):
        assert (await answerer(llm).answer(request("x"), 0)).text == "8 May 20"


@pytest.mark.parametrize(
    ("nothing", "said"),
    [
        (completion(""), "the answerer returned nothing"),
        (completion(None), "the answerer returned nothing"),
        (completion(" \n"), "the answerer returned nothing"),
        (completion("<think>So many", finish="length"), "the answerer returned nothing within 32 tokens"),
    ],
)
async def test_an_answer_without_a_word_is_drawn_once_more_and_then_an_error(nothing: Reply, said: str) -> None:
    async with model(replies(nothing, completion("8 May"))) as (llm, _):
        record = await answerer(llm).answer(request("x"), 0)
        assert (record.text, record.cost.calls) == ("8 May", 2)
    async with model(lambda body: nothing) as (llm, server):
        record = await answerer(llm).answer(request("x"), 1)
        assert (record.text, record.error, record.cost.calls) == (None, said, 2)
    assert len({body["seed"] for body in server.requests}) == 2


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (failure(500), "500"),
        (failure(401, "no key"), "no key"),
        (too_long(), "maximum context length"),
        (Reply(b"<html>"), "<html>"),
    ],
)
async def test_a_failing_endpoint_is_an_error_record(reply: Reply, said: str) -> None:
    async with model(lambda body: reply) as (llm, _):
        record = await answerer(llm).answer(request("x"), 0)
    assert record.text is None and record.error is not None and said in record.error and "endpoint" in record.error


async def test_runs_and_scopes_are_kept_apart_and_a_second_run_costs_nothing(tmp_path: Path) -> None:
    async with model(lambda body: completion(f"answer {body['seed']}"), tmp_path / "cache") as (llm, server):
        asked = [(request("x"), 0), (request("x"), 1), (request("x", scope="c2"), 0)]
        first = [await answerer(llm).answer(*one) for one in asked]
        assert [record.text for record in first] == ["answer 5", "answer 6", "answer 5"]
        again = [await answerer(llm).answer(*one) for one in asked]
        assert [record.text for record in again] == [record.text for record in first]
        assert [(record.cost.calls, record.cost.cached, record.cost.seconds) for record in again] == [(1, 1, 0.0)] * 3
        assert len(server.requests) == 3
