"""How people of the tiny form speak: what `talk.yaml` holds, and one person's way of saying it."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from deltamem.config import StrictModel
from synth.names import split_of
from synth.offline.grammar import Grammar, Sentences, Speech, finished, inner
from synth.offline.topics import PERSON, PLACE, cast_of, lines, topic_file
from synth.pools import packaged
from synth.validators.base import MONTHS

OPENERS, TAILS = 0.25, 0.15
"""Shares of facts that are led up to and commented on."""
_CONTRACTIONS = 0.5
"""Share of words that are contracted."""
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Talk(StrictModel):
    """Everything that is said besides the facts (``talk.yaml``)."""

    speech: Speech
    rules: dict[str, Sentences]

    @cached_property
    def grammar(self) -> Grammar:
        """The rules, with the words of topics.yaml."""
        return Grammar(self.rules, topic_file().lines)

    @cached_property
    def peopled(self) -> frozenset[str]:
        """The rules that name people of the life."""
        return frozenset(name for name, texts in self.rules.items() if PERSON in lines(texts).slots)


talk = packaged(Path(__file__).with_name("talk.yaml"), Talk)


class Speaker:
    """Says sentences the way one person does."""

    def __init__(self, rng: random.Random, name: str) -> None:
        self.rng = rng
        self.cast = cast_of(name, split_of(name))
        self._names = frozenset((*self.cast.people, *self.cast.places, *name.split(), *_DAYS, *MONTHS))
        self._grammar, self._speech = talk().grammar, talk().speech

    def say(self, rule: str, **given: str) -> str:
        """A sentence of a rule, with people of this life where it names some."""
        return self._grammar.say(self.rng, rule, {**self._around(), **given} if rule in talk().peopled else given)

    def line(self, texts: tuple[str, ...], given: Mapping[str, str]) -> str:
        """One of these sentences."""
        return self._grammar.write(self.rng, lines(texts).draw(self.rng), given)

    def _around(self) -> dict[str, str]:
        return {PERSON: self.rng.choice(self.cast.people), PLACE: self.rng.choice(self.cast.places)}

    def can_stand_after_that(self, clause: str) -> bool:
        """Whether a clause makes a sentence after "you know that"."""
        first = clause.split(" ", 1)[0].split("'")[0]
        begins = first in ("I", "my", "we", "our", "the", "there", "a") or first.strip(",") in self._names
        return begins and not any(mark in clause for mark in (":", ";", "?", " - "))

    def spoken(self, parts: Sequence[str], kept: Collection[str]) -> str:
        """Sentences as the person says them, in one utterance; the kept phrases stay as they are."""
        return " ".join(self._contracted(finished(part), (*kept, *self._names)) for part in parts if part)

    def _contracted(self, sentence: str, kept: Collection[str]) -> str:
        folded = sentence.casefold()
        there = [phrase for phrase in dict.fromkeys(kept) if phrase.casefold() in folded]
        return self._speech.replaced(self.rng, "contractions", sentence, _CONTRACTIONS, there)

    def inner(self, clause: str) -> str:
        """A clause as it stands after something that leads up to it."""
        return inner(clause, self._names)

    def to_second_person(self, clause: str) -> str:
        """What the user would say, as the assistant says it of them."""
        return self._speech.replaced(self.rng, "second", clause, 1.0, ())
