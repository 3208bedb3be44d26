"""How people speak in the shape `demanding`: what `talk.yaml` holds, dates, and one person's way of saying it all."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from functools import cache, cached_property
from pathlib import Path

from pydantic import Field

from deltamem.config import StrictModel
from synth.names import split_of
from synth.offline.grammar import Grammar, Sentences, SpeakingVoice, Speech, draw_voice, finished, inner, spoken
from synth.offline.templates import slot_source
from synth.offline.topics import PERSON, PLACE, KnownValues, cast_of, lines, topic_named, values
from synth.pools import packaged
from synth.validators.base import MONTHS

_AROUND = frozenset((PERSON, PLACE, "name"))
"""Slots that name people and places of the life."""


class Offer(StrictModel):
    """What the assistant says that helps with these topics; with all of the area, if none are named."""

    say: Sentences
    of: tuple[str, ...] = ()


class FollowUp(StrictModel):
    """A question of the assistant about these topics, or about all of the area, and what users answer without any news."""

    ask: Sentences
    answers: Sentences
    of: tuple[str, ...] = ()


class Area(StrictModel):
    """Something that people talk of, as the assistant speaks of it: its name by topic, what helps, what is asked."""

    matters: dict[str, Sentences]
    offers: tuple[Offer, ...] = Field(min_length=1)
    follow_ups: tuple[FollowUp, ...] = Field(min_length=1)


class Talk(StrictModel):
    """Everything that is said besides the facts and scenes (``talk.yaml``)."""

    speech: Speech
    areas: dict[str, Area]
    rules: dict[str, Sentences]

    @cached_property
    def grammar(self) -> Grammar:
        """The rules, with the words of values.yaml."""
        return Grammar(self.rules, values().lines)

    @cached_property
    def peopled(self) -> frozenset[str]:
        """The rules that name people and places of the life, or may by a rule that they refer to."""
        read_ = {name: lines(texts) for name, texts in self.rules.items()}
        return frozenset(
            name for name, found in read_.items() if found.rules or not _AROUND.isdisjoint(map(slot_source, found.slots))
        )

    @cached_property
    def _by_topic(self) -> dict[str, tuple[str, Area]]:
        return {topic: (name, area) for name, area in self.areas.items() for topic in area.matters}

    def area_of(self, topic: str) -> tuple[str, Area]:
        """The name of the area that a topic or a track belongs to, and the area; by its track, if no area has the topic."""
        return self._by_topic.get(topic) or self._by_topic[topic_named(topic).track.value]


class TinyTalk(StrictModel):
    """The rules of the tiny form (``tiny_talk.yaml``)."""

    rules: dict[str, Sentences]


talk_file = packaged(Path(__file__).with_name("talk.yaml"), Talk)
"""Everything that is said besides the facts and scenes, but for the tiny form."""
tiny_talk_file = packaged(Path(__file__).with_name("tiny_talk.yaml"), TinyTalk)
"""What the tiny form says besides the facts."""


@cache
def talk() -> Talk:
    """Everything that is said besides the facts and scenes; the rules of the tiny form begin with ``short_``."""
    full, short = talk_file(), {f"short_{name}": texts for name, texts in tiny_talk_file().rules.items()}
    return Talk(speech=full.speech, areas=full.areas, rules={**full.rules, **short})


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def relative(rng: random.Random, value: date, today: date) -> str:
    """A date as people say it on a day, so that both give the date."""
    days = (value - today).days
    near = {-2: "the day before yesterday", -1: "yesterday", 0: "today", 1: "tomorrow", 2: "the day after tomorrow"}
    if days in near:
        return near[days]
    name, number = _DAYS[value.weekday()], _counted(abs(days), "day")
    exact = f"{number} ago" if days < 0 else rng.choice((f"in {number}", f"{number} from now"))
    if abs(days) < 7:
        return rng.choice((f"last {name}" if days < 0 else f"this coming {name}", exact))
    if days % 7 == 0:
        weeks = _counted(abs(days) // 7, "week")
        return f"{weeks} ago to the day" if days < 0 else f"in exactly {weeks}"
    return exact


def span(rng: random.Random, value: date, today: date) -> str:
    """From when on, or since when something has been so, so that both give the date."""
    when = relative(rng, value, today)
    if value >= today:
        return when if when.startswith("in ") or when.endswith("from now") else f"from {when} on"
    if " ago" not in when:
        return f"since {when}"
    number, to_the_day = when.removesuffix(" to the day").removesuffix(" ago"), when.endswith(" to the day")
    return f"for exactly {number}" if to_the_day else f"for {number} now"


def _counted(number: int, unit: str) -> str:
    word = NUMBERS[number] if number < len(NUMBERS) else str(number)
    return f"{word} {unit}" if number == 1 else f"{word} {unit}s"


_SHORT = SpeakingVoice("short", 0.5, 0.0, 0.0, 0.0, 0.0, False, 0.0, 0.25, 0.15)
"""How people of the tiny form speak."""


class Speaker:
    """Says sentences the way one person does."""

    def __init__(self, rng: random.Random, name: str, *, short: bool = False) -> None:
        self.short = short
        self.rng = rng
        self.name = name
        self.cast = cast_of(name, split_of(name))
        self.voice = _SHORT if short else draw_voice(random.Random(f"voice of {name}"))
        self._names = frozenset((*self.cast.people, *self.cast.places, *name.split(), *_DAYS, *MONTHS))
        self._grammar, self._speech = talk().grammar, talk().speech

    def say(self, rule: str, **given: str) -> str:
        """A sentence of a rule, with people and places of this life where it names some.

        People who speak in a certain way take the rule of that way, such as ``hello_formal``, if there is one.
        """
        voiced = self._voiced(rule)
        return self._grammar.say(self.rng, voiced, self.around(given) if voiced in talk().peopled else given)

    def texts(self, rule: str) -> tuple[str, ...]:
        """All sentences of a rule, in this person's way of speaking as `say` draws them."""
        return talk().rules[self._voiced(rule)]

    def _voiced(self, rule: str) -> str:
        if self.short and f"short_{rule}" in self._grammar:
            return f"short_{rule}"
        return f"{rule}_{self.voice.kind}" if f"{rule}_{self.voice.kind}" in self._grammar else rule

    def line(self, texts: tuple[str, ...], given: Mapping[str, str] | None = None) -> str:
        """One of these sentences."""
        return self._grammar.write(self.rng, lines(texts).draw(self.rng), given)

    def around(self, given: Mapping[str, str]) -> dict[str, str]:
        """Values for slots: people and places of this life, and what is given."""
        who, who2 = self.rng.sample(self.cast.people, 2)
        spot, spot2 = self.rng.sample(self.cast.places, 2)
        return {PERSON: who, "who2": who2, PLACE: spot, "spot2": spot2, "name": who2, **given}

    def can_stand_after_that(self, clause: str) -> bool:
        """Whether a clause makes a sentence after "you know that"."""
        first = clause.split(" ", 1)[0].split("'")[0]
        begins = first in ("I", "my", "we", "our", "the", "there", "a") or first.strip(",") in self._names
        return begins and not any(mark in clause for mark in (":", ";", "?", " - "))

    def used_to(self, clause: str) -> str:
        """What somebody says of the past with the words of the present; empty if that is not plain."""
        for now, then in self._speech.past.items():
            if clause.startswith(f"{now} "):
                return f"{then}{clause[len(now) :]}"
        found = re.match(r"(I|we) ([a-z]+) ", clause)
        if found and found[2] in self._speech.bases:
            return f"{found[1]} used to {clause[len(found[1]) + 1 :]}"
        return ""

    def spoken(self, parts: Sequence[str], kept: Collection[str]) -> str:
        """Sentences as the person says them, in one utterance."""
        names = (*kept, *self._names)
        said = [spoken(self.rng, self.voice, self._speech, finished(part), names) for part in parts if part]
        text = " ".join(said)
        return text[:-1] if text.endswith(".") and self.rng.random() < self.voice.unstopped else text

    def inner(self, clause: str, kept: Iterable[str] = ()) -> str:
        """A clause as it stands after something that leads up to it; `kept` are names that are not of the cast."""
        return inner(clause, {*self._names, *(word for name in kept for word in name.split())})

    def to_second_person(self, clause: str) -> str:
        """What the user would say, as the assistant says it of them."""
        return self._speech.replaced(self.rng, "second", clause, 1.0, ())


def matter_of(speaker: Speaker, topic: str) -> str:
    """How the assistant calls what a topic is about."""
    if not topic or speaker.short:
        return "that"
    _, area = talk().area_of(topic)
    return speaker.line(area.matters.get(topic) or area.matters[topic_named(topic).track.value])


def matter_with_key(speaker: Speaker, known: KnownValues) -> str:
    """How the assistant calls a fact: its matter, and the person or place that tells it apart from others like it."""
    matter, own = matter_of(speaker, known.topic.name), slot_source(known.topic.key) in _AROUND
    return f"{known.values[known.topic.key]} and {matter}" if own and not speaker.short else matter


def suits(line: Offer | FollowUp, topic: str) -> bool:
    """Whether the assistant may say a line of the area of a topic to a fact of it."""
    return not line.of or topic in line.of or (topic not in talk().area_of(topic)[1].matters and _track(topic) in line.of)


def _track(topic: str) -> str:
    return topic_named(topic).track.value


def in_first_person(matter: str) -> str:
    """What the assistant calls a matter, as the user does."""
    return re.sub(r"\byou\b", "I", re.sub(r"\byour\b", "my", matter))
