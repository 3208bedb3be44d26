"""The few trajectories of every validation that are kept for people to read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltamem.files import atomic_writer
from deltamem.training.rollout.metrics import RolloutRow
from deltamem.trajectory_record import session_fields


def shown_records(rows: Iterable[RolloutRow]) -> list[dict[str, Any]]:
    """Records of the episodes that were kept, by session and rollout.

    Returns:
        Records like those of ``trajectories.jsonl`` (see `deltamem.trajectory_record`): the session, the episode, its
        ``score``; and ``rollout``, which of the session's rollouts it is, from 0.
    """
    records = []
    for row in rows:
        if (shown := row.facts["shown"]) is not None:
            episode = {name: value for name, value in shown.items() if name != "session"}
            records.append({**session_fields(shown["session"]), "rollout": row.number, **episode, "failure": row.failure})
    return sorted(records, key=lambda record: (record["key"], record["rollout"]))


class ValidationFolder:
    """``validation/step_000018.jsonl`` and so on: the kept trajectories by step, each file whole or not there."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; it is made when there is something to write."""
        self._folder = folder
        self._step: int | None = None
        self._records: list[dict[str, Any]] = []

    def add(self, step: int, records: list[dict[str, Any]]) -> None:
        """Keep the records of a batch of a validation; its batches come one after the other.

        Args:
            step: Training steps done before the validation. What another process wrote for the same step is replaced.
            records: See `shown_records`.
        """
        if step != self._step:
            self._step, self._records = step, []
        self._records += records
        if not self._records:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_writer(self._folder / f"step_{step:06d}.jsonl") as file:
            for record in self._records:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
