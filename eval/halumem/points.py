"""Which record each memory point and each extracted memory of a session gets (PROTOCOLS 2.5, routing)."""

from __future__ import annotations

from collections.abc import Sequence

from eval.halumem.loader import HalumemSession, MemoryPoint
from eval.halumem.records import PointRecord
from eval.results.records import IngestRecord, Verdict

NOTHING_EXTRACTED = Verdict(label="0", reason="The session left no memory; no judge was asked.")
"""Of a point of a session without memories: it is absent, which is what is wished of an interference."""


def point_record(user: str, session: HalumemSession, point: MemoryPoint) -> PointRecord:
    """The record of a point before anything was searched for or judged.

    It becomes one of an update when the memory finds something for it (see `routed`).
    """
    return PointRecord(
        key=point.key,
        kind="integrity",
        user=user,
        session=session.number,
        text=point.text,
        memory_type=point.type,
        source=point.source,
        importance=point.importance,
        is_update=point.is_update,
    )


def routed(record: PointRecord) -> PointRecord:
    """Give a point to the judge of updates if it is one and something was found; else it stays with extraction.

    So updates do not count in the recall of extraction, and an update for which the memory is empty does not count among the
    updates.
    """
    return record.model_copy(update={"kind": "update" if record.is_update and record.retrieved else "integrity"})


def failed(record: PointRecord, reason: str | None) -> PointRecord:
    """The record of a point that could not be searched for: an update, as a search hardly ever finds nothing."""
    return record.model_copy(update={"kind": "update", "error": reason})


def memory_records(user: str, session: HalumemSession, memories: Sequence[str]) -> list[PointRecord]:
    """One record for each memory that the system extracted from a session."""
    return [
        PointRecord(
            key=f"{user}/{session.dialogue.id}/m{position}",
            kind="accuracy",
            user=user,
            session=session.number,
            text=memory,
        )
        for position, memory in enumerate(memories, start=1)
    ]


def extracted(record: IngestRecord) -> tuple[str, ...] | None:
    """What a system took from a session; None for systems that extract nothing, whose extraction is not measured.

    A session that the system's model answered unreadably left no memories, which is the system's doing.
    """
    if record.memories is None and record.outcome == "unreadable":
        return ()
    return record.memories
