"""Pass@k and Pass^k against hand-computed values and against all draws of k trials."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.metrics import pass_at_k, pass_hat_k

trials = st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


def test_three_trials() -> None:
    assert [pass_at_k(3, 1, k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert [pass_hat_k(3, 1, k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 0.0, 0.0])
    assert [pass_at_k(3, 2, k) for k in (1, 2, 3)] == pytest.approx([2 / 3, 1.0, 1.0])
    assert [pass_hat_k(3, 2, k) for k in (1, 2, 3)] == pytest.approx([2 / 3, 1 / 3, 0.0])
    assert pass_at_k(3, 0, 3) == pass_hat_k(3, 0, 1) == 0.0
    assert pass_at_k(3, 3, 1) == pass_hat_k(3, 3, 3) == 1.0


@given(trials)
def test_is_the_share_of_all_draws(case: tuple[int, int, int]) -> None:
    n, c, k = case
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(all(draw) for draw in draws) / len(draws))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4), (0, 0, 1)])
def test_numbers_that_do_not_fit_are_refused(n: int, c: int, k: int) -> None:
    for score in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="trials passed"):
            score(n, c, k)
