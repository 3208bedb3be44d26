"""One line of ``trajectories.jsonl``: a session, its target, what the policy did and how that scored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from deltamem.memory import Operation
from deltamem.rollout import Rollout
from deltamem.sessions import LabelledSession, to_json_line
from rewards.total import TotalScore


def to_record(labelled: LabelledSession, rollout: Rollout, score: TotalScore, counts: Mapping[str, int]) -> dict[str, Any]:
    """Put one evaluated session into plain JSON types.

    Returns:
        ``key, person_id, person_name, time, dialogue, prior_state, target_operations`` as in ``sessions.jsonl``;
        ``turns`` (the conversation after the opening messages), ``queries`` and ``retrieved_ids`` for each search,
        ``operations`` (null if the outputs could not be read), ``violations``, ``failure``, ``tokens``, ``seconds``;
        ``score`` with its parts, matched pairs and unmatched entries; ``counts`` of `rewards.diagnostics`.
    """
    session = json.loads(to_json_line(labelled))
    trajectory = rollout.trajectory
    return {
        "key": labelled.key,
        **{name: session[name] for name in ("person_id", "person_name", "time", "dialogue", "prior_state")},
        "target_operations": session["operations"],
        "turns": [dict(message) for message in trajectory.messages if message["role"] in ("assistant", "tool")],
        "queries": [list(queries) for queries in trajectory.queries],
        "retrieved_ids": [list(ids) for ids in trajectory.retrieved_ids],
        "operations": None if trajectory.operations is None else _operations(trajectory.operations),
        "score": asdict(score),
        "counts": dict(counts),
        "violations": list(trajectory.violations),
        "failure": trajectory.failure,
        "tokens": rollout.tokens,
        "seconds": round(rollout.seconds, 3),
    }


def _operations(operations: Sequence[Operation]) -> list[dict[str, Any]]:
    return [{"event": op.event, "text": op.text, "target_memory_id": op.target_memory_id} for op in operations]
