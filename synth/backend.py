"""Who writes: the offline writer, or a language model behind endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deltamem.embedding import load_embedder
from deltamem.runs import JsonLinesStore
from synth.config import SynthSettings
from synth.offline import OfflineWriter
from synth.tasks import Writer
from synth.validators.base import EmbedderSimilarity

if TYPE_CHECKING:
    from synth.llm.pool import EndpointPool

_REMEMBERED_TEXTS = 20_000
"""Texts come back within one person only, and memory shall stay flat over hundreds of them."""


class Backend(NamedTuple):
    """Who writes; `similarity` finds facts that say the same in other words, as language models write them."""

    writer: Writer
    similarity: EmbedderSimilarity | None = None
    pool: EndpointPool | None = None


@asynccontextmanager
async def backend_of(settings: SynthSettings, answers_file: Path) -> AsyncIterator[Backend]:
    """The writer that settings name, while the block runs; a model's answers are kept in a file."""
    if settings.writer == "offline" or settings.llm is None:
        yield Backend(OfflineWriter(settings.seed))
        return
    # What is missing is told before anything is paid for.
    name = settings.embedder
    loaded = None if name is None else load_embedder(name, max_texts=_REMEMBERED_TEXTS)
    similarity = None if loaded is None else EmbedderSimilarity(loaded)
    from synth.llm.pool import EndpointPool  # the openai client takes half a second that the offline writer saves
    from synth.llm.writer import LLMWriter

    pool = EndpointPool(settings.llm)
    try:
        with JsonLinesStore(answers_file) as answers:
            writer = LLMWriter(settings.llm, pool, answers, seed=settings.seed, similarity=similarity)
            yield Backend(writer, similarity, pool)
    finally:
        await pool.close()
