"""What slots stand for in a life: the people round a person, where they live and work, days, and words from the lists."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping
from datetime import date, timedelta

from deltamem.sessions import Split
from synth.everyday.scenes import AuthoredScene, value_lists
from synth.names import name_split, names
from synth.validators.base import day

_FEMALE = ("mother", "grandmother", "sister", "daughter", "aunt", "niece", "friend_f", "cousin_f", "colleague_f", "boss_f",
           "neighbour_f", "roommate_f", "teacher_f")  # fmt: skip
_MALE = ("father", "grandfather", "brother", "son", "uncle", "nephew", "friend_m", "cousin_m", "colleague_m", "boss_m",
         "neighbour_m", "roommate_m", "teacher_m")  # fmt: skip
PEOPLE = (*_FEMALE, *_MALE, "partner")
"""Slots of people, by first name; with a number behind them, somebody else of the same kind."""
OWN = {"home": "city", "job": "job", "employer": "employer"}
"""What stays the same in a life, and the list that it is from."""
_PRONOUNS = {"they": ("she", "he"), "them": ("her", "him"), "their": ("her", "his"), "theirs": ("hers", "his"),
             "themself": ("herself", "himself")}  # fmt: skip
_DIGITS = re.compile(r"[0-9]+$")
_PRONOUN = re.compile(rf"(.+)_({'|'.join(_PRONOUNS)})$")
_DAY = re.compile(r"(ago|ahead|recent)([0-9]*)(_date|_day)?$")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)$")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def _ago(rng: random.Random, today: date, recent: bool = False) -> tuple[str, str, str]:
    """A day or month in the past: as it is said, as a memory has it, and what of that is a keyword.

    What is `recent` lies two weeks back at most.
    """
    draw = rng.random()
    if recent or draw < 0.75:
        back = rng.choice((1, 1, 2, 3, 4, 5, 6, 7, 9, 14))
        when = today - timedelta(days=back)
        if back == 1:
            said = rng.choice(("yesterday", "yesterday", "last night"))
        elif back <= 7:
            said = rng.choice((f"last {when:%A}", f"last {when:%A}", f"{_NUMBERS[back]} days ago"))
        else:
            said = "two weeks ago" if back == 14 else f"{_NUMBERS[back]} days ago"
        return said, f"on {day(when)}", day(when)
    first = today.replace(day=1)
    if draw < 0.9:
        month = (first - timedelta(days=1)).replace(day=1)
        return "last month", f"in {month:%B %Y}", f"{month:%B %Y}"
    years = rng.randint(1, 4)
    said = "last year" if years == 1 else f"{_NUMBERS[years]} years ago"
    return said, f"in {today.year - years}", str(today.year - years)


def _ahead(rng: random.Random, today: date) -> tuple[str, str, str, str]:
    """A day or month to come, in the same three forms, and from when on it is over."""
    if rng.random() < 0.75:
        days = rng.choice((1, 2, 3, 4, 5, 6, 14, 21))
        when = today + timedelta(days=days)
        if days == 1:
            said = "tomorrow"
        elif days < 7:
            said = rng.choice((f"this {when:%A}", f"this coming {when:%A}", f"on {when:%A}"))
        else:
            said = f"in {_NUMBERS[days // 7]} weeks"
        return said, f"on {day(when)}", day(when), when.isoformat()
    month = (today.replace(day=28) + timedelta(days=7)).replace(day=1)
    return "next month", f"in {month:%B %Y}", f"{month:%B %Y}", (month + timedelta(days=27)).isoformat()


class LifeCast:
    """Whoever and whatever stays the same in the life of one person."""

    def __init__(self, rng: random.Random, name: str, gender: str, split: Split, *, home: str = "") -> None:
        self._rng, self._name, self._split = rng, name, split
        self._known: dict[str, str] = {"home": home} if home else {}
        self._female: dict[str, bool] = {"": gender == "female"}
        self._taken = {name.split()[0]}

    @property
    def first_name(self) -> str:
        """The first name of the person."""
        return self._name.split()[0]

    def fill(
        self,
        scene: AuthoredScene,
        rng: random.Random,
        today: date,
        given: Mapping[str, str] = {},
        other_than: frozenset[str] = frozenset(),
    ) -> dict[str, str]:
        """Values for all slots of a scene; what is `given` stays, days are drawn anew, and so are lists.

        Values of lists are `other_than` some, as long as a list has others.

        ``ahead_due`` is the day from which on what is `ahead` is over.

        Raises `KeyError` for a slot that is neither declared, nor a list, nor of those that are known everywhere.
        """
        declared = {**scene.slots, **{slot: source for one in scene.later for slot, source in one.slots.items()}}
        found = dict(given)
        days: dict[str, tuple[str, ...]] = {}
        for slot in sorted(scene.mentioned - found.keys()):
            if match := _DAY.match(slot):
                which = "".join(match.group(1, 2))
                if which not in days:
                    days[which] = _ahead(rng, today) if match[1] == "ahead" else _ago(rng, today, match[1] == "recent")
                made = days[which]
                found[slot] = made[("", "_date", "_day").index(match[3] or "")]
                found.update({f"{which}_due": due for due in made[3:]})
            else:
                found[slot] = self._value(slot, declared, rng, other_than.union(found.values()))
        return found

    def _value(
        self, slot: str, declared: Mapping[str, str | tuple[str, ...]], rng: random.Random, taken: Collection[str]
    ) -> str:
        if slot == "name":
            return self._name
        if slot in _PRONOUNS:
            return _PRONOUNS[slot][not self._female[""]]
        if match := _PRONOUN.match(slot):
            self._person(match[1])
            return _PRONOUNS[match[2]][not self._female[match[1]]]
        base = _DIGITS.sub("", slot)
        if slot in declared:
            source = declared[slot]
            if isinstance(source, str) and (numbers := _RANGE.match(source)):
                return str(rng.randint(int(numbers[1]), int(numbers[2])))
            return self._other(value_lists()[source] if isinstance(source, str) else source, rng, taken)
        if base in PEOPLE:
            return self._person(slot)
        if slot == "spouse":
            self._person("partner")
            return "wife" if self._female["partner"] else "husband"
        if base in OWN:
            if slot not in self._known:
                self._known[slot] = self._other(value_lists()[OWN[base]], self._rng, self._known.values())
            return self._known[slot]
        return self._other(value_lists()[base], rng, taken)

    def _other(self, values: tuple[str, ...], rng: random.Random, taken: Collection[str]) -> str:
        free = [value for value in values if value not in taken]
        return rng.choice(free or values)

    def _person(self, slot: str) -> str:
        if slot not in self._known:
            base = _DIGITS.sub("", slot)
            female = self._rng.random() < 0.5 if base == "partner" else base in _FEMALE
            while (name := stranger(self._rng, female, self._split)) in self._taken:
                pass
            self._taken.add(name)
            self._known[slot], self._female[slot] = name, female
        return self._known[slot]


def stranger(rng: random.Random, female: bool, split: Split) -> str:
    """A common first name that belongs to the split."""
    while True:
        region = rng.choice(names().regions)
        name = rng.choice(region.female if female else region.male)
        if name_split(name) == split:
            return name
