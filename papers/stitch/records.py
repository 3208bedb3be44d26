"""A step of a trajectory, the contextual intent it is indexed by, and what a query asks for (STITCH, section 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a trajectory: who acted, what was said or done, and when."""

    id: str  # Unique within the trajectory
    role: str  # Who acted, for example `user`, or the name of a debater
    text: str  # The action in words, or the utterance
    time: datetime
    # What was said around it, for labelling; not kept, and no part of what is compared
    context: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Intent:
    """The contextual intent of a step: its goal, its kind of action, and the kinds of facts that matter in it."""

    scope: str  # Thematic scope, section 2.2.1
    event: str  # Event type, section 2.2.2
    entity_types: tuple[str, ...] = ()  # Key entity types, section 2.2.3; each once


@dataclass(frozen=True, slots=True)
class Snippet:
    """What is kept of a step, section 2.2.4."""

    step: Step
    intent: Intent
    resolved: str  # The text with its references resolved; equals `step.text` if there was none
    summary: str  # Canonical summary, which queries are compared with


@dataclass(frozen=True, slots=True)
class IntentFilter:
    """The labels that a query asks for, section 2.3; every label is one of the inventory of its time."""

    scopes: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    entity_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScopeNote:
    """A sentence or three on what happened in a scope, part of its running summary."""

    scope: str
    text: str


class Stamp(NamedTuple):
    """Which collection it is, of all that had its name, and how often something was erased from it."""

    collection: int
    erasures: int
