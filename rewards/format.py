"""The format reward: whether the whole episode kept to the protocol (paper, section 3.3.4)."""

from __future__ import annotations

from deltamem.episode import Trajectory


def format_score(trajectory: Trajectory) -> float:
    """Return 1 for an episode that ends in outputs that could be read and has no violation, else 0."""
    return float(trajectory.operations is not None and not trajectory.violations)
