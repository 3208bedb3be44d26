"""The ReAct protocol as a state machine: what to send, what came back, what is next.

An `Episode` knows nothing of engines or servers. Training, serving and evaluation drive the same object::

    episode = Episode(session, state, EpisodeConfig())
    step = episode.read(policy(episode.messages))
    while not isinstance(step, Finished):
        if isinstance(step, Search):
            episode.answer(bank.search(step.queries))
        step = episode.read(policy(episode.messages))
    trajectory = episode.trajectory
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from deltamem.errors import DeltaMemError
from deltamem.memory import Memory, Operation
from deltamem.prompts import load_prompt
from deltamem.protocol import CONTROL_MARK, REFUSALS, Violation, read_turn
from deltamem.sessions import TIME_FORMAT, Session, format_dialogue

MemoryField = Literal["id", "time", "text"]


class Message(TypedDict):
    """A chat message as every engine takes it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class EpisodeConfig:
    """What shapes an episode besides the session.

    Attributes:
        system_prompt: Name of the prompt file for the system message.
        session_prompt: Name of the prompt file that presents the session.
        k: Memories that `search_memory` returns for each query (paper, table 5).
        max_turns: Assistant turns; the last one must give the outputs.
        memory_fields: Order of the keys in the tool's answer. The paper's figure 6 shows ``id, time, text``.
        thinking: Whether every assistant turn begins with a think block; if not, text in such a block is a violation.
        max_invalid_calls: Turns without a readable action that are answered by an error in a row; one more ends the episode.
    """

    system_prompt: str = "manager"
    session_prompt: str = "session"
    k: int = 5
    max_turns: int = 4
    memory_fields: tuple[MemoryField, ...] = ("id", "time", "text")
    thinking: bool = True
    max_invalid_calls: int = 0

    def check(self) -> None:
        """Make sure that the prompts exist and do not ask for what would be a violation.

        Raises:
            DeltaMemError: If one does not exist, or asks a model that must not think to do so.
        """
        asking = [name for name in self.prompt_hashes if "<think>" in load_prompt(name).text]
        if asking and not self.thinking:
            raise DeltaMemError(
                f"prompt {asking[0]!r} asks for a think block, which thinking=false forbids; expected one that does not, "
                "such as 'manager_direct'"
            )

    @property
    def prompt_hashes(self) -> dict[str, str]:
        """sha256 of each prompt file in use, by name."""
        return {name: load_prompt(name).sha256 for name in (self.system_prompt, self.session_prompt)}


@dataclass(frozen=True, slots=True)
class Search:
    """The model wants to search; the driver must call `Episode.answer`."""

    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The turn had no readable action; the episode has answered with the reason, and the model may go on."""

    reason: Violation


@dataclass(frozen=True, slots=True)
class Finished:
    """The episode is over."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A finished episode.

    Attributes:
        messages: The whole conversation with the model.
        queries: The queries of each search.
        retrieved_ids: The ids that each search returned.
        operations: The applicable operations; None if the outputs are missing or could not be read.
        violations: Every departure from the protocol.
        failure: What broke in our own machinery, if anything; such an episode says nothing about the model.
    """

    messages: tuple[Message, ...]
    queries: tuple[tuple[str, ...], ...] = ()
    retrieved_ids: tuple[tuple[str, ...], ...] = ()
    operations: tuple[Operation, ...] | None = None
    violations: tuple[Violation, ...] = ()
    failure: str | None = None

    @property
    def seen_ids(self) -> frozenset[str]:
        """All ids that some search returned."""
        return frozenset(memory_id for ids in self.retrieved_ids for memory_id in ids)


def opening_messages(session: Session, config: EpisodeConfig) -> list[Message]:
    """The system message and the session, with which every episode begins."""
    return [
        Message(role="system", content=load_prompt(config.system_prompt).text),
        Message(
            role="user",
            content=load_prompt(config.session_prompt).fill(
                person=CONTROL_MARK.sub("< ", session.person_name),
                time=session.time.strftime(TIME_FORMAT),
                dialogue=format_dialogue(session.dialogue),
            ),
        ),
    ]


def format_memories(memories: Sequence[Memory], fields: Sequence[MemoryField]) -> str:
    r"""The tool's answer: a JSON list of memories with their id, time and text.

    In a memory with a control mark every ``<`` is written as ``\u003c``: the same text to whoever reads the JSON, but no
    special token to a chat server.
    """
    records = []
    for memory in memories:
        values = {"id": memory.id, "time": memory.time.strftime(TIME_FORMAT), "text": memory.text}
        record = json.dumps({field: values[field] for field in fields}, ensure_ascii=False)
        records.append(record.replace("<", "\\u003c") if CONTROL_MARK.search(record) else record)
    return f"[{', '.join(records)}]"


class Episode:
    """One ReAct run over one session."""

    def __init__(self, session: Session, known_ids: Collection[str], config: EpisodeConfig) -> None:
        """Begin an episode.

        Args:
            session: The dialogue to read.
            known_ids: Ids of the memory state before the session.
            config: Prompts and limits.
        """
        self._known_ids = known_ids
        self._config = config
        self.messages: list[Message] = opening_messages(session, config)
        self._turns = 0
        self._refused_in_a_row = 0
        self._queries: list[tuple[str, ...]] = []
        self._retrieved: list[tuple[str, ...]] = []
        self._operations: tuple[Operation, ...] | None = None
        self._violations: list[Violation] = []
        self._failure: str | None = None

    def read(self, text: str, *, truncated: bool = False) -> Search | Refused | Finished:
        """Take one assistant text.

        Args:
            text: The whole turn without its end-of-turn token, also what the chat template has written of it.
            truncated: Whether the engine stopped at a token limit.

        Returns:
            `Search` if the model asked for memories and may go on, `Refused` if its turn had no readable action and it may
            go on, else `Finished`.
        """
        self.messages.append(Message(role="assistant", content=text))
        self._turns += 1
        turn = read_turn(text, self._known_ids, thinking=self._config.thinking)
        self._violations += turn.violations
        if truncated:
            self._violations.append(Violation.TOKEN_LIMIT)
        if turn.operations is not None or truncated:
            self._operations = turn.operations
            return Finished()
        if turn.queries is None:
            return self._refuse(turn.violations[-1])
        self._refused_in_a_row = 0
        if self._turns >= self._config.max_turns:
            self._violations.append(Violation.TURN_LIMIT)
            return Finished()
        self._queries.append(turn.queries)
        return Search(turn.queries)

    def _refuse(self, reason: Violation) -> Refused | Finished:
        if self._refused_in_a_row >= self._config.max_invalid_calls or self._turns >= self._config.max_turns:
            return Finished()
        self._refused_in_a_row += 1
        self.messages.append(Message(role="tool", content=json.dumps({"error": REFUSALS[reason]})))
        return Refused(reason)

    def answer(self, memories: Sequence[Memory]) -> Message:
        """Answer the search with the memories it found; returns the tool message that was appended."""
        self._retrieved.append(tuple(memory.id for memory in memories))
        message = Message(role="tool", content=format_memories(memories, self._config.memory_fields))
        self.messages.append(message)
        return message

    def stop(self, violation: Violation) -> None:
        """End the episode from outside, for example because the context is full."""
        self._violations.append(violation)

    def fail(self, reason: str) -> None:
        """Record that our own machinery broke; the trajectory then carries the reason."""
        self._failure = reason

    @property
    def trajectory(self) -> Trajectory:
        """The episode so far."""
        return Trajectory(
            messages=tuple(self.messages),
            queries=tuple(self._queries),
            retrieved_ids=tuple(self._retrieved),
            operations=self._operations,
            violations=tuple(self._violations),
            failure=self._failure,
        )
