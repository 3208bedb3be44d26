"""Intervals: cases by hand, published values, and what holds for any input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.intervals import (
    Interval,
    bootstrap_interval,
    group_interval,
    interval_text,
    percent_text,
    wilson_interval,
)

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


def test_ratio_of_sums() -> None:
    interval = bootstrap_interval([1, 0, 3], ["a", "a", "b"], denominators=[2, 0, 4])
    assert interval is not None
    assert interval.estimate == pytest.approx(4 / 6)
    assert (interval.low, interval.high) == pytest.approx((0.5, 0.75))


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
    assert bootstrap_interval([], []) is None and wilson_interval(0, 0) is None
    assert bootstrap_interval([0.0], ["a"], denominators=[0]) is None
    with pytest.raises(ValueError):
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


def test_an_interval_that_collapses_is_as_wide_as_its_groups_make_it() -> None:
    values, groups = [1.0] * 90, [number % 10 for number in range(90)]
    assert bootstrap_interval(values, groups) == Interval(1.0, 1.0, 1.0, 90, 10)
    wide = group_interval(values, groups, resamples=20, seed=0)
    assert wide is not None and (wide.estimate, wide.high, wide.count, wide.groups) == (1.0, 1.0, 90, 10)
    assert wide.low == pytest.approx(0.7225, abs=1e-4)  # Wilson, 10 of 10
    none = group_interval([0.0] * 90, groups, resamples=20, seed=0)
    assert none is not None and (none.low, none.high) == (0.0, pytest.approx(0.2775, abs=1e-4))
    weighted = group_interval([0.5, 0.25], ["a", "b"], [0.5, 0.25], resamples=20, seed=0)
    assert weighted is not None and weighted.low == pytest.approx(0.3424, abs=1e-4)  # Wilson, 2 of 2
    mixed = group_interval([0.5] * 90, groups, resamples=20, seed=0)
    assert mixed is not None and mixed.low == mixed.high == 0.5, "no share of trials"


def test_how_intervals_are_shown() -> None:
    shown = {"estimate": 0.5123, "low": 0.48, "high": 0.5444, "count": 7}
    assert interval_text(shown) == "0.512 [0.480, 0.544]" and interval_text(None) == percent_text(None) == "-"
    assert percent_text(shown) == "51.2 (48.0-54.4)" and percent_text(shown, brackets=True) == "51.2 [48.0, 54.4]"
    assert percent_text(shown, 0, unit="%") == "51% (48-54)"
