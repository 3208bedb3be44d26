"""What every memory system must do, whoever wrote it; see `eval.systems.base`."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder
from scripted_server import Reply, Served, failure, serve
from system_cases import ANA, benchmark_config, dialogue, talk
from system_scripts import manager_of

from deltamem.errors import DeltaMemError
from deltamem.llm import Usage
from eval.models import open_models
from eval.systems.base import Ingested, Memory, StoreKey, System
from eval.systems.kinds import make_system, system_kind, system_names

QUESTION = "What is Ana's city?"
OTHER = StoreKey("conv-2.Ana", "Ana", batch_turns=2)
EVIDENCE = {ANA.id: {QUESTION: ["D2:2", "D1:1"]}, OTHER.id: {QUESTION: ["D9:1"]}}
PEERS = ("mem0", "langmem")
LASTING = ("deltamem", "episodic", "stitch", "mem0")
"""Systems that keep their memories on disk."""
NAMES = ("Boston", "Denver", "Xanthippe", "Xanten", "Xanthos")
"""What a benchmark says is no data of a user."""


@dataclass
class Bench:
    """A system on its bench.

    Attributes:
        name: Its name.
        opened: Opens it; a second time it is as in another run.
        server: Behind which its model is.
        broken: Whether the model refuses everything.
    """

    name: str
    opened: Callable[[], AbstractAsyncContextManager[System]]
    server: Served
    broken: bool = False


def _param(name: str) -> Any:
    """A peer is not imported to see whether it is there: its system says how, so that it reports to nobody."""
    missing = name in PEERS and importlib.util.find_spec(name) is None
    marks = [pytest.mark.slow, pytest.mark.skipif(missing, reason=f"{name} is not installed")] if name in PEERS else []
    return pytest.param(name, marks=marks)


@pytest.fixture(params=[_param(name) for name in system_names() if system_kind(name).reads])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Every system in turn, opened as benchmarks open it."""
    name: str = request.param

    def script(body: dict[str, Any]) -> Reply:
        return failure(400, "no room today") if made.broken else manager_of(body)

    with serve(script) as server:
        config = benchmark_config(
            tmp_path,
            f"system={name}",
            f"base_url={server.url}",
            "manager.model=tiny",
            "labeller=embedding",
            "answer.kind=none",
            "cache=null",
        )

        @asynccontextmanager
        async def opened() -> AsyncIterator[System]:
            async with open_models(config) as models:
                extras = {"evidence": lambda: EVIDENCE, "vocabulary": lambda: NAMES}
                yield make_system(config, tmp_path / "memory", WordEmbedder(), models, extras)

        made = Bench(name, opened, server)
        yield made


async def take_in(memory: Memory) -> list[Ingested]:
    return [await memory.ingest(session) for session in dialogue()]


async def test_sessions_go_in_and_are_found(bench: Bench) -> None:
    turns = {turn.id for session in dialogue() for turn in session.turns}
    days = {session.time.date() for session in dialogue()}
    async with bench.opened() as system, system.open(ANA) as memory:
        assert list(memory.known) == [] and await memory.search(QUESTION, 5) == []
        for number, session in enumerate(dialogue(), start=1):
            ingested = await memory.ingest(session)
            assert ingested.readable and (ingested.usage.calls > 0) == system_kind(bench.name).with_model
            assert ingested.memories is None or all(text.strip() for text in ingested.memories)
            assert (ingested.memories is None) == (not system_kind(bench.name).with_model and bench.name != "copy_all")
            assert len(memory.known) == number and session.id in memory.known
            found = await memory.search(QUESTION, 5)
            assert found and all(passage.text.strip() for passage in found)
        assert any("Denver" in passage.text for passage in found)
        # The same sessions again change nothing and cost nothing.
        asked, again = len(bench.server.requests), await take_in(memory)
        assert len(bench.server.requests) == asked and all(ingested.usage == Usage() for ingested in again)
        assert len(memory.known) == 3 and await memory.search(QUESTION, 5) == found
        # Searches may run at once, and k is obeyed where passages are ranked.
        everything, *fewer = await asyncio.gather(*(memory.search(QUESTION, k) for k in (50, 1, 2)))
        assert len(everything) >= 2
        assert fewer == [everything[:k] if system.ranked else everything for k in (1, 2)]
        assert (await memory.ingest(talk(4, datetime(2023, 8, 1)))).readable, "a session without turns does no harm"
    assert system.name == bench.name and json.loads(json.dumps(system.facts())) != {}
    assert system.ranked == (bench.name not in ("full_context", "oracle"))
    for passage in found:
        assert set(passage.sources) <= turns
        assert passage.time is None or passage.time.date() in days
    if system.ranked:
        similarities = [passage.similarity for passage in found if passage.similarity is not None]
        assert similarities == sorted(similarities, reverse=True) and len(similarities) in (0, len(found))


async def test_stores_do_not_see_each_other_and_reset_forgets(bench: Bench) -> None:
    secret = talk(9, datetime(2023, 5, 8), ("user", "My canary is Xanthippe. My city is Xanten."))
    async with bench.opened() as system, system.open(ANA) as memory, system.open(OTHER) as other:
        first, _ = await asyncio.gather(take_in(memory), other.ingest(secret))
        found = await memory.search(QUESTION, 5)
        for query in (QUESTION, "Xanthippe canary Xanten"):
            for passage in await memory.search(query, 50):
                assert "xan" not in passage.text.lower() and "D9:1" not in passage.sources
        assert any("Xan" in passage.text for passage in await other.search(QUESTION, 5))
        await other.reset()
        assert list(other.known) == [] and await other.search(QUESTION, 5) == []
        assert len(memory.known) == 3 and await memory.search(QUESTION, 5) == found
        # A store that was reset can be used again.
        said = ("My parrot is Xanthos.", "Good morning to you.")
        await other.ingest(talk(9, datetime(2024, 1, 1), *(("user", text) for text in said)))
        (new,) = await other.search("parrot Xanthos Xanten" if system.ranked else QUESTION, 1)
        assert "Xanthos" in new.text and set(new.sources) <= {"D9:1", "D9:2"}
        assert new.time is None or new.time.year == 2024
        await memory.reset()
        second = await take_in(memory)
        assert [ingested.memories for ingested in second] == [ingested.memories for ingested in first]
        assert [passage.text for passage in await memory.search(QUESTION, 5)] == [passage.text for passage in found]


async def test_another_run_finds_what_lasts_and_nothing_else(bench: Bench) -> None:
    async def look(memory: Memory) -> tuple[set[str], set[tuple[object, ...]]]:
        found = await memory.search(QUESTION, 5)  # not their order, because an index on disk may round otherwise
        return set(memory.known), {(passage.text, passage.time, passage.sources) for passage in found}

    async with bench.opened() as system, system.open(ANA) as memory:
        await take_in(memory)
        before = await look(memory)
    asked = len(bench.server.requests)
    async with bench.opened() as system, system.open(ANA) as memory:
        assert await look(memory) == (before if bench.name in LASTING else (set(), set()))
        assert len(bench.server.requests) == asked
        later = talk(4, datetime(2023, 8, 1), ("user", "My car is a red coupe."))
        await memory.ingest(later)
        assert later.id in memory.known


async def test_a_session_that_the_model_refuses_can_be_given_again(bench: Bench) -> None:
    if not system_kind(bench.name).with_model:
        pytest.skip("asks no model")
    first, second, _ = dialogue()
    async with bench.opened() as system, system.open(ANA) as memory:
        await memory.ingest(first)
        bench.broken = True
        with pytest.raises(DeltaMemError, match="no room today"):
            await memory.ingest(second)
        assert list(memory.known) == [first.id]
        bench.broken = False
        assert (await memory.ingest(second)).usage.calls > 0
        assert len(memory.known) == 2 and "Denver" in (await memory.search("Ana's city is Denver.", 1))[0].text


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["system=zep"], r"'zep' does not exist; there are: deltamem, .*, oracle, none"),
        (["system=oracle"], "system=oracle needs gold evidence"),
        (["system=deltamem"], r"system=deltamem needs a model: .*manager\.model=<name>"),
        (["system=mem0", "base_url=http://x/v1"], r"system=mem0 needs a model: .*manager\.model=<name>"),
    ],
)
async def test_what_a_system_lacks_is_said(tmp_path: Path, overrides: list[str], message: str) -> None:
    config = benchmark_config(tmp_path, *overrides)
    async with open_models(config) as models:
        with pytest.raises(DeltaMemError, match=message):
            make_system(config, tmp_path, WordEmbedder(), models)
