"""The four stages as interfaces. A writer is one object for each; pools and language models fit the same places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from deltamem.memory import MemoryState, Operation
from deltamem.sessions import Turn
from synth.records import LifeEvent, Persona, Profile


class ProfileStage(Protocol):
    """Stage 1, profile enrichment."""

    def write_profile(self, persona: Persona) -> Profile:
        """Enrich a persona into a profile with initial facts."""
        ...


class EventStage(Protocol):
    """Stage 2, event generation."""

    def write_events(self, profile: Profile, count: int) -> tuple[LifeEvent, ...]:
        """Write `count` events in chronological order, consistent with each other and the initial facts."""
        ...


class MemoryStage(Protocol):
    """Stage 3, memory generation."""

    def write_operations(self, profile: Profile, event: LifeEvent, prior_state: MemoryState) -> tuple[Operation, ...]:
        """Turn an event into target operations, with keywords, on the state before it."""
        ...


class DialogueStage(Protocol):
    """Stage 4, dialogue generation."""

    def write_dialogue(self, profile: Profile, event: LifeEvent, operations: Sequence[Operation]) -> tuple[Turn, ...]:
        """Write a session in which the user says every fact of the event."""
        ...


class Writer(NamedTuple):
    """The four stages of one pipeline."""

    profile: ProfileStage
    events: EventStage
    memories: MemoryStage
    dialogue: DialogueStage
