"""Names of people, whose spelling tells the split, so that held-out people share no name with training people."""

from __future__ import annotations

import hashlib
import random
import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, product
from pathlib import Path
from typing import Protocol, Self

from pydantic import model_validator

from deltamem.config import StrictModel
from deltamem.errors import DeltaMemError
from deltamem.sessions import Split
from synth.pools import Words, packaged, permutation, unique


class Region(StrictModel):
    """Names that are common together."""

    name: str
    female: Words
    male: Words
    surnames: Words


class Syllables(StrictModel):
    """Parts of invented names; an empty coda makes one end with a vowel, `places` end towns.

    None contains what is `refused`, and none is one of the `words`.
    """

    onsets: Words
    vowels: Words
    codas: Words
    places: Words
    refused: Words
    words: Words

    @cached_property
    def rude(self) -> re.Pattern[str]:
        """Finds what no name may contain or be."""
        return re.compile("|".join([*map(re.escape, self.refused), *(f"^{word}$" for word in self.words)]), re.IGNORECASE)


class Names(StrictModel):
    """What names are made of (``names.yaml``)."""

    invented: Syllables
    regions: tuple[Region, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        unique(tuple(name for region in self.regions for name in region.female + region.male))
        unique(tuple(name for region in self.regions for name in region.surnames))
        return self


names = packaged(Path(__file__).with_name("names.yaml"), Names)

_HELDOUT_SHARE = 51 / 256
_HELDOUT_SURNAMES = 1 / 2
"""Numbers are given to people of both splits alike, so each split needs a name for every number."""


def name_split(name: str, heldout_share: float = _HELDOUT_SHARE) -> Split:
    """The only split in which a name may occur."""
    first_byte = hashlib.sha256(name.encode("utf-8")).digest()[0]
    return "heldout" if first_byte / 256 < heldout_share else "train"


def surname_split(surname: str) -> Split:
    """The only split in which a surname of `RealNames` may occur."""
    return name_split(surname, _HELDOUT_SURNAMES)


def split_of(name: str) -> Split:
    """The split of a person, from the spelling of the full name."""
    _, _, surname = name.partition(" ")
    return surname_split(surname) if surname else name_split(name)


def invent_name(rng: random.Random, split: Split, syllables: int = 2) -> str:
    """Invent a name of one syllable or two (2,000 and about 500,000 spellings) that belongs to the split."""
    parts = names().invented
    while True:
        spoken = (rng.choice(parts.onsets) + rng.choice(parts.vowels) for _ in range(syllables))
        name = ("".join(spoken) + rng.choice(parts.codas)).capitalize()
        if name_split(name) == split and not parts.rude.search(name):
            return name


def invent_place(rng: random.Random, split: Split) -> str:
    """Invent the name of a town, such as Breldon, that belongs to the split."""
    parts = names().invented
    # Two consonants before the end of a town's name are hard to pronounce.
    kinds = (parts.onsets, parts.vowels, [coda for coda in parts.codas if len(coda) < 2], parts.places)
    while True:
        name = "".join(map(rng.choice, kinds)).capitalize()
        if name_split(name) == split and not parts.rude.search(name):
            return name


class NameSource(Protocol):
    """Gives names to people. The same call gets the same name."""

    def person(self, number: int, split: Split) -> tuple[str, str]:
        """The full name and the gender, ``female`` or ``male``, of the person of this number."""
        ...

    def other(self, rng: random.Random, split: Split) -> str:
        """A full name for somebody in the life of a person of this split; it may come more than once."""
        ...


class InventedNames:
    """Names of one invented word, which a model cannot have seen before. Two people may get the same."""

    def __init__(self, seed: int, syllables: int = 2) -> None:
        self._seed, self._syllables = seed, syllables

    def person(self, number: int, split: Split) -> tuple[str, str]:
        """See `NameSource`."""
        rng = random.Random(f"{self._seed}/name/{number}")
        return invent_name(rng, split, self._syllables), rng.choice(("female", "male"))

    def other(self, rng: random.Random, split: Split) -> str:
        """See `NameSource`."""
        return invent_name(rng, split, self._syllables)


class RealNames:
    """A common first name and a common surname. No two people get the same name, and no surname is in both splits.

    The first ten thousand people or so get a first name and a surname of one region; names after these mix regions.
    """

    def __init__(self, seed: int) -> None:
        self._blocks: dict[Split, tuple[_NameBlock, _NameBlock]] = {}
        for split in ("train", "heldout"):
            rng = random.Random(f"{seed}/names/{split}")
            pairs = list(product(names().regions, repeat=2))
            matching = _NameBlock([(one, _surnames(other, split)) for one, other in pairs if one is other], rng)
            mixed = _NameBlock([(one, _surnames(other, split)) for one, other in pairs if one is not other], rng)
            self._blocks[split] = (matching, mixed)

    def capacity(self, split: Split) -> int:
        """How many people of a split can be named."""
        return sum(block.size for block in self._blocks[split])

    def person(self, number: int, split: Split) -> tuple[str, str]:
        """See `NameSource`. Raises `DeltaMemError` if there are not so many names."""
        position = number
        for block in self._blocks[split]:
            if position < block.size:
                return block.at(position)
            position -= block.size
        raise DeltaMemError(
            f"there are real names for {self.capacity(split)} people only; person {number} needs an invented one"
        )

    def other(self, rng: random.Random, split: Split) -> str:
        """See `NameSource`; first name and surname are of one region."""
        block, _ = self._blocks[split]
        return block.at(rng.randrange(block.size))[0]


def _surnames(region: Region, split: Split) -> tuple[str, ...]:
    return tuple(surname for surname in region.surnames if surname_split(surname) == split)


class _NameBlock:
    """First names and surnames, every pair once, in an order that looks random but takes no memory."""

    def __init__(self, parts: Sequence[tuple[Region, tuple[str, ...]]], rng: random.Random) -> None:
        self._parts = parts
        self._ends = list(accumulate(len(region.female + region.male) * len(surnames) for region, surnames in parts))
        self.size = self._ends[-1]
        self._pair = permutation(self.size, rng)

    def at(self, position: int) -> tuple[str, str]:
        """Full name and gender at a position below `size`."""
        index = self._pair(position)
        part = bisect_right(self._ends, index)
        region, surnames = self._parts[part]
        first, surname = divmod(index - (self._ends[part - 1] if part else 0), len(surnames))
        gender = "female" if first < len(region.female) else "male"
        return f"{(region.female + region.male)[first]} {surnames[surname]}", gender
