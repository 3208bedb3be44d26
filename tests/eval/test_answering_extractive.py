from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from datetime import datetime

import numpy as np
import pytest
from answering_cases import block, request

from deltamem.embedding import CachedEmbedder, Vectors
from eval.answer import AnswerRequest, ExtractiveAnswerer
from eval.metrics import abstains
from eval.records import Cost

WORDS = ("violin", "moved", "lisbon", "tea", "milk", "ana", "plays", "cat")


class WordEmbedder:
    """A vector tells which of a few words a text has."""

    name = "words"

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.busy = threading.Lock()

    def documents(self, texts: Sequence[str]) -> Vectors:
        assert self.busy.acquire(blocking=False), "one call at a time"
        self.texts += texts
        vectors = np.array(
            [[float(word in re.findall(r"\w+", text.lower())) for word in WORDS] + [0.01] for text in texts],
            dtype=np.float32,
        )
        self.busy.release()
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    queries = documents


def answerer(*, with_time: bool = True) -> ExtractiveAnswerer:
    return ExtractiveAnswerer(WordEmbedder(), with_time=with_time, timed=asyncio.Semaphore(1))


MEMORIES = ("It rains. Ana plays the violin.\nShe likes it!", "Ana moved to Lisbon.")


async def test_the_most_similar_sentence_is_copied() -> None:
    record = await answerer().answer(request(*MEMORIES, question="What does Ana play, the violin?"), 0)
    assert record.text == "Ana plays the violin." and record.error is None
    assert record.cost.model_copy(update={"seconds": 0.0}) == Cost()


@pytest.mark.parametrize(
    "question", ["When was it that Ana moved to Lisbon?", "which year: moved to Lisbon?", " In what month moved?"]
)
async def test_a_question_for_a_time_gets_the_date_of_the_passage(question: str) -> None:
    blocks = (block("Ana plays.", time=datetime(2021, 1, 2)), block("Ana moved to Lisbon.", time=datetime(2023, 5, 8)))
    asked = AnswerRequest(question, blocks)
    assert (await answerer().answer(asked, 0)).text == "8 May 2023"
    assert (await answerer(with_time=False).answer(asked, 0)).text == "Ana moved to Lisbon."
    undated = AnswerRequest(question, (block("Ana moved to Lisbon.", time=None),))
    assert (await answerer().answer(undated, 0)).text == "Ana moved to Lisbon."


async def test_a_whenever_is_no_question_for_a_time() -> None:
    record = await answerer().answer(request(*MEMORIES, question="Whenever Ana plays the violin, what?"), 0)
    assert record.text == "Ana plays the violin."


@pytest.mark.parametrize("texts", [(), ("",), (" \n",)])
async def test_nothing_found_is_said_in_the_official_words(texts: tuple[str, ...]) -> None:
    record = await answerer().answer(request(*texts), 0)
    assert record.text is not None and abstains(record.text)


async def test_the_option_nearest_to_what_was_found_is_chosen() -> None:
    options = ("(a) Whatever.", "(b) Buy tea.", "(c) Drink milk.")
    asked = request("She drinks milk. Ana plays.", question="What would she like?", options=options)
    assert (await answerer().answer(asked, 0)).text == "<final_answer> (c)"
    bare = request("She drinks milk.", question="What would she like?", options=("tea", "milk"))
    assert (await answerer().answer(bare, 0)).text == "<final_answer> (b)"


async def test_many_questions_at_once_share_what_is_embedded() -> None:
    embedder = WordEmbedder()
    one = ExtractiveAnswerer(CachedEmbedder(embedder), with_time=True, timed=asyncio.Semaphore(1))
    questions = [f"Who plays the violin, {number}?" for number in range(20)]
    records = await asyncio.gather(*(one.answer(request(*MEMORIES, question=text), 0) for text in questions))
    assert {record.text for record in records} == {"Ana plays the violin."}
    assert len(embedder.texts) == 4 + len(questions), "four sentences, each once"


async def test_waiting_for_a_search_is_no_part_of_an_answer() -> None:
    words, timed = WordEmbedder(), asyncio.Semaphore(1)
    async with timed:
        task = asyncio.create_task(ExtractiveAnswerer(words, with_time=True, timed=timed).answer(request(*MEMORIES), 0))
        await asyncio.sleep(1)
        assert not task.done() and words.texts == []
    assert (await task).cost.seconds < 1
