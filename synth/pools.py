"""Word pools in YAML files: how they are read and checked, and those that drafts of profiles are drawn from."""

from __future__ import annotations

import math
import random
import string
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Self, TypeVar

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator

from deltamem.config import StrictModel, first_error
from deltamem.errors import DeltaMemError
from deltamem.text_files import read_text

Schema = TypeVar("Schema", bound=StrictModel)
TextsT = TypeVar("TextsT", str, tuple[str, ...])


def load(path: Path, schema: type[Schema]) -> Schema:
    """Read a YAML file of this package.

    Raises `DeltaMemError` if the file does not fit the schema; the message names the file and what is wrong in it.
    """
    try:
        found = yaml.load(read_text(path), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return schema.model_validate(found)
    except yaml.YAMLError as error:
        raise DeltaMemError(f"{path}: not YAML: {error}") from error
    except ValidationError as error:
        raise DeltaMemError(f"{path}: {first_error(error)}") from error


def packaged(path: Path, schema: type[Schema]) -> Callable[[], Schema]:
    """Reads a YAML file of this package when it is first asked for, and once; raises as `load` does."""
    return cache(partial(load, path, schema))


class Deck:
    """Texts in a random order, none twice before all have come."""

    def __init__(self, rng: random.Random, texts: Sequence[str]) -> None:
        self._rng = rng
        self._texts = texts
        self._left: list[str] = []

    def draw(self) -> str:
        """The next text."""
        self._left = self._left or self._rng.sample(self._texts, len(self._texts))
        return self._left.pop()


def permutation(size: int, rng: random.Random) -> Callable[[int], int]:
    """An order of the numbers below `size` that looks random and takes no memory: the number at each position."""
    # i -> factor * i + offset (modulo the size) meets every number once if factor and size share no divisor.
    factor = offset = rng.randrange(size)
    while math.gcd(factor, size) != 1:
        factor = rng.randrange(size)
    return lambda position: (factor * position + offset) % size


def slots_in(text: str) -> tuple[str, ...]:
    """Names of the slots of a text, in their order, each once."""
    return tuple(dict.fromkeys(slot for _, slot, _, _ in string.Formatter().parse(text) if slot))


def check_slots(value: TextsT, names: Collection[str]) -> TextsT:
    """Refuse a text, or texts, with slots other than these."""
    for text in (value,) if isinstance(value, str) else value:
        if unknown := set(slots_in(text)).difference(names):
            raise ValueError(f"unknown slot {sorted(unknown)} in {text!r}")
    return value


def slots(*names: str) -> AfterValidator:
    """Allow these slots, and no others, in a field of a text or texts."""
    return AfterValidator(partial(check_slots, names=names))


def unique(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a text that comes twice; the empty one, which stands for nothing said, may."""
    if twice := {text for text in texts if text and texts.count(text) > 1}:
        raise ValueError(f"more than once: {sorted(twice)}")
    return texts


Texts = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(unique)]
"""Texts without slots, of which one is drawn."""
Words = Annotated[Texts, slots()]


class Occupation(StrictModel):
    """A job of an industry: the position in `Pools.degrees` that it takes, monthly incomes of a beginner and in the end."""

    title: str
    level: int = Field(ge=0)
    least: int = Field(gt=0)
    most: int = Field(gt=0)


class Industry(StrictModel):
    """Where people work; jobs from the humblest to the highest."""

    name: str
    majors: Words
    employers: Words
    jobs: tuple[Occupation, ...] = Field(min_length=1)


class Letters(StrictModel):
    """Two letters of the personality type, one of which everybody has, and the share of people with the first."""

    first: str
    second: str
    share: float = Field(gt=0, lt=1)


class Goal(StrictModel):
    """A kind of life goal."""

    kind: str
    statements: Words
    motivations: Words
    target: Annotated[str, slots("number")]
    numbers: tuple[int, ...] = Field(min_length=1)


class Pools(StrictModel):
    """What drafts of profiles are drawn from (``pools.yaml``)."""

    cities: Words
    degrees: Words
    youngest: tuple[int, ...]
    industries: tuple[Industry, ...]
    employer_names: Words
    letters: tuple[Letters, ...]
    traits: dict[str, Words]
    goals: tuple[Goal, ...]
    physical_conditions: Words
    mental_conditions: Words
    relationships: dict[str, Annotated[Texts, slots("name")]]
    categories: Words
    cues: Words

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.youngest) != len(self.degrees):
            raise ValueError("youngest: not one age for each degree")
        if any(job.level >= len(self.degrees) for industry in self.industries for job in industry.jobs):
            raise ValueError("industries: a job of a level that no degree has")
        if {letter for pair in self.letters for letter in (pair.first, pair.second)} != set(self.traits):
            raise ValueError("traits: not those of the letters")
        return self


pools = packaged(Path(__file__).with_name("pools.yaml"), Pools)
