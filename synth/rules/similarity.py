"""Similarity of texts by an embedding model, as rules ask for it."""

from __future__ import annotations

import threading

import numpy as np

from deltamem.embedding import Embedder


class EmbedderSimilarity:
    """Cosine similarities (`synth.rules.base.Similarity`) of an embedder's vectors.

    One call at a time reaches the embedder, since its cache is not made for threads; so calls may come from any thread, for
    example through `asyncio.to_thread`.
    """

    def __init__(self, embedder: Embedder) -> None:
        """Take an embedder; both sides of a comparison are embedded as documents, because neither is a search query."""
        self._embedder = embedder
        self._one_at_a_time = threading.Lock()

    def between(self, texts: list[str], others: list[str]) -> list[list[float]]:
        """A row for each of `texts` with its similarity, -1 to 1, to each of `others`."""
        if not texts or not others:
            return [[] for _ in texts]
        with self._one_at_a_time:
            vectors = self._embedder.documents([*texts, *others])
        # An embedder behind an endpoint need not keep to unit length; a zero vector is similar to nothing.
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
        rows: list[list[float]] = np.clip(unit[: len(texts)] @ unit[len(texts) :].T, -1, 1).tolist()
        return rows
