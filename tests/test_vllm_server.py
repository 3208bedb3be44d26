"""The client, the endpoint policy and the manager against a real vLLM server on the CPU."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder
from vllm_server import COMPACT, NAME, WINDOW, serve, vllm_python, write_tiny_model

from deltamem.bank.store import MemoryStore
from deltamem.episode import Message
from deltamem.errors import ContextLengthError, LLMError
from deltamem.ingest import Outcome, Transition
from deltamem.llm import LLM, Answer, ServedModel
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.policy import EndpointPolicy
from deltamem.sessions import Turn

PYTHON = vllm_python()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="no vLLM: run `make vllm`, or name an interpreter in DELTAMEM_VLLM_PYTHON"),
]

TALK = [
    Message(role="system", content="You keep the memory of one person."),
    Message(role="user", content="I moved to Denver."),
    Message(role="assistant", content='<think>Known?</think><tool_call>{"name": "search_memory"}</tool_call>'),
    Message(role="tool", content='[{"id": "m1", "text": "Ann lives in Boston."}]'),
]

# Everything is bounded: a random model would otherwise write on until the token limit.
SENTENCE = {"type": "string", "pattern": "^[A-Z][a-z ]{4,28}[a-z]$"}
TARGET = {"type": "string", "pattern": "^m[12]$"}


def strict(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


ADD, UPDATE, NONE = (
    strict(text=SENTENCE, event={"const": event}, **({} if event == "ADD" else {"target_memory_id": TARGET}))
    for event in ("ADD", "UPDATE", "NONE")
)
OUTPUTS = strict(operations={"type": "array", "prefixItems": [ADD, UPDATE, NONE], "items": False, "minItems": 2})
QUERIES = {"type": "array", "items": SENTENCE, "minItems": 1, "maxItems": 2}
CALL = strict(name={"const": "search_memory"}, arguments=strict(query_list=QUERIES))


def turn_grammar(tag: str, schema: Mapping[str, object]) -> str:
    """One assistant turn as a grammar in the notation of vLLM's back end."""
    body = json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}})
    return f'start: "<think>" THOUGHT "</think><{tag}>" body "</{tag}>"\nTHOUGHT: /[a-z ]{{1,20}}/\nbody: %json {body}\n'


class GuidedLLM(LLM):
    """Makes a random model keep to the protocol: it searches once and answers with operations."""

    async def chat(self, messages: Sequence[Mapping[str, object]], **options: Any) -> Answer:
        grammar = turn_grammar("tool_call", CALL) if len(messages) == 2 else turn_grammar("outputs", OUTPUTS)
        body = {**(options.pop("extra_body", None) or {}), "structured_outputs": {"grammar": grammar}}
        return await super().chat(messages, **options, extra_body=body)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("vllm")
    write_tiny_model(folder / "model")
    assert PYTHON is not None
    with serve(PYTHON, folder / "model", folder / "server.log") as base_url:
        yield base_url


async def test_the_check_of_an_endpoint_tells_the_window_or_what_is_wrong(url: str) -> None:
    llm = LLM(url, NAME)
    await EndpointPolicy(llm).check()
    assert await llm.models() == [ServedModel(NAME, WINDOW)]
    with pytest.raises(LLMError, match=r"refused the request to model 'other': .*does not exist"):
        await EndpointPolicy(LLM(url, "other")).check()
    with pytest.raises(ContextLengthError, match=f"maximum context length is {WINDOW} tokens"):
        await EndpointPolicy(llm, max_tokens=16).complete([Message(role="user", content="word " * 5000)])


async def test_many_conversations_at_once(url: str) -> None:
    llm = LLM(url, NAME, max_concurrency=32)
    policy = EndpointPolicy(llm, max_tokens=16)
    answers = await asyncio.gather(*(policy.complete(TALK) for _ in range(64)))
    assert len({answer.text for answer in answers}) > 32
    assert all(0 < answer.tokens <= 16 for answer in answers)
    # The last token that is allowed may be the end of the turn.
    assert all(answer.tokens == 16 for answer in answers if answer.truncated)
    assert any(answer.truncated for answer in answers)
    assert llm.usage.requests == 64 and llm.usage.retries == llm.usage.failures == 0
    assert llm.usage.completion_tokens == sum(answer.tokens for answer in answers)
    assert llm.usage.prompt_tokens == 64 * answers[0].prompt_tokens > 0


async def test_a_seed_repeats_a_draw_and_its_number_changes_it(url: str) -> None:
    policy = EndpointPolicy(LLM(url, NAME), max_tokens=16, seed=7)
    first, again, other = [(await policy.for_scope("", sample).complete(TALK)).text for sample in (0, 0, 1)]
    assert first == again != other


async def test_the_manager_ingests_twenty_sessions_at_once(url: str, tmp_path: Path) -> None:
    policy = EndpointPolicy(GuidedLLM(url, NAME, max_concurrency=32), max_tokens=400)
    # Nobody says the random words that it writes: the guard against inventions would quote Ann in their places.
    settings = ManagerSettings(episode=COMPACT, mode="react", support=0)
    people = ("ann", "ben", "cyd", "dan", "eve")
    begin = datetime(2026, 4, 5, 20, 1)

    async def ingest(manager: MemoryManager, day: int) -> Transition:
        turns = [Turn("user", f"I am {manager.owner} and moved to flat {day}."), Turn("assistant", "Noted.")]
        return await manager.ingest(manager.session(f"day {day}", begin + timedelta(days=day), turns))

    with MemoryStore.open(tmp_path, WordEmbedder()) as store:
        managers = {owner: MemoryManager(store, owner, policy, settings) for owner in people}
        transitions = await asyncio.gather(*(ingest(managers[owner], day) for day in range(4) for owner in people))
        states = {owner: manager.state() for owner, manager in managers.items()}
    assert [transition.outcome for transition in transitions] == [Outcome.APPLIED] * 20
    assert all(transition.usage.calls == 2 and transition.usage.searches == 1 for transition in transitions)
    # It can only guess ids: in somebody's first session there is nothing to update, from the third on m1 and m2 exist.
    firsts, others = transitions[:5], transitions[5:]
    assert all(transition.violations["unknown_target"] for transition in firsts)
    assert not any(transition.violations.get("unknown_target") for transition in others[5:])
    assert all("UPDATE" in {change.event for change in transition.changes} for transition in others[5:])
    assert all(len(state) == 4 for state in states.values())
    with MemoryStore.open(tmp_path, WordEmbedder()) as store:
        assert {owner: store.bank(owner).bank.state for owner in people} == states
