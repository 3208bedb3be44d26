"""The routes of agents, ``/v1/owners/agent:NAME/...``: episodes, reflections, and what helps with a task.

Everything else about an agent's bank goes through the native routes of its owner: history, blame, diff, rollback, erasure.
"""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Request
from pydantic import BeforeValidator, Field

from deltamem.config import StrictModel
from deltamem.ingest import Outcome
from deltamem.manager import MemoryManager
from deltamem.records import ChangeRecord, UsageRecord
from deltamem.server.access import SECURITY, Creating, Reading, service_of
from deltamem.server.keys import Scope
from deltamem.server.mcp_tools import ADDS, READS, Ctx, state_of
from deltamem.server.native import PREFIX
from deltamem.server.operations import QueryText, RequestModel, Time, whole
from deltamem.server.problems import Problem, responses
from deltamem.server.routes import OwnerKind, Routes, ToolSpec
from deltamem.server.service import Service
from papers.episodic import EpisodicMemory, IngestedTrajectory, Recalled
from papers.episodic.records import (
    AGENT,
    AgentTrajectory,
    EpisodeSummary,
    MessageIn,
    Reflection,
    episodes_of,
    is_agent,
    reflections_of,
)

Count = Annotated[int, Field(ge=0, le=100), BeforeValidator(whole)]


class TrajectoryIn(RequestModel, strict=True):
    """A finished conversation of an agent."""

    id: Annotated[str, Field(min_length=1, max_length=200, description="Read once for each agent.")]
    time: Time
    messages: Annotated[
        list[MessageIn],
        Field(min_length=1, max_length=10_000, description="As in the OpenAI protocol, with tool calls and tool messages."),
    ]


class RecallIn(RequestModel, strict=True):
    """A task."""

    task: QueryText
    k: Count = 5
    episodes: Count = 3


class EpisodesOut(StrictModel):
    """The episodes of an agent, in the order of their ids."""

    episodes: list[EpisodeSummary]


class ReflectionsOut(StrictModel):
    """The reflections of an agent, in the order of their ids."""

    reflections: list[Reflection]


class IngestedOut(StrictModel):
    """What became of a trajectory."""

    trajectory: str
    outcome: Outcome = Field(description="applied, known, or unreadable: what was read is kept, and it may be sent again.")
    episodes: list[EpisodeSummary]
    changes: list[ChangeRecord] = Field(description="Of the reflections.")
    violations: dict[str, int]
    notes: list[str]
    usage: UsageRecord

    @classmethod
    def of(cls, done: IngestedTrajectory) -> IngestedOut:
        """What the library said."""
        return cls(
            trajectory=done.trajectory,
            outcome=done.outcome,
            episodes=list(done.episodes),
            changes=[ChangeRecord.of(change) for change in done.changes],
            violations=dict(done.violations),
            notes=list(done.notes),
            usage=UsageRecord.of(done.usage),
        )


class FoundReflection(StrictModel):
    """A reflection that a task has found."""

    reflection: Reflection
    similarity: float


class FoundEpisode(StrictModel):
    """An episode that is similar to a task."""

    episode: EpisodeSummary
    similarity: float


class RecalledOut(StrictModel):
    """What helps with a task, the most similar first."""

    reflections: list[FoundReflection]
    episodes: list[FoundEpisode]
    text: str = Field(description="All of it, to be put into a prompt.")

    @classmethod
    def of(cls, found: Recalled) -> RecalledOut:
        """What the library found."""
        return cls(
            reflections=[FoundReflection(reflection=one, similarity=round(close, 6)) for one, close in found.reflections],
            episodes=[FoundEpisode(episode=one, similarity=round(close, 6)) for one, close in found.episodes],
            text=found.text,
        )


def _agent(manager: MemoryManager) -> MemoryManager:
    if not is_agent(manager.owner):
        raise Problem(422, f"episodes belong to agents, which are owners named {AGENT}NAME")
    return manager


async def _memory(service: Service, owner: str) -> EpisodicMemory:
    return await anyio.to_thread.run_sync(lambda: EpisodicMemory(service.store, owner, service.policy))


async def read_episodes(service: Service, owner: str, trajectory: AgentTrajectory) -> IngestedOut:
    """Let an agent's trajectory be read.

    Raises:
        Problem: 503 without a model, while it is paused, or where an erasure breaks it off.
    """
    if not service.has_model or service.paused:
        raise Problem(503, "the model is paused" if service.has_model else "this server has no model to read episodes with")
    agent = await _memory(service, owner)
    return IngestedOut.of(await service.review(owner, agent.ingest(trajectory)))


async def recalled(service: Service, owner: str, task: str, k: int, episodes: int) -> RecalledOut:
    """What helps an agent with a task."""
    return RecalledOut.of(await (await _memory(service, owner)).recall(task, k, episodes))


async def add_episodes(body: TrajectoryIn, manager: Creating, request: Request) -> IngestedOut:
    """Review a trajectory with the model, which takes a few calls: the answer comes when it is done.

    Every stage is recorded. Should the answer not come, send the same again: it goes on where it was, and changes nothing
    once it is done.
    """
    owner = _agent(manager).owner
    return await read_episodes(service_of(request), owner, AgentTrajectory.of(body.id, body.time, body.messages))


def list_episodes(manager: Reading) -> EpisodesOut:
    """What the agent did: one entry for each matter of a user."""
    return EpisodesOut(episodes=episodes_of(_agent(manager).state()))


def list_reflections(manager: Reading) -> ReflectionsOut:
    """What the agent has learned."""
    return ReflectionsOut(reflections=reflections_of(_agent(manager).state()))


async def recall(body: RecallIn, manager: Reading, request: Request) -> RecalledOut:
    """The reflections and the similar episodes that help with a task."""
    return await recalled(service_of(request), _agent(manager).owner, body.task, body.k, body.episodes)


async def recall_episodes(
    ctx: Ctx,
    task: Annotated[QueryText, Field(description="What is to be done, in any words.")],
    k: Annotated[int, Field(ge=0, le=100, description="At most so many reflections.")] = 5,
    episodes: Annotated[int, Field(ge=0, le=100, description="At most so many similar episodes.")] = 3,
) -> RecalledOut:
    """Find the lessons and the similar earlier episodes that help with a task; `text` has all of it for a prompt."""
    state = state_of(ctx)
    memory = await state.memory(Scope.READ)
    return await recalled(state.service, memory.owner, task, k, episodes)


async def ingest_trajectory(
    ctx: Ctx,
    id: Annotated[str, Field(min_length=1, max_length=200, description="Names the conversation; each is read once.")],
    time: Annotated[Time, Field(description="When it took place.")],
    messages: Annotated[
        list[MessageIn],
        Field(min_length=1, max_length=10_000, description="As in the OpenAI protocol, with tool calls and tool messages."),
    ],
) -> IngestedOut:
    """Learn from a finished conversation: a model reads it, notes its episodes, and adds or improves lessons.

    It takes some calls of the model. Each step is recorded: if no answer comes, send the same again, and it goes on.
    """
    state = state_of(ctx)
    memory = await state.memory(Scope.WRITE)
    return await read_episodes(state.service, memory.owner, AgentTrajectory.of(id, time, messages))


INSTRUCTIONS = """\
This server keeps what one agent has learned from its own work: reflections, which are lessons for later tasks, and episodes,
which are tasks that it did. Call recall_episodes before you begin a task, and follow the lessons that fit it. When a
conversation is finished, give it to ingest_trajectory if there is such a tool: a model reads it and learns from it."""


class EpisodeRoutes(Routes):
    """The plug-in."""

    owner_kind = OwnerKind(
        "agent",
        is_agent,
        INSTRUCTIONS,
        (
            ToolSpec(recall_episodes, "Recall lessons and episodes", READS),
            ToolSpec(ingest_trajectory, "Learn from a conversation", ADDS, needs_model=True),
        ),
    )

    def router(self) -> APIRouter:
        """The routes."""
        routes = APIRouter(prefix=PREFIX, tags=["episodes"], dependencies=SECURITY, responses=responses())
        routes.post("/episodes")(add_episodes)
        routes.get("/episodes")(list_episodes)
        routes.get("/reflections")(list_reflections)
        routes.post("/recall")(recall)
        return routes
