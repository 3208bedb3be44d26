"""Exact search over a snapshot, and an overlay of changes over another bank."""

import numpy as np
import pytest
from bank_cases import check_ranking, ids, lettered, move, next_texts, oracle, snapshot_of, state_of, vectors_of
from hypothesis import given
from hypothesis import strategies as st

from deltamem.bank.base import OverlayBank, SnapshotBank, best_rows, merge_hits

AXES = np.eye(4, dtype=np.float32)


def test_vectors_must_match_the_state() -> None:
    with pytest.raises(ValueError, match="1 vectors for 2 memories"):
        SnapshotBank("p1", state_of({1: "x", 2: "y"}), AXES[:1])


def test_two_queries_merge_to_memories_in_the_order_found() -> None:
    bank = SnapshotBank("p1", state_of({1: "x", 2: "y", 3: "z"}), AXES[:3])
    merged = merge_hits(bank.search(np.array([[0.6, 0.8, 0, 0], [0, 0.6, 0.8, 0]], dtype=np.float32), 2))
    assert [memory.id for memory in merged] == ["m2", "m1", "m3"]


@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 14), st.integers(0, 2**32 - 1))
def test_ties_keep_the_order_of_the_state(memories: int, queries: int, k: int, seed: int) -> None:
    # Small integers make ties common and float32 products exact.
    random = np.random.default_rng(seed)
    rows = random.integers(-2, 3, size=(memories, 3)).astype(np.float32)
    asked = random.integers(-2, 3, size=(queries, 3)).astype(np.float32)
    bank = SnapshotBank("p1", state_of(dict.fromkeys(range(1, memories + 1), "x")), rows)
    expected = [
        [f"m{i + 1}" for i in sorted(range(memories), key=lambda i, q=query: (-float(q @ rows[i]), i))[:k]]
        for query in asked
    ]
    assert ids(bank.search(asked, k)) == expected


@given(st.integers(0, 6000), st.integers(0, 7000), st.integers(1, 2000), st.integers(0, 2**32 - 1))
def test_selecting_before_sorting_gives_what_sorting_gives(rows: int, k: int, values: int, seed: int) -> None:
    similarity = np.random.default_rng(seed).integers(0, values, rows).astype(np.float32)
    np.testing.assert_array_equal(best_rows(similarity, k), np.argsort(-similarity, kind="stable")[:k])


QUERIES = vectors_of([f"{letter} query" for letter in "abcdefgh"])


def test_many_overlays_share_a_base_that_stays_as_it_is() -> None:
    base = snapshot_of(state_of(lettered(range(1, 60))))
    before = base.search(QUERIES, 10)
    overlays = [OverlayBank(base) for _ in range(5)]
    for number, overlay in enumerate(overlays):
        texts = lettered(range(1 + 7 * number, 60)) | {100: f"a only in {number}", 50: f"c changed in {number}"}
        move(overlay, texts, number + 1)
    for number, overlay in enumerate(overlays):
        assert ids(overlay.search(QUERIES, 10)) == oracle(overlay.state, QUERIES, 10)
        assert overlay.position == number + 1
    assert base.search(QUERIES, 10) == before
    assert base.position == 0


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_overlay_and_snapshot_agree_with_plain_sorting_after_any_updates(seed: int, k: int) -> None:
    random = np.random.default_rng(seed)
    texts = lettered(range(1, int(random.integers(1, 30))))
    base = snapshot_of(state_of(texts))
    snapshot, overlay = snapshot_of(state_of(texts)), OverlayBank(base)
    for step in range(1, 9):
        texts = next_texts(random, texts, step * 10)
        for bank in (snapshot, overlay):
            move(bank, texts, step)
            check_ranking(bank.search(QUERIES, k), state_of(texts), QUERIES, k)
            np.testing.assert_array_equal(bank.vectors(list(bank.state)), vectors_of(list(texts.values())))
