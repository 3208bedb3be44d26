"""Embeddings for rollouts: one ray actor owns the model, agent loops await vectors from it.

No agent loop computes an embedding itself: that would block its event loop, and with it all other rollouts of the worker.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np
import ray

from deltamem.embedding import Vectors, load_embedder

_MAX_TEXTS = 50_000
"""Vectors that a worker keeps (about 75 MB at 384 dimensions); the actor keeps ten times as many."""


class EmbeddingServer:
    """Owns an embedding model; runs as a ray actor, one call at a time."""

    def __init__(self, name: str, device: str, batch_size: int, threads: int) -> None:
        """Load the model.

        Raises:
            EmbedderUnavailableError: If the model cannot be loaded.
        """
        import torch

        torch.set_num_threads(threads)
        self._embedder = load_embedder(name, device=device, batch_size=batch_size)

    def documents(self, texts: list[str]) -> Vectors:
        """Embed memory texts; returns float32 of shape ``(len(texts), dim)``."""
        return self._embedder.documents(texts)

    def queries(self, texts: list[str]) -> Vectors:
        """Embed search queries; returns float32 of shape ``(len(texts), dim)``."""
        return self._embedder.queries(texts)


class TextVectors:
    """Vectors by text, awaited once and remembered.

    What arrives while one call is under way waits and forms the next call, so a step of GRPO makes a few calls, not one a
    rollout.
    """

    def __init__(self, embed: Callable[[list[str]], Awaitable[Vectors]], *, max_texts: int = _MAX_TEXTS) -> None:
        """Wrap a call.

        Args:
            embed: Embeds distinct texts.
            max_texts: The oldest vectors are dropped above this number.
        """
        self._embed = embed
        self._max_texts = max_texts
        self._known: dict[str, Vectors] = {}
        self._waiting: dict[str, None] = {}
        self._lock = asyncio.Lock()

    async def get(self, texts: Sequence[str]) -> dict[str, Vectors]:
        """The vector of every text, each of shape ``(dim,)``."""
        missing = [text for text in texts if text not in self._known]
        if missing:
            self._waiting.update(dict.fromkeys(missing))
            async with self._lock:
                await self._fetch()
        return {text: self._known[text] for text in texts}

    async def _fetch(self) -> None:
        batch = [text for text in self._waiting if text not in self._known]
        self._waiting.clear()
        if not batch:
            return
        for text in list(self._known)[: max(0, len(self._known) + len(batch) - self._max_texts)]:
            del self._known[text]
        self._known.update(zip(batch, await self._embed(batch), strict=True))


class EmbeddingClient:
    """What an agent loop asks for vectors."""

    def __init__(self, *, documents: TextVectors, queries: TextVectors) -> None:
        """Use two sources, because some models embed queries with an instruction."""
        self._documents = documents
        self._queries = queries

    async def documents(self, texts: Sequence[str]) -> Mapping[str, Vectors]:
        """Vectors of memory texts, by text."""
        return await self._documents.get(texts)

    async def queries(self, texts: Sequence[str]) -> Vectors:
        """Vectors of search queries, shape ``(len(texts), dim)``."""
        found = await self._queries.get(texts)
        return np.stack([found[text] for text in texts])


def connect(name: str, *, device: str, batch_size: int, threads: int) -> EmbeddingClient:
    """Find the actor of a model, or start it; needs a ray instance.

    Args:
        name: Model, see `deltamem.embedding.load_embedder`.
        device: Torch device of the actor; "cuda" reserves a small share of a GPU.
        batch_size: Texts a forward pass.
        threads: Torch threads of the actor.
    """
    actor = (
        ray.remote(EmbeddingServer)
        .options(
            name=f"deltamem_embedding_{hashlib.sha256(name.encode()).hexdigest()[:8]}",
            get_if_exists=True,
            num_cpus=0,
            num_gpus=0.01 if device.startswith("cuda") else 0,
        )
        .remote(name, device, batch_size, threads)
    )

    async def documents(texts: list[str]) -> Vectors:
        return np.asarray(await actor.documents.remote(texts))

    async def queries(texts: list[str]) -> Vectors:
        return np.asarray(await actor.queries.remote(texts))

    return EmbeddingClient(documents=TextVectors(documents), queries=TextVectors(queries))


class Lookup:
    """The synchronous `embed` that a scorer is given: every text was awaited before."""

    def __init__(self, vectors: Mapping[str, Vectors]) -> None:
        """Wrap vectors by text."""
        self._vectors = vectors

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the texts, shape ``(len(texts), dim)``.

        Raises:
            KeyError: If a text was not awaited.
        """
        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        return np.stack([self._vectors[text] for text in texts])
