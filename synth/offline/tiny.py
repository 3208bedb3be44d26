"""The offline writer of the tiny form: first memories, events, filling, revisions; dialogues are in `talk`.

It stands in for a language model, too, where the shape `demanding` is planned without what it cannot tell
(`synth.config.Demands.scripted`): in tests at scale, and where costs are estimated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from deltamem.errors import DeltaMemError
from deltamem.sessions import Split
from synth.config import FactLimits, InitialCounts
from synth.names import split_of
from synth.offline import paper
from synth.offline.speaker import Speaker
from synth.offline.templates import words
from synth.offline.topics import PERSON, KnownValues, Topic, adjusted, blocks, cast_of, read, topic_file, topics
from synth.records import (
    EventSlot,
    Fact,
    FactChange,
    FactPlan,
    LifeEvent,
    PlannedChange,
    PlannedRevision,
    RevisedFact,
    Revision,
    RevisionStep,
    SaidFact,
    StateDelta,
    Track,
    TrackedFact,
)
from synth.tasks import Events, EventsTask, Filling, FillingTask, InitialFacts, InitialTask, RevisionTask
from synth.validators.base import memory_stems, occurs
from synth.validators.demands import CORRECTED, KEPT_STEMS

_OF_INITIAL = 0.25
"""Share of the blocks of topics that are for the first memories; the events share the rest."""
_EVENTS = 25
"""Among so many events; further ones take what others have, with names of their own."""
_APART, _SHARED = 0.9, 0.6
"""Share of families whose siblings may differ in two values, so that one can change to what another has; words in common,
more than the half that they must share.
"""
_TRIES = 30
"""Draws until a change says something new, at most."""

_Block = tuple[Topic, tuple[str, ...]]


@cache
def _dealt(name: str, split: Split) -> tuple[tuple[_Block, ...], ...]:
    """What the first memories draw from, then each event: all kinds of topics come to all of them."""
    found = list(blocks(name, cast_of(name, split)))
    initial, rest = list[_Block](), list[_Block]()
    for lasts in (True, False):
        alike = [block for block in found if block[0].lasts == lasts]
        first = round(_OF_INITIAL * len(alike))
        initial += alike[:first]
        rest += alike[first:]
    return (tuple(initial), *(tuple(rest[number::_EVENTS]) for number in range(_EVENTS)))


class _Stock:
    """What a unit may write about, so that units that do not know of one another write of different things."""

    def __init__(self, rng: random.Random, name: str, owner: int | None, told: Sequence[str] = ()) -> None:
        """Take the name, the index of the event (None for the first memories), what is told already."""
        self.rng, self.cast, self._name = rng, cast_of(name, split_of(name)), name
        dealt = _dealt(name, split_of(name))
        self._fresh = owner is not None and owner >= _EVENTS
        taken = {(known.topic.name, known.who) for text in told if (known := read(name, text)) is not None}
        self._left = [
            (topic, people)
            for topic, people in dealt[0 if owner is None else 1 + owner % _EVENTS]
            if taken.isdisjoint((topic.name, who) for who in people)
        ]
        rng.shuffle(self._left)

    def take(self, tracks: Sequence[Track], *, size: int = 1, last: bool = False) -> _Block:
        """A topic for so many facts of one of the tracks, with people.

        Whoever shares a stock with somebody who takes from the beginning takes from the end (`last`).
        """
        order = list(reversed(self._left)) if last else self._left
        fitting = [block for block in order if block[0].track in tracks and len(block[1]) >= size]
        if not fitting:
            return self.rng.choice([topic for topic in topics() if topic.track in tracks]), ()
        self._left.remove(fitting[0])
        topic, people = fitting[0]
        return topic, () if self._fresh else people

    def siblings(self, topic: Topic, people: Sequence[str], count: int) -> list[KnownValues]:
        """Facts of a topic about different people and, where enough is left in common, with different values."""
        own = [people[number] if number < len(people) else self.cast.name(self.rng) for number in range(count)]
        base = KnownValues(topic, self.cast.fill(self.rng, topic, own[0]))
        found = [replace(base, values={**base.values, PERSON: who}) for who in own]
        if self.rng.random() < _APART:
            self._vary(found)
        return found

    def _vary(self, siblings: list[KnownValues]) -> None:
        """Give siblings values of their own, as long as all stay alike."""
        taken = [siblings[0].value]
        texts = [self._stems(sibling) for sibling in siblings]
        for number in range(1, len(siblings)):
            own = siblings[number]
            slot = own.topic.changeable
            value = topic_file().draw(self.rng, slot, [*own.values.values(), *taken])
            other = replace(own, values={**own.values, slot: value})
            text = self._stems(other)
            others = [texts[at] for at in range(len(siblings)) if at != number]
            if all(2 * len(text & words) >= _SHARED * (len(text) + len(words)) for words in others):
                siblings[number], texts[number] = other, text
                taken.append(value)

    def _stems(self, known: KnownValues) -> frozenset[str]:
        return memory_stems(known.text(self._name), self._name)


def _families(plans: Sequence[FactPlan]) -> list[list[int]]:
    found: dict[object, list[int]] = {}
    for place, plan in enumerate(plans):
        found.setdefault(plan.family or f"alone {place}", []).append(place)
    return list(found.values())


# --- first memories --------------------------------------------------------------------------------------------------------


def write_initial(task: InitialTask, rng: random.Random) -> InitialFacts:
    """Facts of each track; families have a topic each."""
    name, stock = task.fixed.name, _Stock(rng, task.fixed.name, None)
    people = [other.name for other in task.dynamic.relationships]
    categories = [group.category for group in task.preferences.groups] or ["leisure"]
    families = _families(task.plans)
    found: dict[int, TrackedFact] = {}
    waiting = list(people)
    sizes = [len(family) for family in families]
    for family, track in zip(families, _tracks(rng, task.counts, sizes, people), strict=True):
        for _ in range(20):
            knowns = _first(stock, len(family), track, people, waiting)
            texts = {known.text(name) for known in knowns}
            if len(texts) == len(family) and texts.isdisjoint(fact.text for fact in found.values()):
                break
        waiting = [who for who in waiting if who not in {known.who for known in knowns}]
        for place, known in zip(family, knowns, strict=True):
            fact = known.fact(name, task.limits.keywords.max)
            subject = known.who if track is Track.RELATIONSHIP else ""
            subject = rng.choice(categories) if track is Track.PREFERENCE else subject
            found[place] = TrackedFact(text=fact.text, keywords=fact.keywords, track=track, subject=subject)
    return InitialFacts(facts=tuple(found[place] for place in sorted(found)))


def _first(
    stock: _Stock, size: int, track: Track | None, people: Sequence[str], waiting: Sequence[str]
) -> list[KnownValues]:
    """The facts of a family of first memories; `waiting` are the people who are not remembered yet."""
    if track is Track.RELATIONSHIP and people:
        topic, _ = stock.take((track,))
        order = dict.fromkeys((*waiting, *stock.rng.sample(people, len(people))))
        return stock.siblings(topic, list(order), size)
    topic, keys = stock.take((track,) if track else (Track.CAREER, Track.HEALTH, Track.PREFERENCE), size=size)
    return stock.siblings(topic, keys, size)


def _tracks(rng: random.Random, counts: InitialCounts, sizes: Sequence[int], people: Sequence[str]) -> list[Track | None]:
    """A track for each family so that the counts of all tracks are kept, as far as chance finds such a way."""
    tracks: list[Track | None] = [*Track, None]
    least = {track: counts.of(track).min for track in tracks}
    most = {track: counts.of(track).max for track in tracks}
    least[Track.RELATIONSHIP] = max(least[Track.RELATIONSHIP], min(len(people), most[Track.RELATIONSHIP]))
    best: list[Track | None] = []
    for _ in range(400):
        found: dict[int, Track | None] = {}
        room = dict(most)
        for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], rng.random())):
            free = [track for track in tracks if room[track] >= sizes[place]]
            free = [
                track for track in free if track is not Track.RELATIONSHIP or sizes[place] <= max(len(people), 1)
            ] or free
            if not free:
                break
            wanting = [track for track in free if most[track] - room[track] < least[track]]
            track = rng.choice(wanting or free)
            room[track] -= sizes[place]
            found[place] = track
        if len(found) == len(sizes):
            best = [found[place] for place in range(len(sizes))]
            if all(most[track] - room[track] >= least[track] for track in tracks):
                break
    return best


# --- events ----------------------------------------------------------------------------------------------------------------


def write_events(task: EventsTask, rng: random.Random) -> Events:
    """Events as in the paper shape; what is remembered of them and what they bring is of the topics."""
    writer = _EventWriter(task, rng)
    return Events(events=tuple(writer.remembered(slot) for slot in task.slots))


class _EventWriter(paper.EventWriter):
    def remembered(self, slot: EventSlot) -> LifeEvent:
        """Write the event of a slot, with a memory of itself if that is asked for."""
        self._stock = _Stock(self._rng, self._name, slot.index)
        event = self.event(slot)
        return event.model_copy(update={"memory": self._fact(tuple(Track))}) if self._task.limits.memory else event

    def _fact(self, tracks: Sequence[Track], who: str = "") -> Fact:
        topic, people = self._stock.take(tracks, last=True)
        while True:
            (known,) = self._stock.siblings(topic, (who,) if who else people, 1)
            fact = known.fact(self._name, self._task.fact_limits.keywords.max)
            if fact.text not in self._seen:
                self._seen.add(fact.text)
                return fact

    def _new(self, planned: PlannedChange) -> tuple[StateDelta, dict[str, str]]:
        rng, track = self._rng, planned.track
        subject = who = ""
        if track is Track.RELATIONSHIP:
            while not who or who in self._names:
                who = f"{self._stock.cast.name(rng)} {self._stock.cast.name(rng)}"
            self._names.add(who)
            subject = who
        elif track is Track.PREFERENCE:
            subject = rng.choice([group.category for group in self._task.preferences.groups] or ["leisure"])
        fact = self._fact((track,), who)
        delta = StateDelta(
            text=fact.text, keywords=fact.keywords, track=track, change=FactChange.NEW, subject=subject, previous_text=""
        )
        return delta, {"who": who, "role": rng.choice(words().facts["role"])}


# --- filling ---------------------------------------------------------------------------------------------------------------


def write_filling(task: FillingTask, rng: random.Random) -> Filling:
    """Facts of what the event has topics for, in families as planned."""
    name = task.fixed.name
    told = [delta.text for delta in task.event.changes]
    told += [task.event.memory.text] if task.event.memory else []
    stock = _Stock(rng, name, task.event.index, told)
    speaker = Speaker(rng, name)
    taken = {*told, *task.existing}
    found: dict[int, SaidFact] = {}
    for family in _families(task.plans):
        topic, people = stock.take(tuple(Track), size=len(family))
        for _ in range(20):
            knowns = stock.siblings(topic, people, len(family))
            texts = {known.text(name) for known in knowns}
            if len(texts) == len(family) and texts.isdisjoint(taken):
                break
        for place, known in zip(family, knowns, strict=True):
            fact = known.fact(name, task.limits.keywords.max)
            taken.add(fact.text)
            wrong = ""
            if task.plans[place].provenance in CORRECTED:
                # What holds for a sibling is not put right here.
                held = filter(None, (read(name, text) for text in task.existing))
                wrong = _misspoken(rng, known, [*knowns, *(other for other in held if other.topic is topic)])
            found[place] = SaidFact(text=fact.text, keywords=fact.keywords, misspoken=wrong)
    return Filling(
        goal=speaker.say("goal"), summary=speaker.say("summary"), facts=tuple(found[place] for place in sorted(found))
    )


def _misspoken(rng: random.Random, known: KnownValues, alike: Sequence[KnownValues]) -> str:
    """A wrong value, if possible one that none of the others has."""
    theirs = {other.value for other in alike}
    for avoided in (theirs, set[str]()):
        for _ in range(60 if known.changed else 40):
            wrong = topic_file().draw(rng, known.topic.changeable, [known.value, *avoided])
            if wrong not in avoided:
                return wrong
    return wrong


# --- revisions -------------------------------------------------------------------------------------------------------------


def write_revision(task: RevisionTask, rng: random.Random) -> Revision:
    """Changes of memories, one after the other."""
    name = task.fixed.name
    texts = [memory.text for memory in task.memories]
    seen = {*task.known, *texts}
    rivals = [known for text in task.known if (known := read(name, text)) is not None]
    steps = []
    for planned in task.steps:
        facts = list[RevisedFact]()
        for text in texts:
            if (old := read(name, text)) is None:
                raise DeltaMemError(f"no template reads the memory that is to change: {text!r}")
            facts.append(_revised(rng, name, old, planned, seen, rivals, task.limits))
            seen.add(facts[-1].text)
        texts = [fact.text for fact in facts]
        steps.append(RevisionStep(facts=tuple(facts)))
    return Revision(steps=tuple(steps))


def _revised(
    rng: random.Random,
    name: str,
    old: KnownValues,
    planned: PlannedRevision,
    seen: set[str],
    rivals: Sequence[KnownValues],
    limits: FactLimits,
) -> RevisedFact:
    """A memory after one change."""
    last = planned.change in (FactChange.RETRACT, FactChange.EXPIRE)
    holding = [rival for rival in rivals if rival.topic is old.topic and not rival.over]

    def clear(known: KnownValues) -> bool:
        return all(rival.values != known.values for rival in holding)

    for attempt in range(_TRIES):
        # Siblings in the same state change alike, so that a changed memory may have the words of a rival.
        drawn = random.Random(f"{name}/{old.topic.name}/{old.value}/{planned.change}/{attempt}")
        near = holding if attempt < _TRIES // 3 else ()
        holds = replace(old, over=False)
        new = replace(old, over=True, changed=False) if last and not old.over else adjusted(drawn, holds, clear, near)
        if _keeps_rules(new, old, name, seen, limits):
            break
    fact = new.fact(name, limits.keywords.max)
    wrong = ""
    if planned.provenance in CORRECTED:
        wrong = _misspoken(rng, new, [old, *(rival for rival in rivals if rival.topic is new.topic)])
    outdated = () if last else (old.value,)
    return RevisedFact(text=fact.text, keywords=fact.keywords, misspoken=wrong, outdated=outdated)


def _keeps_rules(new: KnownValues, old: KnownValues, name: str, seen: set[str], limits: FactLimits) -> bool:
    """Whether what was drawn says something new, and enough of what was."""
    before, after = old.text(name), new.text(name)
    stems = memory_stems(before, name)
    return (
        after not in seen
        and len(stems & memory_stems(after, name)) >= KEPT_STEMS * len(stems)
        and any(not occurs(word, before) for word in new.keywords(limits.keywords.max))
        and len(after.split()) <= limits.words.max
    )
