"""How the numbers of a shape, which are given for 25 events, apply to a life of another length; plans and rules share it."""

from __future__ import annotations

from synth.shape import Range

EVENTS = 25
"""The number of events that the numbers of a shape are given for."""


def scaled(counts: Range, count: int) -> Range:
    """A range of counts, for example changes of a track; the lower end is rounded down, the upper end up."""
    return Range(min=scaled_minimum(counts.min, count), max=scaled_maximum(counts.max, count))


def scaled_minimum(minimum: int, count: int) -> int:
    """A least number, for example of events of a domain; rounded down."""
    return minimum * count // EVENTS


def scaled_maximum(maximum: int, count: int) -> int:
    """A largest number, for example by how much operators may differ; rounded up."""
    return -(-maximum * count // EVENTS)


def span_days(years: Range, count: int) -> Range:
    """Days from the first event to the last: `years` are for the 24 steps between 25 events.

    A life of one event has no span. A year counts as 365 days at the lower end and 366 at the upper.
    """
    steps, whole = count - 1, EVENTS - 1
    return Range(min=years.min * 365 * steps // whole, max=-(-years.max * 366 * steps // whole))
