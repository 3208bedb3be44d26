"""The JSON forms of what the command tells about memories. Times are ISO 8601."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from deltamem.history import HistoryStep, Origin
from deltamem.journal.records import Change
from deltamem.memory import Memory
from deltamem.transition import Transition


def memory_record(memory: Memory) -> dict[str, Any]:
    """A memory."""
    return {"id": memory.id, "time": memory.time.isoformat(), "text": memory.text}


def memory_records(memories: Iterable[Memory]) -> list[dict[str, Any]]:
    """Several memories."""
    return [memory_record(memory) for memory in memories]


def change_record(change: Change) -> dict[str, Any]:
    """What happened to one memory."""
    return {
        "event": str(change.event),
        "id": change.memory_id,
        "before": change.before and change.before.text,
        "after": change.after and change.after.text,
        "turns": list(change.turns),
        "erased": change.erased,
    }


def step_record(step: HistoryStep) -> dict[str, Any]:
    """One step of a memory's history."""
    entry = step.entry
    return change_record(step.change) | {
        "position": entry.position,
        "kind": str(entry.kind),
        "recorded_at": entry.recorded_at.isoformat(),
        "session_id": entry.session_id,
        "session_time": entry.session_time and entry.session_time.isoformat(),
        "model": entry.model,
        "restored": entry.restored,
        "undone": entry.undone,
    }


def origin_record(origin: Origin) -> dict[str, Any]:
    """One step by which a memory got its text, with the turns that it comes from."""
    return asdict(origin) | {"event": str(origin.event), "session_time": origin.session_time.isoformat()}


def transition_record(transition: Transition) -> dict[str, Any]:
    """What a session did."""
    return {
        "session": transition.session_id,
        "time": transition.time.isoformat(),
        "outcome": str(transition.outcome),
        "position": transition.position,
        "changes": [change_record(change) for change in transition.changes],
        "violations": dict(transition.violations),
        "notes": list(transition.notes),
        "parts": transition.parts,
        "usage": asdict(transition.usage),
        "seconds": round(transition.seconds, 3),
    }
