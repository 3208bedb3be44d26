"""The JSON records of what the library returns: the command line's ``--json``, the server's responses, MCP's results."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import BeforeValidator, ConfigDict, Field

from deltamem.config import StrictModel
from deltamem.journal.jobs import JobState
from deltamem.journal.records import ChangeEvent, EntryKind
from deltamem.memory import Value
from deltamem.sessions import Session
from deltamem.zones import ZoneSource

if TYPE_CHECKING:  # it brings numpy along, which commands that only read the journal do without
    from deltamem.bank.base import Hit


def _iso(time: object) -> object:
    return time.isoformat() if isinstance(time, datetime) else time


IsoTime = Annotated[
    str,
    BeforeValidator(_iso),
    Field(description="ISO 8601, as it was given; without an offset if it was given without one."),
]


class JsonRecord(StrictModel):
    """A record whose fields are, unless said otherwise, attributes of what it is made of."""

    model_config = ConfigDict(from_attributes=True)

    @classmethod
    def of(cls, source: Any, **further: Any) -> Self:
        """The record of an object of the library; `further` are fields that it lacks or that read differently."""
        names = cls.model_fields.keys() - further.keys()
        return cls.model_validate({name: getattr(source, name) for name in names} | further)

    def as_json(self) -> dict[str, Any]:
        """As ``--json`` writes it."""
        return self.model_dump(mode="json")


class ZoneRecord(JsonRecord):
    """The time zone by which something got the present time, because it was given without one."""

    name: str
    source: ZoneSource = Field(
        description="Who named it: the request (X-Timezone), the owner's settings, the setting of the server or command, the"
        " machine's own zone, or nobody (default)."
    )


class MemoryRecord(JsonRecord):
    """A memory."""

    id: str
    time: IsoTime
    text: str
    metadata: dict[str, Value]


class StoredMemory(MemoryRecord):
    """A memory with the UUID that stays with it."""

    uuid: UUID


class FoundMemory(StoredMemory):
    """A memory that a query found."""

    similarity: float


def similarity(hit: Hit) -> float:
    """The similarity of a hit, as records write it."""
    return round(float(hit.similarity), 6)


class ChangeRecord(JsonRecord):
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
    def of(cls, source: Any, **further: Any) -> Self:
        """The record of a `Change`."""
        before, after = source.before, source.after
        sides = {
            "before": before and before.text,
            "after": after and after.text,
            "before_metadata": before and before.metadata,
            "after_metadata": after and after.metadata,
        }
        return super().of(source, id=source.memory_id, **sides, **further)


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
    def of(cls, source: Any, **further: Any) -> Self:
        """The record of a `HistoryStep`."""
        names = cls.model_fields.keys() - ChangeRecord.model_fields.keys()
        return super().of(source.change, **{name: getattr(source.entry, name) for name in names}, **further)


class TurnRecord(JsonRecord):
    """A turn that a memory comes from; role and content are null where they are not stored."""

    number: int
    role: str | None
    content: str | None


class OriginRecord(JsonRecord):
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


class UsageRecord(JsonRecord):
    """What a session cost."""

    calls: int
    cached: int
    prompt_tokens: int
    completion_tokens: int
    searches: int


class TransitionRecord(JsonRecord):
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
    def of(cls, source: Any, **further: Any) -> Self:
        """The record of a `Transition`."""
        return super().of(
            source,
            session=source.session_id,
            outcome=source.outcome.value,
            changes=[ChangeRecord.of(change) for change in source.changes],
            seconds=round(source.seconds, 3),
            **further,
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
        usage=UsageRecord(calls=0, cached=0, prompt_tokens=0, completion_tokens=0, searches=0),
        seconds=0.0,
    )


class JobRecord(JsonRecord):
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


class EntryRecord(JsonRecord):
    """A journal entry that was just written, with the memories that it changed."""

    position: int
    kind: EntryKind
    restored: int | None
    changes: list[ChangeRecord]

    @classmethod
    def of(cls, source: Any, **further: Any) -> Self:
        """The record of an `Entry`, without what it left as it was."""
        changed = [change for change in source.changes if change.event is not ChangeEvent.NONE]
        return super().of(source, changes=[ChangeRecord.of(change) for change in changed], **further)


class RewrittenRecord(StrictModel):
    """A memory at two points."""

    before: MemoryRecord
    after: MemoryRecord


class DiffRecord(JsonRecord):
    """What changed between two positions of the journal."""

    before: int
    after: int
    added: list[MemoryRecord]
    removed: list[MemoryRecord]
    changed: list[RewrittenRecord]

    @classmethod
    def of(cls, source: Any, **further: Any) -> Self:
        """The record of a `Diff`; the positions are `further`."""
        changed = [{"before": old, "after": new} for old, new in source.changed]
        return super().of(source, changed=changed, **further)


class FindingRecord(JsonRecord):
    """A suspicion about some memories."""

    kind: str
    ids: list[str]
    similarity: float | None
    detail: str


class AuditRecord(JsonRecord):
    """What an audit found."""

    memories: int
    without_source: int = Field(description="Memories whose session is not stored, so that nothing could be checked.")
    findings: list[FindingRecord]
    complete: bool = Field(description="Whether all near duplicates and contradictions are listed; 1,000 at most are.")

    @classmethod
    def of(cls, source: Any, **further: Any) -> Self:
        """The record of an `Audit`."""
        findings = [FindingRecord.of(one, ids=one.memory_ids, kind=str(one.kind)) for one in source.findings]
        return super().of(source, findings=findings, **further)


class ErasureRecord(JsonRecord):
    """How much was erased of an owner."""

    entries: int
    memories: int
    dialogues: int
