"""The one owner of the embedding model on a node, and the client through which agent loops get vectors."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import ActorDiedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from deltamem.embedding import Embedder, Vectors, is_endpoint, load_embedder
from deltamem.training.embedding_store import KINDS, EmbeddingStore, Kind

_OWNER_BYTES = 128 * 2**20  # of vectors of one kind that the owner keeps: other workers may request the same texts
_CALLS = 8  # requests of one worker at a time: the owner batches them, so a worker need not hold any back
_RESTARTS = 3


class BatchedEmbedder:
    """Collects requests while a batch is computed; the next batch is all of them, each text once.

    The model runs in a thread of its own, one batch at a time.
    """

    def __init__(
        self, embedder: Embedder, *, max_bytes: int = _OWNER_BYTES, initializer: Callable[[], None] | None = None
    ) -> None:
        """Wrap an embedder without a cache; `initializer` is called once in the thread before its first batch."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder", initializer=initializer)
        self.documents = TextVectors(partial(self._in_thread, embedder.documents), max_bytes=max_bytes)
        self.queries = TextVectors(partial(self._in_thread, embedder.queries), max_bytes=max_bytes)

    async def _in_thread(self, embed: Callable[[Sequence[str]], Vectors], texts: list[str]) -> Vectors:
        return await asyncio.get_running_loop().run_in_executor(self._thread, embed, texts)


class EmbeddingOwner:
    """Owns an embedding model; runs as an asynchronous ray actor."""

    def __init__(self, name: str, device: str, batch_size: int, threads: int) -> None:
        """Load the model."""
        # `TextVectors` caches by text, so the embedder itself need not.
        embedder = load_embedder(name, device=device, batch_size=batch_size, max_texts=0)
        self._batched = BatchedEmbedder(embedder, initializer=None if is_endpoint(name) else partial(_use_threads, threads))

    async def documents(self, texts: list[str]) -> Vectors:
        """Embed distinct memory texts; returns float32 of shape ``(len(texts), dim)``."""
        return Lookup(await self._batched.documents.get(texts))(texts)

    async def queries(self, texts: list[str]) -> Vectors:
        """Embed distinct search queries; returns float32 of shape ``(len(texts), dim)``."""
        return Lookup(await self._batched.queries.get(texts))(texts)

    async def figures(self) -> dict[str, tuple[int, int]]:
        """Batches computed and texts embedded since the start, by kind."""
        sources: dict[str, TextVectors] = {kind: getattr(self._batched, kind) for kind in KINDS}
        return {kind: (source.calls, source.texts) for kind, source in sources.items()}


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
        store: Folder with the vectors known beforehand, see `deltamem.training.embedding_store`.
    """
    known = EmbeddingStore(Path(store), name) if store is not None else None
    owner = OwnerHandle(partial(find_owner, name, device=device, batch_size=batch_size, threads=threads))
    return EmbeddingClient(
        documents=TextVectors(partial(owner.ask, "documents"), max_calls=_CALLS),
        queries=TextVectors(partial(owner.ask, "queries"), max_calls=_CALLS),
        store=known,
    )


class OwnerHandle:
    """Calls the owner, and finds or restarts it if it is gone: ray ends an actor with the worker that started it."""

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

    It reserves no GPU: verl's placement groups hold every GPU whole, so even the smallest share would never be granted. Ray
    leaves all GPUs of the node visible to an actor that asks for none.
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


_MAX_BYTES = 32 * 2**20
"""Vectors of one kind that a worker keeps besides the store's: 8,000 texts at 1,024 dimensions, 22,000 at 384."""

_Batch = asyncio.Future[dict[str, Vectors]]


class TextVectors:
    """Vectors by text, awaited once and remembered.

    Requests that come while all calls are busy wait and form the next call, so a step of GRPO makes a few calls, not one a
    rollout. A call that fails raises in those who wait for one of its texts, in nobody else.
    """

    def __init__(
        self,
        embed: Callable[[list[str]], Awaitable[Vectors]],
        *,
        max_bytes: int = _MAX_BYTES,
        max_batch: int = 4_096,
        max_calls: int = 1,
    ) -> None:
        """Wrap a call that embeds distinct texts.

        The oldest vectors are dropped above `max_bytes`; there are at most `max_calls` calls of `max_batch` texts at a time.
        """
        self._embed = embed
        self._max_bytes = max_bytes
        self._bytes = 0
        self._max_batch = max_batch
        self._max_calls = max_calls
        self._known: OrderedDict[str, Vectors] = OrderedDict()
        # The call that will bring a text, under way or not.
        self._coming: dict[str, _Batch] = {}
        self._queue: list[tuple[list[str], _Batch]] = []
        self._working = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.calls = 0
        self.texts = 0

    async def get(self, texts: Sequence[str]) -> dict[str, Vectors]:
        """The vector of every text, each of shape ``(dim,)``; raises what the call raised that was to bring one of them."""
        found = {text: self._known[text] for text in texts if text in self._known}
        missing = {text: self._batch_of(text) for text in texts if text not in found}
        if missing:
            if self._working < self._max_calls and self._queue:
                self._working += 1
                task = asyncio.create_task(self._work())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            # Not gather: a waiter that is cancelled must not cancel the call for the others.
            await asyncio.wait(set(missing.values()))
            found |= {text: batch.result()[text] for text, batch in missing.items()}
        return found

    def _batch_of(self, text: str) -> _Batch:
        if text not in self._coming:
            if not self._queue or len(self._queue[-1][0]) >= self._max_batch:
                self._queue.append(([], asyncio.get_running_loop().create_future()))
            texts, batch = self._queue[-1]
            texts.append(text)
            self._coming[text] = batch
        return self._coming[text]

    async def _work(self) -> None:
        """Make calls while texts wait. A task begins after the coroutines that are ready now have made their requests."""
        try:
            while self._queue:
                await self._call(*self._queue.pop(0))
        finally:
            self._working -= 1

    async def _call(self, texts: list[str], batch: _Batch) -> None:
        self.calls += 1
        self.texts += len(texts)
        try:
            fresh = dict(zip(texts, await self._embed(texts), strict=True))
        except Exception as error:
            batch.set_exception(error)
            # Retrieved here, because everyone who waited may have gone.
            batch.exception()
        else:
            batch.set_result(fresh)
            # Every text is in one call only, so none of them is known yet.
            self._known |= fresh
            self._bytes += sum(vector.nbytes for vector in fresh.values())
            while self._bytes > self._max_bytes:
                _, oldest = self._known.popitem(last=False)
                self._bytes -= oldest.nbytes
        finally:
            for text in texts:
                del self._coming[text]
            batch.cancel()


class EmbeddingClient:
    """Vectors of memory texts and queries for the rollouts of one worker."""

    def __init__(self, *, documents: TextVectors, queries: TextVectors, store: EmbeddingStore | None = None) -> None:
        """Use two sources, because some models embed queries with an instruction, for what the store does not hold."""
        self._sources: dict[Kind, TextVectors] = {"documents": documents, "queries": queries}
        self._store = store

    async def documents(self, texts: Sequence[str]) -> Mapping[str, Vectors]:
        """Vectors of memory texts, each of shape ``(dim,)``, by text."""
        return await self._get(texts, "documents")

    async def queries(self, texts: Sequence[str]) -> Vectors:
        """Vectors of search queries, shape ``(len(texts), dim)``."""
        return Lookup(await self._get(texts, "queries"))(texts)

    async def _get(self, texts: Sequence[str], kind: Kind) -> dict[str, Vectors]:
        distinct = list(dict.fromkeys(texts))
        found = self._store.find(distinct, kind) if self._store else {}
        rest = [text for text in distinct if text not in found]
        return found | await self._sources[kind].get(rest) if rest else found


class Lookup:
    """The synchronous `embed` for a scorer, over vectors that were awaited before."""

    def __init__(self, vectors: Mapping[str, Vectors]) -> None:
        """Wrap vectors by text."""
        self._vectors = vectors

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the texts, shape ``(len(texts), dim)``; each must have been awaited."""
        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        # Several times as fast as `numpy.stack`.
        return np.concatenate([self._vectors[text] for text in texts]).reshape(len(texts), -1)
