"""The bootstrap by group, and Wilson's interval."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.metrics import bootstrap_interval, wilson_interval

observations = st.lists(st.tuples(st.floats(0, 1), st.sampled_from("abcd")), min_size=1, max_size=30)


@given(observations, st.integers(0, 5))
def test_estimate_is_the_mean_and_the_interval_is_reproducible(rows: list[tuple[float, str]], seed: int) -> None:
    values, groups = zip(*rows, strict=True)
    interval = bootstrap_interval(values, groups, resamples=50, seed=seed)
    assert interval is not None
    assert interval.estimate == pytest.approx(np.mean(values))
    assert min(values) - 1e-9 <= interval.low <= interval.high <= max(values) + 1e-9
    assert (interval.count, interval.groups) == (len(values), len(set(groups)))
    assert interval == bootstrap_interval(values, groups, resamples=50, seed=seed)


@given(observations)
def test_denominators_of_one_are_the_mean(rows: list[tuple[float, str]]) -> None:
    values, groups = zip(*rows, strict=True)
    assert bootstrap_interval(values, groups, denominators=[1] * len(values), resamples=20) == bootstrap_interval(
        values, groups, resamples=20
    )


def test_ratio_of_sums() -> None:
    interval = bootstrap_interval([1, 0, 3], ["a", "a", "b"], denominators=[2, 0, 4])
    assert interval is not None
    assert interval.estimate == pytest.approx(4 / 6)
    assert (interval.low, interval.high) == pytest.approx((0.5, 0.75))


def test_equal_groups_leave_nothing_uncertain() -> None:
    interval = bootstrap_interval([0.0, 1.0] * 10, [number // 2 for number in range(20)])
    assert interval is not None
    assert (interval.low, interval.high) == (0.5, 0.5)


def test_correlation_inside_groups_widens_the_interval() -> None:
    values = [float(number // 10 % 2) for number in range(200)]
    together = bootstrap_interval(values, [number // 10 for number in range(200)])
    alone = bootstrap_interval(values, range(200))
    assert together is not None
    assert alone is not None
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        means = random.normal(0.0, 1.0, size=40)
        values = (means[:, None] + random.normal(0.0, 1.0, size=(40, 5))).ravel()
        interval = bootstrap_interval(values, np.repeat(np.arange(40), 5).tolist(), resamples=300, seed=trial)
        assert interval is not None
        covered += interval.low <= 0 <= interval.high
    assert 0.88 <= covered / 200 <= 0.99


def test_draws_without_denominator_are_left_out() -> None:
    interval = bootstrap_interval([1.0, 0.0], ["a", "b"], denominators=[2, 0])
    assert interval is not None
    assert (interval.low, interval.high) == (0.5, 0.5)


def test_nothing_to_count_is_none_and_unequal_lengths_are_refused() -> None:
    assert bootstrap_interval([], []) is None
    assert bootstrap_interval([0.0], ["a"], denominators=[0]) is None
    with pytest.raises(ValueError, match="1 values, 2 groups"):
        bootstrap_interval([1.0], ["a", "b"])


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        # Worked examples of Newcombe (1998, Statistics in Medicine 17, table I).
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        # By hand with z = 1.96: the share is the centre.
        (5, 10, 0.2366, 0.7634),
        (20, 20, 0.8389, 1.0),
    ],
)
def test_wilson_agrees_with_published_values(successes: int, count: int, low: float, high: float) -> None:
    interval = wilson_interval(successes, count)
    assert interval is not None
    assert interval.estimate == successes / count
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)
    assert (interval.count, interval.groups) == (count, count)


def test_wilson_of_nothing_is_none_and_impossible_counts_are_refused() -> None:
    assert wilson_interval(0, 0) is None
    for successes, count in ((3, 2), (-1, 2), (1, 0)):
        with pytest.raises(ValueError):
            wilson_interval(successes, count)
