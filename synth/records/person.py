"""A finished person, with what was given up and what it took."""

from __future__ import annotations

from datetime import datetime

from synth.records.base import Persona, Record
from synth.records.dialogue import Dialogue
from synth.records.life import EventSlot, LifeEvent
from synth.records.memories import EventGroup, Evolution, SessionFact
from synth.records.profile import Profile


class SynthSession(Record):
    """Stages 3 and 4 of one event.

    Attributes:
        index: The event's.
        time: When the session takes place, on the event's date.
        goal: What the user wants from the conversation.
        summary: What is said.
        facts: The operations' facts, in the order of the operations.
        dialogue: None if the session was rejected; its facts change the memory state all the same.
    """

    index: int
    time: datetime
    goal: str
    summary: str
    facts: tuple[SessionFact, ...]
    dialogue: Dialogue | None


class Rejection(Record):
    """A unit whose answer broke rules to the last repair.

    Attributes:
        unit: Its kind, the value of a `synth.tasks.Unit`.
        where: Which one of the person's: a session's or group's index; empty where there is only one.
        rules: Names of the broken rules, of the last attempt.
        reasons: What was wrong, one sentence a violation.
    """

    unit: str
    where: str
    rules: tuple[str, ...]
    reasons: tuple[str, ...]


class UnitUsage(Record):
    """What the units of one kind took.

    Attributes:
        units: Units.
        attempts: Answers, the first and the repairs.
        rejected: Units that stayed wrong.
        prompt_tokens: As the server counts them.
        completion_tokens: Likewise.
    """

    units: int = 0
    attempts: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Person(Record):
    """Everything that was written of one person; the labelled sessions follow from it (`synth.person.assembly`).

    Attributes:
        persona: The seed.
        profile: None if it was rejected, and with it the person.
        slots: The plan of the events.
        events: Empty if they were rejected, and with them the person.
        groups: The linked events whose memory thread was written.
        evolutions: The memory threads, one a group.
        sessions: One an event.
        dropped: How many facts of the filling were left out, because they repeat what is remembered elsewhere.
        rejections: What was given up.
        checked: How many answers each rule has judged.
        violations: How many answers have broken it, repaired ones included.
        usage: By the value of `synth.tasks.Unit`.
    """

    persona: Persona
    profile: Profile | None
    slots: tuple[EventSlot, ...]
    events: tuple[LifeEvent, ...]
    groups: tuple[EventGroup, ...]
    evolutions: tuple[Evolution, ...]
    sessions: tuple[SynthSession, ...]
    dropped: int = 0
    rejections: tuple[Rejection, ...]
    checked: dict[str, int]
    violations: dict[str, int]
    usage: dict[str, UnitUsage]
