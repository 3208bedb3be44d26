"""What a kind of fact is: how its memory sentence reads, how a person says it, and how it changes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from deltamem.sessions import Split
from synth.config import FactLimits
from synth.offline.templates import Pool, Template, fill
from synth.offline.words import POOLS, THINGS, invent, invent_full, pick
from synth.records import Change, Fact, Track

NAME, FULL_NAME, THING, ANY = "NAME", "FULL_NAME", "THING", "ANY"
"""Sources of slots besides `POOLS`: one invented word, two of them, something of a category, and what the caller gives."""

_ALL_THINGS = tuple(thing for things in THINGS.values() for thing in things)


class Form(NamedTuple):
    """How one version of a fact is worded; slots in braces.

    Attributes:
        memory: The memory sentence without the person's name in front.
        keywords: Phrases of it.
        said: What the user may say; each has every keyword.
    """

    memory: str
    keywords: tuple[str, str, str]
    said: tuple[str, ...]


class Kind:
    """A kind of fact.

    Attributes:
        name: Unique.
        track: The stream; None for facts that never change.
        sources: Where the values of each slot come from: `POOLS` or one of the sources above.
        forms: The fact as it is at first, under None, and after each kind of change.
        before: How the user mentions the first form when it has changed.
    """

    def __init__(
        self,
        name: str,
        track: Track | None,
        sources: Mapping[str, str],
        base: Form,
        changed: Mapping[Change | None, Form] | None = None,
        before: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.track = track
        self.sources = sources
        self.forms: dict[Change | None, Form] = {None: base, **(changed or {})}
        self.before = before

    @cached_property
    def templates(self) -> dict[Change | None, Template]:
        """The memory sentences of the forms, without the person's name."""
        pools = {slot: _pool(source) for slot, source in self.sources.items()}
        return {change: Template(form.memory, pools) for change, form in self.forms.items()}

    def draw(
        self,
        rng: random.Random,
        split: Split,
        change: Change | None,
        given: Mapping[str, str],
        things: tuple[str, ...] = (),
    ) -> dict[str, str]:
        """Values for all slots of a form: the given ones, the others drawn, no word twice.

        Args:
            rng: What is drawn depends on this alone.
            split: Of the person.
            change: Which form.
            given: Values that are settled; those of `ANY` have to be.
            things: The pool of slots of the source `THING`.
        """
        values = dict(given)
        for slot in self.templates[change].slots:
            if slot in values:
                continue
            source = self.sources[slot]
            if source == NAME:
                values[slot] = invent(rng, split)
            elif source == FULL_NAME:
                values[slot] = invent_full(rng, split)
            elif source == THING:
                values[slot] = rng.choice([thing for thing in things if thing not in values.values()])
            else:
                values[slot] = pick(rng, source, values.values())
        return values

    def fact(self, person: str, change: Change | None, values: Mapping[str, str], limits: FactLimits) -> Fact:
        """The memory sentence with its keywords."""
        keywords = tuple(_short(fill(keyword, values), limits) for keyword in self.forms[change].keywords)
        return Fact(text=f"{person} {self.templates[change].fill(values)}", keywords=keywords)


class Known(NamedTuple):
    """What a memory sentence says."""

    kind: Kind
    change: Change | None
    values: dict[str, str]

    def say(self, rng: random.Random) -> str:
        """The fact in the first person."""
        return fill(rng.choice(self.kind.forms[self.change].said), self.values)

    def say_before(self, rng: random.Random) -> str:
        """The fact as something that has changed."""
        if self.change is None and self.kind.before:
            return fill(rng.choice(self.kind.before), self.values)
        return self.say(rng)


class Index:
    """Finds what sentences say."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        """Sort the templates by their beginnings."""
        self._by_word: dict[str, list[tuple[Kind, Change | None, Template]]] = {}
        for kind in kinds:
            for change, template in kind.templates.items():
                self._by_word.setdefault(template.text.split(" ", 1)[0], []).append((kind, change, template))

    def read(self, person: str, text: str) -> Known | None:
        """What a memory sentence about the person of this name says; None if it is of no kind."""
        if not text.startswith(person + " "):
            return None
        rest = text[len(person) + 1 :]
        for kind, change, template in self._by_word.get(rest.split(" ", 1)[0], ()):
            if (values := template.read(rest)) is not None:
                return Known(kind, change, values)
        return None


def _pool(source: str) -> Pool:
    if source == NAME:
        return None
    if source in (FULL_NAME, ANY):
        return ()
    return _ALL_THINGS if source == THING else POOLS[source]


def _short(keyword: str, limits: FactLimits) -> str:
    """The keyword, cut to the words that it may have."""
    return " ".join(keyword.split()[: limits.keyword_words.max])
