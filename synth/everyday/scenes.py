"""Authored scenes: small pieces of dialogue with the facts that they tell, and how these facts change later.

A scene says what a memory keeps (`facts`), how people talk about it (`tell`) and what becomes of it in a later session
(`later`). Texts have alternatives in brackets and slots in braces, as in ``I [saw|caught] {band} with {friend_f}``; the
README of this folder explains the format to whoever writes scenes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deltamem.config import StrictModel
from deltamem.memory import Keyword, wordings
from deltamem.sessions import FactKind, Split
from rewards.fidelity import folded, folded_keyword, found_in
from synth.names import name_split
from synth.offline.grammar import Lines, Node, Sentences, parse, walk, with_article
from synth.pools import load

FOLDER = Path(__file__).parent

Change = Literal["restate", "merge", "refine", "status", "reversal", "end"]
"""How a memory changes: said again in other words, joined with news, made exact, gone on, turned round, over."""
Partner = Literal["any", "assistant", "friend"]
"""Who the other side of a telling can be."""


class SceneFact(StrictModel):
    """What a memory keeps of a scene."""

    kind: FactKind
    label: Annotated[Sentences, BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]
    """The memory, in the third person: ``{name} adopted a dog called {pet}.``"""
    keys: Annotated[tuple[Keyword, ...], Field(min_length=1, max_length=4)]
    """What a faithful memory contains; of alternatives any one."""
    recall: str = ""
    """The fact as somebody else reminds the person of it, after "you said that": ``you adopted a dog called {pet}``."""
    old: tuple[str, ...] = ()
    """Of a changed fact: words of the text before that are wrong now."""


class Telling(StrictModel):
    """One way to talk about it: the owner of the memory and the other side in turns, the owner first."""

    turns: Annotated[tuple[str, ...], Field(min_length=2)]
    facts: tuple[str, ...] | None = None
    """The facts that it tells; None: all of the scene."""
    to: Partner = "any"

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, given: object) -> object:
        return {"turns": given} if isinstance(given, list | tuple) else given

    @property
    def own(self) -> tuple[str, ...]:
        """What the owner says."""
        return self.turns[::2]


class Later(StrictModel):
    """What becomes of facts in a later session."""

    name: str = ""
    op: Change
    after: str = ""
    """The change that must have come before; empty: the facts are as the scene left them."""
    change: Annotated[dict[str, SceneFact], Field(min_length=1)]
    add: dict[str, SceneFact] = Field(default={})
    slots: dict[str, str | tuple[str, ...]] = Field(default={})
    tell: Annotated[tuple[Telling, ...], Field(min_length=1)]

    @cached_property
    def kinds(self) -> tuple[FactKind, ...]:
        """The kinds of the facts that it changes or adds."""
        return tuple(fact.kind for fact in (*self.change.values(), *self.add.values()))


class AuthoredScene(StrictModel):
    """One thing that people talk about; without `facts` it is talk that leaves nothing to remember."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    once: bool = True
    """Whether it can be in a life only once; otherwise it may come again with other values."""
    group: tuple[str, ...] = ()
    """A life has at most one scene of each group: two of them would contradict each other."""
    without: tuple[str, ...] = ()
    """Slots of people that a life with this scene lacks, such as ``partner``: no other scene of it may mention them."""
    slots: dict[str, str | tuple[str, ...]] = Field(default={})
    """By slot the list of values that it draws from, values of its own, or a range of numbers as in ``3..12``."""
    facts: dict[str, SceneFact] = Field(default={})
    tell: Annotated[tuple[Telling, ...], Field(min_length=1)]
    later: tuple[Later, ...] = ()
    place: Literal["", "first", "last"] = ""
    """Of talk: it opens a session, or closes it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [one.name for one in self.later if one.name]
        if len(names) != len(set(names)):
            raise ValueError(f"{self.name}: two changes have the same name")
        for telling in self.tell:
            if unknown := set(telling.facts or ()) - self.facts.keys():
                raise ValueError(f"{self.name}: a telling names facts that are not there: {sorted(unknown)}")
        known = set(self.facts)
        for one in self.later:
            if one.after and one.after not in names:
                raise ValueError(f"{self.name}: there is no change {one.after!r} that another could come after")
            if unknown := one.change.keys() - known:
                raise ValueError(f"{self.name}: a change of facts that are not there: {sorted(unknown)}")
            if doubled := one.add.keys() & known:
                raise ValueError(f"{self.name}: added facts have names that are taken: {sorted(doubled)}")
            known |= one.add.keys()
            for telling in one.tell:
                if unknown := set(telling.facts or ()) - {*one.change, *one.add}:
                    raise ValueError(f"{self.name}: a telling names facts that do not change: {sorted(unknown)}")
        return self

    def texts(self) -> Iterator[str]:
        """All texts with alternatives and slots."""
        facts = [*self.facts.values(), *(fact for one in self.later for fact in (*one.change.values(), *one.add.values()))]
        for fact in facts:
            yield from fact.label
            yield from wordings(fact.keys)
            yield from (fact.recall, *fact.old)
        for telling in (*self.tell, *(telling for one in self.later for telling in one.tell)):
            yield from telling.turns

    @cached_property
    def mentioned(self) -> frozenset[str]:
        """The slots that its texts have."""
        return frozenset(slot for text in self.texts() for slot in slots_of(text))

    @cached_property
    def kinds(self) -> tuple[FactKind, ...]:
        """The kinds of its facts."""
        return tuple(fact.kind for fact in self.facts.values())


class SceneFile(StrictModel):
    """A file of scenes."""

    scenes: tuple[AuthoredScene, ...]


class ValueLists(StrictModel):
    """What slots are drawn from (``values.yaml``)."""

    lists: dict[str, tuple[str, ...]]

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, given: object) -> object:
        return given if isinstance(given, dict) and given.keys() == {"lists"} else {"lists": given}


@cache
def value_lists() -> Mapping[str, tuple[str, ...]]:
    """All lists of values by name."""
    return load(FOLDER / "values.yaml", ValueLists).lists


class Phrases(StrictModel):
    """What is said between scenes, by use (``phrases.yaml``)."""

    rules: dict[str, Sentences]


@cache
def phrases() -> Mapping[str, tuple[str, ...]]:
    """What is said between scenes."""
    return load(FOLDER / "phrases.yaml", Phrases).rules


@cache
def scenes() -> tuple[AuthoredScene, ...]:
    """All scenes, in the order of their files' names."""
    return tuple(scene for path in sorted((FOLDER / "scenes").glob("*.yaml")) for scene in load(path, SceneFile).scenes)


@cache
def scenes_of(split: Split) -> tuple[AuthoredScene, ...]:
    """The scenes of the people of a split: a fifth of those with facts is lived through by held-out people alone."""
    return tuple(scene for scene in scenes() if not scene.facts or name_split(scene.name) == split)


@cache
def slots_of(text: str) -> frozenset[str]:
    """The slots of a text."""
    return frozenset(part.text for part in walk(parse(text)) if part.kind == "slot")


@cache
def _lines(texts: tuple[str, ...]) -> Lines:
    return Lines(texts)


_BEGINNING = re.compile(r"(?:^|[.!?]['\"]? )\0.")
"""A slot at the beginning of a sentence; its value is lower case in the list, as in ``{ahead}, if it stays dry``."""


def draw(rng: random.Random, texts: Sequence[str], values: Mapping[str, str]) -> str:
    """One of some texts, with one of its alternatives each, slots filled."""

    def written(node: Node) -> str:
        if node.kind == "text":
            return node.text
        if node.kind == "slot":
            return "\0" + values[node.text]
        if node.kind == "choice":
            return written(node.parts[int(rng.random() * len(node.parts))])
        return "".join(map(written, node.parts))

    text = _BEGINNING.sub(lambda found: found[0].upper(), written(_lines(tuple(texts)).draw(rng)))
    return _readable(text.replace("\0", ""))


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text without alternatives, its slots filled."""
    return _readable(text.format_map(values))


_DOUBLED = re.compile(r"\b(?:[Tt]he|[Aa]) (?=The [A-Z0-9])")


def _readable(text: str) -> str:
    """Single blanks, right articles: ``the The Smiths concert`` is The Smiths' concert."""
    return with_article(_DOUBLED.sub("", " ".join(text.split())))


def satisfied(keys: Iterable[Keyword], text: str) -> bool:
    """Whether a text has each key, in one of its alternatives, as the reward sees it."""
    return all(found_in(folded_keyword(key), folded(text)) for key in keys)
