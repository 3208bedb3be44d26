"""An answerer without a language model: it copies the sentence that is most similar to the question.

It makes lexical scores possible offline. They compare memories with each other, and with nothing else.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence

import numpy as np

from deltamem.embedding import Embedder, Vectors
from eval.answering.context import format_date
from eval.answering.protocol import AnswerRequest
from eval.results.records import AnswerRecord, Cost
from eval.systems.embedding_lock import one_at_a_time
from eval.systems.protocol import Passage

NO_INFORMATION = "No information available"
"""What an answerer says if nothing was retrieved; LoCoMo's words, see `eval.metrics.abstains`."""

_BEST = 5
"""Passages of a block that are read. More would take minutes of embedding for answers that are seldom taken from there."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_ASKS_FOR_TIME = re.compile(r"\s*(?:when|(?:on |in )?(?:what|which) (?:date|day|month|year))\b", re.IGNORECASE)
_LETTER = re.compile(r"\s*\(([a-z])\)\s*", re.IGNORECASE)


class ExtractiveAnswerer:
    """Copies; costs no calls. All runs give the same.

    Attributes:
        name: ``extractive``.
    """

    name = "extractive"

    def __init__(self, embedder: Embedder, *, with_time: bool) -> None:
        """Name the embedder.

        Args:
            embedder: Measures similarity; one with a cache, because questions share passages.
            with_time: Whether a question for a time is answered with the date of the best passage.
        """
        self._embedder = one_at_a_time(embedder)
        self._with_time = with_time

    async def answer(self, request: AnswerRequest, run: int) -> AnswerRecord:
        """Answer; see `Answerer`."""
        async with self._embedder.turns:
            started = time.perf_counter()
            text = await asyncio.to_thread(self._text, request)
            seconds = round(time.perf_counter() - started, 4)
        return AnswerRecord(text=text, cost=Cost(seconds=seconds))

    def _text(self, request: AnswerRequest) -> str:
        candidates = [
            (sentence, passage)
            for block in request.context
            for passage in block.passages[:_BEST]
            for sentence in _sentences(passage.text)
        ]
        if not candidates:
            return NO_INFORMATION
        sentences = self._embedder.documents([sentence for sentence, _ in candidates])
        question = self._embedder.queries([request.question])[0]
        if request.options:
            return f"<final_answer> ({self._letter(request.options, question, sentences)})"
        return self._best(request.question, candidates, sentences @ question)

    def _best(self, question: str, candidates: Sequence[tuple[str, Passage]], similarities: Vectors) -> str:
        sentence, passage = candidates[int(np.argmax(similarities))]
        if self._with_time and passage.time and _ASKS_FOR_TIME.match(question):
            return format_date(passage.time)
        return sentence

    def _letter(self, options: Sequence[str], question: Vectors, sentences: Vectors) -> str:
        """The option that is most similar to the question and to some sentence, both together."""
        vectors = self._embedder.documents([_LETTER.sub("", option, count=1) for option in options])
        best = int(np.argmax(vectors @ question + (vectors @ sentences.T).max(axis=1)))
        letter = _LETTER.match(options[best])
        return letter[1].lower() if letter else chr(ord("a") + best)


def _sentences(text: str) -> list[str]:
    return [sentence for part in _SENTENCE_END.split(text) if (sentence := part.strip())]
