"""The JSON records of what the library returns, one place for the command's ``--json`` and the server's responses."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from deltamem.config import StrictModel
from deltamem.journal.jobs import Job, JobState
from deltamem.journal.records import Change, ChangeEvent, Entry, EntryKind, Erasure, HistoryStep, Origin, SourceTurn
from deltamem.llm import Usage
from deltamem.memory import Diff, Memory, Metadata, Value
from deltamem.sessions import Session

if TYPE_CHECKING:  # they bring numpy along, which commands that only read the journal do without
    from deltamem.audit import Audit, Finding
    from deltamem.bank.base import Hit
    from deltamem.ingest import Transition

IsoTime = Annotated[str, Field(description="ISO 8601, as it was given; without an offset if it was given without one.")]


def iso(time: datetime | None) -> str | None:
    """A time as records write it."""
    return None if time is None else time.isoformat()


def plain(metadata: Metadata | None) -> dict[str, Value]:
    """Metadata as a dictionary."""
    return dict(metadata or {})


class MemoryRecord(StrictModel):
    """A memory."""

    id: str
    time: IsoTime
    text: str
    metadata: dict[str, Value]

    @classmethod
    def of(cls, memory: Memory) -> MemoryRecord:
        """The record of a memory."""
        return cls(id=memory.id, time=memory.time.isoformat(), text=memory.text, metadata=plain(memory.metadata))


class StoredMemory(MemoryRecord):
    """A memory with the UUID that stays with it."""

    uuid: UUID

    @classmethod
    def stored(cls, memory: Memory, uuid: UUID) -> StoredMemory:
        """The record of a memory."""
        return cls(**MemoryRecord.of(memory).model_dump(), uuid=uuid)


class FoundMemory(StoredMemory):
    """A memory that a query found."""

    similarity: float

    @classmethod
    def found(cls, hit: Hit, uuid: UUID) -> FoundMemory:
        """The record of a hit."""
        return cls(**MemoryRecord.of(hit.memory).model_dump(), uuid=uuid, similarity=similarity(hit))


def similarity(hit: Hit) -> float:
    """The similarity of a hit, as records write it."""
    return round(float(hit.similarity), 6)


class ChangeRecord(StrictModel):
    """What happened to one memory."""

    event: ChangeEvent
    id: str
    before: str | None
    after: str | None
    before_metadata: dict[str, Value] | None
    after_metadata: dict[str, Value] | None
    turns: list[int] = Field(description="Numbers of the session's turns that the text comes from, from 1.")
    erased: bool

    @classmethod
    def of(cls, change: Change) -> ChangeRecord:
        """The record of a change."""
        return cls(**_change(change))


def _change(change: Change) -> dict[str, Any]:
    before, after = change.before, change.after
    return {
        "event": change.event,
        "id": change.memory_id,
        "before": before and before.text,
        "after": after and after.text,
        "before_metadata": None if before is None else plain(before.metadata),
        "after_metadata": None if after is None else plain(after.metadata),
        "turns": list(change.turns),
        "erased": change.erased,
    }


class StepRecord(ChangeRecord):
    """One step of a memory's history."""

    position: int
    kind: EntryKind
    recorded_at: IsoTime
    session_id: str | None
    session_time: IsoTime | None
    model: str | None
    actor: str | None
    restored: int | None
    undone: bool

    @classmethod
    def step(cls, step: HistoryStep) -> StepRecord:
        """The record of a step."""
        entry = step.entry
        return cls(
            **_change(step.change),
            position=entry.position,
            kind=entry.kind,
            recorded_at=entry.recorded_at.isoformat(),
            session_id=entry.session_id,
            session_time=iso(entry.session_time),
            model=entry.model,
            actor=entry.actor,
            restored=entry.restored,
            undone=entry.undone,
        )


class TurnRecord(StrictModel):
    """A turn that a memory comes from; role and content are null where they are not stored."""

    number: int
    role: str | None
    content: str | None

    @classmethod
    def of(cls, turn: SourceTurn) -> TurnRecord:
        """The record of a turn."""
        return cls(number=turn.number, role=turn.role, content=turn.content)


class OriginRecord(StrictModel):
    """One step by which a memory got its text, with the turns that it comes from."""

    event: ChangeEvent
    text: str
    metadata: dict[str, Value]
    position: int
    session_id: str | None
    session_time: IsoTime | None
    model: str | None
    actor: str | None
    recorded_at: IsoTime
    turns: list[TurnRecord]

    @classmethod
    def of(cls, origin: Origin) -> OriginRecord:
        """The record of an origin."""
        return cls(
            event=origin.event,
            text=origin.text,
            metadata=plain(origin.metadata),
            position=origin.position,
            session_id=origin.session_id,
            session_time=iso(origin.session_time),
            model=origin.model,
            actor=origin.actor,
            recorded_at=origin.recorded_at.isoformat(),
            turns=[TurnRecord.of(turn) for turn in origin.turns],
        )


class UsageRecord(StrictModel):
    """What a session cost."""

    calls: int
    cached: int
    prompt_tokens: int
    completion_tokens: int
    searches: int


class TransitionRecord(StrictModel):
    """What a session did."""

    session: str
    time: IsoTime
    outcome: Literal["applied", "known", "unreadable"]
    position: int | None
    changes: list[ChangeRecord]
    violations: dict[str, int]
    notes: list[str]
    parts: int
    usage: UsageRecord
    seconds: float

    @classmethod
    def of(cls, transition: Transition) -> TransitionRecord:
        """The record of a transition."""
        return cls(
            session=transition.session_id,
            time=transition.time.isoformat(),
            outcome=transition.outcome.value,
            position=transition.position,
            changes=[ChangeRecord.of(change) for change in transition.changes],
            violations=dict(transition.violations),
            notes=list(transition.notes),
            parts=transition.parts,
            usage=UsageRecord(**dict(transition.usage)),
            seconds=round(transition.seconds, 3),
        )


def known_session(session: Session, position: int | None) -> TransitionRecord:
    """The record of a session that was applied before."""
    return TransitionRecord(
        session=session.id,
        time=session.time.isoformat(),
        outcome="known",
        position=position,
        changes=[],
        violations={},
        notes=[],
        parts=1,
        usage=UsageRecord(**dict(Usage())),
        seconds=0.0,
    )


class JobRecord(StrictModel):
    """A session that was taken on, and how far it is."""

    id: str
    owner: str
    session_id: str
    state: JobState
    attempts: int
    created_at: IsoTime
    updated_at: IsoTime
    retry_at: IsoTime | None = Field(description="Not begun again before.")
    last_error: str | None
    position: int | None = Field(description="The session's journal entry, once it is applied.")

    @classmethod
    def of(cls, job: Job) -> JobRecord:
        """The record of a job."""
        times = {name: iso(getattr(job, name)) for name in ("created_at", "updated_at", "retry_at")}
        return cls(**asdict(job) | times)


class EntryRecord(StrictModel):
    """A journal entry that was just written, with the memories that it changed."""

    position: int
    kind: EntryKind
    restored: int | None
    changes: list[ChangeRecord]

    @classmethod
    def of(cls, entry: Entry) -> EntryRecord:
        """The record of an entry, without what it left as it was."""
        changed = [change for change in entry.changes if change.event is not ChangeEvent.NONE]
        changes = [ChangeRecord.of(change) for change in changed]
        return cls(position=entry.position, kind=entry.kind, restored=entry.restored, changes=changes)


class RewrittenRecord(StrictModel):
    """A memory at two points."""

    before: MemoryRecord
    after: MemoryRecord


class DiffRecord(StrictModel):
    """What changed between two positions of the journal."""

    before: int
    after: int
    added: list[MemoryRecord]
    removed: list[MemoryRecord]
    changed: list[RewrittenRecord]

    @classmethod
    def of(cls, before: int, after: int, diff: Diff) -> DiffRecord:
        """The record of a difference."""
        changed = [RewrittenRecord(before=MemoryRecord.of(old), after=MemoryRecord.of(new)) for old, new in diff.changed]
        added, removed = ([MemoryRecord.of(memory) for memory in side] for side in (diff.added, diff.removed))
        return cls(before=before, after=after, added=added, removed=removed, changed=changed)


class FindingRecord(StrictModel):
    """A suspicion about some memories."""

    kind: str
    ids: list[str]
    similarity: float | None
    detail: str

    @classmethod
    def of(cls, finding: Finding) -> FindingRecord:
        """The record of a finding."""
        ids = list(finding.memory_ids)
        return cls(kind=str(finding.kind), ids=ids, similarity=finding.similarity, detail=finding.detail)


class AuditRecord(StrictModel):
    """What an audit found."""

    memories: int
    without_source: int = Field(description="Memories whose session is not stored, so that nothing could be checked.")
    findings: list[FindingRecord]
    complete: bool = Field(description="Whether all near duplicates and contradictions are listed; 1,000 at most are.")

    @classmethod
    def of(cls, audit: Audit) -> AuditRecord:
        """The record of an audit."""
        findings = [FindingRecord.of(finding) for finding in audit.findings]
        return cls(memories=audit.memories, without_source=audit.without_source, findings=findings, complete=audit.complete)


class ErasureRecord(StrictModel):
    """How much was erased of an owner."""

    entries: int
    memories: int
    dialogues: int

    @classmethod
    def of(cls, erasure: Erasure) -> ErasureRecord:
        """The record of an erasure."""
        return cls(entries=erasure.entries, memories=erasure.memories, dialogues=erasure.dialogues)
