"""95% intervals of shares and means: a bootstrap of whole groups, Wilson's where that has no width; and how to show them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np

RESAMPLES = 2000
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval."""

    estimate: float  # The ratio of sums over all values; the mean where no denominators were given
    low: float
    high: float
    count: int  # How many values there are
    groups: int  # How many groups were resampled; the interval of a single group has no width and says nothing
    failed: int = 0  # How many of the values count as 0, at least in part, because judge or machinery failed

    def as_dict(self) -> dict[str, float | int]:
        """The fields, for JSON."""
        return asdict(self)

    def bounds(self) -> dict[str, float]:
        """``estimate``, ``low`` and ``high`` alone."""
        return {"estimate": self.estimate, "low": self.low, "high": self.high}


def bootstrap_interval(
    values: Sequence[float],
    groups: Sequence[Hashable],
    *,
    denominators: Sequence[float] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """95% percentile bootstrap by group.

    Whole groups are drawn with replacement, as many as there are, and the statistic ``sum(values) / sum(denominators)`` is
    taken over all values of the draw; the interval is the central part of those statistics.

    `denominators` are what each value is counted out of, for ratios such as hits out of relevant items; 1 each if None.
    Draws whose denominators sum to zero are left out. The same input and `seed` give the same interval.

    Returns:
        The interval, or None if there is nothing to take a ratio of.

    Raises:
        ValueError: If the sequences differ in length.
    """
    counts = [1.0] * len(values) if denominators is None else denominators
    total = float(np.sum(counts))
    if total <= 0:
        return None
    positions = {group: position for position, group in enumerate(dict.fromkeys(groups))}
    member_of = np.array([positions[group] for group in groups])
    sums = np.bincount(member_of, weights=np.asarray(values, dtype=np.float64))
    sizes = np.bincount(member_of, weights=np.asarray(counts, dtype=np.float64))
    draws = np.random.default_rng(seed).integers(len(positions), size=(resamples, len(positions)))
    drawn_sizes = sizes[draws].sum(axis=1)
    usable = drawn_sizes > 0
    statistics = sums[draws].sum(axis=1)[usable] / drawn_sizes[usable]
    low, high = np.quantile(statistics, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(float(np.sum(values)) / total, float(low), float(high), len(values), len(positions))


def with_width(interval: Interval) -> Interval:
    """The interval itself; Wilson's over the number of groups if all values are 0, or all are 1.

    No draw of such groups differs from another, so a bootstrap says 100 to 100 of two conversations as of two hundred. In
    Wilson's each group counts as one trial, which is as wide as independent groups make it.
    """
    if not interval.low == interval.high == interval.estimate or interval.estimate not in (0.0, 1.0):
        return interval
    bounds = wilson_interval(interval.groups if interval.estimate else 0, interval.groups)
    return interval if bounds is None else replace(interval, low=bounds.low, high=bounds.high)


@lru_cache(maxsize=4096)  # scipy works out a p-value besides, which took a fifth of the time of a small run
def wilson_interval(successes: int, count: int) -> Interval | None:
    """95% score interval of a share (Wilson 1927), for independent trials; None if there were none.

    It has width even at 0 and at 1.

    Raises:
        ValueError: If there are more successes than trials, or fewer than none.
    """
    if successes == count == 0:
        return None
    from scipy.stats import binomtest  # takes most of a second to import

    bounds = binomtest(successes, count).proportion_ci(confidence_level=_LEVEL, method="wilson")
    return Interval(successes / count, float(bounds.low), float(bounds.high), count, count)


def group_interval(
    values: Sequence[float],
    groups: Sequence[Hashable],
    weights: Sequence[float] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """The 95% interval of a mean, or of a ratio of sums if there are `weights`, as runs report it.

    It is a bootstrap of groups (conversations, users, personas), with width (`with_width`). Where all values are of one
    group it is Wilson's for values that are 0 or 1, and a bootstrap of the values for others: it then says nothing of other
    groups.
    """
    if len(set(groups)) == 1:
        if set(values) <= {0.0, 1.0} and (weights is None or set(weights) == {1.0}):
            return wilson_interval(round(sum(values)), len(values))
        groups = range(len(values))
    interval = bootstrap_interval(values, groups, denominators=weights, resamples=resamples, seed=seed)
    return None if interval is None else with_width(interval)


def interval_text(interval: Mapping[str, float] | None) -> str:
    """``0.512 [0.480, 0.544]``; a hyphen for None."""
    return "-" if interval is None else "{estimate:.3f} [{low:.3f}, {high:.3f}]".format_map(interval)


def percent_text(interval: Mapping[str, float] | None, digits: int = 1, *, unit: str = "", brackets: bool = False) -> str:
    """``51.2 (48.0-54.4)`` with the unit behind the first, or ``51.2 [48.0, 54.4]`` with brackets; a hyphen for None."""
    if interval is None:
        return "-"
    estimate, low, high = (f"{100 * interval[name]:.{digits}f}" for name in ("estimate", "low", "high"))
    return f"{estimate}{unit} [{low}, {high}]" if brackets else f"{estimate}{unit} ({low}-{high})"
