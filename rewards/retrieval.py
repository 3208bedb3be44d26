"""The retrieval reward: whether the memories that the session concerns were looked up (paper, section 3.3.4)."""

from __future__ import annotations

from collections.abc import Sequence

from deltamem.episode import Trajectory
from deltamem.memory import Operation


def needed_ids(target: Sequence[Operation]) -> frozenset[str]:
    """Ids of the prior memories that the target rewrites or repeats.

    The paper says "update and add"; an ADD has no prior memory, so this is read as UPDATE and NONE.
    """
    return frozenset(op.target_memory_id for op in target if op.target_memory_id is not None)


def retrieval_score(trajectory: Trajectory, target: Sequence[Operation]) -> float:
    """Return 1 if some search returned each needed memory (or none is needed), else 0."""
    return float(needed_ids(target) <= trajectory.seen_ids)
