"""Exact search over a state."""

from datetime import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.bank.snapshot import SnapshotBank
from deltamem.embedding import Vectors
from deltamem.memory import Memory, MemoryState

TIME = datetime(2026, 4, 5)
AXES = np.eye(4, dtype=np.float32)


class LetterEmbedder:
    """Counts the letters a to d, so that similarity can be worked out by hand."""

    name = "letters"

    def documents(self, texts) -> Vectors:
        counts = np.array([[text.count(letter) for letter in "abcd"] for text in texts], dtype=np.float32).reshape(-1, 4)
        return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1)

    queries = documents


def state_of(*texts: str) -> MemoryState:
    return MemoryState(Memory(f"m{number}", text, TIME) for number, text in enumerate(texts, start=1))


def found(bank: SnapshotBank, queries: Vectors, k: int) -> list[str]:
    return [memory.id for memory in bank.search(queries, k)]


def test_ranks_by_similarity_and_merges_what_two_queries_find() -> None:
    bank = SnapshotBank.build("p1", state_of("aab", "abb", "c"), LetterEmbedder())
    assert [memory.id for memory in bank.search_texts(["a"], 2, LetterEmbedder())] == ["m1", "m2"]
    assert [memory.id for memory in bank.search_texts(["b", "a", "c"], 2, LetterEmbedder())] == ["m2", "m1", "m3"]
    assert bank.search_texts(["a"], 1, LetterEmbedder()) == [Memory("m1", "aab", TIME)]


def test_equal_similarity_keeps_the_order_of_the_state() -> None:
    bank = SnapshotBank("p1", state_of("x", "y", "z"), np.stack([AXES[0]] * 3))
    assert found(bank, AXES[:1], 2) == ["m1", "m2"]


def test_nothing_to_search_or_to_ask() -> None:
    empty = SnapshotBank.build("p1", MemoryState(), LetterEmbedder())
    assert empty.search(AXES[:1], 5) == []
    bank = SnapshotBank("p1", state_of("x"), AXES[:1])
    assert bank.search(np.zeros((0, 4), dtype=np.float32), 5) == []
    assert found(bank, AXES[:1], 99) == ["m1"]


def test_vectors_must_match_the_state() -> None:
    with pytest.raises(ValueError, match="1 vectors for 2 memories"):
        SnapshotBank("p1", state_of("x", "y"), AXES[:1])


@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_agrees_with_a_plain_sort(memories: int, queries: int, k: int, seed: int) -> None:
    # Small integers make ties common and float32 products exact.
    random = np.random.default_rng(seed)
    rows = random.integers(-2, 3, size=(memories, 3)).astype(np.float32)
    asked = random.integers(-2, 3, size=(queries, 3)).astype(np.float32)
    expected: list[str] = []
    for query in asked:
        ranked = sorted(range(memories), key=lambda i: (-float(query @ rows[i]), i))[:k]
        expected += [f"m{i + 1}" for i in ranked if f"m{i + 1}" not in expected]
    assert found(SnapshotBank("p1", state_of(*"x" * memories), rows), asked, k) == expected
