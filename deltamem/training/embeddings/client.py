"""What an agent loop asks for vectors: the store first, then what was asked for before, then the owner of the model.

No agent loop computes an embedding itself: that would block its event loop, and with it all other rollouts of the worker.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np

from deltamem.embedding import Vectors
from deltamem.training.embeddings.store import KINDS, EmbeddingStore, Kind

_MAX_BYTES = 32 * 2**20
"""Vectors of one kind that a worker keeps besides the store's: 8,000 texts at 1,024 dimensions, 22,000 at 384."""

_Batch = asyncio.Future[dict[str, Vectors]]


class TextVectors:
    """Vectors by text, awaited once and remembered.

    What arrives while as many calls are under way as are allowed waits and forms the next call, so a step of GRPO makes a
    few calls, not one a rollout. A call that fails is an exception to those who wait for one of its texts, to nobody else.
    """

    def __init__(
        self,
        embed: Callable[[list[str]], Awaitable[Vectors]],
        *,
        max_bytes: int = _MAX_BYTES,
        max_batch: int = 4_096,
        max_calls: int = 1,
    ) -> None:
        """Wrap a call.

        Args:
            embed: Embeds distinct texts.
            max_bytes: The oldest vectors are dropped above this size; the texts themselves are not counted.
            max_batch: Most texts of one call.
            max_calls: Most calls at a time.
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
        """The vector of every text, each of shape ``(dim,)``.

        Raises:
            Exception: What the call raised that was to bring one of the texts.
        """
        found = {text: self._known[text] for text in texts if text in self._known}
        missing = {text: self._batch_of(text) for text in texts if text not in found}
        if missing:
            if self._working < self._max_calls and self._queue:
                self._working += 1
                task = asyncio.create_task(self._work())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            # Not gather: one who stops waiting must not take the call from the others.
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
        """Make calls while texts wait. A task begins after those who are ready to ask now have asked."""
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
            # Looked at here, because everyone who waited may have gone.
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
        """Use two sources, because some models embed queries with an instruction.

        Args:
            documents: Asked for memory texts that the store does not know.
            queries: Asked for search queries that the store does not know.
            store: Vectors known beforehand.
        """
        self._sources: dict[Kind, TextVectors] = {"documents": documents, "queries": queries}
        self._store = store
        self._hits = dict.fromkeys(KINDS, 0)
        self._asked = dict.fromkeys(KINDS, 0)

    async def documents(self, texts: Sequence[str]) -> Mapping[str, Vectors]:
        """Vectors of memory texts, each of shape ``(dim,)``, by text."""
        return await self._get(texts, "documents")

    async def queries(self, texts: Sequence[str]) -> Vectors:
        """Vectors of search queries, shape ``(len(texts), dim)``."""
        return Lookup(await self._get(texts, "queries"))(texts)

    async def _get(self, texts: Sequence[str], kind: Kind) -> dict[str, Vectors]:
        distinct = list(dict.fromkeys(texts))
        found = self._store.find(distinct, kind) if self._store else {}
        self._asked[kind] += len(distinct)
        self._hits[kind] += len(found)
        rest = [text for text in distinct if text not in found]
        return found | await self._sources[kind].get(rest) if rest else found

    def figures(self) -> dict[str, int]:
        """Counts since the start: texts asked for and found in the store, calls to the owner and the texts they carried."""
        return {
            f"{kind}/{name}": value
            for kind, source in self._sources.items()
            for name, value in (
                ("asked", self._asked[kind]),
                ("in_store", self._hits[kind]),
                ("calls", source.calls),
                ("sent", source.texts),
            )
        }


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
        # Several times as fast as `numpy.stack`.
        return np.concatenate([self._vectors[text] for text in texts]).reshape(len(texts), -1)
