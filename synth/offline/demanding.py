"""The offline writer of the shape `demanding`: first memories, events, filling, revisions; dialogues are in `talk`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from functools import cache

from deltamem.memory import wordings
from deltamem.sessions import Split
from rewards.fidelity import folded
from synth.config import FactLimits, InitialCounts
from synth.names import split_of
from synth.offline import paper
from synth.offline.speaker import Speaker
from synth.offline.templates import slot_source
from synth.offline.topics import (
    LAST,
    PERSON,
    PLACE,
    Cast,
    KnownValues,
    Topic,
    adjusted,
    blocks,
    cast_of,
    expanded,
    over,
    read,
    topics,
    values,
    with_detail,
    without,
    without_detail,
)
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
from synth.validators.base import dates_in, day, memory_stems, occurs, stands_in
from synth.validators.demands import CORRECTED, KEPT_STEMS

_OF_INITIAL, _KNOWN_FIRST = 0.25, 0.6
"""Share of the blocks of topics that are for the first memories, and of what nobody has twice; the events share the rest."""
_EVENTS = 25
"""Among so many events; further ones take what others have, with names of their own."""
_FIRST_DAY, _FIRST_END = date(2026, 1, 1), date(2026, 4, 1)
"""First memories do not know their day; sessions begin by the end of March 2026 (`synth.person`)."""
_DETAIL = 0.6
"""Share of facts that have a detail from the beginning."""

_LACKING = 0.25
"""Share of these that say what stands in the place of a detail once it is lost."""

_NAMED = 0.8
"""Share of families told apart by names: a life has few of them, while a rarer word alone would find its memory."""
_APART, _SHARED, _SHARED_BARE = 0.9, 0.6, 0.5
"""Share of families whose siblings may differ in two values, so that one can change to what another has; words in common,
more than the half that they must share, and of those without sources and last days of their own.
"""
_TRIES = 30
"""Draws until a change says something new, at most."""

_Block = tuple[Topic, tuple[str, ...]]


@cache
def _blocks(name: str, split: Split, short: bool, event: bool = False) -> tuple[_Block, ...]:
    wanted = [topic for topic in topics(short=short) if topic.event == event]
    return tuple(blocks(name, cast_of(name, split), wanted, 1 if event else 3))


@cache
def _dealt(name: str, split: Split, short: bool) -> tuple[tuple[_Block, ...], ...]:
    """What the first memories draw from, then each event: all kinds of topics come to all of them."""
    found = _blocks(name, split, short)
    single = [block for block in found if block[0].single]
    kinds = [
        [block for block in found if block[0].other],
        [block for block in found if block[0].lasts and not block[0].other and not block[0].single],
        [block for block in found if not block[0].lasts and not block[0].other and not block[0].single],
    ]
    initial, rest = single[: round(_KNOWN_FIRST * len(single))], single[round(_KNOWN_FIRST * len(single)) :]
    for blocks_ in kinds:
        first = round(_OF_INITIAL * len(blocks_))
        initial += blocks_[:first]
        rest += blocks_[first:]
    return (tuple(initial), *(tuple(rest[number::_EVENTS]) for number in range(_EVENTS)))


def is_short(limits: FactLimits) -> bool:
    """Whether facts of these sizes are those of the tiny form."""
    return limits.keyword_words.max == 1


class _Stock:
    """What a unit may write about, so that units that do not know of one another write of different things."""

    def __init__(
        self, rng: random.Random, name: str, owner: int | None, limits: FactLimits, told: Sequence[str] = ()
    ) -> None:
        """Take the name, the index of the event (None for the first memories), the sizes of facts, what is told already."""
        short = is_short(limits)
        self.rng, self.name, self.topics = rng, name, topics(short=short)
        self.cast = cast_of(name, split_of(name))
        dealt = _dealt(name, split_of(name), short)
        self._fresh = owner is not None and owner >= _EVENTS
        taken = {
            (known.topic.name, known.values[known.topic.key]) for text in told if (known := read(name, text)) is not None
        }
        self._left = [
            (topic, keys)
            for topic, keys in dealt[0 if owner is None else 1 + owner % _EVENTS]
            if taken.isdisjoint((topic.name, key) for key in keys) and not (self._fresh and not _endless(topic))
        ]
        rng.shuffle(self._left)
        self._about_people: set[str] = set()

    def take(
        self, tracks: Sequence[Track], *, size: int = 1, other: bool = False, lasts: bool = False, last: bool = False
    ) -> _Block:
        """A topic for so many facts of one of the tracks, with values for its key.

        Whoever shares a stock with somebody who takes from the beginning takes from the end (`last`).
        """
        order = list(reversed(self._left)) if last else self._left
        fitting = [block for block in order if block[0].track in tracks and block[0].other == other]
        fitting = [block for block in fitting if size == 1 or not (block[0].alone or len(block[1]) < size)]
        # A single visit has no first and last day.
        fitting = [block for block in fitting if block[0].lasts] if lasts else fitting
        if size > 1 and self.rng.random() < _NAMED:
            fitting = [block for block in fitting if not values().listed(block[0].key)] or fitting
        if not fitting:
            pool = [
                topic
                for topic in self.topics
                if not topic.single and not topic.event and topic.other == other and not topic.alone
            ]
            pool = [topic for topic in pool if topic.lasts] or pool if lasts else pool
            pool = [topic for topic in pool if _endless(topic)] or pool
            topic = self.rng.choice([topic for topic in pool if topic.track in tracks] or pool)
            return topic, ()
        self._left.remove(fitting[0])
        topic, keys = fitting[0]
        return topic, () if self._fresh else keys

    def about_people(self, *, lasts: bool = False) -> _Block:
        """A topic for facts about the person and somebody else, each once while there are others."""
        for attempt in range(100):
            topic, keys = self.take((Track.RELATIONSHIP,), lasts=lasts)
            if topic.key == PERSON and not topic.other and (topic.name not in self._about_people or attempt > 50):
                break
        self._about_people.add(topic.name)
        return topic, keys

    def key(self, topic: Topic, keys: Sequence[str], number: int) -> str:
        """The value of a topic's key for a sibling."""
        if number < len(keys):
            return keys[number]
        name = slot_source(topic.key)
        if name in values().lists:
            return values().draw(self.rng, name, keys)
        return self.cast.place(self.rng) if name == PLACE else self.cast.name(self.rng)


def _endless(topic: Topic) -> bool:
    """Whether there can be any number of facts of a topic, as they are told apart by names, which can be invented."""
    return not topic.single and not topic.rare and not values().listed(topic.key)


def _siblings(
    stock: _Stock, topic: Topic, keys: Sequence[str], plans: Sequence[FactPlan], today: date | None, given: Mapping[str, str]
) -> Iterator[KnownValues]:
    """Facts of a topic that differ in the value of its key, and where enough is left in common, in one more."""
    rng, cast = stock.rng, stock.cast
    own = [stock.key(topic, keys, number) for number in range(len(plans))]
    # Siblings begin on the same day, as they share most of their words.
    since = _near(rng, today or _FIRST_DAY) if any(plan.dated for plan in plans) else ""
    for _ in range(20):
        base = KnownValues(topic, cast.fill(rng, topic, {topic.key: own[0], **given}), since=since)
        if topic.details and rng.random() < _DETAIL:
            place = rng.choices(range(3), (45, 45, 15))[0]
            lacks = place < LAST and rng.random() < _LACKING
            base = with_detail(rng, cast, base, place) if not lacks else without(base, place)
        if not {value for slot, value in base.values.items() if slot != topic.key}.intersection(own):
            break
    found = [dict(base.values) for _ in plans]
    for number in range(1, len(plans)):
        found[number][topic.key] = own[number]
        if "kin" in base.values and topic.key == PERSON:
            found[number]["kin"] = cast.kin(own[number])
    # Nobody is in two places at one time.
    if slot_source(base.topic.changeable[0]) == "day" or rng.random() < _APART:
        _vary(stock, base, found, _shared(base, plans))
    for sibling, plan in zip(found, plans, strict=True):
        yield _planned(rng, cast, replace(base, values=sibling, changed=()), plan, today, own)


def _shared(base: KnownValues, plans: Sequence[FactPlan]) -> float:
    """Share of their words that siblings must have in common: room for sources and last days, if they have some."""
    bare = not any(plan.temporary or plan.provenance == "hearsay" for plan in plans)
    return _SHARED_BARE if bare and slot_source(base.topic.changeable[0]) == "day" else _SHARED


def _vary(stock: _Stock, base: KnownValues, siblings: list[dict[str, str]], shared: float) -> None:
    """Give siblings values of their own in the first slot that may change, as long as all stay alike."""

    def stems(found: Mapping[str, str]) -> frozenset[str]:
        return memory_stems(replace(base, values=found, since="").text(stock.name), stock.name)

    slot = base.topic.changeable[0]
    taken = [base.values[slot]]
    texts = [stems(sibling) for sibling in siblings]
    for number in range(1, len(siblings)):
        own = siblings[number]
        avoided = [*own.values(), *taken]
        places = [place for place in stock.cast.places if place not in avoided]
        value = values().draw(stock.rng, slot, avoided) if values().listed(slot) else stock.rng.choice(places)
        other = {**own, slot: value}
        text = stems(other)
        others = [texts[at] for at in range(len(siblings)) if at != number]
        if all(2 * len(text & words) >= shared * (len(text) + len(words)) for words in others):
            siblings[number], texts[number] = other, text
            taken.append(other[slot])


def _planned(
    rng: random.Random, cast: Cast, known: KnownValues, plan: FactPlan, today: date | None, others: Sequence[str] = ()
) -> KnownValues:
    """The fact with the dates and the source that are planned for it; no source is one of the others."""
    if plan.temporary:
        days = rng.randint(8, 58) if today else rng.randint(0, 240)
        known = replace(known, until=day((today or _FIRST_END) + timedelta(days=days)))
    if plan.provenance == "hearsay":
        people = [who for who in cast.people if who not in (*known.values.values(), *others)]
        known = replace(known, heard=rng.choice(people))
    return known


def _near(rng: random.Random, today: date) -> str:
    days = rng.choice([*range(-20, -2), *range(3, 21)])
    return day(today + timedelta(days=days))


def _families(plans: Sequence[FactPlan]) -> list[list[int]]:
    found: dict[object, list[int]] = {}
    for place, plan in enumerate(plans):
        found.setdefault(plan.family or f"alone {place}", []).append(place)
    return list(found.values())


def _most(limits: FactLimits) -> int:
    return min(limits.keywords.max, 4)


# --- first memories --------------------------------------------------------------------------------------------------------


def write_initial(task: InitialTask, rng: random.Random) -> InitialFacts:
    """Facts of each track; families have a topic each, what stands alone is rather something that nobody has twice."""
    name, stock = task.fixed.name, _Stock(rng, task.fixed.name, None, task.limits)
    people = [(other.name, other.kind.lower()) for other in task.dynamic.relationships]
    categories = [group.category for group in task.preferences.groups] or ["leisure"]
    families = _families(task.plans)
    found: dict[int, TrackedFact] = {}
    waiting = list(people)
    sizes = [len(family) for family in families]
    for family, track in zip(families, _tracks(rng, task.counts, sizes, people), strict=True):
        plans = [task.plans[place] for place in family]
        for _ in range(20):
            knowns = _first(stock, plans, track, people, waiting)
            texts = {known.text(name) for known in knowns}
            if len(texts) == len(plans) and texts.isdisjoint(fact.text for fact in found.values()):
                break
        for place, known in zip(family, knowns, strict=True):
            fact = known.fact(name, _most(task.limits))
            subject = known.values[PERSON] if track is Track.RELATIONSHIP else ""
            subject = rng.choice(categories) if track is Track.PREFERENCE else subject
            found[place] = TrackedFact(text=fact.text, keywords=fact.keywords, track=track, subject=subject)
    return InitialFacts(facts=tuple(found[place] for place in sorted(found)))


def _first(
    stock: _Stock,
    plans: Sequence[FactPlan],
    track: Track | None,
    people: Sequence[tuple[str, str]],
    waiting: list[tuple[str, str]],
) -> list[KnownValues]:
    """The facts of a family of first memories; `waiting` are the people who are not remembered yet."""
    rng = stock.rng
    if track is Track.RELATIONSHIP and people:
        topic, _ = stock.about_people(lasts=_lasts(plans))
        order = list(dict.fromkeys((*waiting, *rng.sample(people, len(people)))))
        base: Mapping[str, str] = {}
        knowns: list[KnownValues] = []
        for who, kin in order[: len(plans)]:
            if (who, kin) in waiting:
                waiting.remove((who, kin))
            given = {**{slot: value for slot, value in base.items() if slot != "kin"}, PERSON: who, "kin": kin}
            base = stock.cast.fill(rng, topic, given)
            knowns.append(KnownValues(topic, base))
        siblings = [dict(known.values) for known in knowns]
        if len(siblings) > 1 and slot_source(topic.changeable[0]) == "day":
            _vary(stock, knowns[0], siblings, _shared(knowns[0], plans))
        together = zip(knowns, siblings, plans, strict=False)
        return [_planned(rng, stock.cast, replace(known, values=own), plan, None) for known, own, plan in together]
    tracks = (track,) if track else (Track.CAREER, Track.HEALTH, Track.PREFERENCE)
    topic, keys = stock.take(tracks, size=len(plans), lasts=_lasts(plans))
    return list(_siblings(stock, topic, keys, plans, None, {}))


def _lasts(plans: Sequence[FactPlan]) -> bool:
    """Whether one of the facts begins or ends on a day that it names."""
    return any(plan.temporary or plan.dated for plan in plans)


def _tracks(
    rng: random.Random, counts: InitialCounts, sizes: Sequence[int], people: Sequence[tuple[str, str]]
) -> list[Track | None]:
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
    """Events as in the paper shape, each with a memory of itself; what they bring is of the topics."""
    writer = _EventWriter(task, rng)
    return Events(events=tuple(writer.remembered(slot) for slot in task.slots))


class _EventWriter(paper.EventWriter):
    def remembered(self, slot: EventSlot) -> LifeEvent:
        """Write the event of a slot, and what is remembered of it."""
        self._stock = _Stock(self._rng, self._name, slot.index, self._task.fact_limits)
        event = self.event(slot)
        if not self._task.limits.memory:
            return event
        found = _blocks(self._name, split_of(self._name), is_short(self._task.fact_limits), event=True)
        topic, (key,) = found[slot.index % len(found)]
        while True:
            known = KnownValues(topic, self._stock.cast.fill(self._rng, topic, {topic.key: key}))
            fact = known.fact(self._name, _most(self._task.fact_limits))
            if fact.text not in self._seen:
                self._seen.add(fact.text)
                return event.model_copy(update={"memory": fact})

    def _new(self, planned: PlannedChange) -> tuple[StateDelta, dict[str, str]]:
        rng, stock = self._rng, self._stock
        track = planned.track
        subject, given = "", {}
        topic, keys = stock.about_people() if track is Track.RELATIONSHIP else stock.take((track,), last=True)
        if track is Track.RELATIONSHIP:
            while not subject or subject in self._names:
                subject = f"{stock.cast.name(rng)} {stock.cast.name(rng)}"
            self._names.add(subject)
            given = {PERSON: subject, "kin": stock.cast.kin(subject)}
        elif track is Track.PREFERENCE:
            groups = self._task.preferences.groups
            subject = rng.choice(groups).category if groups else "leisure"
        known = next(iter(_siblings(stock, topic, keys, (FactPlan(),), None, given)))
        fact = known.fact(self._name, _most(self._task.fact_limits))
        self._seen.add(fact.text)
        delta = StateDelta(
            text=fact.text, keywords=fact.keywords, track=track, change=FactChange.NEW, subject=subject, previous_text=""
        )
        return delta, {"who": subject, "role": stock.cast.kin(subject)}


# --- filling ---------------------------------------------------------------------------------------------------------------

_OWN = tuple(Track)


def write_filling(task: FillingTask, rng: random.Random) -> Filling:
    """Facts of what the event has topics for, in families as planned."""
    name = task.fixed.name
    told = [delta.text for delta in task.event.changes]
    stock = _Stock(rng, name, task.event.index, task.limits, told)
    speaker = Speaker(rng, name)
    taken = set(told)
    held: dict[str, list[KnownValues]] = {}
    if any(plan.provenance in CORRECTED for plan in task.plans):
        for known in filter(None, (read(name, text) for text in task.existing)):
            held.setdefault(known.topic.name, []).append(known)
    found: dict[int, SaidFact] = {}
    for family in _families(task.plans):
        plans = [task.plans[place] for place in family]
        # What is only heard is about others: everybody knows their own life.
        other = any(plan.provenance in ("third_person", "hearsay") for plan in plans)
        topic, keys = stock.take(_OWN, size=len(family), other=other, lasts=_lasts(plans))
        for _ in range(20):
            knowns = list(_siblings(stock, topic, keys, plans, task.today, {}))
            texts = {known.text(name) for known in knowns}
            if len(texts) == len(plans) and texts.isdisjoint(taken) and texts.isdisjoint(task.existing):
                break
        for place, plan, known in zip(family, plans, knowns, strict=True):
            fact = known.fact(name, _most(task.limits))
            taken.add(fact.text)
            # What holds for a sibling is not put right here.
            theirs = [value for sibling in (*knowns, *held.get(topic.name, ())) for value in sibling.values.values()]
            wrong = _misspoken(rng, known, fact, theirs) if plan.provenance in CORRECTED else ""
            found[place] = SaidFact(text=fact.text, keywords=fact.keywords, misspoken=wrong)
    return Filling(
        goal=speaker.say("goal"), summary=speaker.say("summary"), facts=tuple(found[place] for place in sorted(found))
    )


def _misspoken(rng: random.Random, known: KnownValues, fact: Fact, avoided: Sequence[str]) -> str:
    """A wrong value for one of the keywords, the latest news first."""
    slots = [slot for slot in (*known.changed, *known.topic.changeable, *known.values) if slot in known.values]
    slots = [slot for slot in slots if values().listed(slot) and known.values[slot] in wordings(fact.keywords)]
    for others in (frozenset(avoided), frozenset[str]()):
        for slot in slots:
            for _ in range(20):
                wrong = values().draw(rng, slot, [*known.values.values(), *others])
                said = occurs(wrong, fact.text) or any(occurs(word, wrong) for word in fact.keywords)
                if not said and wrong not in others:
                    return wrong
    return rng.choice([word for word in ("somewhere else", "another one") if not occurs(word, fact.text)])


# --- revisions -------------------------------------------------------------------------------------------------------------


def write_revision(task: RevisionTask, rng: random.Random) -> Revision:
    """Changes of one memory, or of siblings, which then all change in the same way."""
    name, cast = task.fixed.name, cast_of(task.fixed.name, split_of(task.fixed.name))
    texts = [memory.text for memory in task.memories]
    seen = {*task.known, *texts}
    rivals = [known for text in task.known if (known := read(name, text)) is not None]
    steps = []
    for planned in task.steps:
        facts: list[RevisedFact] = []
        olds = [read(name, text) for text in texts]
        if all(old is not None for old in olds):
            held = [old for old in olds if old is not None]
            facts = _revised(rng, cast, name, held, planned, seen, rivals, task.limits)
        else:
            facts = [_revised_anyhow(rng, text, planned, task.limits) for text in texts]
        texts = [fact.text for fact in facts]
        seen.update(texts)
        steps.append(RevisionStep(facts=tuple(facts)))
    return Revision(steps=tuple(steps))


def _revised(
    rng: random.Random,
    cast: Cast,
    name: str,
    olds: Sequence[KnownValues],
    planned: PlannedRevision,
    seen: set[str],
    rivals: Sequence[KnownValues],
    limits: FactLimits,
) -> list[RevisedFact]:
    """The memories after one step; the first decides what becomes of the others."""

    def clear(known: KnownValues) -> bool:
        alike = [rival for rival in rivals if rival.topic is known.topic and rival.end is None]
        return all(any(rival.values.get(slot) != known.values[slot] for slot in known.topic.slots) for rival in alike)

    old = olds[0]
    state = sorted((slot, value) for slot, value in old.values.items() if slot not in ("kin", old.topic.key))
    for attempt in range(_TRIES):
        # Siblings in the same state change alike, so that a changed memory may have the words of a rival.
        drawn = random.Random(f"{name}/{old.topic.name}/{state}/{planned.change}/{attempt}")
        shifted = 2 if attempt < _TRIES // 2 else 1
        near = rivals if attempt < _TRIES // 3 else ()
        first = _changed(drawn, cast, old, planned, clear, shifted, near)
        full = planned.change is FactChange.EXPAND and (first.details == old.details or attempt >= _TRIES // 2)
        if full:
            # There is no detail left to add, or none that makes it longer, but a date.
            first = replace(old, end=None, changed=())
        since = first.since if planned.change is FactChange.EXPAND else ""
        since = _near(drawn, planned.today) if planned.dated or full else since
        news = [_likewise(first, old, other) for other in olds]
        news = [
            replace(new, since=since, until=new.until if new.until and dates_in(new.until)[0] > planned.today else "")
            for new in news
        ]
        if _keeps_rules(news, olds, name, planned.change, seen, limits):
            break
    found = []
    for new, before in zip(news, olds, strict=True):
        fact = new.fact(name, _most(limits))
        outdated = () if planned.change in _NOTHING_OUTDATED else tuple(_outdated(before, new, name))
        wrong = ""
        if planned.provenance in CORRECTED:
            theirs = [value for rival in rivals if rival.topic is new.topic for value in rival.values.values()]
            wrong = _misspoken(rng, new, fact, (*before.values.values(), *theirs))
        found.append(RevisedFact(text=fact.text, keywords=fact.keywords, misspoken=wrong, outdated=outdated))
    return found


def _keeps_rules(
    news: Sequence[KnownValues],
    olds: Sequence[KnownValues],
    name: str,
    change: FactChange,
    seen: set[str],
    limits: FactLimits,
) -> bool:
    """Whether what was drawn says something new, and enough of it."""
    texts = {new.text(name) for new in news}
    if len(texts) < len(olds) or not texts.isdisjoint(seen):
        return False
    for new, old in zip(news, olds, strict=True):
        before, after = old.text(name), new.text(name)
        stems = memory_stems(before, name)
        if len(stems & memory_stems(after, name)) < KEPT_STEMS * len(stems):
            return False
        if all(occurs(word, before) for word in new.keywords(_most(limits))) or len(after.split()) > limits.words.max:
            return False
        if change is FactChange.EXPAND and len(after.split()) <= len(before.split()):
            return False
        if change in (FactChange.ADJUST, FactChange.SHIFT) and not any(_outdated(old, new, name)):
            return False
    return True


_NOTHING_OUTDATED = (FactChange.EXPAND, FactChange.RETRACT, FactChange.EXPIRE)


def _changed(
    rng: random.Random,
    cast: Cast,
    old: KnownValues,
    planned: PlannedRevision,
    clear: Callable[[KnownValues], bool],
    shifted: int,
    rivals: Sequence[KnownValues],
) -> KnownValues:
    """A memory after a change; a shift gives other values to so many slots, if enough of the memory is left."""
    change, implied = planned.change, planned.signal == "implied"
    if change in (FactChange.RETRACT, FactChange.EXPIRE) and old.end is None:
        return over(rng, old)
    base = replace(old, end=None, changed=())
    if change is FactChange.EXPAND:
        return expanded(rng, cast, base)
    if change is FactChange.PARTIAL_DELETION:
        return without_detail(rng, cast, base)
    count = shifted if change is FactChange.SHIFT and not implied else 1
    return adjusted(rng, cast, base, count, clear, rivals, first=implied)


def _likewise(first: KnownValues, old: KnownValues, other: KnownValues) -> KnownValues:
    """Another memory, changed as the first one was."""
    if other is old:
        return first
    own = {slot: value for slot, value in other.values.items() if slot in other.topic.slots}
    changed = {slot: value for slot, value in first.values.items() if old.values.get(slot) != value}
    details = {slot: value for slot, value in first.values.items() if slot not in first.topic.slots}
    return replace(first, values={**own, **changed, **details}, heard=other.heard)


def _outdated(old: KnownValues, new: KnownValues, name: str) -> Iterator[str]:
    """Values of the old text that the new one has not."""
    text = new.text(name)
    gone = [slot for slot, value in old.values.items() if slot != "kin" and new.values.get(slot) != value]
    before = old.text(name)
    for value in dict.fromkeys(old.values[slot] for slot in gone if not occurs(old.values[slot], text)):
        # "Monday" stands as "Mondays" in some sentences.
        yield value if stands_in(folded(value), folded(before)) else f"{value}s"


def _revised_anyhow(rng: random.Random, text: str, planned: PlannedRevision, limits: FactLimits) -> RevisedFact:
    """A memory of another writer with something added that says what has become of it."""
    when = day(planned.today - timedelta(days=rng.randint(3, 20)))
    body = " ".join(text.rstrip(".").split()[: limits.words.max - 8])
    tail = f"which no longer holds as of {when}" if planned.change is not FactChange.EXPAND else f"as confirmed on {when}"
    return RevisedFact(text=f"{body}, {tail}.", keywords=(when, body.split()[-1]))
