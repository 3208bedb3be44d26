"""One person's life taken apart for reading: what each session does to which memory, and how every memory came about."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from deltamem.memory import Event
from synth.person.assembly import replay
from synth.records import Dialogue, LifeEvent, Person, Rejection, SessionFact, SynthSession
from synth.rules.wording import occurs
from synth.tasks import Unit


@dataclass(frozen=True, slots=True)
class KeywordView:
    """A keyword and whether the user says it; `said` is None in a session without a dialogue."""

    text: str
    said: bool | None


@dataclass(frozen=True, slots=True)
class FactView:
    """A fact of a session.

    Attributes:
        fact: The record.
        memory_id: Of the memory that is added, rewritten or repeated.
        turn: Where the user says it, from 1; 0 if that is not known.
        previous_turn: Where the user mentions what held before; 0 if nowhere.
        keywords: The fact's.
    """

    fact: SessionFact
    memory_id: str
    turn: int
    previous_turn: int
    keywords: list[KeywordView]


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session with its event.

    Attributes:
        session: The record.
        event: What it is about.
        facts: What the user has to say, in the order of the operations.
        memories: How many memories there are after it.
        rejections: What of it was given up.
    """

    session: SynthSession
    event: LifeEvent
    facts: list[FactView]
    memories: int
    rejections: list[Rejection]

    def count(self, event: str) -> int:
        """How many of its operations are of a kind."""
        return sum(view.fact.event == event for view in self.facts)

    def said_in(self, turn: int) -> list[FactView]:
        """The facts that the plan places in a turn, those whose outdated text is mentioned there included."""
        return [fact for fact in self.facts if turn in (fact.turn, fact.previous_turn)]


@dataclass(frozen=True, slots=True)
class Version:
    """One text of a memory; `session` is its index, None for what is known before the first session."""

    text: str
    time: datetime
    session: int | None


@dataclass(frozen=True, slots=True)
class MemoryView:
    """A memory with all its texts, oldest first, and the sessions that repeat it."""

    id: str
    versions: list[Version]
    repeated: list[int] = field(default_factory=list)

    @property
    def evolves(self) -> bool:
        """Whether a session changes or repeats it."""
        return len(self.versions) > 1 or bool(self.repeated)


@dataclass(frozen=True, slots=True)
class Life:
    """A person taken apart; sessions and memories are empty if the person was rejected."""

    person: Person
    sessions: list[SessionView]
    memories: list[MemoryView]

    @property
    def rejections(self) -> list[Rejection]:
        """What was given up and belongs to no single session."""
        return [item for item in self.person.rejections if not _of_session(item)]


def life(person: Person) -> Life:
    """Take a person apart."""
    events = {event.index: event for event in person.events}
    memories: dict[str, MemoryView] = {}
    if person.profile is not None:
        for number, known in enumerate(person.profile.initial, start=1):
            memories[f"m{number}"] = MemoryView(f"m{number}", [Version(known.text, person.profile.start, None)])
    sessions = []
    for session, before, operations, after in replay(person):
        added = iter([memory_id for memory_id in after if memory_id not in before])
        turns = {entry.fact_id: entry for entry in session.dialogue.plan} if session.dialogue else {}
        facts = []
        for fact, operation in zip(session.facts, operations, strict=True):
            memory_id = operation.target_memory_id or next(added)
            version = Version(fact.text, session.time, session.index)
            if fact.event is Event.ADD:
                memories[memory_id] = MemoryView(memory_id, [version])
            elif fact.event is Event.UPDATE:
                memories[memory_id].versions.append(version)
            else:
                memories[memory_id].repeated.append(session.index)
            entry = turns.get(fact.id)
            facts.append(
                FactView(
                    fact,
                    memory_id,
                    entry.turn if entry else 0,
                    entry.previous_turn if entry else 0,
                    _keywords(fact, session.dialogue),
                )
            )
        rejections = [item for item in person.rejections if _of_session(item) and item.where == str(session.index)]
        sessions.append(SessionView(session, events[session.index], facts, len(after), rejections))
    return Life(person, sessions, list(memories.values()))


def is_whole(person: Person) -> bool:
    """Whether a person has sessions and nothing of them was given up."""
    return bool(person.sessions) and not person.rejections


def _of_session(rejection: Rejection) -> bool:
    return rejection.unit in (Unit.FILLING, Unit.DIALOGUE)


def _keywords(fact: SessionFact, dialogue: Dialogue | None) -> list[KeywordView]:
    said = " ".join(exchange.user for exchange in dialogue.turns) if dialogue else ""
    return [KeywordView(text, occurs(text, said) if dialogue else None) for text in fact.keywords]
