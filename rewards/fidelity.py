"""How faithful a predicted text is to a target text: what it must say, and what it should not say any more."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from deltamem.memory import Keyword, alternatives

_NOT_WORD = re.compile(r"[\W_]+")
_ASCII_NOT_WORD = {code: " " for code in range(128) if not chr(code).isalnum()}


# Each keyword is looked for in the same few texts, by the reward and by several rules of synthesis.
@lru_cache(maxsize=20_000)
def folded(text: str) -> str:
    """Casefolded with single spaces: the form in which keywords are looked for."""
    return " ".join(text.casefold().split())


# The rollouts of one prompt share their prior memories.
@lru_cache(maxsize=20_000)
def bare_words(text: str) -> str:
    """The words of a text alone, casefolded: the form in which whole values are looked for and texts are compared."""
    lowered = text.casefold()
    if lowered.isascii():  # the same, several times as fast
        return " ".join(lowered.translate(_ASCII_NOT_WORD).split())
    return _NOT_WORD.sub(" ", lowered).strip()


def says(text: str, value: str) -> bool:
    """Whether a text has a value as whole words; both as `bare_words`."""
    return f" {value} " in f" {text} "


@lru_cache(maxsize=20_000)
def folded_keyword(keyword: Keyword) -> frozenset[str]:
    """The alternatives of a keyword, each `folded`: the form in which a keyword is looked for, and two are compared."""
    return frozenset(map(folded, alternatives(keyword)))


def found_in(keyword: frozenset[str], text: str) -> bool:
    """Whether a text says a keyword, as a `folded_keyword` in a `folded` text: one of its alternatives is a substring."""
    return any(map(text.__contains__, keyword))  # a generator would take twice as long


def keyword_coverage(text: str, keywords: Sequence[Keyword]) -> float | None:
    """Share of the keywords that occur in a text, in [0, 1] (paper, equation 4, without the epsilon); None without keywords.

    A keyword occurs where one of its alternatives is a substring, case and runs of whitespace aside, and counts once. Empty
    and repeated ones are ignored.
    """
    return coverage(folded(text), anchors(tuple(keywords)).keywords)


def coverage(found: str, keywords: frozenset[frozenset[str]]) -> float | None:
    """`keyword_coverage` of what is `folded` already."""
    return sum([found_in(keyword, found) for keyword in keywords]) / len(keywords) if keywords else None


class Anchors(NamedTuple):
    """What to look for in a text that stands for a target text."""

    keywords: frozenset[frozenset[str]]  # What it must say, as `folded_keyword`
    new: frozenset[frozenset[str]]  # Of these, what the memory did not say before; empty where there was none
    outdated: frozenset[str]  # What it should not say any more, as `bare_words`


# The rollouts of one prompt share their target.
@lru_cache(maxsize=20_000)
def anchors(keywords: tuple[Keyword, ...], text: str = "", before: str = "", outdated: tuple[str, ...] = ()) -> Anchors:
    """What to look for, given the target's keywords and text, the text before (empty for a new memory) and wrong values.

    Empty and repeated keywords are ignored, and empty alternatives; what the target says itself is not outdated.
    """
    wanted = frozenset(folded_keyword(keyword) - {""} for keyword in keywords) - {frozenset()}
    known, right = folded(before), bare_words(text)
    wrong = {bare_words(value) for value in outdated}
    return Anchors(
        wanted,
        frozenset(keyword for keyword in wanted if not found_in(keyword, known)) if known else frozenset(),
        frozenset(value for value in wrong if value and not says(right, value)),
    )
