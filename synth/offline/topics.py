"""Typed facts of the tiny form: a topic with values, how it reads as a memory, how it changes, how it is read back.

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

from deltamem.config import StrictModel
from deltamem.sessions import Split
from synth.names import invent_name, invent_place
from synth.offline.grammar import Lines, Sentences, with_article
from synth.offline.templates import reading
from synth.pools import Texts, packaged, slots_in
from synth.records import Fact, Track

PERSON, PLACE = "who", "spot"
_NAME = r"[A-Z][\w'-]*(?: [A-Z][\w'-]*){0,3}"
_OVER = "longer"
"""The keyword of what is over."""


@cache
def lines(texts: tuple[str, ...]) -> Lines:
    """Sentences, ready to draw from."""
    return Lines(texts)


class Topic(StrictModel):
    """What people say of one thing in their lives; the comments in ``topics.yaml`` explain the fields."""

    name: str
    track: Track
    lasts: bool = False
    memory: str
    say: Sentences

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The slots of the memory sentence."""
        return slots_in(self.memory)

    @cached_property
    def changeable(self) -> str:
        """The slot that a change gives another value; the other one says whom the fact is about."""
        (slot,) = (slot for slot in self.slots if slot != PERSON)
        return slot


class Topics(StrictModel):
    """All topics, the words that their slots are drawn from, and how they end (``topics.yaml``)."""

    lists: dict[str, Texts]
    past: Sentences
    topics: tuple[Topic, ...]

    @cached_property
    def lines(self) -> dict[str, Lines]:
        """The lists, ready to draw from."""
        return {slot: Lines(texts) for slot, texts in self.lists.items()}

    def pattern(self, slot: str) -> str:
        """A regular expression for the values of a slot."""
        return _NAME if slot == PERSON else "|".join(self.lists[slot])

    def draw(self, rng: random.Random, slot: str, taken: Iterable[str] = ()) -> str:
        """A value for a slot that is none of those taken, as far as chance finds one."""
        avoided = set(taken)
        for _ in range(30):
            word = self.lines[slot].draw(rng).text
            if word not in avoided:
                break
        return word


topic_file = packaged(Path(__file__).with_name("topics.yaml"), Topics)


def topics() -> tuple[Topic, ...]:
    """All topics."""
    return topic_file().topics


@dataclass(frozen=True, slots=True)
class KnownValues:
    """What a memory sentence says: the values of its slots, and whether it is `over`."""

    topic: Topic
    values: Mapping[str, str]
    over: bool = False
    changed: bool = field(default=False, compare=False)
    """Whether the last change has set the value that may change; it comes first among the keywords then."""

    @property
    def who(self) -> str:
        """Whom the fact is about."""
        return self.values[PERSON]

    @property
    def value(self) -> str:
        """What a change gives another value."""
        return self.values[self.topic.changeable]

    def text(self, name: str) -> str:
        """The memory sentence about the person of this name."""
        begin = f"{name} no {_OVER} " if self.over else f"{name} "
        return with_article(f"{begin}{self.topic.memory.format_map(self.values)}.")

    def keywords(self, most: int) -> tuple[str, ...]:
        """What a faithful memory contains, the latest news first; at most so many."""
        told = (self.value, self.who) if self.changed else (self.who, self.value)
        return ((_OVER, *told) if self.over else told)[:most]

    def fact(self, name: str, most: int) -> Fact:
        """The memory sentence with its keywords."""
        return Fact(text=self.text(name), keywords=self.keywords(most))


# --- reading back ----------------------------------------------------------------------------------------------------------


@cache
def _pattern(topic: str) -> re.Pattern[str]:
    memory = next(known.memory for known in topics() if known.name == topic)
    return re.compile(rf"(?P<over>no {_OVER} )?{reading(memory, topic_file().pattern)}\.")


@cache
def _read(rest: str) -> KnownValues | None:
    for topic in topics():
        if (found := _pattern(topic.name).fullmatch(rest)) is not None:
            return KnownValues(topic, {slot: found[slot] for slot in topic.slots}, found["over"] is not None)
    return None


def read(name: str, text: str) -> KnownValues | None:
    """What a memory sentence about the person of this name says; None if it is of no topic."""
    rest = text.removeprefix(f"{name} ")
    return _read(rest) if rest != text else None


# --- the people and places of a life ---------------------------------------------------------------------------------------

_PEOPLE, _PLACES = 12, 12
_ONE_SYLLABLE = re.compile(r"[^aeiou ]*[aeiou]+[^aeiou ]*", re.IGNORECASE)
"""A person's name of one syllable: all names of that life are as short."""


class Cast:
    """The people and places of a life; the same for everything that is written about the person of a name."""

    def __init__(self, name: str, split: Split) -> None:
        rng = random.Random(f"cast of {name}")
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
        """Names of each topic its own.

        Where two facts named one person, a tiny model took news of somebody known for a change, since it finds the memory by
        the name alone.
        """
        found = dict[str, tuple[str, ...]]()
        for topic in topics():
            before = len(self._taken)
            while len(self._taken) < before + _PEOPLE:
                self._taken[self.name(self._rng)] = None
            found[topic.name] = tuple(self._taken)[before:]
        return found

    def keys(self, rng: random.Random, topic: Topic) -> list[str]:
        """People for facts of a topic, in random order."""
        return rng.sample(self._of_topic[topic.name], _PEOPLE)

    def name(self, rng: random.Random) -> str:
        """A name of nobody yet."""
        return invent_name(rng, self._split, self._syllables)

    def fill(self, rng: random.Random, topic: Topic, who: str) -> dict[str, str]:
        """Values for the slots of a topic, about somebody."""
        return {PERSON: who, topic.changeable: topic_file().draw(rng, topic.changeable, (who,))}


@cache
def cast_of(name: str, split: Split) -> Cast:
    """The people and places in the life of the person of this name."""
    return Cast(name, split)


# --- how facts change ------------------------------------------------------------------------------------------------------

_OF_RIVALS = 0.9
"""Share of changes, where there are rivals, that give a memory what one of them has."""
_TRIES = 12


def adjusted(
    rng: random.Random,
    known: KnownValues,
    allowed: Callable[[KnownValues], bool] = lambda _: True,
    rivals: Sequence[KnownValues] = (),
) -> KnownValues:
    """The fact with another value; one that a rival of the topic has is taken rather than any other."""
    slot = known.topic.changeable
    alike = [rival.value for rival in rivals if rival.topic is known.topic and not rival.over and rival.value != known.value]
    for _ in range(_TRIES):
        near = alike and rng.random() < _OF_RIVALS
        value = rng.choice(alike) if near else topic_file().draw(rng, slot, known.values.values())
        changed = replace(known, values={**known.values, slot: value}, changed=True)
        if allowed(changed):
            break
    return changed


def blocks(name: str, cast: Cast, size: int = 3) -> Iterator[tuple[Topic, tuple[str, ...]]]:
    """Topics with a few people each, every pair once, in an order that depends on the person alone.

    Units that do not know of one another draw from different blocks, so that no two facts of a life are about the same.
    """
    rng = random.Random(f"blocks of {name}")
    found = []
    for topic in topics():
        keys = cast.keys(rng, topic)
        found += [(topic, tuple(keys[start : start + size])) for start in range(0, len(keys), size)]
    rng.shuffle(found)
    return iter(found)
