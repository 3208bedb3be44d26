"""The program's part of stage 3: from deltas, memory threads and filling to the operations of each session; their replay.

An UPDATE always finds its memory: deltas change initial facts and the texts of earlier deltas, a thread changes its own
earlier text, and both happen whether or not the rest of their session was written.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from deltamem.memory import Event, Memory, MemoryState, Operation, apply
from deltamem.sessions import LabelledSession, Session, Turn
from deltamem.text import content_stems, normalised
from synth.config import Shape
from synth.records import (
    Change,
    EventGroup,
    EventSlot,
    Evolution,
    Fact,
    LifeEvent,
    Origin,
    Person,
    Profile,
    SessionFact,
    SynthSession,
)
from synth.tasks import Filling
from synth.validators.base import Similarity

SAME_FACT = 0.92
"""Cosine similarity from which a filling fact repeats another one.

With all-MiniLM-L6-v2, paraphrases of such sentences lie at 0.90 to 0.97, and sentences that differ in a name or a thing lie
below 0.87. A repetition that stays does less harm than a fact that is lost.
"""

_FIRST_HOUR, _LAST_HOUR = 8, 22
_BEST = 3
"""Among how many of the memories closest to an event each repeated one is drawn."""


class Due(NamedTuple):
    """A change of the memory state that an event brings about whatever becomes of its session."""

    event: Event
    text: str
    previous_text: str
    keywords: tuple[str, ...]
    origin: Origin


class Assembled(NamedTuple):
    """The sessions, without dialogues, and how many filling facts were left out as repetitions."""

    sessions: tuple[SynthSession, ...]
    dropped: int


class Relatedness:
    """How much memories have to do with an event: the content stems that they share, the rare ones counting more."""

    def __init__(self, name: str) -> None:
        """Start without any text.

        Args:
            name: The person's; all memories share it, so it does not count.
        """
        self._ignored = content_stems(name)
        self._stems: dict[str, frozenset[str]] = {}

    def stems(self, text: str) -> frozenset[str]:
        """The content stems of a text, less the person's name."""
        found = self._stems.get(text)
        if found is None:
            found = self._stems[text] = content_stems(text) - self._ignored
        return found

    def ranked(self, texts: Sequence[str], about: Sequence[str]) -> list[str]:
        """The texts that share a stem with `about`, the closest first; equally close ones in their order."""
        known = [self.stems(text) for text in texts]
        spread = Counter(stem for stems in known for stem in stems)
        wanted = frozenset[str]().union(*map(self.stems, about))
        scores = []
        for place, stems in enumerate(known):
            # Sorted, because the last bits of a sum depend on its order and that of a set on the process.
            score = sum(math.log((1 + len(texts)) / spread[stem]) for stem in sorted(stems & wanted))
            if score:
                scores.append((-score / math.sqrt(len(stems)), place))
        return [texts[place] for _, place in sorted(scores)]


def dues(
    events: Sequence[LifeEvent], groups: Sequence[EventGroup], evolutions: Sequence[Evolution]
) -> dict[int, tuple[Due, ...]]:
    """What each event changes for certain: its deltas, then the memory threads that it belongs to.

    Args:
        events: The whole life.
        groups: The linked events.
        evolutions: Their memory threads, in the order of the groups.

    Returns:
        By the event's index, in order of events.
    """
    found: dict[int, list[Due]] = {event.index: [] for event in events}
    for event in events:
        for delta in event.changes:
            kind = Event.ADD if delta.change is Change.NEW else Event.UPDATE
            found[event.index].append(Due(kind, delta.text, delta.previous_text, delta.keywords, Origin.DELTA))
    for group, evolution in zip(groups, evolutions, strict=True):
        previous = ""
        for index, memory in zip(group.events, evolution.memories, strict=True):
            kind = Event.UPDATE if previous else Event.ADD
            found[index].append(Due(kind, memory.text, previous, memory.keywords, Origin.EVOLUTION))
            previous = memory.text
    return {index: tuple(changes) for index, changes in found.items()}


def hold(held: dict[str, tuple[str, ...]], changes: Sequence[Due]) -> None:
    """Bring the texts that hold, with their keywords, up to date in place."""
    for change in changes:
        if change.event is Event.UPDATE:
            del held[change.previous_text]
        if change.event is not Event.NONE:
            held[change.text] = change.keywords


def assemble(
    profile: Profile,
    slots: Sequence[EventSlot],
    events: Sequence[LifeEvent],
    groups: Sequence[EventGroup],
    evolutions: Sequence[Evolution],
    fillings: Sequence[Filling | None],
    shape: Shape,
    *,
    seed: int,
    similarity: Similarity | None = None,
) -> Assembled:
    """Put the facts of every session together (paper, section 3.2, memory generation).

    A filling fact is left out if it repeats a fact of the life, earlier, later or outdated, or another filling fact: the
    same text once normalised, the same content stems, or a similarity of `SAME_FACT`.

    Args:
        profile: Stage 1.
        slots: The plan, one an event.
        events: Stage 2, free of violations.
        groups: The linked events whose memory thread was written.
        evolutions: The threads; no text is one of another thread, of a delta or of the initial facts.
        fillings: One an event; None where it was rejected. Such a session has neither filling nor repeated memories.
        shape: All sizes.
        seed: What the times, the repeated memories and the order of facts are drawn from, with the person's id.
        similarity: None compares words only.

    Returns:
        One session an event, each without a dialogue.
    """
    certain = dues(events, groups, evolutions)
    related = Relatedness(profile.name)
    held = {fact.text: fact.keywords for fact in profile.initial}
    told = [*held, *(change.text for changes in certain.values() for change in changes)]
    offered = [fact.text for filling in fillings if filling is not None for fact in filling.facts]
    alike = _alike(similarity, offered, told) if similarity is not None and offered else {}
    known = _Known(related, told if offered else (), alike)
    sessions = []
    previous, dropped = profile.start, 0
    for slot, event, filling in zip(slots, events, fillings, strict=True):
        rng = random.Random(f"{seed}/{profile.persona.person_id}/session/{event.index}")
        previous = time = max(_time(rng, event), previous + timedelta(minutes=1))
        facts = list(certain[event.index])
        if filling is not None:
            further = known.new(filling.facts)
            dropped += len(filling.facts) - len(further)
            updated = {change.previous_text for change in facts}
            free = [text for text in held if text not in updated]
            if slot.reused and shape.plan.kind == "quotas":
                new = [*(change.text for change in facts), *(fact.text for fact in further)]
                free = related.ranked(free, [event.title, event.narrative, *new])[: _BEST * slot.reused]
            repeated = rng.sample(free, min(slot.reused, len(free)))
            facts += [Due(Event.NONE, text, text, held[text], Origin.REUSE) for text in repeated]
            facts = _mixed(rng, facts, [Due(Event.ADD, fact.text, "", fact.keywords, Origin.FILLING) for fact in further])
        session = SynthSession(
            index=event.index,
            time=time,
            goal=filling.goal if filling else "",
            summary=filling.summary if filling else "",
            facts=tuple(SessionFact(id=f"f{number}", **fact._asdict()) for number, fact in enumerate(facts, start=1)),
            dialogue=None,
        )
        sessions.append(session)
        hold(held, facts)
    return Assembled(tuple(sessions), dropped)


def replay(person: Person) -> Iterator[tuple[SynthSession, MemoryState, tuple[Operation, ...], MemoryState]]:
    """Go through the memory states of a person, sessions that were rejected included.

    Yields:
        Each session with the state before it, its operations and the state after it.
    """
    if person.profile is None:
        return
    state = MemoryState(
        Memory(f"m{number}", fact.text, person.profile.start) for number, fact in enumerate(person.profile.initial, start=1)
    )
    for session in person.sessions:
        ids = {memory.text: memory.id for memory in state.memories}
        operations = tuple(
            Operation(fact.event, fact.text, ids[fact.previous_text] if fact.previous_text else None, fact.keywords)
            for fact in session.facts
        )
        after = apply(state, operations, session.time)
        yield session, state, operations, after
        state = after


def labelled_sessions(person: Person) -> Iterator[LabelledSession]:
    """The sessions to train on: those with a dialogue, in order."""
    if person.profile is None:
        return
    persona, name = person.persona, person.profile.name
    for session, before, operations, after in replay(person):
        if session.dialogue is None:
            continue
        turns = tuple(
            turn
            for exchange in session.dialogue.turns
            for turn in (Turn("user", exchange.user), Turn("assistant", exchange.assistant))
        )
        said = Session(persona.person_id, name, session.time, turns)
        yield LabelledSession(said, session.index, persona.split, before, operations, after)


class _Known:
    """What is remembered of a life, to tell what filling repeats."""

    def __init__(self, related: Relatedness, texts: Sequence[str], alike: Mapping[str, frozenset[str]]) -> None:
        self._related = related
        self._alike = alike
        self._texts: set[str] = set()
        self._normalised: set[str] = set()
        self._stems: set[frozenset[str]] = set()
        for text in texts:
            self._add(text)

    def new(self, facts: Sequence[Fact]) -> list[Fact]:
        """The facts that repeat neither what is known nor one another; they are known from now on."""
        found = []
        for fact in facts:
            if not self._repeats(fact.text):
                found.append(fact)
                self._add(fact.text)
        return found

    def _repeats(self, text: str) -> bool:
        return (
            normalised(text) in self._normalised
            or self._related.stems(text) in self._stems
            or not self._texts.isdisjoint(self._alike.get(text, ()))
        )

    def _add(self, text: str) -> None:
        self._texts.add(text)
        self._normalised.add(normalised(text))
        self._stems.add(self._related.stems(text))


def _alike(similarity: Similarity, texts: Sequence[str], known: Sequence[str]) -> dict[str, frozenset[str]]:
    """Which other texts each text is about the same as. All are compared at once, because embedding is slow."""
    texts = list(dict.fromkeys(texts))
    others = [*texts, *known]
    return {
        text: frozenset(other for other, score in zip(others, row, strict=True) if score >= SAME_FACT)
        for text, row in zip(texts, similarity.between(texts, others), strict=True)
    }


def _time(rng: random.Random, event: LifeEvent) -> datetime:
    """A time of the event's day at which people talk."""
    hour, minute = rng.randint(_FIRST_HOUR, _LAST_HOUR), rng.randrange(60)
    return datetime(event.date.year, event.date.month, event.date.day, hour, minute)


def _mixed(rng: random.Random, others: Sequence[Due], filling: Sequence[Due]) -> list[Due]:
    """Put changes and repetitions at random places of the filling, which keeps its order because it tells a story.

    No kind of operation is then bound to a part of the session, which a trained model would learn to expect.
    """
    mixed = list(filling)
    for due in rng.sample(others, len(others)):
        mixed.insert(rng.randint(0, len(mixed)), due)
    return mixed
