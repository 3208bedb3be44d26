"""The language engine of the offline writers: sentences with alternatives, and words that change with the speaker.

A sentence is written as ``I [take|go by] {vehicle}[, and like it|]``: one of the alternatives in brackets is chosen,
``{slot}`` gets a value. So a line of data stands for dozens of them.
"""

from __future__ import annotations

import math
import random
import re
from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from deltamem.config import StrictModel
from synth.pools import unique

_TOKENS = re.compile(r"[\[\]|]|\{[a-z_0-9]+\}|[^\[\]|{}<>]+")


class Node(NamedTuple):
    """A part of a sentence; `kind` is ``text``, ``slot``, ``sequence`` or ``choice``."""

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()


def parse(text: str) -> Node:
    """Read a sentence with alternatives.

    Raises `ValueError` if brackets do not match, or something is neither text nor slot.
    """
    tokens = _TOKENS.findall(text)
    if "".join(tokens) != text:
        raise ValueError(f"not a sentence with [a|b] and {{slot}}: {text!r}")
    stack: list[list[list[Node]]] = [[[]]]
    for token in tokens:
        if token == "[":
            stack.append([[]])
        elif token == "|" and len(stack) > 1:
            stack[-1].append([])
        elif token == "]" and len(stack) > 1:
            options = stack.pop()
            stack[-1][-1].append(Node("choice", parts=tuple(_sequence(option) for option in options)))
        elif token in "[]|":
            raise ValueError(f"brackets that do not match: {text!r}")
        elif token[0] == "{":
            stack[-1][-1].append(Node("slot", token[1:-1]))
        else:
            stack[-1][-1].append(Node("text", token))
    if len(stack) != 1:
        raise ValueError(f"brackets that do not match: {text!r}")
    return _sequence(stack[0][0])


def _sequence(parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Node("sequence", parts=tuple(parts))


def walk(node: Node) -> Iterable[Node]:
    """The node and all that it is made of."""
    yield node
    for part in node.parts:
        yield from walk(part)


def variants(node: Node) -> float:
    """How many sentences a node stands for, its slots counted once."""
    if node.kind == "choice":
        return sum(variants(part) for part in node.parts)
    return math.prod(variants(part) for part in node.parts)


class Lines:
    """Sentences of the same use, of which one is drawn; those with more alternatives come more often."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Read the sentences. Raises `ValueError` if one cannot be read."""
        self.nodes = tuple(map(parse, texts))
        weights = [1 + math.log(variants(node)) for node in self.nodes]
        self._ends = [sum(weights[: place + 1]) for place in range(len(weights))]

    @cached_property
    def slots(self) -> frozenset[str]:
        """The slots of all sentences."""
        return frozenset(part.text for node in self.nodes for part in walk(node) if part.kind == "slot")

    def draw(self, rng: random.Random) -> Node:
        """One of the sentences."""
        # As `rng.choices` with these weights, in half the time.
        last = len(self.nodes) - 1
        return self.nodes[bisect(self._ends, rng.random() * self._ends[-1], 0, last)] if last else self.nodes[0]


def _readable(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        parse(text)
    return unique(texts)


Sentences = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_readable)]
"""Sentences with alternatives, of which one is drawn."""


class Grammar:
    """Rules by name, and the words of slots that nobody gives."""

    def __init__(self, rules: Mapping[str, Iterable[str]], words: Mapping[str, Lines]) -> None:
        """Read the rules. Raises `ValueError` if a sentence cannot be read."""
        self._words = words
        self._rules = {name: Lines(texts) for name, texts in rules.items()}

    def say(self, rng: random.Random, rule: str, values: Mapping[str, str]) -> str:
        """A sentence of a rule, its slots filled with the values or with words of their lists."""
        return self.write(rng, self._rules[rule].draw(rng), values)

    def write(self, rng: random.Random, node: Node, values: Mapping[str, str]) -> str:
        """A sentence of a node; the same slot gets the same value throughout."""
        parts: list[str] = []
        self._write(rng, node, dict(values), parts)
        return with_article("".join(parts))

    def _write(self, rng: random.Random, node: Node, values: dict[str, str], parts: list[str]) -> None:
        kind, text, within = node
        if kind == "text":
            parts.append(text)
        elif kind == "slot":
            if text not in values:
                values[text] = self._words[text].draw(rng).text
            parts.append(values[text])
        elif kind == "choice":
            self._write(rng, within[int(rng.random() * len(within))], values, parts)
        else:
            for part in within:
                self._write(rng, part, values, parts)


# Conditions on what comes before stand after it: a search that begins with a letter skips the rest of a text quickly.
_ARTICLE = re.compile(r"([Aa]) (?<!\w[Aa] )(?i:(?!uni|eu|one|use|ukulele)(?=[aeiou]|11\b|18\b|8|hour|heir|honest))")
_YS = re.compile(r"ys\b(?<=[^aeiou\W]ys)")
_SIBILANT_S, _Y_S = re.compile(r"\b([a-z]+(?:ch|sh|x|ss))s\b"), re.compile(r"\b([a-z]*[^aeiou\W])ys\b")


# A memory is put into words whenever it is compared with another one.
@lru_cache(maxsize=8_192)
def with_article(text: str) -> str:
    """``a`` becomes ``an`` before a vowel, and ``watchs`` ``watches``: words stand in lists in one form only."""
    # Most sentences have neither, which is much cheaper to see.
    if "chs" in text or "shs" in text or "xs" in text or "sss" in text:
        text = _SIBILANT_S.sub(r"\1es", text)
    if _YS.search(text):
        text = _Y_S.sub(r"\1ies", text)
    return _ARTICLE.sub(r"\1n ", text)


def capitalised(text: str) -> str:
    """The text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


_KEPT_CAPITAL = re.compile(r"I\b|[A-Z]{2}")


def inner(text: str, names: Collection[str]) -> str:
    """A sentence as it stands within another one: no capital, unless it begins with ``I`` or a name; no full stop."""
    first = re.split(r"[\s,.'?!:;]", text, maxsplit=1)[0]
    if first not in names and not _KEPT_CAPITAL.match(text):
        text = text[:1].lower() + text[1:]
    return text[:-1] if text.endswith(".") else text


_SPACES = re.compile(r" +(?=[ :,;.?!])(?! :\))")
_BEGINNING = re.compile(r"[.!?] [a-z](?<=[a-z0-9)].{3})")


_ENDED = re.compile(r"[.!?…)]$|[.!?…]”$")


def finished(text: str) -> str:
    """The text as a sentence, or several: a capital at each beginning, a mark at the end, no space too many."""
    text = _BEGINNING.sub(lambda found: found[0].upper(), capitalised(_SPACES.sub("", text.strip())))
    return text if _ENDED.search(text) else text + "."


# --- words that change with the speaker ------------------------------------------------------------------------------------


class Speech(StrictModel):
    """Words that are replaced by others, each as ``from: to``."""

    contractions: dict[str, str]
    second: dict[str, str]
    """From the first person to the second."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if any(key != key.lower() for words in (self.contractions, self.second) for key in words):
            raise ValueError("what is replaced is given in small letters")
        return self

    @cached_property
    def _patterns(self) -> dict[str, re.Pattern[str]]:
        # Nobody says "that's how it's".
        ends = {"contractions": r"(?=[ ][^-])", "second": ""}
        return {
            name: re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(getattr(self, name), key=len, reverse=True)))})\b{end}")
            for name, end in ends.items()
        }

    def replaced(self, rng: random.Random, table: str, text: str, share: float, kept: Collection[str]) -> str:
        """The text with this share of the words of a table replaced, except within the kept phrases."""
        if not share:
            return text
        words: dict[str, str] = getattr(self, table)
        parts, end = [], 0
        spans: list[tuple[int, int]] | None = None
        # In small letters, because a pattern that ignores case takes several times as long.
        lower = text.lower()
        for found in self._patterns[table].finditer(lower):
            if share < 1 and rng.random() >= share:
                continue
            if spans is None:
                spans = [span for phrase in kept for span in _places(phrase.lower(), lower)]
            if any(start < found.end() and found.start() < stop for start, stop in spans):
                continue
            new, first = words[found[0]], text[found.start()]
            parts += [
                text[end : found.start()],
                capitalised(new) if first.isupper() and (first != "I" or table != "second") else new,
            ]
            end = found.end()
        return "".join((*parts, text[end:])) if parts else text


def _places(phrase: str, text: str) -> Iterator[tuple[int, int]]:
    begin = text.find(phrase)
    while phrase and begin >= 0:
        yield begin, begin + len(phrase)
        begin = text.find(phrase, begin + len(phrase))
