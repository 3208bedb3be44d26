"""The tiny shape: a few facts a session, each a word and a name, said in short sentences (`synth.offline.topics`)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from deltamem.errors import DeltaMemError
from deltamem.memory import Event
from deltamem.sessions import Split
from synth.offline.templates import Pool, Template, fill
from synth.offline.topics import CLOSERS, OPENERS, POOLS, REPLIES, SMALL_TALK, TOPICS, Topic
from synth.offline.words import day, invent, split_of
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
from synth.shape import InitialCounts
from synth.tasks import DialogueTask, Events, EventsTask, InitialFacts, InitialTask

_PERSON = "{person} "


def _template(topic: Topic) -> Template:
    pools: dict[str, Pool] = {"anchor": None, topic.slot: POOLS[topic.pool] if topic.pool else None}
    if topic.fixed:
        pools[topic.fixed] = POOLS[topic.fixed]
    return Template(topic.memory.removeprefix(_PERSON), pools)


_MEMORIES = {topic.name: _template(topic) for topic in TOPICS}
"""The memory sentences without the person's name in front."""


class Told(NamedTuple):
    """What a memory sentence says."""

    topic: Topic
    values: dict[str, str]


def told(name: str, text: str) -> Told | None:
    """Read a memory sentence about the person of this name; None if it is of no topic."""
    if not text.startswith(name + " "):
        return None
    rest = text[len(name) + 1 :]
    for topic in TOPICS:
        if (values := _MEMORIES[topic.name].read(rest)) is not None:
            return Told(topic, values)
    return None


def write_initial(task: InitialTask, rng: random.Random) -> InitialFacts:
    """Facts, each of a topic of its own as far as there are topics."""
    name, split = task.fixed.name, split_of(task.fixed.name)
    facts = []
    for topic in _initial_topics(rng, task.counts):
        fact = _fact(topic, name, _values(rng, topic, split))
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
    said: list[tuple[str, SessionFact | None]] = [(_say(rng, task.fixed.name, fact), fact) for fact in task.facts]
    for _ in range(2):
        if rng.random() < task.limits.small_talk:
            said.insert(rng.randint(0, len(said)), (rng.choice(SMALL_TALK), None))
    plan = tuple(
        PlannedFact(fact_id=fact.id, turn=turn, previous_turn=turn if fact.event is Event.UPDATE else 0)
        for turn, (_, fact) in enumerate(said, start=1)
        if fact is not None
    )
    return Dialogue(plan=plan, turns=tuple(Exchange(user=text, assistant=rng.choice(REPLIES)) for text, _ in said))


def _initial_topics(rng: random.Random, counts: InitialCounts) -> list[Topic]:
    """Topics within the counts of their tracks."""
    total = rng.randint(counts.total.min, counts.total.max)
    wanted: list[Track] = [track for track in Track for _ in range(counts.of(track).min)]
    room = [track for track in Track for _ in range(counts.of(track).max - counts.of(track).min)]
    if not len(wanted) <= total <= len(wanted) + len(room):
        raise DeltaMemError(f"the tracks of the initial facts do not add up to {total}")
    topics = rng.sample(TOPICS, len(TOPICS))
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
    topics = rng.sample(TOPICS, len(TOPICS))
    for planned in slot.changes:
        previous = ""
        if planned.change is Change.NEW:
            topic = next(topic for topic in topics if planned.track in (None, topic.track))
            topics.remove(topic)
            fact = _fact(topic, name, _values(rng, topic, split))
            while fact.text in seen:
                fact = _fact(topic, name, _values(rng, topic, split))
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
        found = told(name, previous) if facts[previous] is not None and track in (None, facts[previous]) else None
        if found is None:
            continue
        topic, values = found
        words = [invent(rng, split)] if topic.pool is None else rng.sample(POOLS[topic.pool], len(POOLS[topic.pool]))
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
    now, before = told(name, fact.text), told(name, fact.previous_text)
    if now is None:
        raise DeltaMemError(f"the offline writer cannot read the fact {fact.text!r}")
    topic, values = now
    templates = {Event.ADD: topic.new, Event.UPDATE: topic.adjust, Event.NONE: topic.repeat}[fact.event]
    opener, said = rng.choice(OPENERS), rng.choice(templates)
    if opener.endswith(", ") and not said.startswith(("I ", "{anchor}")):
        said = said[0].lower() + said[1:]
    return opener + fill(said, {**values, "old": before.values[topic.slot] if before else ""}) + rng.choice(CLOSERS)


def _values(rng: random.Random, topic: Topic, split: Split) -> dict[str, str]:
    values = {"anchor": invent(rng, split), topic.slot: rng.choice(POOLS[topic.pool]) if topic.pool else invent(rng, split)}
    if topic.fixed:
        values[topic.fixed] = rng.choice(POOLS[topic.fixed])
    return values


def _fact(topic: Topic, name: str, values: Mapping[str, str]) -> Fact:
    keywords = [values["anchor"], values[topic.slot]]
    if topic.fixed:
        keywords.append(values[topic.fixed])
    return Fact(text=f"{name} {_MEMORIES[topic.name].fill(values)}", keywords=tuple(keywords))
