"""What an agent did, and what is kept of it: trajectories, analysed turns, episode summaries and reflections.

A trajectory is a conversation of an agent with its tool calls, in the messages of the OpenAI protocol. What is kept of it
are memories of the agent's own owner (see `agent_owner`), told apart by ``kind`` in their metadata. They hold what the
records hold, so that history, diff, blame, rollback, export and erasure work for them as for every memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, ValidationError

from deltamem.config import StrictModel, first_error
from deltamem.errors import DeltaMemError
from deltamem.memory import Memory, MemoryState, Metadata, Value
from deltamem.sessions import Session, StorableText, Turn, json_objects

AGENT = "agent:"
"""Owners that begin with this are agents. Their lessons are kept apart from the memories of the people they serve: a
person can be erased without the agent unlearning, and no search for one finds the other."""


def agent_owner(name: str) -> str:
    """The owner that an agent's episodes belong to; it is given with or without ``agent:``.

    Raises:
        DeltaMemError: If the name is empty.
    """
    plain = name.removeprefix(AGENT)
    if not plain.strip():
        raise DeltaMemError("the agent's name is empty")
    return AGENT + plain


def is_agent(owner: str) -> bool:
    """Whether an owner is an agent: ``agent:`` and a name."""
    return owner.startswith(AGENT) and bool(owner.removeprefix(AGENT).strip())


class RecordKind(StrEnum):
    """What a memory of an agent is."""

    TURN = "turn"
    EPISODE = "episode"
    REFLECTION = "reflection"


@dataclass(frozen=True, slots=True)
class AgentStep:
    """One thing that the agent did or got within a turn."""

    kind: Literal["assistant", "call", "result"]
    text: str


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """A message of the user and everything until the next one."""

    user: str
    """Empty if the agent began."""
    steps: tuple[AgentStep, ...]


@dataclass(frozen=True, slots=True)
class AgentTrajectory:
    """A finished conversation of an agent. System messages are left out: they may name the user, and teach nothing."""

    id: str
    """Unique among the agent's trajectories; each is ingested once."""
    time: datetime
    turns: tuple[AgentTurn, ...]
    data: tuple[str, ...] = ()
    """Arguments and results of the tools, and system messages: where user data is looked for."""

    @classmethod
    def of(cls, trajectory_id: str, time: datetime, messages: Sequence[Mapping[str, Any] | MessageIn]) -> AgentTrajectory:
        """A trajectory from messages as chat endpoints take them.

        Args:
            trajectory_id: Names it.
            time: When it took place.
            messages: With ``role`` (system, developer, user, assistant, tool) and ``content`` (a text, a list of parts, or
                null); an assistant's may have ``tool_calls``. Other keys are ignored.

        Raises:
            DeltaMemError: If the id or a message is none, or there is nothing of an agent in them.
        """
        try:
            return _File.model_validate({"id": trajectory_id, "time": time, "messages": list(messages)}).trajectory()
        except ValidationError as error:
            none = {"too_short": "a trajectory needs at least one message"}
            raise DeltaMemError(first_error(error, messages=none)) from error

    def session(self, stage: str, owner: str) -> Session:
        """The session by which the journal knows a stage of reading this trajectory.

        Turn N of the trajectory are the turns 2N-1 (the user) and 2N (the agent) of the dialogue.
        """
        dialogue = []
        for turn in self.turns:
            said = "\n".join(f"[{step.kind}] {step.text}" for step in turn.steps)
            dialogue += [Turn("user", turn.user), Turn("assistant", said)]
        return Session(owner, owner, self.time, tuple(dialogue), self.id + stage)


@dataclass(frozen=True, slots=True)
class TurnAnalysis:
    """What one turn of a trajectory was about."""

    turn: int
    """From 1."""
    situation: str
    intent: str
    action: str
    thought: str
    achieved: bool
    """Whether the agent did what it wanted in this turn."""
    achieved_why: str
    ended: bool
    """Whether the user's matter ended with this turn, and with it the episode."""
    ended_why: str

    def memory(self, memory_id: str, trajectory: AgentTrajectory) -> Memory:
        """What is kept of it."""
        return _memory(memory_id, f"{self.intent} {self.action}", trajectory, RecordKind.TURN, self)

    @classmethod
    def of(cls, memory: Memory) -> TurnAnalysis:
        """What a memory holds."""
        return cls(**_fields(cls, memory))


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """One matter of a user, from its first turn to its last."""

    first: int
    """Turn of the trajectory, from 1, as `last`."""
    last: int
    situation: str
    intent: str
    achieved: bool
    justification: str
    reflection: str
    """What the order of its steps teaches; from this, `Reflection`s are made."""
    trajectory: str = ""
    id: str = ""
    """Of the memory that holds it, as `trajectory` is given by that."""

    def memory(self, memory_id: str, trajectory: AgentTrajectory) -> Memory:
        """What is kept of it; a task is compared with situation and intent."""
        return _memory(memory_id, f"{self.intent} {self.situation}", trajectory, RecordKind.EPISODE, self)

    @property
    def line(self) -> str:
        """How it went, as an agent is shown it before a similar task."""
        return f"{'Worked' if self.achieved else 'Failed'} before: {self.intent} {self.reflection}"

    @classmethod
    def of(cls, memory: Memory) -> EpisodeSummary:
        """What a memory holds."""
        return cls(**_fields(cls, memory) | {"trajectory": str(memory.metadata.get("trajectory", "")), "id": memory.id})


@dataclass(frozen=True, slots=True)
class Reflection:
    """A lesson for later tasks."""

    title: str
    use_cases: str
    hints: str
    confidence: float
    """0.1 to 1.0 in steps of 0.1."""
    id: str = ""
    """Of the memory that holds it."""

    @property
    def text(self) -> str:
        """As one text, which is what tasks are compared with."""
        return f"{self.title}. {self.use_cases} {self.hints}"

    @property
    def line(self) -> str:
        """As an agent is shown it before a task."""
        return f"{self.title} ({self.confidence:.1f}): {self.use_cases} {self.hints}"

    def memory(self, memory_id: str, trajectory: AgentTrajectory) -> Memory:
        """What is kept of it."""
        return _memory(memory_id, self.text, trajectory, RecordKind.REFLECTION, self)

    @classmethod
    def of(cls, memory: Memory) -> Reflection:
        """What a memory holds. If somebody has edited its text, that is what it says, whatever it was made of."""
        kept = cls(**_fields(cls, memory) | {"id": memory.id})
        return kept if kept.text == memory.text else cls(kept.title, "", memory.text, kept.confidence, memory.id)


Record = TurnAnalysis | EpisodeSummary | Reflection
_BESIDE = frozenset({"id", "trajectory"})
_EMPTY: Mapping[str, Value] = {"str": "", "bool": False, "int": 0, "float": 0.1}


def _memory(memory_id: str, text: str, trajectory: AgentTrajectory, kind: RecordKind, record: Record) -> Memory:
    metadata: dict[str, object] = {"kind": str(kind), "trajectory": trajectory.id}
    metadata |= {name: getattr(record, name) for name in record.__dataclass_fields__ if name not in _BESIDE}
    return Memory(memory_id, text, trajectory.time, Metadata(metadata))


def _fields(record: type[Record], memory: Memory) -> dict[str, Any]:
    """The fields of a record; what somebody has taken from the metadata is empty."""
    found: dict[str, Value] = {}
    for name, field in record.__dataclass_fields__.items():
        if name not in _BESIDE:
            empty = _EMPTY[str(field.type)]
            value = memory.metadata.get(name, empty)
            found[name] = value if type(value) is type(empty) else empty
    return found


def kind_of(memory: Memory) -> RecordKind | None:
    """What a memory of an agent is; None if something else wrote it."""
    value = memory.metadata.get("kind")
    return RecordKind(value) if isinstance(value, str) and value in set(RecordKind) else None


def reflections_of(state: MemoryState) -> list[Reflection]:
    """The reflections of a memory state."""
    return [Reflection.of(memory) for memory in state.memories if kind_of(memory) is RecordKind.REFLECTION]


def episodes_of(state: MemoryState) -> list[EpisodeSummary]:
    """The episodes of a memory state."""
    return [EpisodeSummary.of(memory) for memory in state.memories if kind_of(memory) is RecordKind.EPISODE]


def turns_of(state: MemoryState, episode: EpisodeSummary) -> list[TurnAnalysis]:
    """The notes on the turns of an episode, as far as a memory state holds them."""
    found = [
        TurnAnalysis.of(memory)
        for memory in state.memories
        if kind_of(memory) is RecordKind.TURN and memory.metadata.get("trajectory") == episode.trajectory
    ]
    return [turn for turn in found if episode.first <= turn.turn <= episode.last]


_STAGE = re.compile(r"#(?:turns|episode|reflections)-\d+$")


def split_stage(session_id: str) -> tuple[str, str]:
    """The trajectory and the stage that an entry of the journal is about; the last entry of a trajectory has no stage."""
    match = _STAGE.search(session_id)
    return (session_id, "") if match is None else (session_id[: match.start()], match[0])


class _Lenient(StrictModel):
    """Messages carry what their service adds."""

    model_config = ConfigDict(extra="ignore")


class _ContentPart(_Lenient):
    type: str
    text: StorableText | None = None


class _CalledFunction(_Lenient):
    name: StorableText
    arguments: StorableText | dict[str, Any] | None = None


class _Call(_Lenient):
    function: _CalledFunction


class MessageIn(_Lenient):
    """A message of the OpenAI protocol."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: StorableText | list[_ContentPart] | None = None
    tool_calls: list[_Call] | None = None

    @property
    def text(self) -> str:
        """The text of the content; pictures and the like leave their kind."""
        if isinstance(self.content, list):
            return "\n".join(part.text or "" if part.type.endswith("text") else f"[{part.type}]" for part in self.content)
        return self.content or ""


def _time(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError("expected an ISO 8601 time such as 2026-04-05T20:01") from None


def _trajectory_id(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError("an id is a text that can be printed")
    if _STAGE.search(value):
        raise ValueError("an id must not end like that of a stage, such as #turns-1")
    return value


class _File(StrictModel):
    id: Annotated[StorableText, Field(min_length=1, max_length=200), AfterValidator(_trajectory_id)]
    time: Annotated[datetime, PlainValidator(_time)]
    messages: Annotated[list[MessageIn], Field(min_length=1)]

    def trajectory(self) -> AgentTrajectory:
        turns: list[tuple[str, list[AgentStep]]] = []
        data: list[str] = []
        for message in self.messages:
            if message.role in ("system", "developer"):
                data.append(message.text)
                continue
            if message.role == "user":
                turns.append((message.text, []))
                continue
            if not turns:
                turns.append(("", []))
            steps = turns[-1][1]
            if message.text.strip():
                steps.append(AgentStep("result" if message.role == "tool" else "assistant", message.text))
            if message.role == "tool":
                data.append(message.text)
            for call in message.tool_calls or ():
                given = call.function.arguments
                written = json.dumps(given, ensure_ascii=False) if isinstance(given, dict) else given or ""
                steps.append(AgentStep("call", f"{call.function.name}({written})"))
                data.append(written)
        if not any(steps for _, steps in turns):
            raise DeltaMemError(f"trajectory {self.id!r} holds nothing that an agent said or did")
        return AgentTrajectory(
            self.id, self.time, tuple(AgentTurn(user, tuple(steps)) for user, steps in turns), tuple(data)
        )


def read_trajectories(source: Path | IO[bytes] | IO[str]) -> Iterator[AgentTrajectory]:
    """Read a file of trajectories: one JSON object, a list of objects, or one object a line.

    An object is ``{"id", "time": ISO 8601, "messages": [...]}``, the messages as for `AgentTrajectory.of`.

    Args:
        source: A path or an open stream.

    Raises:
        DeltaMemError: If it cannot be read, or something in it is no trajectory; names the line or the entry.
    """
    for where, value in json_objects(source, "trajectory"):
        try:
            yield _File.model_validate(value).trajectory()
        except ValidationError as error:
            raise DeltaMemError(f"{where}: {first_error(error, 'the trajectory')}") from error
        except DeltaMemError as error:
            raise DeltaMemError(f"{where}: {error}") from error
