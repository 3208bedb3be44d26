"""The tools, resources and prompt of MCP: what each takes, asks the person, and returns. No tool takes an owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import uuid4

import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.resolve import AcceptedElicitation, Elicit, ElicitationResult, Resolve
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, ToolAnnotations
from pydantic import BaseModel, Field, ValidationError

from deltamem.config import StrictModel, first_error
from deltamem.edits import Add, Retract
from deltamem.errors import NotFoundError
from deltamem.ingest import Transition
from deltamem.journal.jobs import JobState
from deltamem.manager import MemoryManager
from deltamem.records import ChangeRecord, EntryRecord, FoundMemory, IsoTime, OriginRecord, StoredMemory, ZoneRecord
from deltamem.server import operations
from deltamem.server.access import authorize
from deltamem.server.keys import Key, Scope
from deltamem.server.operations import MemoriesOut, MemoryText, Metadata, PointText, QueryText, StepsOut, Time
from deltamem.server.problems import problem_of
from deltamem.server.routes import OwnerKind, ToolSpec
from deltamem.server.service import Service
from deltamem.sessions import Turn

WAIT = 30.0
"""Seconds that `add_memory` waits for the model; clients commonly give up on a tool after a minute."""

INSTRUCTIONS = """\
This server keeps the long-term memory of one person: short sentences, each with the time that it refers to.
Search before you answer what may depend on earlier conversations, and add what the person tells that will matter later:
facts, plans, preferences, and what has changed. Look for an existing memory first: correct it with update_memory instead of
adding a second one. Every change is recorded; memory_history shows the versions of a memory. Erase only when the person
asks for it."""


@dataclass(frozen=True, slots=True)
class MCPCaller:
    """On whose behalf a request is served."""

    key: Key
    owner: str


@dataclass(frozen=True, slots=True)
class MCPState:
    """What the tools work with."""

    service: Service
    caller: Callable[[], MCPCaller]
    """Who calls, for the request that is being served."""
    noun: str
    """Who the owner is, see `OwnerKind`."""

    @property
    def actor(self) -> str:
        """Recorded with what is written."""
        return self.caller().key.name

    async def memory(self, scope: Scope) -> MemoryManager:
        """The memory of the caller, if the key has a scope."""
        caller = self.caller()
        return await anyio.to_thread.run_sync(lambda: authorize(self.service, caller.key, caller.owner, scope, create=True))


Ctx = Context[MCPState, Any]


def state_of(ctx: Ctx) -> MCPState:
    """What a tool works with."""
    return ctx.request_context.lifespan_context


class SearchedOut(StrictModel):
    """What a query found, the most similar first."""

    memories: list[FoundMemory]


class SourcedMemory(StoredMemory):
    """A memory and where it comes from."""

    origins: list[OriginRecord] = Field(description="The sessions with the turns, and the edits, that it comes from.")


Outcome = Literal["written", "applied", "known", "queued"]


class RememberedOut(StrictModel):
    """What became of a text."""

    outcome: Outcome = Field(
        description="written: stored word for word. applied: a model read it. known: this session_id was applied before. "
        "queued: the model has not answered yet; it is stored and will be read later."
    )
    time: IsoTime
    timezone: ZoneRecord | None = Field(description="Where the time is the present one; null if it was given.")
    session_id: str | None = Field(description="Of what a model reads.")
    changes: list[ChangeRecord] = Field(description="What it changed; empty if there was nothing new to remember.")


class ClearedOut(StrictModel):
    """What became of all memories."""

    memories: int = Field(description="How many there were.")
    erased: bool
    position: int | None = Field(description="The journal entry; null if nothing was there or everything is erased.")


class Approval(BaseModel):
    """The answer to a question before something is destroyed."""

    confirm: bool = Field(title="Yes, do it", description="Whether to go on.")


Filters = Annotated[
    dict[str, Any],
    Field(
        description='Conditions on metadata, such as {"topic": "work"} or {"year": {"gte": 2025}}. Operators: eq ne in nin'
        " gt gte lt lte contains icontains; AND, OR and NOT take lists of such objects."
    ),
]
MemoryId = Annotated[str, Field(min_length=1, max_length=64, description="Id of the memory, such as m1, or its UUID.")]
EraseOne = Annotated[bool, Field(description="Erase it for good, with its history and the turns that it comes from.")]
EraseAll = Annotated[
    bool, Field(description="Erase everything about the person for good, instead of taking the memories back.")
]
Confirm = Annotated[
    bool,
    Field(
        description="Only for clients that cannot ask the person (elicitation): true says that the person has agreed. "
        "Clients that can, show the question whatever is given here."
    ),
]


async def add_memory(
    ctx: Ctx,
    text: Annotated[
        MemoryText, Field(description="What to remember: one fact in a full sentence, or what the person said.")
    ],
    time: Annotated[
        Time | None, Field(description="When it was said, which is what 'yesterday' in it refers to; by default now.")
    ] = None,
    metadata: Metadata | None = None,
    session_id: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=256,
            description="For a server with a model: what is sent twice by one id is read once.",
        ),
    ] = None,
) -> RememberedOut:
    """Remember something about the person.

    If this server has a model, it reads the text against what is known and adds, rewrites or leaves memories; else the text
    is stored word for word.
    """
    state = state_of(ctx)
    memory = await state.memory(Scope.WRITE)
    if not state.service.has_model:
        if session_id is not None:
            raise ToolError("session_id: this server has no model and stores texts word for word; leave it out")
        when, zone = (time, None) if time is not None else await operations.local_now(memory, ctx.headers)
        entry = await memory.write([Add(text, when, metadata or {})], state.actor)
        changes = EntryRecord.of(entry).changes
        used = None if zone is None else ZoneRecord.of(zone)
        return RememberedOut(outcome="written", time=when.isoformat(), timezone=used, session_id=None, changes=changes)
    session_id, turns = session_id or f"mcp-{uuid4()}", [Turn("user", text)]
    session, result, zone = await operations.add_session(
        state.service, memory, session_id, time, turns, metadata, wait=WAIT, headers=ctx.headers
    )
    outcome: Outcome = "queued"
    changes = []
    if isinstance(result, Transition):
        outcome = "applied" if result.outcome.value == "applied" else "known"
        changes = [ChangeRecord.of(change) for change in result.changes]
    elif result.state is JobState.DONE:
        outcome = "known"
    elif result.state is JobState.FAILED:
        raise ToolError(f"the model could not read it: {result.last_error}")
    return RememberedOut(
        outcome=outcome,
        time=session.time.isoformat(),
        timezone=None if zone is None else ZoneRecord.of(zone),
        session_id=session.id,
        changes=changes,
    )


async def search_memories(
    ctx: Ctx,
    query: Annotated[QueryText, Field(description="What to look for, as a question or in keywords.")],
    k: Annotated[int, Field(ge=1, le=100, description="At most so many memories.")] = 5,
    filters: Filters | None = None,
) -> SearchedOut:
    """Find the memories that are most similar to a query."""
    state = state_of(ctx)
    (found,) = await operations.search(state.service, await state.memory(Scope.READ), [query], k, filters)
    return SearchedOut(memories=found)


async def get_memories(
    ctx: Ctx,
    filters: Filters | None = None,
    at: Annotated[PointText | None, Field(description="As they were then: a session id, @N or an ISO 8601 time.")] = None,
    cursor: Annotated[str | None, Field(max_length=64, description="`next` of the page before.")] = None,
    limit: Annotated[int, Field(ge=1, le=1000, description="Memories on a page.")] = 50,
) -> MemoriesOut:
    """List the memories, now or as they were at an earlier time, page by page."""
    state = state_of(ctx)
    memory = await state.memory(Scope.READ)
    return await anyio.to_thread.run_sync(operations.page, state.service, memory, filters, at, cursor, limit)


async def get_memory(ctx: Ctx, memory_id: MemoryId) -> SourcedMemory:
    """Show one memory, and the sessions and edits that it comes from."""
    state = state_of(ctx)
    memory = await state.memory(Scope.READ)

    def read() -> SourcedMemory:
        stored = operations.stored(state.service, memory, memory_id)
        return SourcedMemory(**dict(stored), origins=operations.origins(memory, stored.id))

    return await anyio.to_thread.run_sync(read)


async def update_memory(
    ctx: Ctx,
    memory_id: MemoryId,
    text: Annotated[MemoryText | None, Field(description="What it shall say; by default as before.")] = None,
    time: Annotated[Time | None, Field(description="The time that it refers to; by default as before.")] = None,
    metadata: Annotated[Metadata | None, Field(description="Replaces all that was noted on it.")] = None,
) -> EntryRecord:
    """Correct a memory. The earlier version stays in its history."""
    state = state_of(ctx)
    return await operations.update(await state.memory(Scope.WRITE), memory_id, text, time, metadata, state.actor)


async def memory_history(ctx: Ctx, memory_id: MemoryId) -> StepsOut:
    """Show everything that happened to a memory, what was rolled back or deleted included."""
    return await anyio.to_thread.run_sync(operations.history, await state_of(ctx).memory(Scope.READ), memory_id)


def _asks(ctx: Ctx) -> bool:
    """Whether the client can show a question to the person."""
    capabilities = ctx.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    # Without any mode, as in the first version of the protocol that had it, it means forms.
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _question(ctx: Ctx, question: str, *, confirm: bool) -> Elicit[Approval] | Approval:
    return Elicit(question, Approval) if _asks(ctx) else Approval(confirm=confirm)


async def _approve_deletion(ctx: Ctx, memory_id: str, erase: bool, confirm: bool) -> Elicit[Approval] | Approval:
    if not erase:
        return Approval(confirm=True)
    memory = await state_of(ctx).memory(Scope.ADMIN)
    steps = await anyio.to_thread.run_sync(memory.history, memory_id)
    last = next((found.text for _, change in reversed(steps) if (found := change.after or change.before) is not None), "")
    question = f"Erase the memory {memory_id} ({last}) for good, with its history and the turns that it comes from?"
    return _question(ctx, question, confirm=confirm)


async def _approve_clearing(ctx: Ctx, erase: bool, confirm: bool) -> Elicit[Approval] | Approval:
    memory = await state_of(ctx).memory(Scope.ADMIN if erase else Scope.WRITE)
    count = await anyio.to_thread.run_sync(lambda: len(memory.state()))
    if count == 0 and not (erase and await anyio.to_thread.run_sync(state_of(ctx).service.known, memory.owner)):
        return Approval(confirm=True)
    question = f"Take all {count} memories back? Their history stays, and a rollback restores them."
    if erase:
        noun = state_of(ctx).noun
        question = f"Erase everything about this {noun} for good: {count} memories, their history and all stored sessions?"
    return _question(ctx, question, confirm=confirm)


async def _approve_rollback(ctx: Ctx, to: str, confirm: bool) -> Elicit[Approval] | Approval:
    memory = await state_of(ctx).memory(Scope.WRITE)

    def compare() -> str:
        position = memory.journal.resolve(memory.journal.point(to))
        found = memory.diff(position)
        where = to if to == f"@{position}" else f"{to} (@{position})"
        return (
            f"Restore the memories as they were at {where}? {len(found.added)} that were added since are taken"
            f" back, {len(found.changed)} get their earlier text, {len(found.removed)} come back."
        )

    return _question(ctx, await anyio.to_thread.run_sync(compare), confirm=confirm)


async def _agreed(ctx: Ctx, approval: ElicitationResult[Approval], scope: Scope) -> MemoryManager:
    """The memory to change, if the person has agreed."""
    if isinstance(approval, AcceptedElicitation) and approval.data.confirm:
        return await state_of(ctx).memory(scope)
    if _asks(ctx):
        raise ToolError("nothing was changed, because the person did not agree")
    raise ToolError("nothing was changed: ask the person first, and if they agree, repeat this with confirm set to true")


async def delete_memory(
    ctx: Ctx,
    memory_id: MemoryId,
    approval: Annotated[ElicitationResult[Approval], Resolve(_approve_deletion)],
    erase: EraseOne = False,
    confirm: Confirm = False,
) -> EntryRecord:
    """Take a memory back: it is not found any more, its history stays, and a rollback restores it. Or erase it."""
    state, memory = state_of(ctx), await _agreed(ctx, approval, Scope.ADMIN if erase else Scope.WRITE)
    return await operations.delete(state.service, memory, memory_id, state.actor, erase=erase)


async def delete_all_memories(
    ctx: Ctx,
    approval: Annotated[ElicitationResult[Approval], Resolve(_approve_clearing)],
    erase: EraseAll = False,
    confirm: Confirm = False,
) -> ClearedOut:
    """Take all memories back: their history stays, and a rollback restores them. Or erase everything about the person."""
    state, memory = state_of(ctx), await _agreed(ctx, approval, Scope.ADMIN if erase else Scope.WRITE)
    if erase:
        # Who is not known is as good as erased.
        known = await anyio.to_thread.run_sync(state.service.known, memory.owner)
        count = (await state.service.forget_owner(memory)).memories if known else 0
        return ClearedOut(memories=count, erased=True, position=None)
    ids = await anyio.to_thread.run_sync(lambda: list(memory.state()))
    if not ids:
        return ClearedOut(memories=0, erased=False, position=None)
    entry = await memory.write([Retract(one) for one in ids], state.actor)
    return ClearedOut(memories=len(ids), erased=False, position=entry.position)


async def rollback_memories(
    ctx: Ctx,
    to: Annotated[PointText, Field(description="A session id, a position of the journal such as @3, or an ISO 8601 time.")],
    approval: Annotated[ElicitationResult[Approval], Resolve(_approve_rollback)],
    confirm: Confirm = False,
) -> EntryRecord:
    """Restore the memories as they were at an earlier point. It is recorded, so it can itself be rolled back."""
    return await operations.rollback(await _agreed(ctx, approval, Scope.WRITE), to)


async def recall(ctx: Ctx, topic: str) -> str:
    """What is remembered about a topic, to begin a conversation with."""
    try:
        found = (await search_memories(ctx, topic, 10)).memories
    except Exception as error:
        raise MCPError(INTERNAL_ERROR, sentence(error)) from error
    if not found:
        return f'Nothing is remembered about this person yet. The topic is "{topic}".'
    lines = "\n".join(f"- {memory.text} ({memory.time[:10]}, {memory.id})" for memory in found)
    return (
        f'What is remembered about this person that may concern "{topic}", the closest first, each with its date and id:\n\n'
        f"{lines}\n\nUse what matters for the conversation, and rely on later dates where two of them disagree."
    )


async def remembered(ctx: Ctx, id: str) -> str:
    """One memory with its sources, as JSON."""
    return (await get_memory(ctx, id)).model_dump_json()


READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
# What these change can be taken back, because the journal keeps every version.
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_CORRECTS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_DESTROYS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
_ROLLS_BACK = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)

_ADD_MEMORY = ToolSpec(add_memory, "Remember", ADDS)
TOOLS = (
    ToolSpec(search_memories, "Search memories", READS),
    ToolSpec(get_memories, "List memories", READS),
    ToolSpec(get_memory, "Show a memory", READS),
    ToolSpec(update_memory, "Correct a memory", _CORRECTS),
    ToolSpec(delete_memory, "Delete a memory", _DESTROYS),
    ToolSpec(delete_all_memories, "Delete all memories", _DESTROYS),
    ToolSpec(memory_history, "History of a memory", READS),
    ToolSpec(rollback_memories, "Roll memories back", _ROLLS_BACK),
)
PERSON = OwnerKind("person", lambda owner: True, INSTRUCTIONS, (_ADD_MEMORY,))
"""All owners whom no plug-in has tools for."""


def sentence(error: BaseException) -> str:
    """One sentence about an error, which the SDK may have wrapped."""
    while isinstance(error, ToolError | ResourceError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ValidationError):
        return complaint(error)
    if isinstance(error, ToolError | ResourceError | NotFoundError):
        # What is not found is named, because only the caller's own memory is looked at.
        return str(error)
    return problem_of(error).detail if isinstance(error, Exception) else str(error)


def complaint(error: ValidationError) -> str:
    """Pydantic's first complaint, without the value."""
    unknown = "there is no such argument"
    return first_error(error, messages={"extra_forbidden": unknown, "unexpected_keyword_argument": unknown})
