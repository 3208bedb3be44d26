"""Answers kept to a schema, by whatever a scripted server takes; what it takes is learned once."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Reply, Script, completion, failure, present_day, replies, serve, too_long

from deltamem.endpoint import NO_THINKING, AnswerSchema, Learned, ObjectWay, Refusal, Retrial, Terms, endpoint_traits
from deltamem.episode import Message
from deltamem.errors import ContextLengthError, LLMError
from deltamem.llm import LLM, Answer, RequestCounts, ResponseCache, seed_of_request
from deltamem.policy import Completion, EndpointPolicy, MeteredPolicy, SchemaPolicy, complete_object
from deltamem.refusals import OptionRefusal

TEXT = {"type": "string", "maxLength": 80}
FACTS = AnswerSchema(
    "facts",
    {
        "type": "object",
        "properties": {"format": TEXT, "facts": {"type": "array", "items": TEXT, "maxItems": 5}},
        "required": ["format", "facts"],
        "additionalProperties": False,
    },
    "What was said.",
)
PLAIN = {
    "type": "object",
    "properties": {"format": {"type": "string"}, "facts": {"type": "array", "items": {"type": "string"}}},
    "required": ["format", "facts"],
    "additionalProperties": False,
}
OBJECT = '{"format": "", "facts": []}'
ASKED = [Message(role="system", content="Answer in JSON."), Message(role="user", content="hello")]


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learned of an endpoint stays with the process, and ports are given again."""
    monkeypatch.setattr("deltamem.endpoint._traits", {})


async def ask(llm: LLM, **options: Any) -> Answer:
    return await llm.chat_object(ASKED, FACTS, **{"temperature": 0.0, "max_tokens": 16} | options)


def way_of(body: Mapping[str, Any]) -> ObjectWay:
    """Which way a request goes; all that belongs to the way is checked."""
    told = "JSON schema" in body["messages"][-1]["content"]
    form = body.get("response_format")
    if form is None and "tools" in body:
        function = {"name": "facts", "description": "What was said.", "parameters": PLAIN}
        assert body["tools"] == [{"type": "function", "function": function}] and not told
        assert body["tool_choice"] == {"type": "function", "function": {"name": "facts"}}
        return "tools"
    assert "tools" not in body
    if form is None or form["type"] == "json_object":
        assert told and "maxItems" in body["messages"][-1]["content"]
        return "text" if form is None else "json_object"
    assert not told and (form["json_schema"]["name"], form["json_schema"]["strict"]) == ("facts", True)
    return "json_schema" if form["json_schema"]["schema"] == FACTS.schema else "plain_schema"


def taking(*ways: ObjectWay, refused: Reply | None = None) -> Script:
    """A server that takes these ways, and answers others so."""

    def answer(body: dict[str, Any]) -> Reply:
        way = way_of(body)
        if way not in ways:
            return refused or failure(400, f"{way} is not supported")
        if way == "tools":
            calls = [{"id": "a", "type": "function", "function": {"name": "facts", "arguments": OBJECT}}]
            return completion(None, finish="tool_calls", tool_calls=calls)
        return completion(OBJECT)

    return answer


ALL: tuple[ObjectWay, ...] = ("json_schema", "plain_schema", "json_object", "tools", "text")


@pytest.mark.parametrize("taken", ALL)
async def test_the_best_way_that_is_taken_is_found_once(taken: ObjectWay) -> None:
    tried = ALL[: ALL.index(taken) + 1]
    with serve(taking(*ALL[ALL.index(taken) :])) as server:
        first, second = LLM(server.url, "tiny"), LLM(server.url, "tiny")
        answer = await ask(first)
        assert (answer.text, answer.tool_calls, answer.truncated) == (OBJECT, (), False)
        assert (await ask(second)).text == OBJECT
    assert [way_of(body) for body in server.requests] == [*tried, taken]
    assert endpoint_traits(server.url, "tiny").object_way.known == taken
    refused = len(tried) - 1
    assert first.usage == RequestCounts(requests=len(tried), failures=refused, prompt_tokens=1, completion_tokens=7)
    assert second.usage == RequestCounts(requests=1, prompt_tokens=1, completion_tokens=7)


REFUSALS = {
    "OpenAI": failure(400, "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."),
    "OpenAI, JSON mode": failure(400, "'messages' must contain the word 'json' in some form, to use JSON mode."),
    "Azure": failure(400, "Invalid schema for response_format 'facts': In context=(), 'maxLength' is not permitted."),
    "Anthropic": failure(400, "response_format.type: Input should be 'json_schema'"),
    "DeepSeek": failure(400, "This response_format type is unavailable now", code="invalid_request_error"),
    "Groq": failure(400, "This model does not support response format `json_schema`. See the supported models."),
    "Gemini": Reply([{"error": {"code": 400, "message": "Request contains an invalid argument."}}], 400),
    "OpenRouter": failure(404, "No endpoints found that can handle the requested parameters."),
    "OpenRouter, tools": failure(404, "No endpoints found that support tool use."),
    "LM Studio": Reply({"error": "'response_format.type' must be 'json_schema' or 'text'"}, 400),
    "llama.cpp": failure(400, "Failed to initialize samplers: failed to parse grammar"),
    "llama.cpp, tools": failure(500, "tools param requires --jinja flag"),
    "vLLM": failure(400, "The provided JSON schema contains features not supported by xgrammar."),
    "vLLM, 500": failure(500, "Grammar error: Unimplemented keys: ['propertyNames']"),
    "FastAPI": Reply({"detail": [{"loc": ["body", "response_format", "type"], "msg": "Input should be 'text'"}]}, 422),
    "bare": Reply(b"", 415),
    "not made": failure(501, "not implemented"),
}


@pytest.mark.parametrize("wording", REFUSALS)
async def test_refusals_of_the_form_step_down(wording: str) -> None:
    with serve(taking("text", refused=REFUSALS[wording])) as server:
        assert (await ask(LLM(server.url, "tiny", max_retries=0))).text == OBJECT
    assert [way_of(body) for body in server.requests] == list(ALL)


OTHERS = {
    "key": (failure(401, "bad key"), LLMError, "refused"),
    "forbidden": (failure(403, "response_format is not in your plan"), LLMError, "refused"),
    "window": (too_long(), ContextLengthError, "does not fit"),
    "window, by code": (failure(400, "schema too long", code="context_length_exceeded"), ContextLengthError, "does not fit"),
    "rate": (failure(429, "too many tools"), LLMError, "refused"),
    "down": (failure(503, "json_schema backend is starting"), LLMError, "failed on"),
    "broken": (failure(500, "out of memory"), LLMError, "failed on"),
    "model": (failure(404, "The model `x` does not exist or you do not have access to it."), LLMError, "not exist"),
    "policy": (failure(400, "flagged by the content policy", code="content_filter"), LLMError, "content policy"),
    "option": (Reply({"error": {"message": "Not this one.", "param": "model"}}, 400), LLMError, "Not this"),
}


@pytest.mark.parametrize("kind", OTHERS)
async def test_other_failures_are_raised_at_once_and_teach_nothing(kind: str) -> None:
    reply, error, words = OTHERS[kind]
    with serve(replies(reply, completion(OBJECT))) as server:
        llm = LLM(server.url, "tiny", max_retries=0)
        with pytest.raises(error, match=words):
            await ask(llm)
        assert (len(server.requests), endpoint_traits(server.url, "tiny").object_way.known) == (1, None)
        assert (await ask(llm)).text == OBJECT
    assert [way_of(body) for body in server.requests] == ["json_schema"] * 2


async def test_a_server_that_comes_back_is_asked_in_the_same_way() -> None:
    with serve(replies(failure(503, retry_after="0.01"), completion(OBJECT))) as server:
        llm = LLM(server.url, "tiny")
        assert (await ask(llm)).text == OBJECT
    assert [way_of(body) for body in server.requests] == ["json_schema"] * 2
    assert llm.usage.failures == 0 and llm.usage.retries == 1


async def test_a_request_that_no_way_helps_has_the_first_error_and_teaches_nothing() -> None:
    failures = (failure(400, f"refusal {number}") for number in itertools.count())
    with serve(lambda body: next(failures)) as server:
        llm = LLM(server.url, "tiny")
        for first in (0, 5):
            with pytest.raises(LLMError, match=f"refusal {first}$"):
                await ask(llm)
    assert [way_of(body) for body in server.requests] == [*ALL, *ALL]
    assert llm.usage.failures == 10


async def test_a_window_that_the_told_schema_exceeds_is_said() -> None:
    with serve(replies(failure(400, "no json_schema"), failure(400, "no json_schema"), too_long())) as server:
        llm = LLM(server.url, "tiny")
        with pytest.raises(ContextLengthError):
            await ask(llm)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("reply", "tried"),
    [
        (failure(400, "something else"), 1),  # may be anything, and the way is known to be taken
        (failure(400, "Invalid schema for response_format 'facts'"), 2),  # this schema
        (failure(400, "See failed_generation", code="json_validate_failed"), 2),  # this answer
    ],
)
async def test_once_the_way_is_known_others_help_a_single_request_only(reply: Reply, tried: int) -> None:
    with serve(replies(completion(OBJECT), reply, completion(OBJECT))) as server:
        llm = LLM(server.url, "tiny")
        await ask(llm)
        if tried == 1:
            with pytest.raises(LLMError, match="something else"):
                await ask(llm)
        else:
            await ask(llm)
        await ask(llm)
    tail = ["json_schema", "plain_schema"][:tried]
    assert [way_of(body) for body in server.requests] == ["json_schema", *tail, "json_schema"]


async def test_a_model_that_failed_to_keep_to_the_form_does_not_cost_the_others_their_schema() -> None:
    luckless = failure(400, "Failed to generate JSON.", code="json_validate_failed")
    with serve(replies(luckless, completion(OBJECT))) as server:
        llm = LLM(server.url, "tiny")
        await ask(llm)
        assert endpoint_traits(server.url, "tiny").object_way.known is None
        await ask(llm)
        assert endpoint_traits(server.url, "tiny").object_way.known == "json_schema"


async def test_a_schema_without_bounds_is_sent_where_one_with_bounds_was_refused() -> None:
    with serve(taking("plain_schema", "json_object")) as server:
        llm = LLM(server.url, "tiny")
        await ask(llm)
        await llm.chat_object(ASKED, replace(FACTS, schema=PLAIN), temperature=0.0, max_tokens=16)
    assert [way_of(body) for body in server.requests] == ["json_schema", "plain_schema", "plain_schema"]


async def test_models_at_one_endpoint_are_learned_apart() -> None:
    def by_model(body: dict[str, Any]) -> Reply:
        return taking(*ALL)(body) if body["model"] == "tiny" else taking("text")(body)

    with serve(by_model) as server:
        for name in ("tiny", "other"):
            await ask(LLM(server.url, name))
        known = [endpoint_traits(server.url, name).object_way.known for name in ("tiny", "other")]
    assert known == ["json_schema", "text"]


def slowly(script: Script) -> Script:
    """The same answers, so late that all requests have come before."""

    def answer(body: dict[str, Any]) -> Reply:
        reply = script(body)
        return Reply(reply.body, reply.status, reply.headers, delay=0.05)

    return answer


@pytest.mark.parametrize("threads", [False, True])
async def test_requests_at_once_learn_once(threads: bool) -> None:
    with serve(slowly(taking("json_object", "tools", "text"))) as server:
        llm = LLM(server.url, "tiny")
        if threads:
            answers = await asyncio.gather(*(asyncio.to_thread(lambda: asyncio.run(ask(llm))) for _ in range(4)))
        else:
            answers = await asyncio.gather(*(ask(llm) for _ in range(4)))
        assert [answer.text for answer in answers] == [OBJECT] * 4
    ways = Counter(way_of(body) for body in server.requests)
    assert ways == {"json_schema": 1, "plain_schema": 1, "json_object": 4}


async def test_when_the_first_request_is_too_long_another_takes_over() -> None:
    longest = [Message(role="user", content="long " * 9)]

    def answer(body: dict[str, Any]) -> Reply:
        too_long_for_it = "long" in body["messages"][0]["content"]
        return too_long() if too_long_for_it else taking("json_object")(body)

    with serve(slowly(answer)) as server:
        llm = LLM(server.url, "tiny")
        first = asyncio.create_task(llm.chat_object(longest, FACTS, temperature=0.0, max_tokens=16))
        answers = await asyncio.gather(first, *(ask(llm) for _ in range(3)), return_exceptions=True)
    assert isinstance(answers[0], ContextLengthError)
    assert Counter(way_of(body) for body in server.requests) == {"json_schema": 2, "plain_schema": 1, "json_object": 3}


async def test_when_the_first_request_is_cancelled_another_takes_over() -> None:
    learned, asked = Learned(("best", "other")), asyncio.Event()
    tried: list[str] = []

    def ways(first: bool) -> dict[str, Callable[[], Any]]:
        async def best() -> str:
            tried.append("best")
            if first:
                asked.set()
                await asyncio.Event().wait()
            raise LLMError("no")

        async def other() -> str:
            tried.append("other")
            return "answer"

        return {"best": best, "other": other}

    tasks = [asyncio.create_task(learned.ask(ways(number == 0), lambda error: Refusal.FORM)) for number in range(4)]
    await asked.wait()
    await asyncio.sleep(0)
    tasks[1].cancel()  # one that waits
    tasks[0].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [True, True, False, False]
    assert (tried, learned.known) == (["best", "best", "other", "other"], "other")


async def test_while_the_endpoint_is_down_nobody_waits_for_the_time_outs_of_others() -> None:
    learned, down = Learned(("best",)), asyncio.Event()
    running = 0

    async def best() -> str:
        nonlocal running
        running += 1
        await down.wait()
        raise LLMError("down")

    tasks = [asyncio.create_task(learned.ask({"best": best}, lambda error: None)) for _ in range(4)]
    await asyncio.sleep(0)
    assert running == 1
    down.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["down"] * 4 and running == 4 and learned.known is None


async def test_a_cached_answer_counts_in_whatever_way_it_was_obtained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ResponseCache(tmp_path / "answers")
    with serve(taking("tools", "text")) as server:
        llm = LLM(server.url, "tiny", cache=cache)
        await ask(llm, scope="ann")
        asked = len(server.requests)
        monkeypatch.setattr("deltamem.endpoint._traits", {})  # as in another process: nothing is asked, and nothing learned
        answer = await ask(LLM(server.url, "tiny", cache=cache), scope="ann")
        assert (answer.text, answer.tool_calls, answer.cached) == (OBJECT, (), True)
        assert len(server.requests) == asked
        assert not (await ask(llm, scope="bob")).cached
        assert not (await ask(llm, scope="ann", sample=1)).cached
    cache.close()


PRESENT = present_day(completion(OBJECT))


async def test_options_that_are_refused_are_learned_once_whoever_asks(caplog: pytest.LogCaptureFixture) -> None:
    with serve(PRESENT) as server:
        first = LLM(server.url, "tiny", max_retries=0)
        answer = await first.check(ASKED)  # as before a run: it teaches, and a model without a word is there all the same
        assert (answer.text, answer.truncated) == ("", True)
        assert len(server.requests) == 2 and first.usage == RequestCounts(requests=1, retries=1)
        await ask(LLM(server.url, "tiny"), seed=3, max_tokens=9000)
        learned = len(server.requests)
        await ask(LLM(server.url, "tiny"), temperature=0.7, max_tokens=9000)
        await LLM(server.url, "tiny").chat(ASKED, temperature=None, max_tokens=16, seed=4, extra_body={"top_k": 3})
    assert learned == 2 + 4 and len(server.requests) == learned + 2  # temperature, seed, length
    last = {name: value for name, value in server.requests[-1].items() if not name.startswith("_")}
    assert last == {"model": "tiny", "messages": ASKED, "max_completion_tokens": 16, "top_k": 3}
    assert server.requests[-2]["max_completion_tokens"] == 4096
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and told[1].endswith(
        "requests to model 'tiny' go with max_completion_tokens for max_tokens, without seed, without temperature, "
        "with at most 4096 tokens of an answer"
    )


@pytest.mark.parametrize("threads", [False, True])
async def test_first_requests_at_once_are_all_answered_and_learn_the_same(threads: bool) -> None:
    with serve(slowly(PRESENT)) as server:
        llm = LLM(server.url, "tiny", max_retries=0)

        async def one(number: int) -> Answer:
            return await llm.chat(ASKED, temperature=number / 10, max_tokens=16 + number, seed=number or None)

        if threads:
            answers = await asyncio.gather(*(asyncio.to_thread(lambda n: asyncio.run(one(n)), n) for n in range(6)))
        else:
            answers = await asyncio.gather(*map(one, range(6)))
        assert [answer.text for answer in answers] == [OBJECT] * 6
        asked = len(server.requests)
        await one(3)
        assert len(server.requests) == asked + 1
    terms = endpoint_traits(server.url, "tiny").terms.known
    assert {str(one) for one in terms.refused} == {"max_tokens", "temperature", "seed"} and terms.most_tokens is None


@pytest.mark.parametrize("reply", [OTHERS[kind][0] for kind in ("key", "policy", "model", "broken", "down", "window")])
async def test_a_request_that_fails_otherwise_teaches_nothing_of_options(reply: Reply) -> None:
    """Not even what it was refused for before: the next may fail for another reason too."""
    with serve(replies(PRESENT({"max_tokens": 1}), reply, completion(OBJECT))) as server:
        llm = LLM(server.url, "tiny", max_retries=0)
        with pytest.raises(LLMError):
            await llm.chat(ASKED, temperature=0, max_tokens=16)
        assert llm.traits.terms.known == Terms()
        await llm.chat(ASKED, temperature=0, max_tokens=16)
    assert [sorted({"max_tokens", "max_completion_tokens"} & set(body)) for body in server.requests] == [
        ["max_tokens"],
        ["max_completion_tokens"],
        ["max_tokens"],
    ]


async def test_an_endpoint_that_refuses_all_that_it_is_sent_is_asked_a_bounded_number_of_times() -> None:
    def never(body: dict[str, Any]) -> Reply:
        names = ", ".join(set(body) - {"model", "messages"}) or "nothing"
        return failure(
            400, f"unsupported: {names}. max_tokens is too large: it must be less than {body.get('max_tokens', 500) - 1}"
        )

    with serve(never) as server, pytest.raises(LLMError):
        await LLM(server.url, "tiny", max_retries=0).chat(ASKED, temperature=0, max_tokens=640, seed=1, extra_body={"n": 1})
    assert len(server.requests) <= 6


async def test_the_other_name_is_not_used_where_both_are_refused_or_it_is_taken() -> None:
    both = Terms(frozenset({OptionRefusal("max_tokens"), OptionRefusal("max_completion_tokens")}))
    assert both.fit({"max_tokens": 9, "seed": 1}) == {"seed": 1}
    first = Terms(frozenset({OptionRefusal("max_tokens")}), most_tokens=8)
    assert first.fit({"max_tokens": 9}) == {"max_completion_tokens": 8}
    assert first.fit({"max_tokens": 9, "max_completion_tokens": 500}) == {"max_completion_tokens": 8}
    assert (first | Terms(most_tokens=4, least_tokens=2)).fit({"max_tokens": 1}) == {"max_completion_tokens": 2}


@pytest.mark.parametrize(
    ("window", "words", "too_long"), [(1024, 450, True), (1024, 100, False), (None, 5000, True), (None, 700, False)]
)
async def test_a_refusal_without_a_reason_may_mean_that_the_window_is_full(
    window: int | None, words: int, too_long: bool
) -> None:
    """Where the messages are estimated above half of it, or of 8,192 tokens."""
    asked = [Message(role="user", content="word " * words)]
    with serve(
        lambda body: failure(400, "Request contains an invalid argument."), [{"id": "tiny", "max_model_len": window}]
    ) as server:
        llm = LLM(server.url, "tiny", max_retries=0)
        await llm.models()
        for call in (
            llm.chat(asked, temperature=0, max_tokens=16),
            llm.chat_object(asked, FACTS, temperature=0, max_tokens=16),
        ):
            with pytest.raises(LLMError, match="invalid argument") as caught:
                await call
            assert isinstance(caught.value, ContextLengthError) is too_long


@pytest.mark.parametrize(
    "reply",
    [failure(404, "Not Found"), failure(401, "no key"), failure(400, "flagged by our content policy"), failure(503, "busy")],
)
async def test_other_refusals_of_long_requests_are_not_doubted(reply: Reply) -> None:
    with serve(lambda body: reply) as server, pytest.raises(LLMError) as caught:
        await LLM(server.url, "tiny", max_retries=0).chat(
            [Message(role="user", content="word " * 9000)], temperature=0, max_tokens=16
        )
    assert not isinstance(caught.value, ContextLengthError)


async def test_an_overflow_that_a_gateway_reports_with_status_200_is_not_asked_for_again() -> None:
    said = {
        "error": {"message": "This endpoint's maximum context length is 64 tokens. However, you requested 90.", "code": 400}
    }
    with serve(lambda body: Reply(said)) as server, pytest.raises(ContextLengthError):
        await LLM(server.url, "tiny").chat(ASKED, temperature=0, max_tokens=16)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("reply", "text", "truncated"),
    [
        (completion("I would rather not."), "I would rather not.", False),  # takes a schema and ignores it
        (completion(f"<think>hm</think>{OBJECT}"), f"<think>hm</think>{OBJECT}", False),
        (completion(OBJECT, reasoning_content="hm"), f"<think>hm</think>\n{OBJECT}", False),
        (completion(None, reasoning_content=OBJECT), OBJECT, False),  # vLLM with a parser and without thinking
        (completion(None, reasoning_content=f"Maybe {OBJECT}"), f"<think>Maybe {OBJECT}</think>\n", False),
        (completion("", finish="length", reasoning="hm"), "<think>hm</think>\n", True),
        (completion(OBJECT[:9], finish="length"), OBJECT[:9], True),
    ],
)
async def test_the_policy_gives_what_the_model_wrote(reply: Reply, text: str, truncated: bool) -> None:
    with serve(lambda body: reply) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny"), temperature=0.5, max_tokens=9, seed=4, thinking=False)
        assert await policy.complete_object(ASKED, FACTS) == Completion(text, truncated, 7, prompt_tokens=1)
    (body,) = server.requests
    assert way_of(body) == "json_schema"
    seed = seed_of_request(4, 0, ASKED)
    sent = {"model": "tiny", "messages": ASKED, "temperature": 0.5, "max_tokens": 9, "seed": seed}
    assert sent.items() <= body.items() and body["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    "thought",
    [
        completion("<think>Let me see", finish="length"),
        completion(f"Hm.</think>{OBJECT}"),  # the chat template wrote the beginning
        completion(OBJECT, reasoning="Hm."),
        completion(OBJECT, reasoning_tokens=40),
    ],
)
async def test_a_model_that_thinks_before_an_object_is_told_not_to(thought: Reply) -> None:
    with serve(replies(thought, completion(OBJECT), completion(OBJECT))) as server:
        for extra in (None, None, {"reasoning_effort": "low"}):
            await EndpointPolicy(LLM(server.url, "tiny"), extra_body=extra).complete_object(ASKED, FACTS)
        await EndpointPolicy(LLM(server.url, "tiny")).complete(ASKED)
    first, second, chosen, turn = server.requests
    assert not NO_THINKING.keys() & first.keys() and not NO_THINKING.keys() & turn.keys()
    assert NO_THINKING.items() <= second.items()
    assert chosen["reasoning_effort"] == "low"


async def test_an_endpoint_that_refuses_to_be_told_is_told_no_more() -> None:
    def script(body: Mapping[str, Any]) -> Reply:
        if "chat_template_kwargs" in body:
            return failure(400, 'Invalid JSON payload received. Unknown name "chat_template_kwargs": Cannot find field.')
        if body.get("reasoning_effort") == "none":
            return failure(400, "reasoning_effort: Input should be 'low', 'medium' or 'high'")
        return completion(OBJECT, reasoning_tokens=40)

    with serve(script) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny"))
        for _ in range(3):
            assert (await policy.complete_object(ASKED, FACTS)).text == OBJECT
    assert [len(NO_THINKING.keys() & body.keys()) for body in server.requests] == [0, 2, 1, 0, 0]


async def test_an_endpoint_that_refuses_it_without_a_name_is_told_no_more() -> None:
    def script(body: Mapping[str, Any]) -> Reply:
        told = NO_THINKING.keys() & body.keys()
        return failure(400, "Bad request.") if told else completion(OBJECT, reasoning_tokens=40)

    with serve(script) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny"))
        for _ in range(3):
            assert (await policy.complete_object(ASKED, FACTS)).text == OBJECT
    assert [len(NO_THINKING.keys() & body.keys()) for body in server.requests] == [0, 2, 0, 0]


@pytest.mark.parametrize("reply", [too_long(), failure(400, "flagged by our content policy"), failure(401, "no key")])
async def test_what_is_refused_for_another_reason_is_not_asked_again_without_it(reply: Reply) -> None:
    with serve(replies(completion(OBJECT, reasoning_tokens=40), reply)) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny"))
        await policy.complete_object(ASKED, FACTS)
        with pytest.raises(LLMError):
            await policy.complete_object(ASKED, FACTS)
    assert len(server.requests) == 2


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets so much time go by that what is known is tried anew."""
    times = [0.0]
    monkeypatch.setattr("deltamem.endpoint.time.monotonic", lambda: times[0])

    def pass_by() -> None:
        times[0] += Retrial.seconds

    return pass_by


async def test_terms_are_not_kept_for_ever(later: Callable[[], None]) -> None:
    """Another model may be served at the same URL; what the request does not hold stays known."""
    takes: list[Script] = [present_day(completion("hi")), lambda body: completion("hi")]
    with serve(lambda body: takes[0](body)) as server:
        llm = LLM(server.url, "tiny")
        await llm.chat(ASKED, temperature=0, max_tokens=9000, seed=1)
        known = llm.traits.terms.known
        later()
        await llm.chat(ASKED, temperature=0, max_tokens=9000)
        assert llm.traits.terms.known == known and known.most_tokens == 4096
        later()
        await llm.chat(ASKED, temperature=0, max_tokens=16)  # whose length is not changed
        assert llm.traits.terms.known == known
        takes.pop(0)
        await llm.chat(ASKED, temperature=0, max_tokens=9000)  # not yet
        later()
        await llm.chat(ASKED, temperature=None, max_tokens=None)  # of which nothing is known
        assert llm.traits.terms.known == known
        await llm.chat(ASKED, temperature=0, max_tokens=9000)
    assert llm.traits.terms.known == Terms(frozenset({OptionRefusal("seed")}))
    assert (server.requests[-1]["max_tokens"], server.requests[-1]["temperature"]) == (9000, 0)


async def test_a_trial_that_fails_without_a_name_does_not_fail_the_request(later: Callable[[], None]) -> None:
    script: list[Script] = [present_day(completion("hi"))]

    def vague(body: dict[str, Any]) -> Reply:
        reply = present_day(completion("hi"))(body)
        return reply if reply.status == 200 else failure(400, "Bad request.")

    with serve(lambda body: script[0](body)) as server:
        llm = LLM(server.url, "tiny")
        await llm.chat(ASKED, temperature=0, max_tokens=16)
        known = llm.traits.terms.known
        script[0] = vague
        for asked in (2, 1):
            later() if asked == 2 else None
            before = len(server.requests)
            await llm.chat(ASKED, temperature=0, max_tokens=16)
            assert (len(server.requests) - before, llm.traits.terms.known) == (asked, known)


async def test_the_way_to_an_object_is_not_kept_for_ever(later: Callable[[], None]) -> None:
    script: list[Script] = [taking("text"), taking(*ALL), taking("json_object", refused=failure(400, "Bad request."))]
    with serve(lambda body: script[0](body)) as server:
        ways = []
        for _ in range(3):
            await ask(LLM(server.url, "tiny"))
            ways.append(endpoint_traits(server.url, "tiny").object_way.known)
            later()
            script.pop(0)
    assert ways == ["text", "json_schema", "json_object"]


class TextPolicy:
    """A policy that cannot be kept to a schema; keeps what it was given."""

    name = "text"

    async def complete(self, messages: Any) -> Completion:
        self.messages = messages
        return Completion(OBJECT, False, 3, prompt_tokens=5)


async def test_a_policy_without_schemas_is_told_the_schema_and_metered() -> None:
    policy = TextPolicy()
    metered = MeteredPolicy(policy)
    assert isinstance(metered, SchemaPolicy) and not isinstance(policy, SchemaPolicy)
    assert (await metered.complete_object(ASKED, FACTS)).text == OBJECT
    assert (metered.usage.calls, metered.usage.prompt_tokens, metered.usage.completion_tokens) == (1, 5, 3)
    assert policy.messages == FACTS.in_words(ASKED) and policy.messages[1]["content"].startswith("hello\n\n")
    assert ASKED[1]["content"] == "hello"
    with serve(taking(*ALL)) as server:
        endpoint = EndpointPolicy(LLM(server.url, "tiny"))
        assert isinstance(endpoint, SchemaPolicy)
        assert (await complete_object(MeteredPolicy(endpoint), ASKED, FACTS)).text == OBJECT
    assert way_of(server.requests[0]) == "json_schema"
