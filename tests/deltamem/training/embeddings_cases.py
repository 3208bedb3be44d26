"""A free embedder whose vectors tell the text and the kind, for the tests of store, owner and stage."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from deltamem.embedding import Vectors

DIM = 6


def vector_of(text: str, kind: str = "documents") -> Vectors:
    digest = hashlib.sha256(f"{kind}/{text}".encode()).digest()
    return np.frombuffer(digest[:DIM], dtype=np.uint8).astype(np.float32) / 255


class DigestEmbedder:
    """Remembers its calls; `before` may raise in a call."""

    def __init__(self, before: Callable[[list[str]], None] = lambda texts: None, name: str = "digest") -> None:
        self.name = name
        self.calls: list[list[str]] = []
        self._before = before

    def documents(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, "documents")

    def queries(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, "queries")

    def _embed(self, texts: Sequence[str], kind: str) -> Vectors:
        self._before(list(texts))
        self.calls.append(list(texts))
        return np.stack([vector_of(text, kind) for text in texts])
