"""mem0's clients, unchanged: the dialect of its platform and that of its self-hosted server.

A user is an owner; ``agent_id``, ``app_id`` and ``run_id`` are metadata; an id is the memory's UUID; an event is a job. What
a client may ask for and this server does not do is refused by its name. Deleting erases, as mem0's users expect, and needs
the scope admin.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

from deltamem.edits import Add, Update
from deltamem.filters import check_queries
from deltamem.ingest import Transition
from deltamem.journal.jobs import JobState
from deltamem.journal.records import ChangeEvent, EntryKind
from deltamem.records import ZoneRecord
from deltamem.server import operations
from deltamem.server.access import SECURITY, Caller, allow
from deltamem.server.keys import Scope
from deltamem.server.problems import Problem, not_found, problem_of
from deltamem.server.routes import Routes
from deltamem.sessions import Turn
from integrations.mem0.access import Access, Located, opened_user, user_of
from integrations.mem0.filters import (
    ENTITIES,
    read_mem0_filter,
    read_time,
    user_name,
    utc,
    with_offset,
)
from integrations.mem0.records import (
    STATES,
    AddMessages,
    BatchDelete,
    BatchUpdate,
    DeleteParameters,
    Entities,
    ListMemories,
    NoParameters,
    PageParameters,
    RewriteMemory,
    SearchMemories,
    event_record,
    memory_record,
    page_record,
    read_fields,
    results_record,
)

LONGEST_WAIT = 120.0
"""Seconds that a client which waits for its session waits at most; mem0's own give up after 300."""
REFUSED = {
    "/v1/exports/{rest:path}": "a memory export with a schema",
    "/v1/summary/": "a summary",
    "/v1/feedback/": "feedback",
    "/v2/entities/{kind}/{name:path}/profile/": "a profile",
    "/v2/profiles/{rest:path}": "a profile",
    "/api/v1/orgs/{rest:path}": "an organization or project",
    "/api/v1/webhooks/{rest:path}": "a webhook",
    "/configure": "configuring the server",
    "/reset": "a reset of everybody's memory",
}
"""What mem0's clients can ask for and there is not, by path."""
Nothing = Annotated[NoParameters, Query()]
MemoryId = Annotated[str, Path(max_length=64)]


class Mem0Route(APIRoute):
    """Answers errors as mem0's clients read them, ``{"detail": ...}``, and what is invalid with 400."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, and around it the errors."""
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await inner(request)
            except Exception as error:
                problem = problem_of(error)
                detail, status = str(problem.detail), problem.status_code
                if isinstance(error, RequestValidationError) and error.errors()[0]["type"] == "extra_forbidden":
                    where = ".".join(str(part) for part in error.errors()[0]["loc"][1:])
                    detail = f"{where} is not supported by this server"
                return JSONResponse({"detail": detail}, 400 if status == 422 else status, problem.headers)

        return handler


class Mem0Routes(Routes):
    """The plug-in."""

    def router(self) -> APIRouter:
        """The routes of both dialects."""
        routes = APIRouter(tags=["mem0"], dependencies=SECURITY, route_class=Mem0Route, include_in_schema=False)
        routes.get("/v1/ping/")(ping)
        routes.post("/v3/memories/add/")(add_memories)
        routes.post("/v3/memories/search/")(search_platform)
        routes.post("/v3/memories/")(list_platform)
        routes.delete("/v1/memories/")(delete_all)
        routes.get("/v1/memories/{memory_id}/")(get_memory)
        routes.put("/v1/memories/{memory_id}/")(update_memory)
        routes.delete("/v1/memories/{memory_id}/")(delete_memory)
        routes.get("/v1/memories/{memory_id}/history/")(memory_history)
        routes.put("/v1/batch/")(batch_update)
        routes.delete("/v1/batch/")(batch_delete)
        routes.get("/v1/event/{event_id}/")(get_event)
        routes.get("/v1/entities/")(list_entities)
        for version in ("v1", "v2"):
            routes.delete(f"/{version}/entities/{{kind}}/{{name:path}}/")(delete_entity)
        routes.post("/memories")(add_and_wait)
        routes.get("/memories")(list_hosted)
        routes.delete("/memories")(delete_all)
        routes.get("/memories/{memory_id}")(get_memory)
        routes.put("/memories/{memory_id}")(update_hosted)
        routes.delete("/memories/{memory_id}")(delete_memory)
        routes.get("/memories/{memory_id}/history")(memory_history)
        routes.post("/search")(search_hosted)
        for path, name in REFUSED.items():
            routes.api_route(path, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])(partial(_refuse, name))
        return routes


async def _refuse(name: str, key: Caller) -> None:
    raise Problem(400, f"{name} is not supported by this server")


def ping(parameters: Nothing, key: Caller) -> dict[str, Any]:
    """Whether the key is good. The client for Python insists on an organization and a project, of which there are none."""
    return {"status": "ok", "org_id": "deltamem", "project_id": "deltamem"}


async def add_memories(body: AddMessages, access: Access, request: Request) -> dict[str, Any]:
    """Take messages on as a session, or write them as they are; the platform's answer is an event."""
    return await _add(body, access, request, wait=LONGEST_WAIT if body.async_mode is False else 0.0)


async def add_and_wait(body: AddMessages, access: Access, request: Request) -> dict[str, Any]:
    """The same, waiting for what comes of it, as the self-hosted server does."""
    return await _add(body, access, request, wait=0.0 if body.async_mode else LONGEST_WAIT)


async def _add(body: AddMessages, access: Access, request: Request, wait: float) -> dict[str, Any]:
    service, entities = access.service, body.named()
    owner = user_of(entities)
    manager = await anyio.to_thread.run_sync(access.writable, owner, Scope.WRITE)
    metadata = _with_entities(body.metadata, entities)
    now, zone = await operations.local_now(manager, request.headers)
    time = None if body.timestamp is None else read_time(body.timestamp, "timestamp", zone)
    used = {"timezone": ZoneRecord.of(zone).as_json()}
    token = request.headers.get("idempotency-key")
    if body.infer is False:
        if token is not None:
            raise Problem(400, "Idempotency-Key is not supported by this server with infer=false")
        edits = [Add(message.content, time or now, metadata) for message in body.messages]
        entry = await manager.write(edits, access.key.name)
        results = await anyio.to_thread.run_sync(lambda: results_record(service, manager, entry.position))
        answer: dict[str, Any] = {"message": "Written as given, without a model", "status": "SUCCEEDED", "results": results}
        return answer | (used if time is None else {})
    if token is not None and not 0 < len(token) <= 256:
        raise Problem(400, "Idempotency-Key must have 1 to 256 characters")
    session_id = token or _derived_id(body, metadata, time or utc(now).replace(minute=0, second=0))
    turns = [Turn(message.role, message.content) for message in body.messages]
    session, result, dated = await operations.add_session(
        service, manager, session_id, time, turns, metadata, wait=wait, headers=request.headers
    )
    # What an answer is made of is the job, which knows its position once the session is applied.
    job = await service.ingest(session) if isinstance(result, Transition) else result
    assert not isinstance(job, Transition)
    event = await anyio.to_thread.run_sync(event_record, service, manager, job)
    answer = {"message": STATES[job.state][1], "status": event["status"], "event_id": event["id"]}
    answer |= {} if dated is None else used
    return answer | ({"results": event["results"]} if wait or job.state is JobState.DONE else {})


def _derived_id(body: AddMessages, metadata: Mapping[str, object], time: datetime) -> str:
    """Of a session that came without a key: the same for the same content at one time, or else in one hour.

    So a request that is sent again is not read twice, and what somebody says again later is.
    """
    turns = [[message.role, message.content] for message in body.messages]
    content = json.dumps([turns, dict(metadata), time.isoformat()], sort_keys=True)
    return f"mem0:{hashlib.sha256(content.encode()).hexdigest()[:40]}"


def _with_entities(metadata: Mapping[str, Any] | None, entities: Mapping[str, Any]) -> dict[str, Any]:
    noted = dict(metadata or {})
    for name in ("user_id", *ENTITIES):
        if name in noted:
            raise Problem(400, f"metadata.{name} is not supported by this server: {name} stands beside the metadata")
    return noted | {name: entities[name] for name in ENTITIES if name in entities}


def get_event(event_id: Annotated[str, Path(max_length=64)], parameters: Nothing, access: Access) -> Any:
    """How far a session is that was added, and what it did."""
    manager, job = access.job(event_id)
    return event_record(access.service, manager, job)


async def search_platform(body: SearchMemories, access: Access) -> dict[str, Any]:
    """The memories most similar to a query."""
    for name in (*body.entities(), *(["limit"] if body.limit is not None else [])):
        raise Problem(400, f"{name} is not supported by this server outside of filters; the number of results is top_k")
    return await _search(body, body.filters or {}, access)


async def search_hosted(body: SearchMemories, access: Access) -> dict[str, Any]:
    """The same in the self-hosted server's dialect, which takes the entities beside the filters."""
    return await _search(body, {"AND": [body.entities(), body.filters or {}]}, access)


async def _search(body: SearchMemories, filters: Mapping[str, object], access: Access) -> dict[str, Any]:
    test = read_mem0_filter(filters)
    fields = read_fields(body.fields)
    if body.top_k is not None and body.limit not in (None, body.top_k):
        raise Problem(400, "limit and top_k mean the same; give one of them")
    top_k = body.top_k or body.limit or 10
    check_queries([body.query])
    records = []
    for manager in await anyio.to_thread.run_sync(access.named, filters):
        matching = {one.memory.id: one for one in await anyio.to_thread.run_sync(access.matching, manager, test)}
        (hits,) = await manager.search_many([body.query], top_k, among=set(matching))
        records += [
            memory_record(matching[hit.memory.id]) | {"score": round(float(hit.similarity), 6)}
            for hit in hits
            if body.threshold is None or hit.similarity >= body.threshold
        ]
    records.sort(key=lambda record: -record["score"])
    return {"results": [{name: record[name] for name in record if name in fields} for record in records[:top_k]]}


async def list_platform(
    body: ListMemories, parameters: Annotated[PageParameters, Query()], access: Access, request: Request
) -> dict[str, Any]:
    """The memories that meet filters, page by page."""
    dates = {"gte": body.start_date, "lte": body.end_date}
    between = {name: date for name, date in dates.items() if date is not None}
    filters = {"AND": [body.filters, {"created_at": between}]} if between else body.filters
    return page_record(request, parameters, await anyio.to_thread.run_sync(_all, access, filters), memory_record)


def list_hosted(parameters: Annotated[Entities, Query()], access: Access) -> dict[str, Any]:
    """All memories of a user, in the self-hosted server's dialect."""
    entities = parameters.entities()
    user_of(entities)
    return {"results": [memory_record(one) for one in _all(access, entities)]}


def _all(access: Access, filters: Mapping[str, object]) -> list[Located]:
    test = read_mem0_filter(filters)
    return [one for manager in access.named(filters) for one in access.matching(manager, test)]


def get_memory(memory_id: MemoryId, parameters: Nothing, access: Access) -> dict[str, Any]:
    """One memory."""
    return memory_record(access.find(memory_id, Scope.READ))


async def update_memory(
    memory_id: MemoryId, body: RewriteMemory, parameters: Nothing, access: Access, request: Request
) -> dict[str, Any]:
    """Rewrite a memory."""
    found = await anyio.to_thread.run_sync(access.find, memory_id, Scope.WRITE)
    await found.manager.write([await _update(found, body, request)], access.key.name)
    return await anyio.to_thread.run_sync(lambda: memory_record(access.find(memory_id, Scope.WRITE)))


async def update_hosted(
    memory_id: MemoryId, body: RewriteMemory, parameters: Nothing, access: Access, request: Request
) -> dict[str, Any]:
    """Rewrite a memory; the self-hosted server answers with a message."""
    await update_memory(memory_id, body, parameters, access, request)
    return {"message": "Memory updated successfully!"}


async def _update(found: Located, body: RewriteMemory, request: Request) -> Update:
    if body.text is None and body.metadata is None and body.timestamp is None:
        raise Problem(400, "nothing to change: give text, metadata or timestamp")
    time = None
    if body.timestamp is not None:
        time = read_time(body.timestamp, "timestamp", (await operations.local_now(found.manager, request.headers)).zone)
    metadata = None if body.metadata is None else _with_entities(body.metadata, {})
    # By the UUID: its short id may have become another memory's since it was looked up.
    return Update(str(found.uuid), body.text, time, metadata, merge=True)


async def delete_memory(
    memory_id: MemoryId, parameters: Annotated[DeleteParameters, Query()], access: Access
) -> dict[str, Any]:
    """Erase a memory for good, with its history and the turns it came from."""
    found = await anyio.to_thread.run_sync(access.find, memory_id, Scope.ADMIN)
    await access.service.forget(found.manager, str(found.uuid))
    return {"message": "Memory deleted successfully!"}


def memory_history(memory_id: MemoryId, parameters: Nothing, access: Access) -> list[dict[str, Any]]:
    """What made a memory what it is, oldest first; what was rolled back is left out."""
    found = access.find(memory_id, Scope.READ)
    turns = {origin.position: origin.turns for origin in found.manager.blame(found.memory.id)}
    return [
        {
            "id": f"{found.uuid}@{entry.position}",
            "memory_id": str(found.uuid),
            "input": [
                {"role": turn.role, "content": turn.content}
                for turn in turns.get(entry.position, ())
                if turn.content is not None
            ],
            "old_memory": change.before and change.before.text,
            "new_memory": change.after and change.after.text,
            "user_id": found.manager.owner,
            "event": change.event.value,
            "metadata": dict(change.after.metadata) if change.after else None,
            "created_at": with_offset(entry.session_time or entry.recorded_at).isoformat(),
            "updated_at": entry.recorded_at.isoformat(),
        }
        for entry, change in found.manager.history(found.memory.id)
        if not entry.undone
        and entry.kind is not EntryKind.ROLLBACK
        and change.event in (ChangeEvent.ADD, ChangeEvent.UPDATE)
    ]


async def batch_update(body: BatchUpdate, parameters: Nothing, access: Access, request: Request) -> dict[str, Any]:
    """Rewrite memories, those of one user all or none. If one is not there, none is written."""
    ids = [one.memory_id for one in body.memories]
    found = await anyio.to_thread.run_sync(lambda: [access.find(one, Scope.WRITE) for one in ids])
    edits: dict[str, list[Update]] = {}
    for one, where in zip(body.memories, found, strict=True):
        edits.setdefault(where.manager.owner, []).append(await _update(where, one, request))
    managers = {where.manager.owner: where.manager for where in found}
    for owner, updates in edits.items():
        await managers[owner].write(updates, access.key.name)
    return {"message": f"Successfully updated {len(found)} memories"}


async def batch_delete(body: BatchDelete, parameters: Nothing, access: Access) -> dict[str, Any]:
    """Erase memories for good. If one is not there, none is erased."""
    ids = [one.memory_id for one in body.memories]
    found = await anyio.to_thread.run_sync(lambda: [access.find(one, Scope.ADMIN) for one in ids])
    removed = await access.erase({(one.manager.owner, one.memory.id): one for one in found}.values())
    return {"message": f"Successfully deleted {removed} memories"}


async def delete_all(parameters: Annotated[Entities, Query()], access: Access) -> dict[str, Any]:
    """Erase what a user has, or of that what belongs to an agent, app or run."""
    entities = parameters.entities()
    owner = user_of(entities)
    manager = await anyio.to_thread.run_sync(access.writable, owner, Scope.ADMIN)
    if not await anyio.to_thread.run_sync(access.service.known, owner):
        return {"message": "There was nothing to delete"}
    if len(entities) == 1:
        await access.service.forget_owner(manager)
        return {"message": "Memories deleted successfully!"}
    removed = await access.erase(await anyio.to_thread.run_sync(access.matching, manager, read_mem0_filter(entities)))
    return {"message": f"Memories deleted successfully, {removed} of them!"}


def list_entities(parameters: Annotated[PageParameters, Query()], access: Access, request: Request) -> dict[str, Any]:
    """The agents, apps, runs and users that memories belong to.

    Users are last, because clients that delete everything go down the list, and with a user goes what is filed under them.
    """
    allow(access.key, Scope.READ)
    times: dict[tuple[str, str], list[datetime]] = {}
    for owner in access.owners():
        memories = access.service.store.journal.owner(owner).state().memories
        times[("user", owner)] = [with_offset(memory.time) for memory in memories]
        for memory in memories:
            for name in ENTITIES:
                if isinstance(value := memory.metadata.get(name), str):
                    times.setdefault((name.removesuffix("_id"), value), []).append(with_offset(memory.time))

    def record(entity: tuple[str, str]) -> dict[str, Any]:
        kind, name = entity
        dated = times[entity]
        return {
            "id": name,
            "name": name,
            "type": kind,
            "total_memories": len(dated),
            "created_at": min(dated, key=utc).isoformat() if dated else None,
            "updated_at": max(dated, key=utc).isoformat() if dated else None,
        }

    return page_record(request, parameters, sorted(times, key=lambda entity: (entity[0] == "user", entity)), record)


async def delete_entity(
    kind: str, name: Annotated[str, Path(max_length=256)], parameters: Nothing, access: Access
) -> dict[str, Any]:
    """Erase a user with everything, or what all users of this key have of an agent, app or run."""
    service = access.service
    if kind == "user":
        opened_user(access.key, user_name(name), Scope.ADMIN)
        if not await anyio.to_thread.run_sync(service.known, name):
            raise not_found()
        await service.forget_owner(await anyio.to_thread.run_sync(service.manager_of, name))
        return {"message": "Entity deleted successfully!"}
    if f"{kind}_id" not in ENTITIES:
        raise Problem(400, f"{kind!r} is no kind of entity; there are user, agent, app and run")
    allow(access.key, Scope.ADMIN)
    test, removed = read_mem0_filter({f"{kind}_id": {"eq": name}}), 0
    for owner in await anyio.to_thread.run_sync(access.owners):
        manager = await anyio.to_thread.run_sync(service.manager_of, owner)
        removed += await access.erase(await anyio.to_thread.run_sync(access.matching, manager, test))
    return {"message": f"Entity deleted successfully, with {removed} memories!"}
