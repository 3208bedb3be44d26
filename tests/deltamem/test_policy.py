"""Policies: a model behind a real local server, and the driver of episodes over snapshots with scripted policies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episode_texts import WordEmbedder, outputs, search
from heldout_cases import ScriptedPolicy, oracle, people, silent
from rule_model import RulePolicy
from scripted_server import Reply, completion, replies, serve, too_long, unused_url

from deltamem.embedding import CachedEmbedder, Vectors
from deltamem.episode import EpisodeConfig, Message, Violation, turn_pattern
from deltamem.errors import ContextLengthError, DeltaMemError
from deltamem.llm import LLM, ResponseCache, seed_of_request
from deltamem.memory import MemoryState
from deltamem.policy import (
    Batcher,
    Completion,
    EndpointPolicy,
    Mode,
    Policy,
    ScopedPolicy,
    _embed_queries,
    choose_mode,
    run_episodes,
)
from deltamem.sessions import LabelledSession

HELLO = [Message(role="user", content="hello")]


async def test_completion_carries_text_tokens_and_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    with serve(lambda body: completion("hi", finish="length", tokens=3, prompt_tokens=5)) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny", api_key_env="MY_KEY"), temperature=0.5, max_tokens=9, seed=4)
        assert await policy.complete(HELLO) == Completion("hi", True, 3, prompt_tokens=5, cached=False)
    (request,) = server.requests
    sent = {"model": "tiny", "messages": HELLO, "temperature": 0.5, "max_tokens": 9, "seed": seed_of_request(4, 0, HELLO)}
    assert request == {"_path": "/v1/chat/completions", "_key": "Bearer secret"} | sent
    assert policy.name == f"tiny at {server.url}"


@pytest.mark.parametrize(
    ("said", "thinking", "text"),
    [
        (completion("<outputs>", reasoning_content="hm"), True, "<think>hm</think>\n<outputs>"),
        (completion("<outputs>", reasoning="hm"), True, "<think>hm</think>\n<outputs>"),
        # The template has begun the block.
        (completion("hm</think><outputs>"), True, "<think>hm</think><outputs>"),
        (completion("hm</think><outputs>"), False, "hm</think><outputs>"),
        (completion("<think>hm</think>x"), True, "<think>hm</think>x"),
    ],
)
async def test_thinking_that_the_server_or_the_template_has_cut_off_is_put_back(
    said: Reply, thinking: bool, text: str
) -> None:
    with serve(lambda body: said) as server:
        assert (await EndpointPolicy(LLM(server.url, "tiny"), thinking=thinking).complete(HELLO)).text == text


async def test_a_model_that_must_not_think_is_told() -> None:
    with serve(lambda body: completion("hi")) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny"), thinking=False)
        await policy.check()
        await policy.complete(HELLO)
        await EndpointPolicy(LLM(server.url, "tiny")).complete(HELLO)
    told = [request.get("chat_template_kwargs") for request in server.requests]
    assert told == [{"enable_thinking": False}, {"enable_thinking": False}, None]


async def test_a_guided_model_is_kept_to_turns_that_fit_what_it_has_seen() -> None:
    searched = [*HELLO, Message(role="assistant", content="x"), Message(role="tool", content='[{"id": "m7", "text": "y"}]')]
    with serve(lambda body: completion("hi")) as server:
        direct = EpisodeConfig(thinking=False)
        policy = EndpointPolicy(LLM(server.url, "tiny"), thinking=False, guided=direct, extra_body={"top_k": 3})
        for messages in (HELLO, searched):
            await policy.complete(messages)
    patterns = [request["structured_outputs"]["regex"] for request in server.requests]
    assert patterns == [turn_pattern(messages, direct) for messages in (HELLO, searched)]
    assert "m7" in patterns[1] and all(request["top_k"] == 3 for request in server.requests)
    assert server.requests[0]["chat_template_kwargs"] == {"enable_thinking": False}


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


CONFIG = EpisodeConfig(k=1)


async def test_oracle_writes_the_target_in_the_order_of_the_sessions() -> None:
    sessions = people(3, 2)
    done = []
    rollouts = await run_episodes(
        sessions, ScriptedPolicy(sessions, oracle), WordEmbedder(), CONFIG, on_done=done.append, max_concurrency=2
    )
    assert len(done) == len(sessions)
    for item, rollout in zip(sessions, rollouts, strict=True):
        trajectory = rollout.trajectory
        assert trajectory.failure is None and not trajectory.violations
        assert trajectory.retrieved_ids == (("m1",),)
        assert trajectory.operations is not None
        assert [op.text for op in trajectory.operations] == [op.text for op in item.operations]
        assert rollout.tokens == sum(len(m["content"].split()) for m in trajectory.messages if m["role"] == "assistant")


async def test_prior_memories_are_embedded_in_one_call() -> None:
    sessions = people(4, 3)
    embedder = WordEmbedder()
    await run_episodes(sessions, ScriptedPolicy(sessions, silent), CachedEmbedder(embedder), CONFIG)
    assert [len(call) for call in embedder.calls] == [24]


async def test_an_empty_prior_state_answers_searches_with_nothing() -> None:
    (item,) = people(1, 1)
    sessions = [LabelledSession(item.session, 0, "heldout", MemoryState(), (), MemoryState())]
    policy = ScriptedPolicy(sessions, lambda item, turn: search("anything"))
    (rollout,) = await run_episodes(sessions, policy, CachedEmbedder(WordEmbedder()), CONFIG)
    assert rollout.trajectory.failure is None
    assert rollout.trajectory.retrieved_ids == ((), (), ())
    assert rollout.trajectory.violations == (Violation.TURN_LIMIT,)


async def test_one_failing_episode_does_not_lose_the_others() -> None:
    sessions = people(3, 1)

    def script(item: object, turn: int) -> str:
        if item is sessions[1] and turn == 1:
            raise ConnectionError("server went away")
        return oracle(item, turn)  # type: ignore[arg-type]

    rollouts = await run_episodes(sessions, ScriptedPolicy(sessions, script), WordEmbedder(), CONFIG)
    assert [rollout.trajectory.failure for rollout in rollouts] == [None, "ConnectionError: server went away", None]
    assert rollouts[1].trajectory.retrieved_ids == (("m1",),), "what was done before the failure is kept"
    assert rollouts[1].trajectory.operations is None


async def test_failing_query_embedding_fails_only_the_episodes_that_search() -> None:
    sessions = people(2, 1)

    class Broken(WordEmbedder):
        def queries(self, texts: Sequence[str]) -> Vectors:
            raise RuntimeError("no queries today")

    def script(item: object, turn: int) -> str:
        return (silent if item is sessions[0] else oracle)(item, turn)  # type: ignore[arg-type]

    rollouts = await run_episodes(sessions, ScriptedPolicy(sessions, script), Broken(), CONFIG)
    assert [rollout.trajectory.failure for rollout in rollouts] == [None, "RuntimeError: no queries today"]


async def test_concurrency_is_bounded_and_a_truncated_text_is_a_violation() -> None:
    running = peak = 0

    class SlowAndCut:
        name = "slow and cut"

        async def complete(self, messages: Sequence[Message]) -> Completion:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(0.005)
            running -= 1
            return Completion("<think>and so", truncated=True, tokens=3)

    rollouts = await run_episodes(people(10, 1), SlowAndCut(), WordEmbedder(), CONFIG, max_concurrency=3)
    assert peak == 3
    for rollout in rollouts:
        assert Violation.TOKEN_LIMIT in rollout.trajectory.violations and rollout.tokens == 3


async def test_batcher_joins_waiting_queries_and_gives_everyone_their_rows() -> None:
    embedder = WordEmbedder()
    batcher = Batcher(partial(_embed_queries, embedder))
    wanted = [[f"word{i}", f"other{i}"][: 1 + i % 2] for i in range(9)]
    results = await asyncio.gather(*(batcher.ask(texts) for texts in wanted))
    assert len(embedder.calls) < len(wanted)
    for texts, vectors in zip(wanted, results, strict=True):
        np.testing.assert_array_equal(vectors, WordEmbedder().queries(texts))


async def test_who_gives_up_waiting_and_a_batch_that_fails_do_not_hold_up_the_others() -> None:
    def doubled(numbers: list[int]) -> list[int]:
        if 0 in numbers:
            raise RuntimeError("no memory")
        return [2 * number for number in numbers]

    batcher = Batcher(doubled)
    tasks = [asyncio.create_task(batcher.ask(number)) for number in range(1, 5)]
    await asyncio.sleep(0)
    for task in tasks[1:]:
        task.cancel()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=60)
    assert results[0] == 2 and all(isinstance(result, asyncio.CancelledError) for result in results[1:])
    failed = await asyncio.gather(batcher.ask(0), batcher.ask(1), return_exceptions=True)
    assert list(map(repr, failed)) == ["RuntimeError('no memory')"] * 2
    assert await batcher.ask(7) == 14


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


@pytest.mark.parametrize(
    ("mode", "policy", "expected", "reason"),
    [
        ("auto", EndpointPolicy(LLM("http://x/v1", "tiny")), "assisted", "tiny at http://x/v1 is not known to be trained"),
        ("auto", EndpointPolicy(LLM("http://x/v1", "tiny"), trained=True), "react", "was trained for the turns"),
        ("auto", EndpointPolicy(LLM("http://x/v1", "tiny"), trained=True).for_scope("ann", 1), "react", "was trained"),
        ("auto", RulePolicy(), "react", "rules does not say how it was trained"),
        ("react", EndpointPolicy(LLM("http://x/v1", "tiny")), "react", "react was asked for"),
        ("assisted", RulePolicy(), "assisted", "assisted was asked for"),
        ("assisted", EndpointPolicy(LLM("http://x/v1", "tiny"), trained=True), "assisted", "assisted was asked for"),
    ],
)
def test_auto_is_the_mode_that_the_model_was_trained_for(mode: Mode, policy: Policy, expected: str, reason: str) -> None:
    choice = choose_mode(mode, policy)
    assert choice.mode == expected and reason in choice.reason and not choice.reason.endswith(".")
