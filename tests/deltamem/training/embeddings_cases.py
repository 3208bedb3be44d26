"""A free embedder whose vectors tell the text and the kind, for the tests of store, owner and stage."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from deltamem.embedding import Vectors

DIM = 6


class Interrupted(Exception):
    """The process died."""


def vector_of(text: str, kind: str = "documents") -> Vectors:
    digest = hashlib.sha256(f"{kind}/{text}".encode()).digest()
    return np.frombuffer(digest[:DIM], dtype=np.uint8).astype(np.float32) / 255


class DigestEmbedder:
    """Remembers its calls; `before` may raise in a call, and the process dies in call `dies_in`."""

    def __init__(
        self, before: Callable[[list[str]], object] = lambda texts: None, *, name: str = "digest", dies_in: int | None = None
    ) -> None:
        self.name = name
        self.calls: list[list[str]] = []
        self._before = before
        self._dies_in = dies_in

    def documents(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, "documents")

    def queries(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, "queries")

    def _embed(self, texts: Sequence[str], kind: str) -> Vectors:
        if len(self.calls) == self._dies_in:
            raise Interrupted
        self._before(list(texts))
        self.calls.append(list(texts))
        return np.stack([vector_of(text, kind) for text in texts])
