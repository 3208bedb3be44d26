"""One line of ``trajectories.jsonl``: a session, its target, what the policy did and how that scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from deltamem.rollout import Rollout
from deltamem.sessions import LabelledSession
from deltamem.trajectory_record import session_fields, trajectory_fields
from rewards.total import TotalScore


def to_record(labelled: LabelledSession, rollout: Rollout, score: TotalScore, counts: Mapping[str, int]) -> dict[str, Any]:
    """Put one evaluated session into plain JSON types.

    Returns:
        The fields of `deltamem.trajectory_record`; ``score`` with its parts, matched pairs and unmatched entries;
        ``counts`` of `rewards.diagnostics`; ``failure``, ``tokens``, ``seconds``.
    """
    return {
        **session_fields(labelled),
        **trajectory_fields(rollout.trajectory),
        "score": asdict(score),
        "counts": dict(counts),
        "failure": rollout.trajectory.failure,
        "tokens": rollout.tokens,
        "seconds": round(rollout.seconds, 3),
    }
