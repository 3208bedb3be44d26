"""Retrieval scores by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.metrics import recall_at, reciprocal_rank

some_ranks = st.lists(st.none() | st.integers(1, 30), min_size=1, max_size=6)


def test_recall_counts_the_evidence_up_to_rank_k() -> None:
    ranks = [1, 5, 6, None]
    assert [recall_at(ranks, k) for k in (1, 4, 5, 6, 100)] == [0.25, 0.25, 0.5, 0.75, 0.75]
    assert recall_at([None], 20) == 0.0
    assert recall_at([2, 2], 2) == 1.0  # one passage may hold two pieces of evidence


def test_reciprocal_rank_is_that_of_the_best() -> None:
    assert reciprocal_rank([4, None, 2]) == 0.5
    assert reciprocal_rank([1]) == 1.0
    assert reciprocal_rank([None, None]) == 0.0


@given(some_ranks, st.integers(1, 30), st.integers(0, 10))
def test_recall_grows_with_k(ranks: list[int | None], k: int, more: int) -> None:
    assert 0 <= recall_at(ranks, k) <= recall_at(ranks, k + more) <= 1
    assert (recall_at(ranks, k) > 0) == (reciprocal_rank(ranks) >= 1 / k)


def test_what_has_no_score_is_refused() -> None:
    for call in (lambda: recall_at([], 5), lambda: reciprocal_rank([])):
        with pytest.raises(ValueError, match="without evidence"):
            call()
    with pytest.raises(ValueError, match="ranks count from 1"):
        recall_at([0], 5)
    with pytest.raises(ValueError, match="k is at least 1"):
        recall_at([1], 0)
