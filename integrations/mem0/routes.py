"""mem0's clients, unchanged: the dialect of its platform and that of its self-hosted server.

A user is an owner; ``agent_id``, ``app_id`` and ``run_id`` are metadata; an id is the memory's UUID; an event is a job. What
a client may ask for and this server does not do is refused by its name. Deleting erases, as mem0's users expect, and needs
the scope admin.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

from deltamem.edits import Add, Update, noted
from deltamem.ingest import Transition
from deltamem.journal.jobs import Job, JobConflictError, JobState
from deltamem.journal.records import ChangeEvent, EntryKind, HistoryStep
from deltamem.manager import MemoryManager
from deltamem.memory import Memory
from deltamem.server.access import SECURITY, Caller, allow, service_of
from deltamem.server.keys import Key, Scope
from deltamem.server.problems import Problem, not_found, problem_of
from deltamem.server.routes import Routes
from deltamem.server.service import Service
from deltamem.sessions import Session, Turn
from integrations.mem0.filters import ENTITIES, View, read_mem0_filter, read_time, user_name, users_of, utc
from integrations.mem0.records import (
    SAID,
    AddIn,
    BatchDeleteIn,
    BatchUpdateIn,
    DeleteParameters,
    EntityParameters,
    ListIn,
    MessageIn,
    NoParameters,
    PageParameters,
    SearchIn,
    UpdateIn,
    event_record,
    memory_record,
    only,
    page_record,
    read_fields,
    results_record,
)

LONGEST_WAIT = 120.0
"""Seconds that a client which waits for its session waits at most; mem0's own give up after 300."""
_REMOVED = "Memory deleted successfully!"


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
                status = 400 if problem.status_code == 422 else problem.status_code
                return JSONResponse({"detail": _detail(error, problem)}, status, problem.headers)

        return handler


def _detail(error: Exception, problem: Problem) -> str:
    if isinstance(error, RequestValidationError) and error.errors()[0]["type"] == "extra_forbidden":
        where = ".".join(str(part) for part in error.errors()[0]["loc"][1:])
        return f"{where} is not supported by this server"
    return str(problem.detail)


Nothing = Annotated[NoParameters, Query()]
MemoryId = Annotated[str, Path(max_length=64)]


class Found(NamedTuple):
    """A memory and where it is."""

    manager: MemoryManager
    memory: Memory
    uuid: UUID


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
        for path, name in _REFUSED.items():
            routes.api_route(path, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])(partial(_refuse, name))
        return routes


_REFUSED = {
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


async def _refuse(name: str, key: Caller) -> None:
    raise Problem(400, f"{name} is not supported by this server")


def ping(parameters: Nothing, key: Caller) -> dict[str, Any]:
    """Whether the key is good. The client for Python insists on an organization and a project, of which there are none."""
    return {"status": "ok", "org_id": "deltamem", "project_id": "deltamem"}


async def add_memories(body: AddIn, key: Caller, request: Request) -> dict[str, Any]:
    """Take messages on as a session, or write them as they are; the platform's answer is an event."""
    return await _add(body, key, request, wait=LONGEST_WAIT if body.async_mode is False else 0.0)


async def add_and_wait(body: AddIn, key: Caller, request: Request) -> dict[str, Any]:
    """The same, waiting for what comes of it, as the self-hosted server does."""
    return await _add(body, key, request, wait=0.0 if body.async_mode else LONGEST_WAIT)


async def _add(body: AddIn, key: Key, request: Request, wait: float) -> dict[str, Any]:
    service, entities = service_of(request), body.named()
    owner = _user(entities)
    manager = await anyio.to_thread.run_sync(lambda: _open(service, key, owner, Scope.WRITE))
    metadata = _with_entities(body.metadata, entities)
    given = None if body.timestamp is None else read_time(body.timestamp, "timestamp")
    now = datetime.now(UTC).replace(microsecond=0)
    token = request.headers.get("idempotency-key")
    if body.infer is False:
        if token is not None:
            raise Problem(400, "Idempotency-Key is not supported by this server with infer=false")
        entry = await manager.write([Add(message.content, given or now, metadata) for message in body.messages], key.name)
        results = await anyio.to_thread.run_sync(lambda: results_record(service, manager, entry.position))
        return {"message": "Written as given, without a model", "status": "SUCCEEDED", "results": results}
    if token is not None and not 0 < len(token) <= 256:
        raise Problem(400, "Idempotency-Key must have 1 to 256 characters")
    session_id = token or _derived_id(body, metadata, given or now.replace(minute=0, second=0))
    job = await _take_on(service, manager, session_id, body.messages, metadata, given, now, wait)
    return await anyio.to_thread.run_sync(_added, service, manager, job, wait > 0)


def _derived_id(body: AddIn, metadata: Mapping[str, object], time: datetime) -> str:
    """Of a session that came without a key: the same for the same content at one time, or else in one hour.

    So a request that is sent again is not read twice, and what somebody says again later is.
    """
    said = [[message.role, message.content] for message in body.messages]
    content = json.dumps([said, dict(metadata), time.isoformat()], sort_keys=True)
    return f"mem0:{hashlib.sha256(content.encode()).hexdigest()[:40]}"


async def _take_on(
    service: Service,
    manager: MemoryManager,
    session_id: str,
    messages: Sequence[MessageIn],
    metadata: Mapping[str, object],
    given: datetime | None,
    now: datetime,
    wait: float,
) -> Job:
    turns = tuple(Turn(message.role, message.content) for message in messages)

    async def attempt() -> Job:
        # Sent again without a timestamp, it is the same session as before, and took place when that one did.
        time = given or await anyio.to_thread.run_sync(manager.session_time, session_id) or now
        session = Session(manager.owner, manager.person_name, time, turns, session_id, noted(metadata))
        result = await service.ingest(session, wait=wait)
        if isinstance(result, Transition):
            result = await service.ingest(session)
        assert isinstance(result, Job)  # a session that was read is not waited for
        return result

    try:
        return await attempt()
    except JobConflictError:
        if given is not None:
            raise
    return await attempt()  # two came at once, a second apart


def _added(service: Service, manager: MemoryManager, job: Job, waited: bool) -> dict[str, Any]:
    event = event_record(service, manager, job)
    answer = {"message": SAID[job.state], "status": event["status"], "event_id": event["id"]}
    return answer | ({"results": event["results"]} if waited or job.state is JobState.DONE else {})


def get_event(event_id: Annotated[str, Path(max_length=64)], parameters: Nothing, key: Caller, request: Request) -> Any:
    """How far a session is that was added, and what it did."""
    service = service_of(request)
    allow(key, Scope.READ)
    job_id = _uuid(event_id).hex
    owner = service.store.journal.owner_of_job(job_id)
    if owner is None or not key.opens(owner):
        raise not_found()
    manager = service.manager_of(owner)
    return event_record(service, manager, manager.job(job_id))


async def search_platform(body: SearchIn, key: Caller, request: Request) -> dict[str, Any]:
    """The memories most similar to a query."""
    for name in (*body.entities(), *(["limit"] if body.limit is not None else [])):
        raise Problem(400, f"{name} is not supported by this server outside of filters; the number of results is top_k")
    return await _search(body, body.filters or {}, key, request)


async def search_hosted(body: SearchIn, key: Caller, request: Request) -> dict[str, Any]:
    """The same in the self-hosted server's dialect, which takes the entities beside the filters."""
    return await _search(body, {"AND": [body.entities(), body.filters or {}]}, key, request)


async def _search(body: SearchIn, filters: Mapping[str, object], key: Key, request: Request) -> dict[str, Any]:
    service, test = service_of(request), read_mem0_filter(filters)
    wanted = None if body.fields is None else read_fields(body.fields)
    if body.top_k is not None and body.limit not in (None, body.top_k):
        raise Problem(400, "limit and top_k mean the same; give one of them")
    top_k = body.top_k or body.limit or 10
    records = []
    for manager in await anyio.to_thread.run_sync(lambda: _readable(service, key, users_of(filters))):
        found = await anyio.to_thread.run_sync(_meeting, service, manager, test)
        hits = (await manager.search_many([body.query], top_k, among=set(found)))[0]
        records += [
            memory_record(manager, hit.memory, *found[hit.memory.id][1:]) | {"score": round(float(hit.similarity), 6)}
            for hit in hits
            if body.threshold is None or hit.similarity >= body.threshold
        ]
    records.sort(key=lambda record: -record["score"])
    return {"results": [record if wanted is None else only(record, wanted) for record in records[:top_k]]}


async def list_platform(
    body: ListIn, parameters: Annotated[PageParameters, Query()], key: Caller, request: Request
) -> dict[str, Any]:
    """The memories that meet filters, page by page."""
    dates = {"gte": body.start_date, "lte": body.end_date}
    between = {name: date for name, date in dates.items() if date is not None}
    filters = {"AND": [body.filters, {"created_at": between}]} if between else body.filters
    found = await anyio.to_thread.run_sync(lambda: _all(service_of(request), key, filters))
    return page_record(request, parameters, found, lambda one: memory_record(*one))


def list_hosted(parameters: Annotated[EntityParameters, Query()], key: Caller, request: Request) -> dict[str, Any]:
    """All memories of a user, in the self-hosted server's dialect."""
    given = parameters.model_dump(exclude_none=True)
    _user(given)
    return {"results": [memory_record(*found) for found in _all(service_of(request), key, given)]}


def _all(service: Service, key: Key, filters: Mapping[str, object]) -> list[tuple[MemoryManager, Memory, UUID, datetime]]:
    test = read_mem0_filter(filters)
    return [
        (manager, *found)
        for manager in _readable(service, key, users_of(filters))
        for found in _meeting(service, manager, test).values()
    ]


def get_memory(memory_id: MemoryId, parameters: Nothing, key: Caller, request: Request) -> dict[str, Any]:
    """One memory."""
    return _stored(service_of(request), _find(service_of(request), key, memory_id, Scope.READ))


async def update_memory(
    memory_id: MemoryId, body: UpdateIn, parameters: Nothing, key: Caller, request: Request
) -> dict[str, Any]:
    """Rewrite a memory."""
    service = service_of(request)
    found = await anyio.to_thread.run_sync(lambda: _find(service, key, memory_id, Scope.WRITE))
    await found.manager.write([_update(found, body)], key.name)
    return await anyio.to_thread.run_sync(lambda: _stored(service, found))


async def update_hosted(
    memory_id: MemoryId, body: UpdateIn, parameters: Nothing, key: Caller, request: Request
) -> dict[str, Any]:
    """Rewrite a memory; the self-hosted server answers with a message."""
    await update_memory(memory_id, body, parameters, key, request)
    return {"message": "Memory updated successfully!"}


async def delete_memory(
    memory_id: MemoryId, parameters: Annotated[DeleteParameters, Query()], key: Caller, request: Request
) -> dict[str, Any]:
    """Erase a memory for good, with its history and the turns it came from."""
    service = service_of(request)
    found = await anyio.to_thread.run_sync(lambda: _find(service, key, memory_id, Scope.ADMIN))
    await service.forget(found.manager, str(found.uuid))
    return {"message": _REMOVED}


def memory_history(memory_id: MemoryId, parameters: Nothing, key: Caller, request: Request) -> list[dict[str, Any]]:
    """What made a memory what it is, oldest first; what was rolled back is left out."""
    found = _find(service_of(request), key, memory_id, Scope.READ)
    said = {origin.position: origin.turns for origin in found.manager.blame(found.memory.id)}
    return [
        {
            "id": f"{found.uuid}@{step.entry.position}",
            "memory_id": str(found.uuid),
            "input": [
                {"role": turn.role, "content": turn.content}
                for turn in said.get(step.entry.position, ())
                if turn.content is not None
            ],
            "old_memory": step.change.before and step.change.before.text,
            "new_memory": step.change.after and step.change.after.text,
            "user_id": found.manager.owner,
            "event": step.change.event.value,
            "metadata": dict(step.change.after.metadata) if step.change.after else None,
            "created_at": utc(step.entry.session_time or step.entry.recorded_at).isoformat(),
            "updated_at": step.entry.recorded_at.isoformat(),
        }
        for step in found.manager.history(found.memory.id)
        if _effective(step)
    ]


def _effective(step: HistoryStep) -> bool:
    return (
        not step.entry.undone
        and step.entry.kind is not EntryKind.ROLLBACK
        and step.change.event in (ChangeEvent.ADD, ChangeEvent.UPDATE)
    )


async def batch_update(body: BatchUpdateIn, parameters: Nothing, key: Caller, request: Request) -> dict[str, Any]:
    """Rewrite memories, those of one user all or none. If one is not there, none is written."""
    found = await _found(request, key, [one.memory_id for one in body.memories], Scope.WRITE)
    edits: dict[str, list[Update]] = {}
    for one, where in zip(body.memories, found, strict=True):
        edits.setdefault(where.manager.owner, []).append(_update(where, one))
    managers = {where.manager.owner: where.manager for where in found}
    for owner, updates in edits.items():
        await managers[owner].write(updates, key.name)
    return {"message": f"Successfully updated {len(found)} memories"}


async def batch_delete(body: BatchDeleteIn, parameters: Nothing, key: Caller, request: Request) -> dict[str, Any]:
    """Erase memories for good. If one is not there, none is erased."""
    found = await _found(request, key, [one.memory_id for one in body.memories], Scope.ADMIN)
    removed = await _forget(service_of(request), {(one.manager.owner, one.memory.id): one for one in found}.values())
    return {"message": f"Successfully deleted {removed} memories"}


async def delete_all(parameters: Annotated[EntityParameters, Query()], key: Caller, request: Request) -> dict[str, Any]:
    """Erase what a user has, or of that what belongs to an agent, app or run."""
    given = parameters.model_dump(exclude_none=True)
    service, owner = service_of(request), _user(given)
    manager = await anyio.to_thread.run_sync(lambda: _open(service, key, owner, Scope.ADMIN))
    if not await anyio.to_thread.run_sync(service.known, owner):
        return {"message": "There was nothing to delete"}
    if len(given) == 1:
        await service.forget_owner(manager)
        return {"message": "Memories deleted successfully!"}
    test = read_mem0_filter(given)
    found = await anyio.to_thread.run_sync(lambda: _meeting(service, manager, test))
    removed = await _forget(service, (Found(manager, memory, uuid) for memory, uuid, _ in found.values()))
    return {"message": f"Memories deleted successfully, {removed} of them!"}


def list_entities(parameters: Annotated[PageParameters, Query()], key: Caller, request: Request) -> dict[str, Any]:
    """The agents, apps, runs and users that memories belong to.

    Users are last, because clients that delete everything go down the list, and with a user goes what is filed under them.
    """
    service = service_of(request)
    allow(key, Scope.READ)
    times: dict[tuple[str, str], list[datetime]] = {}
    for owner in _owners(service, key):
        memories = service.store.journal.owner(owner).state().memories
        times[("user", owner)] = [utc(memory.time) for memory in memories]
        for memory in memories:
            for name in ENTITIES:
                if isinstance(value := memory.metadata.get(name), str):
                    times.setdefault((name.removesuffix("_id"), value), []).append(utc(memory.time))
    listed = sorted(times, key=lambda entity: (entity[0] == "user", entity))

    def record(entity: tuple[str, str]) -> dict[str, Any]:
        kind, name = entity
        dated = times[entity]
        return {
            "id": name,
            "name": name,
            "type": kind,
            "total_memories": len(dated),
            "created_at": min(dated).isoformat() if dated else None,
            "updated_at": max(dated).isoformat() if dated else None,
        }

    return page_record(request, parameters, listed, record)


async def delete_entity(
    kind: str, name: Annotated[str, Path(max_length=256)], parameters: Nothing, key: Caller, request: Request
) -> dict[str, Any]:
    """Erase a user with everything, or what all users of this key have of an agent, app or run."""
    service = service_of(request)
    if kind == "user":
        if not key.opens(user_name(name)):
            raise not_found()
        allow(key, Scope.ADMIN)
        if not await anyio.to_thread.run_sync(service.known, name):
            raise not_found()
        await service.forget_owner(await anyio.to_thread.run_sync(service.manager_of, name))
        return {"message": "Entity deleted successfully!"}
    if f"{kind}_id" not in ENTITIES:
        raise Problem(400, f"{kind!r} is no kind of entity; there are user, agent, app and run")
    allow(key, Scope.ADMIN)
    test, removed = read_mem0_filter({f"{kind}_id": {"eq": name}}), 0
    for owner in await anyio.to_thread.run_sync(lambda: _owners(service, key)):
        manager = await anyio.to_thread.run_sync(service.manager_of, owner)
        found = await anyio.to_thread.run_sync(_meeting, service, manager, test)
        removed += await _forget(service, (Found(manager, memory, uuid) for memory, uuid, _ in found.values()))
    return {"message": f"Entity deleted successfully, with {removed} memories!"}


def _owners(service: Service, key: Key) -> list[str]:
    """The known owners of a key."""
    if key.owners is not None:
        return [owner for owner in sorted(key.owners) if service.known(owner)]
    return service.store.journal.owners()


def _user(entities: Mapping[str, Any]) -> str:
    if "user_id" not in entities:
        raise Problem(400, "user_id is missing: it says whose memory this is; agent_id, app_id and run_id alone do not")
    return user_name(entities["user_id"])


def _open(service: Service, key: Key, owner: str, scope: Scope) -> MemoryManager:
    """The memory of a user, who may be new: mem0's users come into being with what is remembered of them."""
    if not key.opens(owner):
        raise not_found()
    allow(key, scope)
    return service.manager_of(owner)


def _readable(service: Service, key: Key, owners: Iterable[str]) -> list[MemoryManager]:
    """The memories of users; of one who is new there is nothing to read, which is no error to mem0's clients."""
    named = list(owners)
    if not all(key.opens(owner) for owner in named):
        raise not_found()
    allow(key, Scope.READ)
    return [service.manager_of(owner) for owner in named if service.known(owner)]


def _uuid(given: str) -> UUID:
    try:
        return UUID(given)
    except ValueError:
        raise not_found() from None


def _find(service: Service, key: Key, memory_id: str, scope: Scope) -> Found:
    """A memory by its UUID, which says nothing of whose it is."""
    allow(key, scope)
    uuid = _uuid(memory_id)
    owners = [owner for owner in service.store.journal.owners_of_memory(uuid) if key.opens(owner)]
    if len(owners) > 1:
        raise Problem(409, "this id belongs to several users of this key, whose memories were imported from one export")
    for owner in owners:
        manager = service.manager_of(owner)
        memory = manager.state().get(manager.memory_id(str(uuid)))
        if memory is not None:
            return Found(manager, memory, uuid)
    raise not_found()


async def _found(request: Request, key: Key, ids: Sequence[str], scope: Scope) -> list[Found]:
    service = service_of(request)
    return await anyio.to_thread.run_sync(lambda: [_find(service, key, one, scope) for one in ids])


async def _forget(service: Service, found: Iterable[Found]) -> int:
    of_owner: dict[str, list[Found]] = {}
    for one in found:
        of_owner.setdefault(one.manager.owner, []).append(one)
    removed = 0
    for those in of_owner.values():
        removed += len(await service.forget_all(those[0].manager, [str(one.uuid) for one in those]))
    return removed


def _with_entities(metadata: Mapping[str, Any] | None, entities: Mapping[str, Any]) -> dict[str, Any]:
    noted = dict(metadata or {})
    for name in ("user_id", *ENTITIES):
        if name in noted:
            raise Problem(400, f"metadata.{name} is not supported by this server: {name} stands beside the metadata")
    return noted | {name: entities[name] for name in ENTITIES if name in entities}


def _update(found: Found, body: UpdateIn) -> Update:
    if body.text is None and body.metadata is None and body.timestamp is None:
        raise Problem(400, "nothing to change: give text, metadata or timestamp")
    time = None if body.timestamp is None else read_time(body.timestamp, "timestamp")
    metadata = None if body.metadata is None else _with_entities(body.metadata, {})
    # By the UUID: its short id may have become another memory's since it was looked up.
    return Update(str(found.uuid), body.text, time, metadata, merge=True)


def _meeting(
    service: Service, manager: MemoryManager, test: Callable[[Mapping[str, Any]], bool]
) -> dict[str, tuple[Memory, UUID, datetime]]:
    """By id, the memories that meet a filter, with their UUIDs and first times."""
    found, uuids, added = manager.state().memories, service.uuids(manager), service.added(manager)
    return {
        memory.id: (memory, uuids[memory.id], added[memory.id])
        for memory in found
        # What was written between the three readings is not there yet.
        if memory.id in uuids
        and memory.id in added
        and test(View(manager.owner, uuids[memory.id], memory, added[memory.id]))
    }


def _stored(service: Service, found: Found) -> dict[str, Any]:
    """The record of a memory as it is now."""
    memory = found.manager.state().get(found.memory.id)
    if memory is None:
        raise not_found()
    return memory_record(found.manager, memory, found.uuid, service.added(found.manager).get(memory.id, memory.time))
