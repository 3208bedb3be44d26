"""The systems without a language model, on a dialogue that can be checked by hand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import datetime

import pytest
from episode_texts import WordEmbedder
from hypothesis import given
from hypothesis import strategies as st
from system_cases import ANA, MissingEmbedder, dialogue, talk

from deltamem.embedding import EmbedderSettings
from deltamem.errors import EmbedderUnavailableError
from eval.models import make_embedder
from eval.systems.base import DialogueSession, DialogueTurn, Memory, Passage, StoreKey, WithTime
from eval.systems.baselines import copy_all, full_context, naive_rag, oracle


async def take_in(memory: Memory, sessions: Sequence[DialogueSession]) -> None:
    for session in sessions:
        ingested = await memory.ingest(session)
        assert ingested.memories is None and ingested.readable and ingested.usage.calls == 0


async def test_the_most_similar_turn_with_time_source_and_similarity() -> None:
    async with naive_rag(WordEmbedder(), with_time=False).open(ANA) as memory:
        await take_in(memory, dialogue())
        first, *rest = await memory.search("Ana: My boat is the Otter.", 3)
        (otter,) = await memory.search("Bo My boat is the Otter", 1)
    assert len(rest) == 2 and first.similarity is not None and first.similarity < 1
    assert otter == Passage("Bo: My boat is the Otter.", datetime(2023, 6, 10, 9), ("D2:3",), 1.0)


async def test_equal_similarities_keep_the_order_of_the_turns() -> None:
    # Enough rows that a product over the matrix takes them in blocks, which must not tell equal rows apart.
    said = [("user", "Thanks, I will see you there tomorrow!"), ("assistant", "Thanks, I will see you there tomorrow!")]
    many = [talk(number, datetime(2023, 5, 8), *said, *said) for number in range(1, 40)]
    async with naive_rag(WordEmbedder(), with_time=False).open(ANA) as memory:
        await take_in(memory, many)
        found = await memory.search("Ana: tomorrow thanks", 10)
    # Only what Ana says has her name; of that, the first ten.
    assert [passage.sources[0] for passage in found] == [f"D{number}:{turn}" for number in range(1, 6) for turn in (1, 3)]


@pytest.mark.parametrize(
    ("with_time", "indexed"),
    [(True, "[8 May 2023] Ana: Hello!"), ("hour", "[1:56 pm on 8 May, 2023] Ana: Hello!"), (False, "Ana: Hello!")],
)
async def test_what_is_embedded_once_and_at_the_first_search(with_time: WithTime, indexed: str) -> None:
    embedder = WordEmbedder()
    async with naive_rag(embedder, with_time=with_time).open(ANA) as memory:
        embedder.calls.clear()
        await take_in(memory, [talk(1, datetime(2023, 5, 8, 13, 56), ("user", "Hello!"))])
        assert embedder.calls == []
        assert [passage.text for passage in await memory.search("hello", 1)] == ["Ana: Hello!"]
        await take_in(memory, [talk(2, datetime(2023, 5, 9, 13, 56), ("user", "Bye!"))])
        await asyncio.gather(*(memory.search("bye", 2) for _ in range(3)))
    bye = indexed.replace("Hello", "Bye").replace("8", "9")
    assert embedder.calls == [[indexed], ["hello"], [bye], *[["bye"]] * 3]


@given(st.lists(st.text("abc ", min_size=1, max_size=8), min_size=1, max_size=12), st.integers(1, 15))
def test_search_is_an_exact_ranking(texts: list[str], k: int) -> None:
    async def found() -> list[Passage]:
        async with naive_rag(WordEmbedder(), with_time=False).open(ANA) as memory:
            for number, text in enumerate(texts):
                turn = DialogueTurn(str(number), "user", "", text)
                await memory.ingest(DialogueSession(str(number), datetime(2023, 5, 8), (turn,)))
            return await memory.search("a b c", k)

    embedder = WordEmbedder()
    similarity = (embedder.documents(texts) @ embedder.queries(["a b c"]).T)[:, 0].round(6)
    best = sorted(range(len(texts)), key=lambda number: (-similarity[number], number))[:k]
    assert [passage.sources for passage in asyncio.run(found())] == [(str(number),) for number in best]


async def test_the_copier_keeps_each_sentence_of_the_user_and_nothing_else() -> None:
    async with copy_all(WordEmbedder(), with_time=False).open(ANA) as memory:
        first, second, *_ = [await memory.ingest(session) for session in dialogue()]
        (silent,) = [await memory.ingest(talk(9, datetime(2023, 8, 1), ("assistant", "My boat is the Otter.")))]
        (found,) = await memory.search("Ana My city is Denver", 1)
        everything = await memory.search("boat Otter cat", 50)
    assert first.memories == ("Ana: Hello!", "Ana: My city is Boston.") and first.operations == {"ADD": 2}
    assert second.memories == ("Ana: I moved.", "Ana: My city is Denver.")
    assert silent.memories == () and silent.operations == {}
    assert found == Passage("Ana: My city is Denver.", datetime(2023, 6, 10, 9), ("D2:2",), 1.0)
    assert not any(passage.text.startswith("Bo") for passage in everything)


async def test_the_whole_dialogue_newest_session_first() -> None:
    async with full_context().open(ANA) as memory:
        await take_in(memory, [*dialogue(), talk(4, datetime(2023, 7, 2))])
        found = await memory.search("anything", 1)
    assert [passage.time for passage in found] == [session.time for session in reversed(dialogue())]
    assert found[1].text == "Bo: How are you?\nAna: I moved. My city is Denver.\nBo: My boat is the Otter."
    assert found[1].sources == ("D2:1", "D2:2", "D2:3")


async def test_sessions_of_one_time_and_a_late_one() -> None:
    day, before = datetime(2023, 5, 8), datetime(2023, 5, 1)
    turns = (DialogueTurn("x", "user", "", "You are kind?"), DialogueTurn("y", "assistant", "", "Hello."))
    async with full_context().open(ANA) as memory:
        for name, time in (("a", day), ("b", day), ("late", before)):
            await memory.ingest(DialogueSession(name, time, (DialogueTurn(name, "user", "", name),)))
        assert [passage.text for passage in await memory.search("", 5)] == ["user: b", "user: a", "user: late"]
        await memory.reset()
        await memory.ingest(DialogueSession("nameless", day, turns))
        assert [passage.text for passage in await memory.search("", 5)] == ["user: You are kind?\nassistant: Hello."]


async def test_the_gold_evidence_in_its_order_and_as_far_as_it_was_said() -> None:
    point = Passage("Ana has a dog.", datetime(2023, 7, 1))
    system = oracle({ANA.id: {"Where?": ["D2:2", "D1:1", "D9:9"], "Pet?": [point]}})
    first, *later = dialogue()
    async with system.open(ANA) as memory, system.open(StoreKey("conv-2", "Cy")) as other:
        await take_in(memory, [first])
        assert [passage.sources for passage in await memory.search("Where?", 1)] == [("D1:1",)]
        await take_in(memory, later)
        found = await memory.search("Where?", 1)
        denver = Passage("Ana: I moved. My city is Denver.", datetime(2023, 6, 10, 9), ("D2:2",))
        assert found == [denver, Passage("Ana: Hello! My city is Boston.", datetime(2023, 5, 8, 13, 56), ("D1:1",))]
        assert await memory.search("Pet?", 1) == [point]
        assert await memory.search("Unknown?", 5) == await other.search("Where?", 5) == []


async def test_a_missing_embedder_is_told_when_a_store_is_opened_or_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EmbedderUnavailableError, match="fetch it"):
        async with naive_rag(MissingEmbedder(), with_time=True).open(ANA):
            pass
    monkeypatch.setenv("TQDM_DISABLE", "")
    monkeypatch.delenv("TQDM_DISABLE")
    embedder = make_embedder(EmbedderSettings(name="http://nobody/v1", device="cpu", batch_size=8))
    assert embedder.name == "http://nobody/v1" and os.environ["TQDM_DISABLE"] == "1"
    with pytest.raises(EmbedderUnavailableError, match="names no model"):
        embedder.queries(["x"])
