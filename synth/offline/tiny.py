"""The offline writer of the tiny shape: a few facts a session, each a word and a name, said in short sentences."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from deltamem.errors import DeltaMemError
from deltamem.memory import Event
from deltamem.sessions import Split
from synth.config import InitialCounts
from synth.offline.templates import Pool, Template, fill
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
from synth.tasks import DialogueTask, Events, EventsTask, InitialFacts, InitialTask

_POOLS = {
    "job": "nurse teacher lawyer baker plumber welder designer pilot chemist editor farmer barber dentist analyst manager "
    "translator librarian architect carpenter cook accountant actor biologist broker cashier coach composer courier curator "
    "detective driver engineer florist gardener geologist historian journalist judge locksmith mechanic musician painter "
    "photographer poet porter printer producer programmer ranger roofer sailor sculptor singer surgeon tailor tutor waiter",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January February March April May June July August September October November December",
    "hobby": "running swimming cycling climbing rowing skating skiing surfing fencing boxing sailing fishing hiking dancing "
    "bowling kayaking bouldering camping diving gliding golfing hunting jogging paddling rafting singing sketching walking",
    "dish": "ramen sushi pizza tacos curry falafel lasagna pancakes dumplings risotto paella gumbo chili waffles burritos "
    "gnocchi noodles bagels burgers casserole chowder couscous crepes goulash guacamole nachos omelets pudding quiche "
    "ravioli salmon spaghetti strudel tiramisu tofu",
    "instrument": "piano guitar violin cello flute drums banjo harp trumpet clarinet accordion oboe trombone mandolin "
    "bassoon fiddle harmonica horn lute lyre organ piccolo sitar tuba viola zither",
    "subject": "physics history botany geology latin algebra painting pottery cooking chemistry drama economics geography "
    "grammar journalism law logic medicine music nursing optics poetry politics robotics statistics",
    "sport": "tennis hockey rugby squash handball soccer baseball volleyball cricket curling darts golf polo badminton "
    "basketball lacrosse softball",
    "role": "driver cook tutor guide gardener treasurer librarian cashier trainer mentor usher painter singer carpenter "
    "planner secretary",
    "color": "red blue green black white silver yellow orange purple brown golden grey pink",
    "drink": "coffee tea cocoa juice milk cider lemonade espresso water soda",
    "relative": "sister brother mother father cousin aunt uncle niece nephew",
    "topic": "whales volcanoes castles robots gardens pirates planets spies glaciers wolves emperors bridges deserts "
    "submarines forests bees caves clocks comets dinosaurs dragons falcons ghosts islands jungles kings lighthouses maps "
    "monks museums owls pyramids railways rivers sharks ships storms temples tigers trains vikings witches",
    "amount": "20 30 40 50 60 70 80 90 100 120 150 200 250 300 400 500",
}
POOLS: dict[str, tuple[str, ...]] = {name: tuple(words.split()) for name, words in _POOLS.items()}


@dataclass(frozen=True, slots=True)
class Topic:
    """Templates of one topic.

    Attributes:
        name: The topic.
        track: The stream that its facts belong to.
        slot: The slot that an adjustment changes; ``{slot}`` in every template, its former value ``{old}``.
        pool: Where the slot's words come from; None for an invented name.
        memory: The memory sentence; ``{person}`` is its subject and it ends with ``{anchor}.``
        new: How the user tells a new fact.
        adjust: How the user tells that the fact has changed.
        repeat: How the user mentions what is known.
        fixed: A further slot that never changes, with its pool (the relative in "the sister Ana").
    """

    name: str
    track: Track
    slot: str
    pool: str | None
    memory: str
    new: tuple[str, ...]
    adjust: tuple[str, ...]
    repeat: tuple[str, ...]
    fixed: str | None = None


TOPICS = (
    Topic(
        "home",
        Track.RELATIONSHIP,
        "city",
        None,
        "{person} lives in {city} with {anchor}.",
        (
            "I live in {city} with {anchor}.",
            "Home is {city}, I share a flat with {anchor}.",
            "{anchor} and I live in {city}.",
        ),
        ("I moved from {old} to {city} with {anchor}.", "{anchor} and I left {old} and now live in {city}."),
        ("I still live in {city} with {anchor}.",),
    ),
    Topic(
        "job",
        Track.CAREER,
        "job",
        "job",
        "{person} works as a {job} at {anchor}.",
        ("I work as a {job} at {anchor}.", "I am a {job} over at {anchor}.", "{anchor} hired me as a {job}."),
        ("I am no longer a {old} but a {job} at {anchor}.", "{anchor} made me a {job}, I used to be a {old}."),
        ("I am still a {job} at {anchor}.",),
    ),
    Topic(
        "dog",
        Track.HEALTH,
        "day",
        "day",
        "{person} walks every {day} with the dog {anchor}.",
        ("Every {day} I walk with my dog {anchor}.", "My dog {anchor} gets a long walk on {day}."),
        (
            "I now walk on {day} instead of {old} with my dog {anchor}.",
            "My dog {anchor} gets the walk on {day} now, not {old}.",
        ),
        ("I still walk every {day} with my dog {anchor}.",),
    ),
    Topic(
        "hobby",
        Track.HEALTH,
        "hobby",
        "hobby",
        "{person} goes {hobby} with {anchor}.",
        (
            "I go {hobby} with {anchor}.",
            "{anchor} takes me {hobby} these days.",
            "You will often find me {hobby} with {anchor}.",
        ),
        ("I gave up {old} and go {hobby} with {anchor} now.", "{anchor} and I switched from {old} to {hobby}."),
        ("I still go {hobby} with {anchor}.",),
    ),
    Topic(
        "dish",
        Track.PREFERENCE,
        "dish",
        "dish",
        "{person} orders the {dish} at {anchor}.",
        ("I always order the {dish} at {anchor}.", "{anchor} makes the {dish} I love."),
        (
            "I am tired of the {old} and now order the {dish} at {anchor}.",
            "At {anchor} I take the {dish} now, not the {old}.",
        ),
        ("I still order the {dish} at {anchor}.",),
    ),
    Topic(
        "instrument",
        Track.PREFERENCE,
        "instrument",
        "instrument",
        "{person} learns the {instrument} from {anchor}.",
        ("I learn the {instrument} from {anchor}.", "{anchor} teaches me the {instrument}."),
        (
            "I dropped the {old}, now I learn the {instrument} from {anchor}.",
            "{anchor} teaches me the {instrument} now, not the {old}.",
        ),
        ("I still learn the {instrument} from {anchor}.",),
    ),
    Topic(
        "trip",
        Track.PREFERENCE,
        "month",
        "month",
        "{person} travels in {month} to {anchor}.",
        ("I will travel in {month} to {anchor}.", "My trip to {anchor} is booked for {month}."),
        (
            "My trip moved from {old} to {month}, but I still go to {anchor}.",
            "I go to {anchor} in {month} now, not in {old}.",
        ),
        ("As I said, I travel in {month} to {anchor}.",),
    ),
    Topic(
        "book",
        Track.PREFERENCE,
        "topic",
        "topic",
        "{person} reads about {topic} in a book by {anchor}.",
        ("I read about {topic} in a book by {anchor}.", "{anchor} wrote the book about {topic} that I read."),
        (
            "I finished the {old} book, now I read about {topic} in one by {anchor}.",
            "{anchor} wrote on {old}, now I read the one about {topic}.",
        ),
        ("I still read about {topic} in that book by {anchor}.",),
    ),
    Topic(
        "friend",
        Track.RELATIONSHIP,
        "city",
        None,
        "{person} has a friend in {city} called {anchor}.",
        ("I have a friend in {city} called {anchor}.", "My friend {anchor} has a house in {city}."),
        ("My friend {anchor} moved from {old} to {city}.", "My friend {anchor} left {old} and is in {city} now."),
        ("My friend {anchor} is still in {city}.",),
    ),
    Topic(
        "study",
        Track.CAREER,
        "subject",
        "subject",
        "{person} studies {subject} at {anchor}.",
        ("I study {subject} at {anchor}.", "I signed up for {subject} at {anchor}."),
        ("I changed from {old} to {subject} at {anchor}.", "At {anchor} I study {subject} now, no more {old}."),
        ("I still study {subject} at {anchor}.",),
    ),
    Topic(
        "sport",
        Track.HEALTH,
        "sport",
        "sport",
        "{person} plays {sport} for {anchor}.",
        ("I play {sport} for {anchor}.", "{anchor} took me into the {sport} team."),
        ("I stopped {old} and play {sport} for {anchor}.", "{anchor} wants me for {sport} now, not {old}."),
        ("I still play {sport} for {anchor}.",),
    ),
    Topic(
        "club",
        Track.RELATIONSHIP,
        "role",
        "role",
        "{person} helps as a {role} in the club {anchor}.",
        ("I help as a {role} in the club {anchor}.", "The club {anchor} has me as a {role}."),
        ("In the club {anchor} I am a {role} now, not a {old}.", "I went from {old} to {role} in the club {anchor}."),
        ("I still help as a {role} in the club {anchor}.",),
    ),
    Topic(
        "car",
        Track.PREFERENCE,
        "color",
        "color",
        "{person} drives a {color} {anchor}.",
        ("I drive a {color} {anchor}.", "My new car is a {color} {anchor}."),
        (
            "I had the {old} car painted, now I drive a {color} {anchor}.",
            "My {anchor} is {color} now and not {old} any more.",
        ),
        ("I still drive the {color} {anchor}.",),
    ),
    Topic(
        "drink",
        Track.PREFERENCE,
        "drink",
        "drink",
        "{person} drinks {drink} every morning at {anchor}.",
        ("Every morning I drink {drink} at {anchor}.", "I start the day with {drink} at {anchor}."),
        ("I drink {drink} at {anchor} every morning, no more {old}.", "At {anchor} I switched from {old} to {drink}."),
        ("I still drink {drink} every morning at {anchor}.",),
    ),
    Topic(
        "family",
        Track.RELATIONSHIP,
        "day",
        "day",
        "{person} visits on {day} the {relative} {anchor}.",
        ("On {day} I visit my {relative} {anchor}.", "I see my {relative} {anchor} every {day}."),
        (
            "I visit my {relative} {anchor} on {day} now, not on {old}.",
            "The visit to my {relative} {anchor} moved from {old} to {day}.",
        ),
        ("I still visit my {relative} {anchor} on {day}.",),
        fixed="relative",
    ),
    Topic(
        "savings",
        Track.CAREER,
        "amount",
        "amount",
        "{person} saves {amount} euros a month at {anchor}.",
        ("I save {amount} euros a month at {anchor}.", "Each month {amount} euros go to my account at {anchor}."),
        (
            "I raised it from {old} to {amount} euros a month at {anchor}.",
            "At {anchor} I save {amount} euros a month now, not {old}.",
        ),
        ("I still save {amount} euros a month at {anchor}.",),
    ),
)

OPENERS = ("", "", "", "Hey! ", "By the way, ", "Guess what: ", "Oh, ", "So, ", "You know, ", "Well, ")
CLOSERS = ("", "", "", " Crazy, right?", " It feels good.", " Anyway.", " I am happy about it.", " Long story.")
SMALL_TALK = (
    "How are you today?", "The weather is awful here.", "Thanks for the help yesterday.", "Can you tell me a joke?",
    "What a day.", "I need some rest.", "I slept badly.",
)  # fmt: skip
REPLIES = (
    "Nice!",
    "Sounds great.",
    "Good to know.",
    "Tell me more.",
    "I see.",
    "Wonderful!",
    "Thanks for sharing.",
    "Okay!",
)

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
