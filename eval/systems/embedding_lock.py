"""One embedder for everything in a run, called by one thread at a time."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence

from deltamem.embedding import Embedder, LazyEmbedder, Vectors
from eval.config import EmbedderSettings


class ThreadSafeEmbedder:
    """An embedder that threads may share: models and the cache in front of them must not be called by two at once.

    Attributes:
        turns: Who measures the time of a search or an answer holds it meanwhile, so that the time is not that of waiting for
            others.
    """

    def __init__(self, embedder: Embedder) -> None:
        """Wrap an embedder; wrap it once, so that there is one lock."""
        self.name = embedder.name
        self.turns = asyncio.Semaphore(1)
        self._embedder = embedder
        self._lock = threading.Lock()

    async def load(self) -> None:
        """Load the model if it is not loaded yet, so that it is not found missing when work is half done.

        Raises:
            EmbedderUnavailableError: If it is missing.
        """
        await asyncio.to_thread(self.queries, [])

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Embed memory texts; returns float32 of shape ``(len(texts), dim)``."""
        with self._lock:
            return self._embedder.documents(texts)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embed search queries; returns float32 of shape ``(len(texts), dim)``."""
        with self._lock:
            return self._embedder.queries(texts)


def make_embedder(settings: EmbedderSettings) -> ThreadSafeEmbedder:
    """The embedder of a run, for the system and the extractive answerer; loaded when the first text comes."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # loading a model would draw a bar of its own between ours
    return ThreadSafeEmbedder(LazyEmbedder(settings.name, device=settings.device, batch_size=settings.batch_size))


def one_at_a_time(embedder: Embedder) -> ThreadSafeEmbedder:
    """The embedder behind a lock; the same object if it has one already."""
    return embedder if isinstance(embedder, ThreadSafeEmbedder) else ThreadSafeEmbedder(embedder)
