"""Retrieval scores of one question, from the ranks at which its evidence was found."""

from __future__ import annotations

from collections.abc import Sequence


def recall_at(ranks: Sequence[int | None], k: int) -> float:
    """Share of the evidence that is among the first k passages.

    Args:
        ranks: Rank from 1 of each piece of evidence; None where it was not found.
        k: How many passages count, at least 1.

    Raises:
        ValueError: If there is no evidence, whose recall means nothing, or if a number is below 1.
    """
    _check(ranks)
    if k < 1:
        raise ValueError(f"recall at {k}; k is at least 1")
    return sum(rank is not None and rank <= k for rank in ranks) / len(ranks)


def reciprocal_rank(ranks: Sequence[int | None]) -> float:
    """One over the best rank of any piece of evidence; 0 if none was found.

    Args:
        ranks: As for `recall_at`.

    Raises:
        ValueError: If there is no evidence, or if a rank is below 1.
    """
    _check(ranks)
    found = [rank for rank in ranks if rank is not None]
    return 1 / min(found) if found else 0.0


def _check(ranks: Sequence[int | None]) -> None:
    if not ranks:
        raise ValueError("a question without evidence has no retrieval score; leave it out")
    if any(rank is not None and rank < 1 for rank in ranks):
        raise ValueError(f"ranks count from 1, got {list(ranks)}")
