"""The four stages from pools of words."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from deltamem.memory import Event, MemoryState, Operation
from deltamem.sessions import Split, Turn
from synth.offline.names import invent_name
from synth.offline.topics import CLOSERS, OPENERS, POOLS, REPLIES, SMALL_TALK, TOPICS, Topic
from synth.records import Change, Fact, LifeEvent, Persona, Profile, StateDelta
from synth.stages import Writer

_TOPICS = {topic.name: topic for topic in TOPICS}


@dataclass(frozen=True, slots=True)
class OfflineConfig:
    """Shape of the sessions.

    Attributes:
        seed: Everything is drawn from this and the person's id.
        initial_memories: Facts known before the first session.
        min_facts: Facts of a session at least.
        max_facts: Facts of a session at most.
        update_share: Chance that a fact of a session adjusts a known one.
        repeat_share: Chance that it only repeats a known one.
        small_talk: Chance of each of two turns without any fact.
    """

    seed: int = 1
    initial_memories: int = 4
    min_facts: int = 2
    max_facts: int = 4
    update_share: float = 0.4
    repeat_share: float = 0.1
    small_talk: float = 0.3


def offline_writer(config: OfflineConfig) -> Writer:
    """The four offline stages."""
    writer = _OfflineWriter(config)
    return Writer(writer, writer, writer, writer)


class _OfflineWriter:
    def __init__(self, config: OfflineConfig) -> None:
        self._config = config

    def _rng(self, stage: str, persona: Persona, index: int = 0) -> random.Random:
        """A generator of its own for each unit, so that no stage depends on how often another one drew."""
        return random.Random(f"{self._config.seed}/{persona.person_id}/{stage}/{index}")

    def write_profile(self, persona: Persona) -> Profile:
        """Invent a name and the initial facts, each of a topic of its own as far as there are topics."""
        rng = self._rng("profile", persona)
        name = invent_name(rng, persona.split)
        topics = rng.sample(TOPICS, len(TOPICS))
        facts = [
            _new_fact(rng, topics[index % len(topics)], name, persona.split)
            for index in range(self._config.initial_memories)
        ]
        start = datetime(2026, 1, 1) + timedelta(days=rng.randrange(90), hours=rng.randrange(8, 23))
        return Profile(persona, name, start, tuple(facts))

    def write_events(self, profile: Profile, count: int) -> tuple[LifeEvent, ...]:
        """Draw the deltas of each event against the facts that hold by then."""
        facts = list(profile.initial_facts)
        time = profile.start
        events = []
        for index in range(count):
            rng = self._rng("events", profile.persona, index)
            time = (time + timedelta(days=rng.randrange(3, 40))).replace(hour=rng.randrange(8, 23))
            deltas = self._draw_deltas(rng, profile, facts)
            for delta in deltas:
                if delta.change is Change.NEW:
                    facts.append(delta.fact)
                elif delta.previous is not None:
                    facts[facts.index(delta.previous)] = delta.fact
            events.append(LifeEvent(index, time, deltas))
        return tuple(events)

    def _draw_deltas(self, rng: random.Random, profile: Profile, facts: Sequence[Fact]) -> tuple[StateDelta, ...]:
        config, split = self._config, profile.persona.split
        known = rng.sample(facts, len(facts))
        new_topics = rng.sample(TOPICS, len(TOPICS))
        deltas = []
        for _ in range(rng.randint(config.min_facts, config.max_facts)):
            draw = rng.random()
            if known and draw < config.update_share:
                previous = known.pop()
                deltas.append(StateDelta(Change.ADJUST, _adjusted(rng, previous, profile.name, split), previous))
            elif known and draw < config.update_share + config.repeat_share:
                previous = known.pop()
                deltas.append(StateDelta(Change.REPEAT, previous, previous))
            else:
                topic = new_topics.pop()
                deltas.append(StateDelta(Change.NEW, _new_fact(rng, topic, profile.name, split)))
        return tuple(deltas)

    def write_operations(self, profile: Profile, event: LifeEvent, prior_state: MemoryState) -> tuple[Operation, ...]:
        """Look up the memory of each adjusted or repeated fact by its exact text."""
        ids = {memory.text: memory.id for memory in prior_state.memories}
        kinds = {Change.NEW: Event.ADD, Change.ADJUST: Event.UPDATE, Change.REPEAT: Event.NONE}
        return tuple(
            Operation(
                kinds[delta.change],
                delta.fact.text,
                ids[delta.previous.text] if delta.previous is not None else None,
                delta.fact.keywords,
            )
            for delta in event.deltas
        )

    def write_dialogue(self, profile: Profile, event: LifeEvent, operations: Sequence[Operation]) -> tuple[Turn, ...]:
        """One user turn a fact, in the order of the operations, with small talk and short replies between."""
        rng = self._rng("dialogue", profile.persona, event.index)
        said = [_say(rng, delta) for delta in event.deltas]
        for _ in range(2):
            if rng.random() < self._config.small_talk:
                said.insert(rng.randint(0, len(said)), rng.choice(SMALL_TALK))
        return tuple(turn for text in said for turn in (Turn("user", text), Turn("assistant", rng.choice(REPLIES))))


def _word(rng: random.Random, topic: Topic, split: Split) -> str:
    return rng.choice(POOLS[topic.pool]) if topic.pool else invent_name(rng, split)


def _new_fact(rng: random.Random, topic: Topic, person: str, split: Split) -> Fact:
    values = {"anchor": invent_name(rng, split), topic.slot: _word(rng, topic, split)}
    if topic.fixed:
        values[topic.fixed] = rng.choice(POOLS[topic.fixed])
    return _fact(topic, person, values)


def _adjusted(rng: random.Random, previous: Fact, person: str, split: Split) -> Fact:
    topic = _TOPICS[previous.topic]
    word = previous.values[topic.slot]
    while word == previous.values[topic.slot]:
        word = _word(rng, topic, split)
    return _fact(topic, person, {**previous.values, topic.slot: word})


def _fact(topic: Topic, person: str, values: dict[str, str]) -> Fact:
    return Fact(topic.name, topic.memory.format(person=person, **values), tuple(values.values()), values)


def _say(rng: random.Random, delta: StateDelta) -> str:
    topic = _TOPICS[delta.fact.topic]
    templates = {Change.NEW: topic.new, Change.ADJUST: topic.adjust, Change.REPEAT: topic.repeat}[delta.change]
    old = delta.previous.values[topic.slot] if delta.previous is not None else ""
    opener, said = rng.choice(OPENERS), rng.choice(templates)
    if opener.endswith(", ") and not said.startswith(("I ", "{anchor}")):
        said = said[0].lower() + said[1:]
    return opener + said.format(old=old, **delta.fact.values) + rng.choice(CLOSERS)
