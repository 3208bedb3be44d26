"""Typed facts of the shape `demanding`: a topic with values, how it reads as a memory, how it changes, how it is read back.

Records hold texts only, and a writer may use nothing but its task. So the writer reads its own memory sentences, the changed
and the ended ones too, and can say, repeat, change or take back any of them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

from pydantic import Field

from deltamem.config import StrictModel
from deltamem.sessions import Split
from synth.names import invent_name, invent_place
from synth.offline.grammar import Lines, Sentences, pattern, with_article
from synth.offline.templates import reading, slot_source
from synth.pools import load, packaged, slots_in
from synth.records import Fact, Track

PERSON, PLACE = "who", "spot"
LAST = 2
"""The place of the detail that all topics have, after two of their own."""
_NAME = r"[A-Z][\w'-]*(?: [A-Z][\w'-]*){0,3}"
_GIVEN = {"who": _NAME, "spot": "[A-Z][a-z]+", "name": "[A-Z][a-z]+", "kin": "[a-z]+(?: [a-z]+)?"}
"""Slots that the program fills: people, places, pets, and what somebody is to the person."""
DATE = r"[0-9]{1,2} [A-Z][a-z]+ [0-9]{4}"
_MARKED = re.compile(r"\*([^*]+)\*")


def plain(text: str) -> str:
    """A text of topics.yaml without the marks round its keywords."""
    return text.replace("*", "")


class Values(StrictModel):
    """Lists of words by slot (``values.yaml``)."""

    lists: dict[str, Sentences]

    @cached_property
    def lines(self) -> dict[str, Lines]:
        """The lists, ready to draw from."""
        return {slot: Lines(texts) for slot, texts in self.lists.items()}

    @cached_property
    def _patterns(self) -> dict[str, str]:
        return {slot: "|".join(map(pattern, lines.nodes)) for slot, lines in self.lines.items()}

    def pattern(self, slot: str) -> str:
        """A regular expression for the values of a slot."""
        name = slot_source(slot)
        return _GIVEN[name] if name in _GIVEN else self._patterns[name]

    def listed(self, slot: str) -> bool:
        """Whether a slot is drawn from a list; people, places, pets and kin are given."""
        return slot_source(slot) in self.lists

    def draw(self, rng: random.Random, slot: str, taken: Iterable[str] = ()) -> str:
        """A value for a slot that is none of those taken."""
        lines, avoided = self.lines[slot_source(slot)], set(taken)
        for _ in range(30):
            word = _flat(rng, lines.draw(rng))
            if word not in avoided:
                break
        return word


def _flat(rng: random.Random, node: tuple[str, str, tuple[object, ...]]) -> str:
    kind, text, parts = node
    if kind == "text":
        return text
    chosen = (rng.choice(parts),) if kind == "choice" else parts
    return "".join(_flat(rng, part) for part in chosen)  # type: ignore[arg-type]


@cache
def lines(texts: tuple[str, ...]) -> Lines:
    """Sentences, ready to draw from."""
    return Lines(texts)


class Detail(StrictModel):
    """What may be added to a fact, and what stands in its place once it is gone."""

    memory: str
    say: Sentences
    lost: str
    unsay: Sentences


class End(StrictModel):
    """What is left of a fact when it is over."""

    memory: str
    say: Sentences
    implied: Sentences


class Topic(StrictModel):
    """What people say of one thing in their lives; the comments in ``topics.yaml`` explain the fields."""

    name: str
    track: Track
    single: bool = False
    other: bool = False
    event: bool = False
    lasts: bool = False
    alone: bool = False
    rare: bool = False
    short: bool = False
    about: str = ""
    """The slot that tells facts of this topic apart: by default the person, else the place."""
    memory: str
    say: Sentences
    change: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()
    details: tuple[Detail, ...] = ()
    ends: tuple[End, ...] = ()

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The slots of the memory sentence, without details; for facts about others also who they are."""
        found = slots_in(self.memory)
        return ("who", "kin", *found) if self.other else found

    @cached_property
    def key(self) -> str:
        """The slot that tells facts of this topic apart, which no adjustment changes."""
        return self.about or next(slot for slot in (PERSON, PLACE) if slot in self.slots)

    @cached_property
    def changeable(self) -> tuple[str, ...]:
        """The slots that an adjustment may change, the likeliest first."""
        if not self.short:
            return self.change
        extra = [slot for slot in self.slots if slot_source(slot) not in (*_GIVEN, *map(slot_source, self.change))]
        return tuple(slot for slot in (*self.change, *extra) if slot != self.key and slot_source(slot) != PERSON)


class Topics(StrictModel):
    """All topics (``topics.yaml``), or those of the tiny form (``tiny_topics.yaml``)."""

    lists: dict[str, Sentences] = Field(default={})
    """Words that only these topics use; the others stand in ``values.yaml``."""
    common: Detail | None = None
    """A detail that every topic has besides its own, unless they are short."""
    past: End | None = None
    """What becomes of what is short."""
    topics: tuple[Topic, ...]


@dataclass(frozen=True, slots=True)
class KnownValues:
    """What a memory sentence says: the values of its slots, those of the details that hold too.

    Of each detail nothing is known (``""``), or it ``has`` it, or has ``lost`` it. `end` is None while the fact holds; the
    dates `since` and `until` and the source `heard` are empty if the sentence has none.
    """

    topic: Topic
    values: Mapping[str, str]
    details: tuple[str, ...] = ("", "", "")
    end: int | None = None
    since: str = ""
    until: str = ""
    heard: str = ""
    changed: tuple[str, ...] = field(default=(), compare=False)
    """Slots that the last change has set; they come first among the keywords."""

    def text(self, name: str) -> str:
        """The memory sentence about the person of this name."""
        return with_article(f"{name}{self._rest().format_map(self.values)}")

    def _rest(self) -> str:
        topic = self.topic
        parts = [f"{chr(39)}s {{kin}} {{who}} " if topic.other else " "]
        parts.append(_body(topic, self.end))
        parts += [f" as of {self.since}" if self.since else "", f" until {self.until}" if self.until else ""]
        for state, detail in zip(self.details, details_of(topic.name), strict=False):
            if state:
                parts.append(f", {detail.memory if state == 'has' else plain(detail.lost)}")
        return "".join((*parts, f", as {self.heard} says" if self.heard else "", "."))

    def keywords(self, most: int) -> tuple[str, ...]:
        """What a faithful memory contains, the latest news first; at most so many, none a part of another one."""
        topic, values = self.topic, self.values
        pairs = tuple(zip(self.details, details_of(topic.name), strict=False))
        found = [self.since] if self.since else []
        if self.end is not None:
            found += _MARKED.findall(ends_of(topic.name)[self.end].memory)
        news = [values[slot] for slot in self.changed if slot in values]
        lost = [_MARKED.findall(d.lost)[0] for state, d in pairs if state == "lost"]
        held = [d for state, d in pairs if state == "has"]
        found += [*news, *lost, values[topic.key]]
        found += [values[slot] for slot in topic.slots if slot != "kin"]
        found += [values[slot] for detail in held for slot in slots_in(detail.memory) if slot != "kin"]
        chosen: list[str] = []
        for word in found:
            if not any(f" {word} " in f" {other} " or f" {other} " in f" {word} " for other in chosen):
                chosen.append(word)
        return tuple(chosen[:most])

    def fact(self, name: str, most: int) -> Fact:
        """The memory sentence with its keywords."""
        return Fact(text=self.text(name), keywords=self.keywords(most))

    def detail_slots(self, place: int) -> tuple[str, ...]:
        """The slots of a detail."""
        return slots_in(details_of(self.topic.name)[place].memory)


def _body(topic: Topic, end: int | None) -> str:
    """The memory sentence without the person's name and without what may be added."""
    if end is None:
        return topic.memory
    over = plain(ends_of(topic.name)[end].memory)
    if topic.short:
        return f"{over} {topic.memory}"
    verb = "is " if topic.memory.startswith("is ") else ""
    return f"{verb}no longer {topic.memory.removeprefix(verb)}, {over}"


value_file = packaged(Path(__file__).with_name("values.yaml"), Values)
"""The lists of words that are not of the tiny form."""


@cache
def values() -> Values:
    """All lists of words."""
    return Values(lists={**value_file().lists, **topic_file(short=True).lists})


@cache
def topic_file(*, short: bool = False) -> Topics:
    """All topics, or those of the tiny form, and what they share."""
    return load(Path(__file__).with_name("tiny_topics.yaml" if short else "topics.yaml"), Topics)


def topics(*, short: bool = False) -> tuple[Topic, ...]:
    """All topics, or those of the tiny form."""
    return topic_file(short=short).topics


@cache
def topic_named(name: str) -> Topic:
    """The topic of a name."""
    return next(topic for topic in (*topics(), *topics(short=True)) if topic.name == name)


@cache
def details_of(name: str) -> tuple[Detail, ...]:
    """The details of a topic, the one that all have in the last place."""
    topic, common = topic_named(name), topic_file().common
    return () if topic.short or common is None else (*topic.details, common)


@cache
def ends_of(name: str) -> tuple[End, ...]:
    """The ends of a topic."""
    topic = topic_named(name)
    past = topic_file(short=topic.short).past
    return topic.ends or ((past,) if past else ())


# --- reading back ----------------------------------------------------------------------------------------------------------


@cache
def _forms(topic: str) -> tuple[tuple[int | None, re.Pattern[str]], ...]:
    """Regular expressions for the memory sentences of a topic: while it holds, and at each of its ends."""

    def form(end: int | None) -> re.Pattern[str]:
        seen = set[str]()
        body = reading(f"{'{kin} {who} ' if of.other else ''}{_body(of, end)}", values().pattern, seen)
        details = "".join(
            f"(?:, (?:(?P<has{place}_>{reading(detail.memory, values().pattern, seen)})"
            f"|(?P<lost{place}_>{re.escape(plain(detail.lost))})))?"
            for place, detail in enumerate(details_of(topic))
        )
        dates = f"(?: as of (?P<since_>{DATE}))?(?: until (?P<until_>{DATE}))?"
        return re.compile(rf"{body}{dates}{details}(?:, as (?P<heard_>{_NAME}) says)?\.")

    of = topic_named(topic)
    return tuple((end, form(end)) for end in (None, *range(len(ends_of(topic)))))


def _read_as(topic: Topic, text: str) -> KnownValues | None:
    """What a memory sentence says as one of a topic, whatever has become of it."""
    for end, form in _forms(topic.name):
        if (found := form.fullmatch(text)) is not None:
            groups = {name: value for name, value in found.groupdict().items() if value is not None}
            places = range(LAST + 1)
            states = tuple("has" if f"has{at}_" in groups else "lost" if f"lost{at}_" in groups else "" for at in places)
            held = {name: value for name, value in groups.items() if not name.endswith("_")}
            dates = (groups.get("since_", ""), groups.get("until_", ""), groups.get("heard_", ""))
            return KnownValues(topic, held, states, end, *dates)
    return None


@cache
def _by_verb() -> dict[tuple[bool, str], list[Topic]]:
    """The topics whose memory sentences may begin with a verb, those about others apart."""
    found: dict[tuple[bool, str], list[Topic]] = {}
    for topic in (*topics(), *topics(short=True)):
        bodies = (_body(topic, end) for end in (None, *range(len(ends_of(topic.name)))))
        for verb in dict.fromkeys(body.removeprefix("no longer ").split(" ", 1)[0] for body in bodies):
            found.setdefault((topic.other, verb), []).append(topic)
    return found


_OTHER = re.compile(rf"(?:{_GIVEN['kin']}) (?:{_NAME}) (?:no longer )?([a-z]+)")


@cache
def _read(rest: str, other: bool) -> KnownValues | None:
    if other:
        begun = _OTHER.match(rest)
        verb = begun[1] if begun else ""
    else:
        verb = rest.removeprefix("no longer ").split(" ", 1)[0]
    found = (_read_as(topic, rest) for topic in _by_verb().get((other, verb), ()))
    return next((known for known in found if known is not None), None)


def read(name: str, text: str) -> KnownValues | None:
    """What a memory sentence about the person of this name says; None if it is of no topic."""
    for start, other in ((f"{name}'s ", True), (f"{name} ", False)):
        if text.startswith(start):
            return _read(text[len(start) :], other)
    return None


# --- the people and places of a life ---------------------------------------------------------------------------------------

_KIN = (
    "cousin", "colleague", "neighbour", "friend", "uncle", "aunt", "nephew", "niece", "classmate", "brother", "sister",
)  # fmt: skip
_PEOPLE, _PLACES = 12, 12
_ONE_SYLLABLE = re.compile(r"[^aeiou ]*[aeiou]+[^aeiou ]*", re.IGNORECASE)
"""A person's name of one syllable: all names of that life are as short (the tiny form has such)."""
_RARE = 3


class Cast:
    """The people and places of a life; the same for everything that is written about the person of a name."""

    def __init__(self, name: str, split: Split) -> None:
        rng = random.Random(f"cast of {name}")
        self._kin: dict[str, str] = {}
        taken = dict.fromkeys(name.split())
        own = len(taken)
        self._split, self._syllables = split, 1 if _ONE_SYLLABLE.fullmatch(name) else 2
        while len(taken) < own + _PEOPLE:
            taken[self.name(rng)] = None
        while len(taken) < own + _PEOPLE + _PLACES:
            taken[invent_place(rng, split)] = None
        found = tuple(taken)[own:]
        self.people, self.places = found[:_PEOPLE], found[_PEOPLE:]
        self._rng, self._taken = rng, taken

    @cached_property
    def _of_topic(self) -> dict[str, tuple[str, ...]]:
        """Names for short facts, of each topic its own.

        Where two facts named one person, a tiny model took news of somebody known for a change, since it finds the memory by
        the name alone.
        """
        for _ in topics(short=True):
            before = len(self._taken)
            while len(self._taken) < before + _PEOPLE:
                self._taken[self.name(self._rng)] = None
        names = tuple(self._taken)[-_PEOPLE * len(topics(short=True)) :]
        return {
            topic.name: names[number * _PEOPLE : (number + 1) * _PEOPLE] for number, topic in enumerate(topics(short=True))
        }

    def kin(self, who: str) -> str:
        """What somebody is to the person."""
        if who not in self._kin:
            self._kin[who] = random.Random(f"kin of {who}").choice(_KIN)
        return self._kin[who]

    def keys(self, rng: random.Random, topic: Topic) -> list[str]:
        """Values that tell facts of a topic apart, in random order."""
        name, most = slot_source(topic.key), 1 if topic.single else _RARE if topic.rare else _PEOPLE
        if name == PERSON and topic.short:
            return rng.sample(self._of_topic[topic.name], most)
        if name in (PERSON, PLACE):
            return rng.sample(self.people if name == PERSON else self.places, most)
        drawn = (self.name(rng) if name == "name" else values().draw(rng, name) for _ in range(2 * _PEOPLE))
        return list(dict.fromkeys(drawn))[:most]

    def name(self, rng: random.Random) -> str:
        """A name of nobody yet."""
        return invent_name(rng, self._split, self._syllables)

    def place(self, rng: random.Random) -> str:
        """The name of a town that has not been named yet."""
        return invent_place(rng, self._split)

    def fill(self, rng: random.Random, topic: Topic, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Values for the slots of a topic: the given ones, the others drawn."""
        found = dict(given or {})
        for slot in topic.slots:
            self.draw(rng, slot, found)
        return found

    def draw(self, rng: random.Random, slot: str, found: dict[str, str]) -> None:
        """Put a value for a slot among those found, if there is none."""
        if slot in found or slot == "kin":
            if slot == "kin":
                self.draw(rng, PERSON, found)
                found["kin"] = self.kin(found[PERSON])
            return
        name = slot_source(slot)
        if name in (PERSON, PLACE):
            pool = self.people if name == PERSON else self.places
            found[slot] = rng.choice([value for value in pool if value not in found.values()])
        elif name == "name":
            found[slot] = self.name(rng)
        else:
            found[slot] = values().draw(rng, slot, found.values())


@cache
def cast_of(name: str, split: Split) -> Cast:
    """The people and places in the life of the person of this name."""
    return Cast(name, split)


# --- how facts change ------------------------------------------------------------------------------------------------------


def expanded(rng: random.Random, cast: Cast, known: KnownValues) -> KnownValues:
    """The fact with a detail more, or with another one in place of what was lost; changed otherwise if it has all."""
    own = [place for place in range(len(known.topic.details)) if known.details[place] != "has"]
    free = own or [place for place in range(LAST, len(details_of(known.topic.name))) if known.details[place] != "has"]
    if not free:
        return adjusted(rng, cast, known)
    return with_detail(rng, cast, known, rng.choice(free))


def with_detail(rng: random.Random, cast: Cast, known: KnownValues, place: int) -> KnownValues:
    """The fact with this detail."""
    found = dict(known.values)
    for slot in known.detail_slots(place):
        cast.draw(rng, slot, found)
    slots = tuple(slot for slot in known.detail_slots(place) if slot != "kin")
    return replace(known, values=found, details=_with(known.details, place, "has"), changed=slots)


def without_detail(rng: random.Random, cast: Cast, known: KnownValues) -> KnownValues:
    """The fact with one of its details lost; changed otherwise if it has none."""
    held = [place for place, state in enumerate(known.details) if state == "has"]
    if not held:
        return adjusted(rng, cast, known)
    return without(known, rng.choice(held))


def without(known: KnownValues, place: int) -> KnownValues:
    """The fact with what stands in the place of this detail once it is lost."""
    kept = {slot: value for slot, value in known.values.items() if slot not in known.detail_slots(place) or slot == "kin"}
    return replace(known, values=kept, details=_with(known.details, place, "lost"), changed=())


_OF_RIVALS = 0.9
"""Share of changes, where there are rivals, that give a memory what one of them has."""


def _of_rivals(known: KnownValues, slot: str, rivals: Sequence[KnownValues]) -> list[str]:
    """Values that other facts of the topic have in a slot."""
    taken = set(known.values.values())
    alike = (rival.values.get(slot, "") for rival in rivals if rival.topic is known.topic and rival.end is None)
    return [value for value in alike if value and value not in taken]


def adjusted(
    rng: random.Random,
    cast: Cast,
    known: KnownValues,
    count: int = 1,
    allowed: Callable[[KnownValues], bool] = lambda _: True,
    rivals: Sequence[KnownValues] = (),
    first: bool = False,
) -> KnownValues:
    """The fact with other values in so many of its slots.

    A value that a rival of the topic has is taken rather than any other; `first`: only the slot that can be implied changes.
    """
    slots = known.topic.changeable[: 1 if first else None]
    for _ in range(12):
        theirs = [slot for slot in slots if _of_rivals(known, slot, rivals)]
        if theirs and rng.random() < _OF_RIVALS:
            chosen = [theirs[0]]
        else:
            chosen = [slots[0] if rng.random() < 0.6 else rng.choice(slots)]
        chosen += [slot for slot in rng.sample(slots, len(slots)) if slot not in chosen][: count - 1]
        found = dict(known.values)
        for slot in chosen:
            name = slot_source(slot)
            taken = [*known.values.values()]
            alike = _of_rivals(known, slot, rivals)
            if alike and rng.random() < _OF_RIVALS:
                found[slot] = rng.choice(alike)
            elif name == PLACE:
                found[slot] = rng.choice([value for value in cast.places if value not in taken])
            else:
                found[slot] = values().draw(rng, slot, taken)
        changed = replace(known, values=found, changed=tuple(chosen))
        if allowed(changed):
            break
    return changed


def over(rng: random.Random, known: KnownValues) -> KnownValues:
    """The fact at its end; details and dates are forgotten."""
    kept = {slot: value for slot, value in known.values.items() if slot in known.topic.slots}
    end = rng.randrange(len(ends_of(known.topic.name)))
    return replace(known, values=kept, details=("", "", ""), end=end, since="", until="", changed=())


def _with(states: tuple[str, ...], place: int, state: str) -> tuple[str, ...]:
    return tuple(state if number == place else old for number, old in enumerate(states))


def blocks(name: str, cast: Cast, topics_: Sequence[Topic], size: int = 3) -> Iterator[tuple[Topic, tuple[str, ...]]]:
    """Topics with a few values of their key each, every pair once, in an order that depends on the person alone.

    Units that do not know of one another draw from different blocks, so that no two facts of a life are about the same.
    """
    rng = random.Random(f"blocks of {name}")
    found = []
    for topic in topics_:
        keys = cast.keys(rng, topic)
        found += [(topic, tuple(keys[start : start + size])) for start in range(0, len(keys), size)]
    rng.shuffle(found)
    return iter(found)
