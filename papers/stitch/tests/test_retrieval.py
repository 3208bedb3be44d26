"""Ranking against a plain oracle, and the budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.stitch.retrieval import densest, within_budget


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(0, 45), st.randoms(use_true_random=False))
def test_the_ranking_is_that_of_sorting_everything(density: list[int], k: int, random) -> None:  # type: ignore[no-untyped-def]
    vectors = np.array([[random.choice((0.1, 0.5, 0.9)), 0.0] for _ in density], dtype=np.float32).reshape(len(density), 2)
    query = np.array([1, 0], dtype=np.float32)
    among = [row for row in range(len(density)) if random.random() < 0.5]
    for rows, chosen in ((range(len(density)), None), (among, np.array(among, dtype=np.intp))):
        found = densest(np.array(density, dtype=np.int32), vectors, query, k, chosen)
        wanted = sorted(rows, key=lambda row: (-density[row], -float(vectors[row, 0]), row))[:k]
        assert [row for row, _ in found] == wanted
        assert [similarity for _, similarity in found] == pytest.approx([float(vectors[row, 0]) for row in wanted])


def test_the_budget_ends_with_a_whole_sentence() -> None:
    texts = ["One is here. Two is there!", "Three came late? Four never did. Five", "Six."]
    assert within_budget(texts, 100) == texts
    size = len(texts[0]) + 1 + len("Three came late? Four never did.")
    assert within_budget(texts, -(-size // 3)) == [texts[0], "Three came late? Four never did."]
    assert within_budget(texts, (len(texts[0]) + 1 + len("Three came late? F")) // 3) == [texts[0], "Three came late?"]
    assert within_budget(texts[:2], 3) == [] and within_budget(texts, 4) == ["One is here."] and within_budget([], 9) == []


def test_a_text_without_sentences_is_whole_or_not_shown() -> None:
    assert within_budget(["word " * 10], 5) == [] and within_budget(["一。二三"], 2) == ["一。"]


def test_a_sentence_does_not_end_with_an_abbreviation() -> None:
    text = "We met Dr. Marlow at St. Abel, e.g. for tea. Then we left for the long way home."
    whole = "We met Dr. Marlow at St. Abel, e.g. for tea."
    for size in range(len(text) - 1):
        assert within_budget([text], size // 3) in ([], [whole])


def test_a_sentence_that_never_ends_does_not_hide_the_others() -> None:
    giant = "word " * 10_000
    assert within_budget([giant, "One is here.", "Two is."], 100) == ["One is here.", "Two is."]
    assert within_budget(["One is here.", giant, "Two is."], 100) == ["One is here.", "Two is."]
    assert within_budget([giant], 0) == [] and within_budget(["", "One."], 9) == ["", "One."]
