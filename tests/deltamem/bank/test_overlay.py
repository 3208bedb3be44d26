"""Changes laid over a bank that others share."""

import numpy as np
from bank_cases import HashEmbedder, check_ranking, ids, lettered, move, next_texts, oracle, state_of, vectors_of
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamem.bank.base import OverlayBank, SnapshotBank

QUERIES = vectors_of([f"{letter} query" for letter in "abcdefgh"])


def test_many_overlays_share_a_base_that_stays_as_it_is() -> None:
    base = SnapshotBank.build("p1", state_of(lettered(range(1, 60))), HashEmbedder())
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


def test_an_overlay_lies_over_an_overlay() -> None:
    lower = OverlayBank(SnapshotBank.build("p1", state_of(lettered(range(1, 30))), HashEmbedder()))
    move(lower, lettered(range(10, 40)), 1)
    upper = OverlayBank(lower)
    move(upper, lettered(range(20, 50)) | {21: "a changed"}, 2)
    assert ids(upper.search(QUERIES, 7)) == oracle(upper.state, QUERIES, 7)
    assert ids(lower.search(QUERIES, 7)) == oracle(state_of(lettered(range(10, 40))), QUERIES, 7)


def test_a_text_that_changes_and_changes_back_is_searched_as_it_stands() -> None:
    bank = OverlayBank(SnapshotBank.build("p1", state_of({1: "a one", 2: "b two"}), HashEmbedder()))
    move(bank, {1: "h other", 2: "b two"}, 1)
    move(bank, {1: "a one", 2: "b two"}, 2)
    assert ids(bank.search(vectors_of(["a one", "h other"]), 2)) == oracle(bank.state, vectors_of(["a one", "h other"]), 2)
    np.testing.assert_array_equal(bank.vectors(["m1"]), vectors_of(["a one"]))


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_overlay_and_snapshot_agree_with_plain_sorting_after_any_updates(seed: int, k: int) -> None:
    random = np.random.default_rng(seed)
    texts = lettered(range(1, int(random.integers(1, 30))))
    base = SnapshotBank.build("p1", state_of(texts), HashEmbedder())
    snapshot, overlay = base.fork(), OverlayBank(base)
    for step in range(1, 9):
        texts = next_texts(random, texts, step * 10)
        for bank in (snapshot, overlay):
            move(bank, texts, step)
            check_ranking(bank.search(QUERIES, k), state_of(texts), QUERIES, k)
            np.testing.assert_array_equal(bank.vectors(list(bank.state)), vectors_of(list(texts.values())))
