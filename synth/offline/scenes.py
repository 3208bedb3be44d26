"""Chat of the shape `demanding` that states no fact: scenes of a few exchanges, and planned asides.

A scene is about one thing; its slots are drawn once, so that the assistant answers what was asked and the user speaks of
the answer. An aside says words of a memory without telling it; what can be said of a word depends on its kind.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field

from deltamem.config import StrictModel
from synth.offline.grammar import Grammar, Lines, Sentences, finished, inner, parse, walk
from synth.offline.templates import slot_source
from synth.offline.topics import PERSON, PLACE, lines, read, values
from synth.pools import packaged
from synth.records import Aside, AsideKind

GIVEN = (PERSON, "who2", PLACE, "spot2")
"""Slots that the caller gives: people and places of the life."""
_EARLY = 50
"""So many letters from the beginning have no colon if something is to stand before them."""
_LEADS = (("lead", 0.45), ("go_on", 0.25))
"""What stands before the first line of a scene and before later ones: the rule, and the share of lines that have it."""


class SceneExchange(StrictModel):
    """What the user says and what the assistant answers."""

    user: Sentences
    assistant: Sentences


class Stranger(StrictModel):
    """Somebody who is talked about and has no name; ``stranger`` and ``neighbour`` are ways to say who."""

    he: str
    him: str
    his: str
    stranger: Sentences
    neighbour: Sentences


class Scene(StrictModel):
    """A short script; it may be cut after any exchange (the comments in ``scenes.yaml`` explain the fields)."""

    name: str
    gossip: bool = False
    words: dict[str, Sentences] = Field(default={})
    cases: tuple[dict[str, str], ...] = ()
    steps: Annotated[
        tuple[Annotated[tuple[SceneExchange, ...], Field(min_length=1)], ...], Field(min_length=1, max_length=4)
    ]

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The slots of all its sentences, in the order in which they are drawn."""
        texts = (text for step in self.steps for way in step for text in (*way.user, *way.assistant))
        return tuple(sorted(scene_file().needed(texts)))

    @cached_property
    def _cases(self) -> tuple[dict[str, Lines], ...]:
        return tuple({slot: lines((text,)) for slot, text in case.items()} for case in self.cases)

    def say(self, rng: random.Random, given: Mapping[str, str]) -> list[tuple[str, str]]:
        """The scene with everything drawn."""
        file = scene_file()
        found = dict(given)
        if self.cases:
            for slot, text in rng.choice(self._cases).items():
                found[slot] = file.grammar.write(rng, text.draw(rng), found)
        stranger = rng.choice(file.strangers)
        found |= {"he": stranger.he, "him": stranger.him, "his": stranger.his}
        called = {"stranger": stranger.stranger, "neighbour": stranger.neighbour}
        for slot in self.slots:
            if slot in called:
                found[slot] = file.grammar.write(rng, lines(called[slot]).draw(rng), found)
            elif slot not in found:
                found[slot] = self._word(rng, slot, found)
        said = [_said(rng, file.grammar, rng.choice(step), found) for step in self.steps]
        return [
            (file.led(rng, *_LEADS[number > 0], user, found), assistant) for number, (user, assistant) in enumerate(said)
        ]

    def _word(self, rng: random.Random, slot: str, found: Mapping[str, str]) -> str:
        grammar = scene_file().grammar
        if slot_source(slot) not in self.words:
            return grammar.word(rng, slot, found.values())
        own = lines(self.words[slot_source(slot)])
        for _ in range(20):
            word = grammar.write(rng, own.draw(rng), found)
            if word not in found.values():
                break
        return word


def _said(rng: random.Random, grammar: Grammar, way: SceneExchange, found: Mapping[str, str]) -> tuple[str, str]:
    user, assistant = (grammar.write(rng, lines(texts).draw(rng), found) for texts in (way.user, way.assistant))
    return finished(user), finished(assistant)


class Scenes(StrictModel):
    """All scenes, and what they share (``scenes.yaml``)."""

    rules: dict[str, Sentences]
    strangers: tuple[Stranger, ...]
    scenes: tuple[Scene, ...]

    @cached_property
    def grammar(self) -> Grammar:
        """The rules that scenes share, with the words of values.yaml."""
        return Grammar(self.rules, values().lines)

    def led(self, rng: random.Random, rule: str, share: float, text: str, found: Mapping[str, str]) -> str:
        """What the user says, now and then with something before it that would fit before anything."""
        if rng.random() >= share or ":" in text[:_EARLY]:
            return text
        names = {part for value in found.values() for part in value.split() if part[0].isupper()}
        marked = text[-1] if text[-1] in "?!" else ""
        return f"{self.grammar.say(rng, rule, found)} {inner(text.removesuffix(marked), names)}{marked or '.'}"

    def needed(self, texts: Iterable[str]) -> set[str]:
        """The slots of texts, those of their rules too."""
        found = set[str]()
        for part in (part for text in texts for part in walk(parse(text))):
            if part.kind == "slot":
                found.add(part.text)
            elif part.kind == "rule":
                found |= self.needed(self.rules[part.text])
        return found


scene_file = packaged(Path(__file__).with_name("scenes.yaml"), Scenes)


def scenes() -> tuple[Scene, ...]:
    """All scenes, those of strangers too."""
    return scene_file().scenes


def draw_scene(rng: random.Random, used: Collection[str]) -> Scene:
    """A scene whose name is none of those used; any, if all are."""
    free = [scene for scene in scenes() if scene.name not in used]
    return rng.choice(free or scenes())


# --- asides ----------------------------------------------------------------------------------------------------------------


_ANY, _NONE = "any", "none"


class Distractors(StrictModel):
    """How asides are said, by what kind of word they have to say (see ``distractors.yaml``)."""

    kinds: dict[str, tuple[str, ...]]
    rules: dict[str, Sentences]
    chit_chat: dict[str, tuple[SceneExchange, ...]]
    hypothetical: dict[str, tuple[SceneExchange, ...]]
    rumour: dict[str, tuple[SceneExchange, ...]]
    question: dict[str, tuple[SceneExchange, ...]]
    assistant_claim: dict[str, tuple[SceneExchange, ...]]
    cue: dict[str, tuple[SceneExchange, ...]]

    @cached_property
    def grammar(self) -> Grammar:
        """The rules of the asides, with the words of values.yaml."""
        return Grammar(self.rules, values().lines)

    @cached_property
    def _kind_of(self) -> dict[str, str]:
        return {slot: kind for kind, slots in self.kinds.items() for slot in slots}

    def kind_of(self, slot: str, word: str) -> str:
        """What kind of word it is: by its slot, or else by its looks."""
        return (
            self._kind_of.get(slot_source(slot))
            or self._kind_of[next((name for name, form in _LOOKS.items() if form.fullmatch(word)), _PHRASE)]
        )


distractors = packaged(Path(__file__).with_name("distractors.yaml"), Distractors)


@cache
def _ways(kind: AsideKind, *words: str) -> tuple[SceneExchange, ...]:
    """The ways to say an aside with words of these kinds; none if there are none."""

    def fits(name: str) -> bool:
        parts = [part.split() for part in name.split("+")] if name != _NONE else []
        return len(parts) == len(words) and all(word in part for word, part in zip(words, parts, strict=True))

    table: Mapping[str, tuple[SceneExchange, ...]] = getattr(distractors(), kind.value)
    return tuple(entry for name, entries in table.items() if fits(name) for entry in entries)


_LOOKS = {
    "date": re.compile(r"\d{1,2} [A-Z][a-z]+ \d{4}"),
    "clock": re.compile(r"\d{1,2}:\d{2}"),
    "year": re.compile(r"(?:19|20)\d{2}"),
    "amount": re.compile(r"[\d.,]+"),
    "proper": re.compile(r"[A-Z].*"),
}
_PHRASE = "phrase"


def slots_of(name: str, aside: Aside) -> tuple[str, ...]:
    """For each word of an aside the slot that it fills in the memory of the person of this name; empty if it fills none."""
    known = read(name, aside.memory)
    filled = {value: slot for slot, value in known.values.items()} if known is not None else {}
    return tuple(filled.get(word, "") for word in aside.words)


_GENERAL = 0.1
"""Share of asides that are said as of any word, where there are other ways."""


def say_distractor(
    rng: random.Random, kind: AsideKind, words: Sequence[str], slots: Sequence[str], given: Mapping[str, str]
) -> tuple[str, str]:
    """An aside that says these words and states nothing.

    Returns the user's line and the assistant's. The assistant answers the user, but for `AsideKind.ASSISTANT_CLAIM`: there
    the assistant's line comes first and has the words, and the user's line is how the next turn evades it.
    """
    file = distractors()
    asking = file.grammar.say(rng, "asking")
    if kind is AsideKind.CUE:
        cue = words[0] if words else "still"
        return _aside(rng, file.cue.get(cue) or file.cue[_ANY], (cue,), given, asking)
    if not words:
        return _aside(rng, _ways(kind), (), given, asking)
    kinds = [file.kind_of(slot, word) for word, slot in zip(words, slots, strict=True)]
    if len(words) == 1:
        own, general = _ways(kind, kinds[0]), _ways(kind, _ANY)
        ways = general if not own or (general and rng.random() < _GENERAL) else own
        return _aside(rng, ways, words, given, asking)
    pairs = [((0, 1), _ways(kind, *kinds)), ((1, 0), _ways(kind, *reversed(kinds)))]
    pairs = [(order, ways) for order, ways in pairs if ways] or [((0, 1), _ways(kind, _ANY, _ANY))]
    order, ways = rng.choice(pairs)
    return _aside(rng, ways, [words[place] for place in order], given, asking)


def _aside(
    rng: random.Random, ways: Sequence[SceneExchange], words: Sequence[str], given: Mapping[str, str], asking: str
) -> tuple[str, str]:
    way, grammar = rng.choice(ways), distractors().grammar
    found = {**given, **dict(zip("xy", words, strict=False)), "asking": asking}
    for slot in sorted(lines(way.user).slots | lines(way.assistant).slots):
        if slot not in found:
            found[slot] = grammar.word(rng, slot, found.values())
    return _said(rng, grammar, way, found)
