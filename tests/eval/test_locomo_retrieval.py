"""Recall worked out by hand on the small file."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from locomo_cases import WordEmbedder, benchmark, write

from eval.locomo.loader import Conversation, load_locomo
from eval.locomo.retrieval import QuestionRecord, retrieve_all, summarise
from eval.locomo.systems import NaiveRag, Passage, TurnText


@pytest.fixture
def conversations(tmp_path: Path) -> list[Conversation]:
    return load_locomo(write(tmp_path / "l.json", benchmark()))


def all_records(conversations: list[Conversation], cutoffs: list[int], categories=(1, 2, 3, 4)) -> list[QuestionRecord]:
    system = NaiveRag(WordEmbedder(), TurnText())
    found = [asyncio.run(retrieve_all(system, conversation, categories, cutoffs)) for conversation in conversations]
    return [record for records in found for record in records]


def test_turn_text_has_speaker_and_what_was_asked_for(conversations: list[Conversation]) -> None:
    session = conversations[0].sessions[0]
    turn = session.turns[1]
    assert TurnText().render(session, turn) == "[8 May 2023] Bo: Lovely! [image: a red bicycle]"
    assert TurnText(with_time=False, with_captions=False).render(session, turn) == "Bo: Lovely!"


async def test_ranking_is_by_similarity_then_order(conversations: list[Conversation]) -> None:
    async with NaiveRag(WordEmbedder(), TurnText()).ingest(conversations[0]) as memory:
        found = await memory.retrieve(["sister?", "nothing"], 2)
        assert [[passage.sources for passage in passages] for passages in found] == [
            [("D10:1",), ("D2:1",)],
            [("D2:1",), ("D2:2",)],
        ]
        assert await memory.retrieve([], 2) == []


async def test_conversations_are_apart(conversations: list[Conversation]) -> None:
    system = NaiveRag(WordEmbedder(), TurnText())
    async with system.ingest(conversations[0]) as first, system.ingest(conversations[1]) as second:
        assert [passage.sources for passage in (await second.retrieve(["dog?"], 5))[0]] == [("D1:1",)]
        assert [passage.sources for passage in (await first.retrieve(["dog?"], 1))[0]] == [("D2:1",)]


def test_hits_at_each_cutoff(conversations: list[Conversation]) -> None:
    records = all_records(conversations, [1, 2, 50])
    assert [(record.conversation, record.index) for record in records] == [
        *(("conv-1", index) for index in range(6)),
        ("conv-2", 0),
    ]
    hits = [tuple(record.hits.values()) for record in records]
    # "sister dog?" is equally close to D2:1 and D10:1; the earlier one comes first.
    assert hits == [(1, 1, 1), (1, 2, 3), (0, 0, 0), (0, 0, 0), (1, 1, 1), (1, 1, 1), (1, 1, 1)]
    assert records[1].retrieved == ("D2:1", "D10:1", "D2:2")
    assert records[3].unusable_evidence == ("D", "D9:9")


def test_categories_are_selected(conversations: list[Conversation]) -> None:
    assert [record.index for record in all_records(conversations, [1], categories=(5,))] == [6, 7]


def test_summary_counts_and_both_means(conversations: list[Conversation]) -> None:
    groups = summarise(all_records(conversations, [1, 2]), [1, 2], resamples=200, seed=0)
    assert list(groups) == ["all", "multi-hop", "temporal", "open-domain", "single-hop"]
    total = groups["all"]
    assert (total["questions"], total["scored"], total["without_usable_evidence"]) == (7, 5, 2)
    assert total["evidence_turns"] == 7
    assert total["recall_per_question"][1]["estimate"] == pytest.approx((1 + 1 / 3 + 1 + 1 + 1) / 5)
    assert total["recall_micro"][1]["estimate"] == pytest.approx(5 / 7)
    assert total["recall_per_question"][2]["estimate"] == pytest.approx((1 + 2 / 3 + 1 + 1 + 1) / 5)
    assert total["recall_micro"][1]["groups"] == 2
    assert groups["open-domain"]["scored"] == 0
    assert groups["open-domain"]["recall_micro"] == {1: None, 2: None}


async def test_a_passage_may_have_several_sources(conversations: list[Conversation]) -> None:
    class Summary:
        name = "summary"
        failed = 0

        @asynccontextmanager
        async def ingest(self, conversation: Conversation):
            self.passages = [Passage("all", tuple(turn.id for turn in conversation.turns))]
            yield self

        async def retrieve(self, questions, k: int) -> list[list[Passage]]:
            return [self.passages[:k] for _ in questions]

        def report(self) -> dict:
            return {}

    (record,) = await retrieve_all(Summary(), conversations[0], (1,), [1])
    assert record.hits == {1: 3}
