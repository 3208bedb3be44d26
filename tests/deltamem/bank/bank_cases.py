"""States, vectors and an oracle for the tests of memory banks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from lazy import Lazy

from deltamem.bank.base import Hit, MemoryBank, SnapshotBank
from deltamem.embedding import Vectors
from deltamem.memory import Memory, MemoryState

chroma = Lazy("deltamem.bank.chroma")

TIME = datetime(2026, 4, 5)
DIM = 24


class HashEmbedder:
    """A unit vector for every text, always the same; keeps what it embeds."""

    def __init__(self, name: str = "hash") -> None:
        self.name = name
        self.embedded: list[str] = []

    def documents(self, texts: Sequence[str]) -> Vectors:
        self.embedded += texts
        return vectors_of(texts)

    queries = documents


def vectors_of(texts: Sequence[str]) -> Vectors:
    """Texts share a component with those that begin with the same letter, so that there are clusters."""
    return np.stack([_vector_of(text) for text in texts]) if texts else np.zeros((0, DIM), dtype=np.float32)


@cache
def _vector_of(text: str) -> Vectors:
    row = np.random.default_rng(ord(text[0])).normal(size=DIM)
    row += 0.7 * np.random.default_rng(list(text.encode())).normal(size=DIM)
    return (row / np.linalg.norm(row)).astype(np.float32)


def state_of(texts: Mapping[int, str]) -> MemoryState:
    return MemoryState(Memory(f"m{number}", texts[number], TIME) for number in sorted(texts))


def lettered(numbers: Sequence[int]) -> dict[int, str]:
    return {number: f"{'abcdefgh'[number % 8]} {number}" for number in numbers}


def snapshot_of(state: MemoryState, owner: str = "p1") -> SnapshotBank:
    return SnapshotBank(owner, state, vectors_of([memory.text for memory in state.memories]))


def open_bank(
    index: chroma.ChromaIndex,
    owner: str,
    state: MemoryState,
    position: int = 1,
    *changed: str,
    embedder: Any = None,
    progress: Callable[[int, int], None] | None = None,
    **numbers: int,
) -> chroma.ChromaBank:
    """The owner's bank; `changed` are the memories that changed since the index was written, the numbers are the index's."""
    for name, number in numbers.items():
        setattr(index, name, number)
    journal = SimpleNamespace(name=owner, head=position, state=lambda: state, changed_since=lambda _: frozenset(changed))
    return index.bank(journal, embedder or HashEmbedder(), progress)


def needed(bank: MemoryBank, state: MemoryState) -> dict[str, Vectors]:
    """The vectors that an update to `state` needs."""
    before = bank.state
    memories = [m for m in state.memories if m.id not in before or before[m.id].text != m.text]
    return dict(zip([m.id for m in memories], vectors_of([m.text for m in memories]), strict=True))


def move(bank: MemoryBank, texts: Mapping[int, str], position: int) -> None:
    state = state_of(texts)
    bank.update(state, needed(bank, state), position)


def oracle(state: MemoryState, queries: Vectors, k: int) -> list[list[str]]:
    """Plain sorting by exact similarity."""
    similarity = queries @ vectors_of([memory.text for memory in state.memories]).T
    ids = list(state)
    return [[ids[i] for i in sorted(range(len(ids)), key=lambda i: (-float(row[i]), i))[:k]] for row in similarity]


def check_ranking(
    rankings: Sequence[Sequence[Hit]], state: MemoryState, queries: Vectors, k: int, may_miss: int = 0
) -> None:
    """The rankings are those of the oracle; similarities that differ by rounding only may stand in either order.

    HNSW may miss a memory, even among few: rows that were rewritten can become unreachable in its graph. `may_miss` says
    how many of a query's best may be absent; whatever is found must still be in order and the best of the rest.
    """
    place = {memory_id: number for number, memory_id in enumerate(state)}
    similarity = queries @ vectors_of([memory.text for memory in state.memories]).T
    for found, best, row in zip(ids(rankings), oracle(state, queries, k + may_miss), similarity, strict=True):
        assert len(found) == len(set(found)) == min(k, len(state))
        missed = [memory_id for memory_id in best[:k] if memory_id not in found][:may_miss]
        expected = [memory_id for memory_id in best if memory_id not in missed][: len(found)]
        for one, other in zip(found, expected, strict=True):
            assert one == other or abs(row[place[one]] - row[place[other]]) < 1e-6, (found, expected)


def ids(rankings: Sequence[Sequence[Hit]]) -> list[list[str]]:
    return [[hit.memory.id for hit in ranking] for ranking in rankings]


def next_texts(random: np.random.Generator, texts: dict[int, str], step: int) -> dict[int, str]:
    """Remove, rewrite and add some memories."""
    texts = {number: text for number, text in texts.items() if random.random() > 0.15}
    for number in texts:
        if random.random() < 0.15:
            texts[number] = f"{random.choice(list('abcdefgh'))} rewritten {step} {number}"
    top = 10 * (step + 1)
    return texts | {top + i: f"{random.choice(list('abcdefgh'))} {top + i}" for i in range(random.integers(0, 6))}
