"""Searching stores for one query: timed, and one that fails does not lose the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from deltamem.errors import EmbedderUnavailableError, reason_of
from eval.systems.protocol import Memory, Passage, SystemUnavailableError


class Searched(NamedTuple):
    """What a query found.

    Attributes:
        passages: Of each store, best first; empty if the search failed.
        seconds: Wall time, all stores together.
        error: Why it failed.
    """

    passages: list[list[Passage]]
    seconds: float
    error: str | None


async def search_stores(memories: Sequence[Memory], query: str, k: int, slots: asyncio.Semaphore) -> Searched:
    """Search all stores at the same time.

    Args:
        memories: The stores.
        query: What is searched for.
        k: Passages from each store.
        slots: Bounds the searches of a run.

    Raises:
        SystemUnavailableError: If the system cannot search at all.
        EmbedderUnavailableError: If the embedder cannot be loaded.
    """
    async with slots:
        started = time.perf_counter()
        try:
            found = await asyncio.gather(*(memory.search(query, k) for memory in memories))
        except (SystemUnavailableError, EmbedderUnavailableError):
            raise
        except Exception as error:  # one broken search must not lose the other questions
            return Searched([], 0.0, f"search: {reason_of(error)}")
        return Searched(list(found), round(time.perf_counter() - started, 4), None)
