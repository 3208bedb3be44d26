"""Intervals: by bootstrap, where what belongs together (a conversation's questions) is resampled together; and Wilson's."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval.

    Attributes:
        estimate: The ratio of sums over all values; the mean where no denominators were given.
        low: Lower end of the interval.
        high: Upper end of the interval.
        count: How many values there are.
        groups: How many groups were resampled; the interval of a single group has no width and says nothing.
    """

    estimate: float
    low: float
    high: float
    count: int
    groups: int

    def as_dict(self) -> dict[str, float | int]:
        """The fields, for JSON."""
        return asdict(self)


def bootstrap_interval(
    values: Sequence[float],
    groups: Sequence[Hashable],
    *,
    denominators: Sequence[float] | None = None,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Percentile bootstrap by group.

    Whole groups are drawn with replacement, as many as there are, and the statistic ``sum(values) / sum(denominators)`` is
    taken over all values of the draw; the interval is the central part of those statistics.

    Args:
        values: One number for each observation.
        groups: The group of each observation.
        denominators: What each value is counted out of, for ratios such as hits out of relevant items; 1 each if None.
        level: Share of the resampled statistics inside the interval.
        resamples: Number of draws. Draws whose denominators sum to zero are left out.
        seed: Seed of the draws; the same input and seed give the same interval.

    Returns:
        The interval, or None if there is nothing to take a ratio of.

    Raises:
        ValueError: If the sequences differ in length.
    """
    counts = [1.0] * len(values) if denominators is None else denominators
    if not len(values) == len(groups) == len(counts):
        raise ValueError(f"{len(values)} values, {len(groups)} groups, {len(counts)} denominators")
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
    tail = (1 - level) / 2
    low, high = np.quantile(statistics, [tail, 1 - tail])
    return Interval(float(np.sum(values)) / total, float(low), float(high), len(values), len(positions))


def wilson_interval(successes: int, count: int, *, level: float = 0.95) -> Interval | None:
    """Score interval of a share (Wilson 1927), for independent trials; it has width even at 0 and at 1.

    Args:
        successes: How many of the trials succeeded.
        count: Number of trials.
        level: Confidence level, between 0 and 1.

    Returns:
        The interval, or None if there were no trials.

    Raises:
        ValueError: If there are more successes than trials, or fewer than none.
    """
    if not 0 <= successes <= count:
        raise ValueError(f"{successes} successes in {count} trials")
    if count == 0:
        return None
    share = successes / count
    squared = NormalDist().inv_cdf((1 + level) / 2) ** 2
    centre = (share + squared / (2 * count)) / (1 + squared / count)
    half = sqrt(squared * (share * (1 - share) / count + squared / (4 * count**2))) / (1 + squared / count)
    # At the ends the exact bound is the end itself; the floating-point one may miss it by a rounding.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == count else centre + half
    return Interval(share, low, high, count, count)
