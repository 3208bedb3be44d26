"""The offline writer of the tiny shape: a few facts a session, each a word and a name, said in short sentences."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from pydantic import model_validator

from deltamem.config import StrictModel
from deltamem.errors import DeltaMemError
from deltamem.memory import Event
from deltamem.sessions import Split
from synth.config import InitialCounts
from synth.names import invent_name, split_of
from synth.offline.templates import INVENTED, Index, Pool, Template, day, fill
from synth.pools import Texts, Words, load, slots_in, unique
from synth.records import (
    Change,
    Dialogue,
    EventSlot,
    Exchange,
    Fact,
    LifeEvent,
    PlannedFact,
    SessionFact,
    StateDelta,
    Track,
    TrackedFact,
)
from synth.tasks import DialogueTask, Events, EventsTask, InitialFacts, InitialTask

Item = TypeVar("Item")

INVENTED_SLOTS = ("anchor", "city")
"""Slots that get an invented name."""


class Topic(StrictModel):
    """Sentences of one topic (see the comments in ``tiny.yaml``)."""

    name: str
    track: Track
    slot: str
    memory: str
    new: Texts
    adjust: Texts
    repeat: Texts

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The slots of the memory sentence, in the order in which their values are drawn; the first two are keywords."""
        return tuple(dict.fromkeys(("anchor", self.slot, *slots_in(self.memory))))

    @model_validator(mode="after")
    def _says_what_it_remembers(self) -> Self:
        expected = set(slots_in(self.memory))
        if not {"anchor", self.slot} <= expected or not self.memory.endswith("{anchor}."):
            raise ValueError(f"the memory sentence has to have the slot {self.slot!r} and to end with {{anchor}}.")
        for text in (*self.new, *self.adjust, *self.repeat):
            if set(slots_in(text)) != expected | ({"old"} if text in self.adjust else set()):
                raise ValueError(f"not the slots of the memory sentence, and {{old}} where it changes: {text!r}")
        return self


class TinyTexts(StrictModel):
    """All topics and words of the tiny shape, and what is said besides."""

    topics: tuple[Topic, ...]
    words: dict[str, Words]
    openers: Words
    closers: Words
    small_talk: Words
    replies: Words

    @model_validator(mode="after")
    def _has_words(self) -> Self:
        unique(tuple(topic.name for topic in self.topics))
        if missing := {slot for topic in self.topics for slot in topic.slots}.difference(self.words, INVENTED_SLOTS):
            raise ValueError(f"words: none for the slots {sorted(missing)}")
        return self

    @cached_property
    def index(self) -> Index[Topic]:
        """Finds the topic of a memory sentence."""
        pools: dict[str, Pool] = {**dict.fromkeys(INVENTED_SLOTS, INVENTED), **self.words}
        return Index((topic, Template(topic.memory, pools)) for topic in self.topics)


@cache
def tiny_texts() -> TinyTexts:
    """All topics and words of the tiny shape, and what is said besides."""
    return load(Path(__file__).with_name("tiny.yaml"), TinyTexts)


class KnownTopic(NamedTuple):
    """What a memory sentence says."""

    topic: Topic
    values: dict[str, str]


def read_fact(name: str, text: str) -> KnownTopic | None:
    """Read a memory sentence about the person of this name; None if it is of no topic."""
    found = tiny_texts().index.read(name, text)
    return KnownTopic(*found) if found else None


def write_initial(task: InitialTask, rng: random.Random) -> InitialFacts:
    """Facts, each of a topic of its own as far as there are topics."""
    name, split = task.fixed.name, split_of(task.fixed.name)
    facts = []
    for topic in _initial_topics(rng, task.counts):
        fact = _fact(topic, name, _values(rng, topic, split, name))
        facts.append(TrackedFact(text=fact.text, keywords=fact.keywords, track=topic.track, subject=""))
    return InitialFacts(facts=tuple(facts))


def write_events(task: EventsTask, rng: random.Random) -> Events:
    """Events that are nothing but their changes."""
    name, split = task.fixed.name, split_of(task.fixed.name)
    facts = {fact.text: fact.track for fact in task.facts}
    seen = set(facts)
    events = []
    for slot in task.slots:
        changes = tuple(_changes(rng, name, split, slot, facts, seen))
        for delta in changes:
            facts.pop(delta.previous_text, None)
            facts[delta.text] = delta.track
        events.append(_event(rng, slot, changes))
    return Events(events=tuple(events))


def write_dialogue(task: DialogueTask, rng: random.Random) -> Dialogue:
    """One turn a fact, in the order of the facts, with small talk and short replies between."""
    texts = tiny_texts()
    said: list[tuple[str, SessionFact | None]] = [(_say(rng, task.fixed.name, fact), fact) for fact in task.facts]
    for _ in range(2):
        if rng.random() < task.limits.small_talk:
            said.insert(rng.randint(0, len(said)), (rng.choice(texts.small_talk), None))
    plan = tuple(
        PlannedFact(fact_id=fact.id, turn=turn, previous_turn=turn if fact.event is Event.UPDATE else 0)
        for turn, (_, fact) in enumerate(said, start=1)
        if fact is not None
    )
    return Dialogue(plan=plan, turns=tuple(Exchange(user=text, assistant=rng.choice(texts.replies)) for text, _ in said))


def _initial_topics(rng: random.Random, counts: InitialCounts) -> list[Topic]:
    """Topics within the counts of their tracks."""
    total = rng.randint(counts.total.min, counts.total.max)
    wanted: list[Track] = [track for track in Track for _ in range(counts.of(track).min)]
    room = [track for track in Track for _ in range(counts.of(track).max - counts.of(track).min)]
    if not len(wanted) <= total <= len(wanted) + len(room):
        raise DeltaMemError(f"the tracks of the initial facts do not add up to {total}")
    topics = _shuffled(rng, tiny_texts().topics)
    chosen: list[Topic] = []
    while len(chosen) < total:
        for topic in topics:
            tracks = wanted or room
            if topic.track in tracks and len(chosen) < total:
                tracks.remove(topic.track)
                chosen.append(topic)
    return chosen


def _changes(
    rng: random.Random, name: str, split: Split, slot: EventSlot, facts: Mapping[str, Track | None], seen: set[str]
) -> Iterator[StateDelta]:
    known = rng.sample(list(facts), len(facts))
    topics = _shuffled(rng, tiny_texts().topics)
    for planned in slot.changes:
        previous = ""
        if planned.change is Change.NEW:
            topic = next(topic for topic in topics if planned.track in (None, topic.track))
            topics.remove(topic)
            fact = _fact(topic, name, _values(rng, topic, split, name))
            while fact.text in seen:
                fact = _fact(topic, name, _values(rng, topic, split, name))
        else:
            previous, topic, fact = _adjustment(rng, name, split, known, planned.track, facts, seen)
            known.remove(previous)
        seen.add(fact.text)
        yield StateDelta(
            text=fact.text,
            keywords=fact.keywords,
            track=topic.track,
            change=planned.change,
            subject="",
            previous_text=previous,
        )


def _adjustment(
    rng: random.Random,
    name: str,
    split: Split,
    known: Sequence[str],
    track: Track | None,
    facts: Mapping[str, Track | None],
    seen: set[str],
) -> tuple[str, Topic, Fact]:
    """A known fact with another word in its slot, in a sentence that never held before."""
    for previous in reversed(known):
        found = read_fact(name, previous) if facts[previous] is not None and track in (None, facts[previous]) else None
        if found is None:
            continue
        topic, values = found
        words = (
            [_invent(rng, split, name)] if topic.slot in INVENTED_SLOTS else _shuffled(rng, tiny_texts().words[topic.slot])
        )
        for word in words:
            fact = _fact(topic, name, {**values, topic.slot: word})
            if fact.text not in seen:
                return previous, topic, fact
    raise DeltaMemError("no known fact is left that this event could adjust")


def _event(rng: random.Random, slot: EventSlot, changes: tuple[StateDelta, ...]) -> LifeEvent:
    valence = rng.choice(("positive", "neutral", "negative", "bittersweet"))
    return LifeEvent(
        index=slot.index,
        date=slot.not_before,
        domain=slot.domain,
        valence=valence,
        agency=rng.choice(("happens_to_user", "user_initiated", "co_created")),
        title=f"News of {day(slot.not_before)}",
        narrative=" ".join(delta.text for delta in changes),
        participants=(),
        grounding=(),
        result="The news is told.",
        emotion=valence,
        follow_ups=(),
        serves_life_goal=slot.life_goal,
        changes=changes,
    )


def _say(rng: random.Random, name: str, fact: SessionFact) -> str:
    now, before = read_fact(name, fact.text), read_fact(name, fact.previous_text)
    if now is None:
        raise DeltaMemError(f"the offline writer cannot read the fact {fact.text!r}")
    topic, values = now
    templates = {Event.ADD: topic.new, Event.UPDATE: topic.adjust, Event.NONE: topic.repeat}[fact.event]
    opener, said = rng.choice(tiny_texts().openers), rng.choice(templates)
    if opener.endswith(", ") and not said.startswith(("I ", "{anchor}")):
        said = said[0].lower() + said[1:]
    old = before.values[topic.slot] if before else ""
    return opener + fill(said, {**values, "old": old}) + rng.choice(tiny_texts().closers)


def _values(rng: random.Random, topic: Topic, split: Split, name: str) -> dict[str, str]:
    words = tiny_texts().words
    return {slot: _invent(rng, split, name) if slot in INVENTED_SLOTS else rng.choice(words[slot]) for slot in topic.slots}


def _invent(rng: random.Random, split: Split, name: str) -> str:
    """A name that is not the person's own, which would tell nothing of the fact."""
    while (invented := invent_name(rng, split)) in name.split():
        pass
    return invented


def _fact(topic: Topic, name: str, values: Mapping[str, str]) -> Fact:
    return Fact(text=f"{name} {fill(topic.memory, values)}", keywords=tuple(values[slot] for slot in topic.slots))


def _shuffled(rng: random.Random, items: Sequence[Item]) -> list[Item]:
    return rng.sample(items, len(items))
