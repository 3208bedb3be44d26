"""The one owner of the embedding model on a node: a ray actor that all workers of the node ask for new texts."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import ActorDiedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from deltamem.embedding import Embedder, Vectors, is_endpoint, load_embedder
from deltamem.training.embeddings.client import EmbeddingClient, Lookup, TextVectors
from deltamem.training.embeddings.store import EmbeddingStore, Kind

_OWNER_BYTES = 128 * 2**20
"""Vectors of one kind that the owner keeps: what one worker has asked for, the others may ask for."""

_CALLS = 8
"""Questions of one worker that may be under way: the owner joins them, so a worker need not hold any back."""

_RESTARTS = 3


class BatchedEmbedder:
    """Collects what is asked for while a batch is computed; the next batch is all of it, each text once.

    The model runs in a thread of its own, one batch at a time.
    """

    def __init__(
        self, embedder: Embedder, *, max_bytes: int = _OWNER_BYTES, initializer: Callable[[], None] | None = None
    ) -> None:
        """Wrap an embedder.

        Args:
            embedder: Does the work; needs no cache of its own.
            max_bytes: The oldest vectors of a kind are dropped above this size.
            initializer: Called once in the thread before its first batch.
        """
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder", initializer=initializer)
        self.documents = TextVectors(self._in_thread(embedder.documents), max_bytes=max_bytes)
        self.queries = TextVectors(self._in_thread(embedder.queries), max_bytes=max_bytes)

    def _in_thread(self, embed: Callable[[Sequence[str]], Vectors]) -> Callable[[list[str]], Awaitable[Vectors]]:
        async def call(texts: list[str]) -> Vectors:
            return await asyncio.get_running_loop().run_in_executor(self._thread, embed, texts)

        return call


class EmbeddingOwner:
    """Owns an embedding model; runs as an asynchronous ray actor."""

    def __init__(self, name: str, device: str, batch_size: int, threads: int) -> None:
        """Load the model.

        Raises:
            EmbedderUnavailableError: If the model cannot be loaded.
        """
        # The vectors are remembered by text in front of the embedder, which so needs no memory itself.
        embedder = load_embedder(name, device=device, batch_size=batch_size, max_texts=0)
        self._batched = BatchedEmbedder(embedder, initializer=None if is_endpoint(name) else partial(_use_threads, threads))

    async def documents(self, texts: list[str]) -> Vectors:
        """Embed distinct memory texts; returns float32 of shape ``(len(texts), dim)``."""
        return Lookup(await self._batched.documents.get(texts))(texts)

    async def queries(self, texts: list[str]) -> Vectors:
        """Embed distinct search queries; returns float32 of shape ``(len(texts), dim)``."""
        return Lookup(await self._batched.queries.get(texts))(texts)

    async def figures(self) -> dict[str, int]:
        """Batches computed and texts embedded since the start, by kind."""
        sources = {"documents": self._batched.documents, "queries": self._batched.queries}
        return {
            f"{kind}/{name}": value
            for kind, source in sources.items()
            for name, value in (("batches", source.calls), ("texts", source.texts))
        }


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def connect(name: str, *, device: str, batch_size: int, threads: int, store: str | None = None) -> EmbeddingClient:
    """Find the owner of a model on this node, or start it; needs a ray instance.

    Args:
        name: Model, see `deltamem.embedding.load_embedder`.
        device: Torch device of the owner. "cuda" or "cuda:N" takes memory of that GPU beside verl.
        batch_size: Texts a forward pass, or a request to an endpoint.
        threads: Torch threads of the owner.
        store: Folder with the vectors known beforehand, see `deltamem.training.embeddings.store`.

    Raises:
        DeltaMemError: If there is no finished store of this model in the folder.
    """
    known = EmbeddingStore(Path(store), name) if store is not None else None
    owner = OwnerHandle(partial(find_owner, name, device=device, batch_size=batch_size, threads=threads))
    return EmbeddingClient(
        documents=TextVectors(partial(owner.ask, "documents"), max_calls=_CALLS),
        queries=TextVectors(partial(owner.ask, "queries"), max_calls=_CALLS),
        store=known,
    )


class OwnerHandle:
    """Asks the owner, and finds or starts it anew if it is gone: ray ends an actor with the worker that started it."""

    def __init__(self, find: Callable[[], Any]) -> None:
        """Find the owner; `find` returns its ray handle."""
        self._find = find
        self._owner = find()

    async def ask(self, kind: Kind, texts: list[str]) -> Vectors:
        """Embed distinct texts; returns float32 of shape ``(len(texts), dim)``."""
        try:
            answer = await getattr(self._owner, kind).remote(texts)
        except ActorDiedError:
            self._owner = self._find()
            answer = await getattr(self._owner, kind).remote(texts)
        # A copy: an array out of ray's object store would keep its place there for as long as it is remembered.
        return np.array(answer)


def find_owner(name: str, *, device: str, batch_size: int, threads: int) -> Any:
    """The handle of this node's `EmbeddingOwner`, which is started if there is none; arguments as for `connect`.

    It reserves no GPU: verl's placement groups hold every GPU whole, so the smallest share asked for would never be granted.
    Ray leaves all GPUs of the node visible to an actor that asks for none.
    """
    node = ray.get_runtime_context().get_node_id()
    settings = hashlib.sha256(json.dumps([name, device, batch_size, threads]).encode()).hexdigest()[:8]
    options = {
        "name": f"deltamem_embedding_{settings}_{node}",
        "get_if_exists": True,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        "num_cpus": 0,
        "num_gpus": 0,
        "max_restarts": _RESTARTS,
        "max_task_retries": _RESTARTS,
    }
    return ray.remote(EmbeddingOwner).options(**options).remote(name, device, batch_size, threads)
