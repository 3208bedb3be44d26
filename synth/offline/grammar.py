"""The language engine of the offline writer: sentences with alternatives, how a person speaks, what a sentence can say.

A sentence is written as ``I [take|go by] {vehicle}[, <feeling>|]``: one of the alternatives in brackets is chosen,
``{slot}`` gets a value, ``<rule>`` is replaced by a sentence of that rule. So a line of data stands for dozens of them.
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

_TOKENS = re.compile(r"[\[\]|]|\{[a-z_0-9]+\}|<[a-z_0-9]+>|[^\[\]|{}<>]+")


class Node(NamedTuple):
    """A part of a sentence; `kind` is ``text``, ``slot``, ``rule``, ``sequence`` or ``choice``."""

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()


def parse(text: str) -> Node:
    """Read a sentence with alternatives.

    Raises `ValueError` if brackets do not match, or something is neither text, slot nor rule.
    """
    tokens = _TOKENS.findall(text)
    if "".join(tokens) != text:
        raise ValueError(f"not a sentence with [a|b], {{slot}} and <rule>: {text!r}")
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
        elif token[0] == "<":
            stack[-1][-1].append(Node("rule", token[1:-1]))
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
    """How many sentences a node stands for, its rules and slots counted once."""
    if node.kind == "choice":
        return sum(variants(part) for part in node.parts)
    return math.prod(variants(part) for part in node.parts)


def pattern(node: Node) -> str:
    """A regular expression for all sentences of a node without slots and rules."""
    if node.kind == "text":
        return re.escape(node.text)
    inner = [pattern(part) for part in node.parts]
    return f"(?:{'|'.join(inner)})" if node.kind == "choice" else "".join(inner)


class Lines:
    """Sentences of the same use, of which one is drawn; those with more alternatives come more often."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Read the sentences. Raises `ValueError` if one cannot be read."""
        self.texts = tuple(texts)
        self.nodes = tuple(map(parse, self.texts))
        weights = [1 + math.log(variants(node)) for node in self.nodes]
        self._ends = [sum(weights[: place + 1]) for place in range(len(weights))]

    @cached_property
    def slots(self) -> frozenset[str]:
        """The slots of all sentences."""
        return frozenset(part.text for node in self.nodes for part in walk(node) if part.kind == "slot")

    @cached_property
    def rules(self) -> frozenset[str]:
        """The rules that the sentences refer to."""
        return frozenset(part.text for node in self.nodes for part in walk(node) if part.kind == "rule")

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
        """Read the rules. Raises `ValueError` if a sentence cannot be read, or refers to a rule that is not there."""
        self.words = words
        self._rules = {name: Lines(texts) for name, texts in rules.items()}
        for name, lines in self._rules.items():
            if unknown := lines.rules.difference(self._rules):
                raise ValueError(f"{name}: no such rule: {sorted(unknown)}")

    def __contains__(self, rule: object) -> bool:
        return rule in self._rules

    def say(self, rng: random.Random, rule: str, values: Mapping[str, str] | None = None) -> str:
        """A sentence of a rule, its slots filled with the values or with words of their lists."""
        return self.write(rng, self._rules[rule].draw(rng), values)

    def write(self, rng: random.Random, node: Node, values: Mapping[str, str] | None = None) -> str:
        """A sentence of a node; the same slot gets the same value throughout."""
        parts: list[str] = []
        self._write(rng, node, dict(values or {}), parts)
        return with_article("".join(parts))

    def _write(self, rng: random.Random, node: Node, values: dict[str, str], parts: list[str]) -> None:
        kind, text, within = node
        if kind == "text":
            parts.append(text)
        elif kind == "slot":
            if text not in values:
                values[text] = self.word(rng, text, values.values())
            parts.append(values[text])
        elif kind == "rule":
            self._write(rng, self._rules[text].draw(rng), values, parts)
        elif kind == "choice":
            self._write(rng, within[int(rng.random() * len(within))], values, parts)
        else:
            for part in within:
                self._write(rng, part, values, parts)

    def word(self, rng: random.Random, slot: str, taken: Collection[str] = ()) -> str:
        """A word for a slot that is none of those taken, as far as there is one; ``day2`` is drawn from ``day``."""
        lines = self.words[slot.rstrip("0123456789")]
        for _ in range(20):
            parts: list[str] = []
            self._write(rng, lines.draw(rng), {}, parts)
            word = "".join(parts)
            if word not in taken:
                break
        return word


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


# --- how a person speaks ---------------------------------------------------------------------------------------------------


class Speech(StrictModel):
    """Words that change with the way somebody speaks, each as ``from: to``."""

    contractions: dict[str, str]
    casual: dict[str, str]
    formal: dict[str, str]
    second: dict[str, str]
    """From the first person to the second."""
    past: dict[str, str]
    """Beginnings of clauses in the present, and in the past."""
    bases: tuple[str, ...]
    """Verbs in the present that can stand after "used to"."""
    clipped: tuple[str, ...]
    """Beginnings of sentences that somebody who is short leaves out."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for words in (self.contractions, self.casual, self.formal, self.second):
            if any(key != key.lower() for key in words):
                raise ValueError("what is replaced is given in small letters")
        return self

    @cached_property
    def _patterns(self) -> dict[str, re.Pattern[str]]:
        # Nobody says "that's how it's".
        ends = {"contractions": r"(?=[ ][^-])", "casual": "", "formal": "", "second": ""}
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


class SpeakingVoice(NamedTuple):
    """How somebody speaks: ``plain``, ``chatty``, ``formal``, ``terse``, or ``short`` in the tiny form.

    Shares, from 0 to 1, are of words that are contracted, made casual or formal, of sentences that lose their first words,
    of words with a slip, of utterances without a mark at the end, and of facts that are led up to and commented on.
    """

    kind: str
    contractions: float
    casual: float
    formal: float
    clipped: float
    typos: float
    lower: bool
    unstopped: float
    openers: float
    tails: float


def draw_voice(rng: random.Random) -> SpeakingVoice:
    """The way a person speaks; nothing but the draws counts."""
    kind = rng.choices(("plain", "chatty", "formal", "terse"), (40, 30, 15, 15))[0]
    between, lower = rng.uniform, rng.random()
    if kind == "terse":
        return SpeakingVoice(kind, 0.9, 0.2, 0.0, between(0.2, 0.6), between(0, 0.01), lower < 0.4, 0.5, 0.15, 0.02)
    if kind == "formal":
        return SpeakingVoice(kind, between(0, 0.1), 0.0, 0.8, 0.0, 0.0, False, 0.0, 0.5, 0.1)
    if kind == "chatty":
        return SpeakingVoice(kind, 0.95, between(0.3, 0.8), 0.0, 0.05, between(0, 0.015), lower < 0.25, 0.2, 0.6, 0.2)
    return SpeakingVoice(kind, between(0.5, 1), 0.05, 0.0, 0.0, between(0, 0.005), False, 0.0, 0.5, 0.1)


_WORD = re.compile(r"\b[a-z]{5,}\b")


def spoken(rng: random.Random, voice: SpeakingVoice, speech: Speech, sentence: str, kept: Collection[str]) -> str:
    """A sentence as somebody says it; the kept phrases stay as they are, letter for letter, case aside."""
    folded = sentence.casefold()
    kept = [phrase for phrase in dict.fromkeys(kept) if phrase.casefold() in folded]
    for table in ("formal", "casual", "contractions"):
        sentence = speech.replaced(rng, table, sentence, getattr(voice, table), kept)
    if voice.clipped and rng.random() < voice.clipped:
        for start in speech.clipped:
            rest = sentence[len(start) :]
            # "I have to feed it" is no "I have".
            whole = rest and not rest.startswith("to ")
            if sentence.startswith(start) and not any(sentence.startswith(phrase) for phrase in kept) and whole:
                sentence = capitalised(rest)
                break
    if voice.typos:
        sentence = _with_slips(rng, sentence, voice.typos, kept)
    if voice.lower and not any(sentence.startswith(phrase) for phrase in kept) and not _KEPT_CAPITAL.match(sentence):
        sentence = sentence[:1].lower() + sentence[1:]
    return sentence


def _with_slips(rng: random.Random, text: str, share: float, kept: Collection[str]) -> str:
    """The text with letters swapped, lost or doubled in some of its longer words."""
    if rng.random() > 1 - (1 - share) ** len(text.split()):
        return text
    safe = {word for phrase in kept for word in _WORD.findall(phrase.casefold())}
    words = [found for found in _WORD.finditer(text) if found[0] not in safe]
    if not words:
        return text
    found = rng.choice(words)
    place = found.start() + rng.randrange(1, len(found[0]) - 2)
    first, second = text[place], text[place + 1]
    slip = rng.choice((second + first, second, first * 2 + second))
    return text[:place] + slip + text[place + 2 :]
