"""What mem0's clients send and what they are answered, as records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from fastapi import Request
from pydantic import Field

from deltamem.config import StrictModel
from deltamem.filters import FilterError
from deltamem.journal.jobs import Job, JobState
from deltamem.manager import MemoryManager
from deltamem.server.native import TurnIn
from deltamem.server.operations import QueryText, RequestModel, Text
from deltamem.server.problems import Problem
from deltamem.server.service import Service
from integrations.mem0.access import Located
from integrations.mem0.filters import ENTITIES, with_offset

Item = TypeVar("Item")
Name = Annotated[str, Field(min_length=1, max_length=256)]


class Entities(RequestModel, strict=True):
    """Whose memory, and what else mem0 files it under."""

    user_id: Name | None = None
    agent_id: Name | None = None
    app_id: Name | None = None
    run_id: Name | None = None

    def entities(self) -> dict[str, Any]:
        """Those that are given."""
        return {name: value for name in ("user_id", *ENTITIES) if (value := getattr(self, name)) is not None}


class AddMessages(Entities):
    """Something to remember."""

    messages: Annotated[list[TurnIn], Field(min_length=1, max_length=10_000)]
    filters: dict[str, Any] | None = Field(None, description="Another place for user_id, agent_id, app_id and run_id.")
    metadata: dict[str, Any] | None = None
    infer: bool | None = None
    timestamp: int | float | str | None = None
    async_mode: bool | None = None
    output_format: Literal["v1.1"] | None = None

    def named(self) -> dict[str, Any]:
        """The entities, wherever they are given."""
        given = self.entities()
        for name, value in (self.filters or {}).items():
            if value is None:
                continue
            if name not in ("user_id", *ENTITIES):
                raise Problem(400, f"filters.{name} is not supported by this server where something is added")
            if not isinstance(value, str) or not value or given.setdefault(name, value) != value:
                raise Problem(400, f"{name} must be one text that is not empty")
        return given


class SearchMemories(Entities):
    """A search; the platform takes whose memories only in the filters."""

    query: QueryText
    filters: dict[str, Any] | None = None
    top_k: Annotated[int, Field(ge=1, le=1000)] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] | None = None
    threshold: Annotated[float, Field(ge=-1, le=1)] | None = None
    fields: list[str] | None = None
    rerank: Literal[False] | None = None
    keyword_search: Literal[False] | None = None
    latest_only: Literal[True] | None = None
    show_expired: bool | None = Field(None, description="Nothing expires here, so both mean the same.")
    output_format: Literal["v1.1"] | None = None


class ListMemories(RequestModel, strict=True):
    """Which memories to list."""

    filters: dict[str, Any]
    start_date: str | None = None
    end_date: str | None = None
    latest_only: Literal[True] | None = None
    show_expired: bool | None = None


class PageParameters(StrictModel):
    """Which page."""

    page: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    page_size: Annotated[int, Field(ge=1, le=1000)] = 100


class RewriteMemory(RequestModel, strict=True):
    """What to change of a memory."""

    text: Text | None = None
    metadata: dict[str, Any] | None = Field(None, description="Written over that of the memory, key by key.")
    timestamp: int | float | str | None = None
    expiration_date: None = Field(None, description="Nothing expires here, so there is nothing to take away either.")


class _OneUpdate(RewriteMemory):
    """What to change of one of several memories."""

    memory_id: str


class BatchUpdate(RequestModel, strict=True):
    """Memories to change."""

    memories: Annotated[list[_OneUpdate], Field(min_length=1, max_length=1000)]


class _OneId(RequestModel, strict=True):
    """One of several memories."""

    memory_id: str


class BatchDelete(RequestModel, strict=True):
    """Memories to erase."""

    memories: Annotated[list[_OneId], Field(min_length=1, max_length=1000)]


class DeleteParameters(StrictModel):
    """How to delete."""

    delete_linked: bool = Field(False, description="Earlier versions of a memory are erased with it in any case.")


class NoParameters(StrictModel):
    """No query parameters."""


STATES = {
    JobState.QUEUED: ("PENDING", "Memory processing has been queued"),
    JobState.RUNNING: ("RUNNING", "Memory processing is under way"),
    JobState.DONE: ("SUCCEEDED", "Memory processing is done"),
    JobState.FAILED: ("FAILED", "Memory processing failed"),
}
"""mem0's names of a job's states, and what an answer says about them."""


def event_record(service: Service, manager: MemoryManager, job: Job) -> dict[str, Any]:
    """A job as mem0's clients know it."""
    ended = job.updated_at if job.state in (JobState.DONE, JobState.FAILED) else None
    return {
        "id": str(UUID(job.id)),
        "event_type": "ADD",
        "status": STATES[job.state][0],
        "results": [] if job.position is None else results_record(service, manager, job.position),
        "metadata": {
            "user_id": manager.owner,
            "session_id": job.session_id,
            "attempts": job.attempts,
            "retry_at": None if job.retry_at is None else job.retry_at.isoformat(),
            "error": job.last_error,
        },
        "created_at": job.created_at.isoformat(),
        "updated_at": job.updated_at.isoformat(),
        "completed_at": None if ended is None else ended.isoformat(),
        "latency": None if ended is None else round((ended - job.created_at).total_seconds() * 1000, 3),
    }


def results_record(service: Service, manager: MemoryManager, position: int) -> list[dict[str, Any]]:
    """What one journal entry did, as mem0 lists it."""
    changed, uuids = manager.diff(position - 1, position), service.uuids(manager, position)
    done = [(memory, "ADD") for memory in changed.added]
    done += [(after, "UPDATE") for _, after in changed.changed]
    done += [(memory, "DELETE") for memory in changed.removed]
    return [
        {"id": str(uuids[memory.id]), "event": event, "memory": memory.text, "data": {"memory": memory.text}}
        for memory, event in done
    ]


def memory_record(found: Located) -> dict[str, Any]:
    """A memory as mem0's clients know it."""
    metadata = found.memory.metadata
    return {
        "id": str(found.uuid),
        "memory": found.memory.text,
        "user_id": found.manager.owner,
        **{name: metadata.get(name) for name in ENTITIES},
        "metadata": {name: value for name, value in metadata.items() if name not in ENTITIES},
        "categories": [],
        "created_at": with_offset(found.added).isoformat(),
        "updated_at": with_offset(found.memory.time).isoformat(),
    }


def page_record(
    request: Request, parameters: PageParameters, found: Sequence[Item], record: Callable[[Item], dict[str, Any]]
) -> dict[str, Any]:
    """One page of what was found, with the addresses of its neighbours."""
    begin, end = (parameters.page - 1) * parameters.page_size, parameters.page * parameters.page_size

    def address(number: int) -> str:
        return str(request.url.include_query_params(page=number, page_size=parameters.page_size))

    return {
        "count": len(found),
        "next": address(parameters.page + 1) if end < len(found) else None,
        "previous": address(parameters.page - 1) if parameters.page > 1 else None,
        "results": [record(one) for one in found[begin:end]],
    }


_FIELDS = ("id", "memory", "user_id", *ENTITIES, "metadata", "categories", "created_at", "updated_at", "score")


def read_fields(names: Sequence[str] | None) -> set[str]:
    """The fields that an answer shall have; all of them for None."""
    for name in names or ():
        if name not in _FIELDS:
            raise FilterError(f"fields: {name!r} is not supported by this server; there are {', '.join(_FIELDS)}")
    return {"id", *(_FIELDS if names is None else names)}
