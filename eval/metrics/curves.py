"""How accuracy develops while a memory grows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

import numpy as np


@dataclass(frozen=True, slots=True)
class CumulativePoint:
    """One point of the curve.

    Attributes:
        session: Number of the session, from 0.
        mean: Mean over users of their accuracy up to and including the session.
        low: One standard deviation across users below the mean, not below 0.
        high: One standard deviation across users above the mean, not above 1.
        users: How many users have been asked something by then; the others are not in the mean.
    """

    session: int
    mean: float
    low: float
    high: float
    users: int

    def as_dict(self) -> dict[str, float | int]:
        """The fields, for JSON."""
        return asdict(self)


def cumulative_accuracy(
    values: Sequence[Sequence[tuple[int, bool | float]]], *, sessions: int | None = None
) -> list[CumulativePoint]:
    """Average cumulative accuracy by session, as in Figures 4 and 5 of the DeltaMem paper (section 5.3, appendix D.3).

    The accuracy of a user at session s is taken over all questions that were asked up to and including s. The mean gives
    each user the same weight, however many questions they were asked. The spread is the population standard deviation across
    users; the paper shades "variability across these users" and does not say which.

    Args:
        values: For each user the session of each question, from 0, and whether it was answered rightly (or a score from 0
            to 1); in any order.
        sessions: How many sessions are shown, from the first; the paper shows 25. None means all.

    Returns:
        One point for each session from the first at which any user was asked something; a user without questions in a
        session keeps the accuracy that they had.

    Raises:
        ValueError: If a session or a value is out of range.
    """
    users = [user for user in values if user]
    for session, value in (question for user in users for question in user):
        if session < 0 or not 0 <= value <= 1:
            raise ValueError(f"session {session}, value {value}; expected a session from 0 and a value from 0 to 1")
    last = max((session for user in users for session, _ in user), default=-1)
    count = last + 1 if sessions is None else min(sessions, last + 1)
    curves = [_curve(user, count) for user in users]
    points = []
    for session in range(count):
        asked = [accuracy for curve in curves if (accuracy := curve[session]) is not None]
        if asked:
            mean, spread = float(np.mean(asked)), float(np.std(asked))
            points.append(CumulativePoint(session, mean, max(0.0, mean - spread), min(1.0, mean + spread), len(asked)))
    return points


def _curve(questions: Sequence[tuple[int, bool | float]], count: int) -> list[float | None]:
    """A user's accuracy after each session; None before the first question."""
    by_session: dict[int, list[float]] = defaultdict(list)
    for session, value in questions:
        by_session[session].append(float(value))
    sums = accumulate(sum(by_session[session]) for session in range(count))
    asked = accumulate(len(by_session[session]) for session in range(count))
    return [total / number if number else None for total, number in zip(sums, asked, strict=True)]
