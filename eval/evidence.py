"""Which turns the text of a passage still holds: the rule by which recall is counted, the same for every memory system.

What a system says about the sources of its memories plays no part. A memory that was overwritten holds what it says now,
and a system that names no sources is measured like the others. Words decide, so no model is needed; docs/evaluation.md
tells how often the rule is right.
"""
# ruff: noqa: RUF001 - punctuation of other scripts is meant

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Self

from deltamem.text import content_stems, normalised, words
from eval.systems.base import DialogueSession, Passage

LEAST_WEIGHT = 1.4
"""What a sentence of a passage and a turn must share, counted in words that no other turn has: two rare words, or more."""

LEAST_SHARE = 0.3  # Share of the sentence, by weight of its words, that the turn must hold

NEAR = 0.8
"""A sentence also counts for other turns that hold it nearly as well as the best one: this share of its best weight."""

_WHOLE = 0.999
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])|\n+")


class EvidenceFinder:
    """Finds the turns of one conversation that passages hold.

    Each sentence of a passage is compared with all turns, by their stemmed content words, a word weighing more the fewer
    turns have it. It counts for the turns that hold it best, if they hold enough of it. Turns thus compete: a fact that was
    extracted counts for the turn that it comes from, although others are about the same thing, and a line of frequent
    words counts for none. A sentence that several turns hold entirely counts for those that the passage holds most of.
    """

    def __init__(self, turns: Mapping[str, str], names: Iterable[str] = ()) -> None:
        """Take turns apart, which are texts by id, and the names of the people who speak.

        Names do not count: people rarely name themselves, and memories always do.
        """
        self._texts = turns
        self._names = frozenset(stem for name in names for stem in content_stems(name))
        self._turns_with: dict[str, list[str]] = defaultdict(list)
        for id, text in turns.items():
            for stem in self._stems(text):
                self._turns_with[stem].append(id)
        self._weight = {stem: math.log1p(len(turns) / len(ids)) for stem, ids in self._turns_with.items()}
        self._rare = math.log1p(len(turns))  # weight of a word that one turn has, or none
        self._held: dict[str, frozenset[str]] = {}
        # Turns without a sentence that could be compared, such as "Sure, why not?": each holds all of its own sentences, so
        # their weight alone decides
        self._short = {
            id: f" {whole} "
            for id, text in turns.items()
            if (whole := normalised(text)) and not any(map(self._can_be_compared, _SENTENCE_END.split(text)))
        }

    @classmethod
    def of(cls, sessions: Iterable[DialogueSession], names: Iterable[str] = ()) -> Self:
        """The finder of all turns of some sessions."""
        return cls({turn.id: turn.text for session in sessions for turn in session.turns}, names)

    def held(self, passage: str) -> frozenset[str]:
        """Ids of the turns that a passage holds; turns that have hardly any words of their own must be in it literally."""
        if (known := self._held.get(passage)) is not None:
            return known
        sentences = self._sentences(passage)
        total: defaultdict[str, float] = defaultdict(float)
        for scores, _ in sentences:
            for id, score in scores.items():
                total[id] += score
        held: set[str] = set()
        for scores, whole in sentences:
            least = NEAR * max(total[id] for id in scores) if whole else 0.0
            held.update(id for id in scores if total[id] >= least)
        if self._short:
            said = f" {normalised(passage)} "
            held.update(id for id, text in self._short.items() if text in said)
        self._held[passage] = frozenset(held)
        return self._held[passage]

    def ranks(self, pieces: Iterable[Collection[str]], passages: Sequence[Passage]) -> tuple[int | None, ...]:
        """For each piece of evidence the rank from 1 of the first passage that holds one of its turns; None if none does."""
        held = [self.held(passage.text) for passage in passages]
        return tuple(
            next((rank for rank, turns in enumerate(held, start=1) if not turns.isdisjoint(piece)), None) for piece in pieces
        )

    def words_shown(self, turns: Iterable[str], passages: Iterable[Passage]) -> float:
        """Share of the distinct words of these turns, frequent ones too, that passages show: small for keywords alone."""
        wanted = frozenset[str]().union(*(_all_words(self._texts[id]) for id in turns))
        shown = frozenset[str]().union(*(_all_words(passage.text) for passage in passages))
        return len(wanted & shown) / len(wanted) if wanted else 0.0

    def _sentences(self, text: str) -> list[tuple[dict[str, float], bool]]:
        """For each sentence that turns hold: those that hold it best with the weight, and whether they hold all of it."""
        found = []
        for sentence in _SENTENCE_END.split(text):
            stems = sorted(self._stems(sentence))  # sorted, so that sums are the same in every process
            scores: defaultdict[str, float] = defaultdict(float)
            for stem in stems:
                for id in self._turns_with.get(stem, ()):
                    scores[id] += self._weight[stem]
            best, whole = max(scores.values(), default=0.0), sum(self._weight.get(stem, self._rare) for stem in stems)
            least = max(NEAR * best, LEAST_SHARE * whole, LEAST_WEIGHT * self._rare)
            if best >= least:
                found.append(({id: score for id, score in scores.items() if score >= least}, best >= _WHOLE * whole))
        return found

    def _can_be_compared(self, sentence: str) -> bool:
        weight = sum(self._weight[stem] for stem in sorted(self._stems(sentence)))
        return weight > 0 and weight >= LEAST_WEIGHT * self._rare

    def _stems(self, text: str) -> frozenset[str]:
        return content_stems(text) - self._names


@lru_cache(maxsize=1 << 14)
def _all_words(text: str) -> frozenset[str]:
    return frozenset(map(str.casefold, words(text)))
