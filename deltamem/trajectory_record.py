"""A trajectory in plain JSON types: what is written for people to read, by training and by evaluation alike."""

from __future__ import annotations

import json
from typing import Any

from deltamem.episode import Trajectory
from deltamem.sessions import LabelledSession, from_json_line, to_json_line


def session_fields(labelled: LabelledSession | str) -> dict[str, Any]:
    """The session that a trajectory is about.

    Args:
        labelled: The session, or its line of ``sessions.jsonl``.

    Returns:
        ``key``, and ``person_id, person_name, time, dialogue, prior_state, target_operations`` as in ``sessions.jsonl``.
    """
    labelled = from_json_line(labelled) if isinstance(labelled, str) else labelled
    session = json.loads(to_json_line(labelled))
    return {
        "key": labelled.key,
        **{name: session[name] for name in ("person_id", "person_name", "time", "dialogue", "prior_state")},
        "target_operations": session["operations"],
    }


def trajectory_fields(trajectory: Trajectory) -> dict[str, Any]:
    """What the policy did.

    Returns:
        ``turns`` (the conversation after the opening messages), ``queries`` and ``retrieved_ids`` of each search,
        ``operations`` (null if the outputs could not be read) and ``violations``.
    """
    operations = trajectory.operations
    return {
        "turns": [dict(message) for message in trajectory.messages if message["role"] in ("assistant", "tool")],
        "queries": [list(queries) for queries in trajectory.queries],
        "retrieved_ids": [list(ids) for ids in trajectory.retrieved_ids],
        "operations": None
        if operations is None
        else [{"event": op.event, "text": op.text, "target_memory_id": op.target_memory_id} for op in operations],
        "violations": list(trajectory.violations),
    }
