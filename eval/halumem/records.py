"""One line of ``points.jsonl``: a memory point, or a memory that the system extracted, and what a judge says about it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from eval.halumem.lines import MemorySource, MemoryType
from eval.results.records import Found, Verdict

PointKind = Literal["integrity", "accuracy", "update"]


class PointRecord(BaseModel):
    """One memory point of the benchmark, or one extracted memory.

    Every point has exactly one record, of kind ``update`` or ``integrity`` (PROTOCOLS 2.5, routing); every extracted memory
    has one of kind ``accuracy``.

    Attributes:
        key: Unique in the run: user, session and position, for example ``<uuid>/S4/p7``; ``m`` for extracted memories.
        kind: Which judge it is for.
        user: Whose it is; what is resampled together.
        session: Number of the session, from 0.
        text: The point, or the extracted memory.
        memory_type: Of a point.
        source: Of a point; ``interference`` must not be remembered.
        importance: Of a point.
        is_update: Whether the point replaces older ones.
        searched: Whether the memory was searched for the point.
        retrieved: What was found, best first.
        turns: Ids of the turns that a searched point comes from; empty if none could be told.
        rank: Rank from 1 of the first passage that holds a searched point; None if none does, or if ranks mean nothing.
        search_seconds: Wall time of the search.
        verdict: None if no judge was asked: offline, or a system that extracts nothing.
        notes: What is unusual about the record.
        error: Why the memory could not be searched or the session not be taken in.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    kind: PointKind
    user: str
    session: int
    text: str
    memory_type: MemoryType | None = None
    source: MemorySource | None = None
    importance: float | None = None
    is_update: bool = False
    searched: bool = False
    retrieved: tuple[Found, ...] = ()
    turns: tuple[str, ...] = ()
    rank: int | None = None
    search_seconds: float = 0.0
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing failed, so that a later run need not judge it again; True also for what no judge was asked."""
        return self.error is None and (self.verdict is None or self.verdict.error is None)
