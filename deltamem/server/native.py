"""The native routes, ``/v1/owners/{owner}/...``: everything that a `deltamem.manager.MemoryManager` does, over HTTP."""

from __future__ import annotations

import json
from contextlib import suppress
from io import BytesIO, StringIO
from typing import Annotated, Any, Literal
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator, ConfigDict, Field

from deltamem.config import StrictModel
from deltamem.edits import Add
from deltamem.ingest import Transition
from deltamem.journal.jobs import JobState
from deltamem.records import (
    AuditRecord,
    DiffRecord,
    EntryRecord,
    ErasureRecord,
    FoundMemory,
    JobRecord,
    OriginRecord,
    StoredMemory,
    TransitionRecord,
    ZoneRecord,
    known_session,
)
from deltamem.server import operations
from deltamem.server.access import SECURITY, Admin, Caller, Creating, Importing, Reading, Writing, allow, service_of
from deltamem.server.keys import Scope
from deltamem.server.operations import (
    Filters,
    MemoriesOut,
    MemoryText,
    Metadata,
    PointText,
    QueryText,
    RequestModel,
    StepsOut,
    Time,
    whole,
)
from deltamem.server.problems import Problem, responses
from deltamem.sessions import Turn

PREFIX = "/v1/owners/{owner}"


class TurnIn(RequestModel, strict=True):
    """A turn of a dialogue."""

    role: Literal["user", "assistant"]
    content: Annotated[str, Field(max_length=1_000_000)]


class SessionIn(RequestModel, strict=True):
    """A session."""

    id: Annotated[str, Field(min_length=1, max_length=256, description="Applied once for each owner.")]
    time: Time
    turns: Annotated[list[TurnIn], Field(min_length=1, max_length=10_000)]
    metadata: Metadata = Field({})
    person: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="How memories name the person; by default by the owner's name."
    )
    wait: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False, description="Seconds to wait for the result.")] = 0.0


class AddIn(RequestModel, strict=True):
    """A memory to write."""

    text: MemoryText
    time: Time | None = Field(None, description="By default now, as the person's clock shows it.")
    metadata: Metadata = Field({})


class MemoriesIn(RequestModel, strict=True):
    """Memories to write, as one journal entry."""

    memories: Annotated[list[AddIn], Field(min_length=1, max_length=1000)]


def _given(name: str) -> dict[str, Any]:
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


class UpdateIn(RequestModel, strict=True):
    """What to change of a memory; what is left out or null stays."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [_given("text"), _given("time"), _given("metadata")]})

    text: MemoryText | None = None
    time: Time | None = None
    metadata: Metadata | None = Field(None, description="Replaces all that the memory has.")


class SearchIn(RequestModel, strict=True):
    """A search; each query lists what it finds, so that both numbers bound the answer."""

    queries: Annotated[list[QueryText], Field(min_length=1, max_length=20)]
    k: Annotated[int, Field(ge=1, le=100, description="Memories for each query."), BeforeValidator(whole)] = 5
    filters: Filters | None = None


class RollbackIn(RequestModel, strict=True):
    """Where to go back to."""

    to: PointText


class ListParameters(StrictModel):
    """Which memories to list."""

    at: PointText | None = None
    cursor: Annotated[str, Field(pattern=r"^m(0|[1-9][0-9]{0,17})$", description="`next` of the page before.")] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    filters: Annotated[str, Field(max_length=4000, description="Conditions on the metadata, as JSON.")] | None = None


class JobParameters(StrictModel):
    """Which jobs to list."""

    state: list[JobState] = Field([JobState.QUEUED, JobState.RUNNING, JobState.FAILED])


class EraseParameters(StrictModel):
    """How to delete."""

    mode: Literal["retract", "erase"] = Field(
        "retract", description="`retract` keeps the history and can be taken back; `erase` needs the scope admin."
    )


class AtParameters(StrictModel):
    """When."""

    at: PointText | None = None


class DiffParameters(StrictModel):
    """Between which points."""

    before: PointText
    after: PointText | None = None


class ImportParameters(StrictModel):
    """How to import."""

    rename: bool = Field(False, description="Accept the export of an owner with another name.")


class AddedOut(EntryRecord):
    """The entry that was written, with the memories that it added."""

    memories: list[StoredMemory]
    timezone: ZoneRecord | None = Field(description="Where no time was given; null if all were.")


class JobsOut(StrictModel):
    """Jobs in the order in which they were taken on."""

    jobs: list[JobRecord]


class BlameOut(StrictModel):
    """A memory and where it comes from."""

    memory: StoredMemory
    origins: list[OriginRecord]


class QueryOut(StrictModel):
    """What one query found."""

    query: str
    memories: list[FoundMemory]


class SearchOut(StrictModel):
    """What the queries found, in their order."""

    results: list[QueryOut]


class OwnerOut(StrictModel):
    """How much is known of an owner."""

    owner: str
    memories: int
    position: int = Field(description="The last position of the journal.")
    jobs: dict[JobState, int]
    timezone: str | None = Field(description="The person's time zone; null if none was set.")


class OwnerIn(StrictModel, strict=True):
    """What to set of an owner."""

    timezone: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        description="An IANA name such as Europe/Berlin, by which what comes without a time is dated; null forgets it."
    )


class CountsOut(StrictModel):
    """What an export held."""

    entries: int
    memories: int
    dialogues: int
    plugins: dict[str, int] = Field(description="Lines of plug-ins, by their names.")


class ExportResponse(Response):
    """JSON lines."""

    media_type = "application/x-ndjson"


EXPORT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}, "description": "JSON lines"}
}
IMPORT = {"requestBody": {"required": True, "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}}
MemoryId = Annotated[str, Path(min_length=1, max_length=64, description="An id such as m1, or the memory's UUID.")]


def router() -> APIRouter:
    """The routes; the limits decide how large an import may be."""
    routes = APIRouter(prefix=PREFIX, tags=["memory"], dependencies=SECURITY, responses=responses())
    taken = {202: {"model": JobRecord, "description": "Taken on"}} | responses(409)
    routes.post("/sessions", response_model=TransitionRecord, responses=taken)(add_session)
    routes.get("/jobs")(list_jobs)
    routes.get("/jobs/{job}")(get_job)
    routes.get("/memories")(list_memories)
    routes.post("/memories", status_code=201, responses=responses(409))(add_memories)
    routes.get("/memories/{memory}")(get_memory)
    routes.patch("/memories/{memory}")(update_memory)
    routes.delete("/memories/{memory}")(delete_memory)
    routes.get("/memories/{memory}/history")(memory_history)
    routes.get("/memories/{memory}/blame")(memory_blame)
    routes.post("/search")(search)
    routes.get("/diff")(diff)
    routes.get("/export", response_class=ExportResponse, responses=EXPORT)(export_journal)
    routes.get("/audit")(audit)
    routes.post("/rollback")(rollback)
    routes.post("/import", openapi_extra=IMPORT, responses=responses(409))(import_journal)
    routes.get("")(get_owner)
    routes.patch("")(update_owner)
    routes.delete("")(erase_owner)
    return routes


async def add_session(body: SessionIn, manager: Creating, request: Request) -> TransitionRecord | JSONResponse:
    """Read a session with the model: 200 with what it did, or 202 with the job if that takes longer than `wait`.

    A session id is applied once; the same session may be sent any number of times.
    """
    turns = [Turn(turn.role, turn.content) for turn in body.turns]
    session, result, _ = await operations.add_session(
        service_of(request), manager, body.id, body.time, turns, body.metadata, wait=body.wait, person=body.person
    )
    if isinstance(result, Transition):
        return TransitionRecord.of(result)
    if result.state is JobState.DONE:
        return known_session(session, result.position)
    location = f"/v1/owners/{quote(manager.owner, safe='')}/jobs/{result.id}"
    return JSONResponse(JobRecord.of(result).model_dump(mode="json"), 202, {"Location": location})


def list_jobs(parameters: Annotated[JobParameters, Query()], manager: Reading) -> JobsOut:
    """The sessions that were taken on; by default those that are not applied."""
    return JobsOut(jobs=[JobRecord.of(job) for job in manager.journal.jobs(*parameters.state)])


def get_job(job: Annotated[str, Path(min_length=1, max_length=64)], manager: Reading) -> JobRecord:
    """How far a session is, with the time of the next attempt and the last error."""
    return JobRecord.of(manager.journal.job(job))


def list_memories(parameters: Annotated[ListParameters, Query()], manager: Reading, request: Request) -> MemoriesOut:
    """The memories by id, now or as they were at a point, page by page."""
    filters = None
    if parameters.filters is not None:
        with suppress(ValueError, RecursionError):
            filters = json.loads(parameters.filters)
        if not isinstance(filters, dict):
            raise Problem(422, 'filters: expected a JSON object such as {"topic": "work"}')
    return operations.page(service_of(request), manager, filters, parameters.at, parameters.cursor, parameters.limit)


async def add_memories(body: MemoriesIn, manager: Creating, key: Caller, request: Request) -> AddedOut:
    """Write memories without a model."""
    now, zone = await operations.local_now(manager, request.headers)
    entry = await manager.write([Add(one.text, one.time or now, one.metadata) for one in body.memories], key.name)
    uuids = await anyio.to_thread.run_sync(lambda: service_of(request).uuids(manager, entry.position))
    added = [change.after for change in entry.changes if change.after is not None]
    memories = [StoredMemory.of(memory, uuid=uuids[memory.id]) for memory in added]
    used = None if all(one.time for one in body.memories) else ZoneRecord.of(zone)
    return AddedOut.of(entry, memories=memories, timezone=used)


def get_memory(
    memory: MemoryId, parameters: Annotated[AtParameters, Query()], manager: Reading, request: Request
) -> StoredMemory:
    """One memory, now or as it was at a point."""
    return operations.stored(service_of(request), manager, memory, parameters.at)


async def update_memory(memory: MemoryId, body: UpdateIn, manager: Writing, key: Caller) -> EntryRecord:
    """Rewrite a memory without a model."""
    return await operations.update(manager, memory, body.text, body.time, body.metadata, key.name)


async def delete_memory(
    memory: MemoryId, parameters: Annotated[EraseParameters, Query()], manager: Writing, key: Caller, request: Request
) -> EntryRecord:
    """Take a memory back, or erase it for good with its history and the turns it came from."""
    if parameters.mode == "erase":
        allow(key, Scope.ADMIN)
    return await operations.delete(service_of(request), manager, memory, key.name, erase=parameters.mode == "erase")


def memory_history(memory: MemoryId, manager: Reading) -> StepsOut:
    """Everything that happened to a memory, what was rolled back included."""
    return operations.history(manager, memory)


def memory_blame(memory: MemoryId, manager: Reading, request: Request) -> BlameOut:
    """The sessions with their turns, and the edits, that a memory comes from."""
    origins = operations.origins(manager, memory)
    return BlameOut(memory=operations.stored(service_of(request), manager, memory), origins=origins)


async def search(body: SearchIn, manager: Reading, request: Request) -> SearchOut:
    """The memories most similar to each query."""
    found = await operations.search(service_of(request), manager, body.queries, body.k, body.filters)
    pairs = zip(body.queries, found, strict=True)
    return SearchOut(results=[QueryOut(query=query, memories=memories) for query, memories in pairs])


def diff(parameters: Annotated[DiffParameters, Query()], manager: Reading) -> DiffRecord:
    """What changed between two points, memory by memory."""
    before = manager.journal.resolve(manager.journal.point(parameters.before))
    after = manager.journal.resolve(None if parameters.after is None else manager.journal.point(parameters.after))
    return DiffRecord.of(manager.diff(before, after), before=before, after=after)


def export_journal(manager: Reading) -> ExportResponse:
    """The memories and the whole journal, stored dialogues included, as JSON lines."""
    # Written whole first, so that a slow client does not hold up the journal.
    written = StringIO()
    manager.export(written)
    return ExportResponse(written.getvalue())


async def audit(manager: Reading) -> AuditRecord:
    """Duplicates, contradictions and memories that their sessions do not support. Changes nothing."""
    return AuditRecord.of(await manager.audit())


async def rollback(body: RollbackIn, manager: Writing) -> EntryRecord:
    """Restore the memory as it was at a point; later sessions count as not given. Can itself be rolled back."""
    return await operations.rollback(manager, body.to)


async def import_journal(
    parameters: Annotated[ImportParameters, Query()], manager: Importing, request: Request
) -> CountsOut:
    """Read an export into the empty memory of an owner; as a whole or not at all."""
    written = BytesIO(await request.body())
    return CountsOut(**(await manager.import_from(written, rename=parameters.rename))._asdict())


def get_owner(manager: Reading) -> OwnerOut:
    """How much is known of an owner."""
    journal = manager.journal
    return OwnerOut(
        owner=manager.owner,
        memories=len(manager.state()),
        position=journal.head,
        jobs=journal.job_counts(),
        timezone=journal.timezone,
    )


async def update_owner(body: OwnerIn, manager: Creating) -> OwnerOut:
    """Set the person's time zone. It is no part of the history: no rollback changes it."""
    await manager.set_timezone(body.timezone)
    return await anyio.to_thread.run_sync(get_owner, manager)


async def erase_owner(manager: Admin, request: Request) -> ErasureRecord:
    """Erase everything about an owner for good: memories, history, sessions that wait. Keys to it stay as they are."""
    return ErasureRecord.of(await service_of(request).forget_owner(manager))
