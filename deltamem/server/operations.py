"""What is done with an owner's memory, whatever the way in: native routes, MCP, mem0's dialects, routes of plug-ins.

Functions that are not coroutines may read the disk: call them in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import anyio.to_thread
from pydantic import Field, GetJsonSchemaHandler, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import CoreSchema

from deltamem.blank import SEEN
from deltamem.config import StrictModel
from deltamem.edits import Retract, Update, noted
from deltamem.errors import NotFoundError
from deltamem.ingest import Transition
from deltamem.journal.jobs import Job, JobConflictError
from deltamem.manager import MemoryManager
from deltamem.memory import FILTER_WORDS
from deltamem.records import EntryRecord, FoundMemory, OriginRecord, StepRecord, StoredMemory, similarity
from deltamem.server.problems import Problem
from deltamem.server.service import Service
from deltamem.sessions import Session, Turn
from deltamem.zones import LocalTime, Zone, iso_time, requested_zone

FILTER = {"$ref": "#/components/schemas/Filter"}
_TEXT = {"type": "string"}
# One type a branch: some clients of MCP cannot read lists of types.
_VALUE = {"anyOf": [*({"type": t} for t in ("string", "number", "boolean", "null")), {"type": "array", "items": _TEXT}]}
_LIST = {"type": "array", "items": _VALUE}
_ORDERED = {"anyOf": [{"type": "number"}, _TEXT]}
_FILTERS = {"type": "array", "minItems": 1, "items": FILTER}
SCHEMAS: dict[str, Any] = {
    "Filter": {
        "title": "Filter",
        "description": "Conditions by key of the metadata, all of which must hold; a value means that the key equals it.",
        "type": "object",
        "properties": {"AND": _FILTERS, "OR": _FILTERS, "NOT": {"anyOf": [FILTER, _FILTERS]}},
        "additionalProperties": {
            "anyOf": [
                _VALUE,
                {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": False,
                    "properties": {
                        **dict.fromkeys(("eq", "ne"), _VALUE),
                        **dict.fromkeys(("in", "nin"), _LIST),
                        **dict.fromkeys(("gt", "gte", "lt", "lte"), _ORDERED),
                        **dict.fromkeys(("contains", "icontains"), _TEXT),
                    },
                },
            ]
        },
    },
}
"""Filters as JSON Schema; `deltamem.filters` reads them."""

METADATA = {
    "type": "object",
    "description": "A flat object; values are texts, numbers, booleans, null or lists of texts.",
    "propertyNames": {"minLength": 1, "not": {"enum": list(FILTER_WORDS)}},
    "additionalProperties": _VALUE,
}


def _time(value: object) -> datetime:
    if not isinstance(value, str):
        raise ValueError("a time is an ISO 8601 text")
    try:
        return iso_time(value)
    except ValueError:
        raise ValueError("this is no ISO 8601 time such as 2026-03-02T09:00") from None


def whole(value: object) -> object:
    """5.0 is an integer in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Time = Annotated[datetime, PlainValidator(_time), WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time in a request. Its offset is kept; without one it is the person's wall clock, see `deltamem.zones`."""
Metadata = Annotated[dict[str, str | int | float | bool | list[str] | None], WithJsonSchema(METADATA)]
Filters = Annotated[dict[str, Any], WithJsonSchema(FILTER)]
Text = Annotated[str, Field(min_length=1, max_length=100_000)]
MemoryText = Annotated[Text, Field(json_schema_extra={"pattern": SEEN})]
# What is blank, empty included, is refused where it would be searched for, for all ways in alike.
QueryText = Annotated[str, Field(max_length=100_000, json_schema_extra={"minLength": 1, "pattern": SEEN})]
PointText = Annotated[str, Field(min_length=1, max_length=256, description="A session id, @N or an ISO 8601 time.")]


class RequestModel(StrictModel):
    """What somebody sends; null stands for what is left out, wherever something may be left out."""

    @model_validator(mode="before")
    @classmethod
    def _left_out(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in given.items() if value is not None or name not in optional}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        described = handler(schema)
        fields = handler.resolve_ref_schema(described)
        for name in fields["properties"].keys() - fields.get("required", ()):
            field = fields["properties"][name]
            kinds = field.pop("anyOf", None)
            if kinds is None:
                kinds = [{key: field.pop(key) for key in list(field) if key not in ("title", "description", "default")}]
            field["anyOf"] = [*(kind for kind in kinds if kind != _NULL), _NULL]
        return described


_NULL = {"type": "null"}


class MemoriesOut(StrictModel):
    """A page of memories."""

    memories: list[StoredMemory]
    next: str | None = Field(description="The `cursor` of the next page; null on the last one.")


class StepsOut(StrictModel):
    """The history of a memory, oldest first."""

    steps: list[StepRecord]


async def add_session(
    service: Service,
    manager: MemoryManager,
    session_id: str,
    time: datetime | None,
    turns: Sequence[Turn],
    metadata: Mapping[str, object] | None,
    *,
    wait: float,
    person: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[Session, Transition | Job, Zone | None]:
    """Let the model read a session, and wait some seconds for it; its id is applied once.

    Without a time it took place now, or when the session did that came before by this id.

    Returns:
        The session; what it did, or the job if the model has not read it yet or had before; and the zone by which it took
        place now, None if it did not.

    Raises:
        Problem: 503 without a model.
        JobConflictError: If the id stands for another session.
    """
    begin, zone, when = None, None, time
    if time is None:
        begin, zone = await local_now(manager, headers)
    attempts = 1 if begin is None else 2
    for attempt in range(attempts):
        if begin is not None:
            when = await anyio.to_thread.run_sync(manager.journal.session_time, session_id) or begin
        assert when is not None
        session = Session(
            manager.owner, person or manager.person_name, when, tuple(turns), session_id, noted(metadata or {})
        )
        try:
            return session, await service.ingest(session, wait=wait), zone if when is begin else None
        except JobConflictError:
            # Two without a time may come at once, a second apart; the other one's time is known now.
            if attempt == attempts - 1:
                raise
    raise AssertionError


async def local_now(manager: MemoryManager, headers: Mapping[str, str] | None) -> LocalTime:
    """The owner's present time; the headers of the request may name the zone."""
    return await anyio.to_thread.run_sync(manager.owned.now, requested_zone(headers))


async def search(
    service: Service, manager: MemoryManager, queries: Sequence[str], k: int, filters: Mapping[str, Any] | None
) -> list[list[FoundMemory]]:
    """The memories most similar to each query."""
    found = await manager.search_many(queries, k, filters)
    uuids = await service.present_uuids(manager)
    # What was taken back between the two looks has no UUID any more.
    return [
        [
            FoundMemory.of(hit.memory, uuid=uuids[hit.memory.id], similarity=similarity(hit))
            for hit in hits
            if hit.memory.id in uuids
        ]
        for hits in found
    ]


def page(
    service: Service,
    manager: MemoryManager,
    filters: Mapping[str, Any] | None = None,
    at: str | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> MemoriesOut:
    """The memories in the order of their ids, now or as they were at a point, page by page or all."""
    point = None if at is None else manager.journal.point(at)
    found = manager.memories(filters, point=point, after=cursor, limit=None if limit is None else limit + 1)
    uuids = service.uuids(manager, point)
    memories = [StoredMemory.of(memory, uuid=uuids[memory.id]) for memory in found[:limit] if memory.id in uuids]
    return MemoriesOut(memories=memories, next=found[limit - 1].id if limit is not None and len(found) > limit else None)


def stored(service: Service, manager: MemoryManager, id_or_uuid: str, at: str | None = None) -> StoredMemory:
    """One memory, now or as it was at a point.

    Raises:
        NotFoundError: If it is not there then.
    """
    point = None if at is None else manager.journal.point(at)
    found = manager.state(point).get(manager.journal.memory_id(id_or_uuid))
    uuid = None if found is None else service.uuids(manager, point).get(found.id)
    if found is None or uuid is None:
        raise NotFoundError(f"there is no memory {id_or_uuid!r} now; see its history")
    return StoredMemory.of(found, uuid=uuid)


def history(manager: MemoryManager, id_or_uuid: str) -> StepsOut:
    """Everything that happened to a memory, what was taken back included."""
    return StepsOut(steps=[StepRecord.of(step) for step in manager.history(id_or_uuid)])


def origins(manager: MemoryManager, id_or_uuid: str) -> list[OriginRecord]:
    """The sessions with their turns, and the edits, that a memory comes from."""
    return [OriginRecord.of(origin) for origin in manager.blame(id_or_uuid)]


async def update(
    manager: MemoryManager,
    id_or_uuid: str,
    text: str | None,
    time: datetime | None,
    metadata: Mapping[str, object] | None,
    actor: str,
) -> EntryRecord:
    """Rewrite a memory without a model.

    Raises:
        Problem: 422 if nothing is given.
    """
    if text is None and time is None and metadata is None:
        raise Problem(422, "nothing to change: give text, time or metadata")
    return EntryRecord.of(await manager.write([Update(id_or_uuid, text, time, metadata)], actor))


async def delete(service: Service, manager: MemoryManager, id_or_uuid: str, actor: str, *, erase: bool) -> EntryRecord:
    """Take a memory back, or erase it for good with its history and the turns it came from."""
    if erase:
        return EntryRecord.of(await service.forget(manager, id_or_uuid))
    return EntryRecord.of(await manager.write([Retract(id_or_uuid)], actor))


async def rollback(manager: MemoryManager, to: str) -> EntryRecord:
    """Restore the memories as they were at a point; later sessions count as not given. Can itself be rolled back."""
    position = await anyio.to_thread.run_sync(lambda: manager.journal.resolve(manager.journal.point(to)))
    return EntryRecord.of(await manager.rollback(position))
