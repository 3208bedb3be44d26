"""The texts of the paper shape: what its YAML files hold, and sentences whose slots are filled and read back.

Records hold texts only, and a writer may use nothing but its task. So what a sentence says is recovered from its template.
Whether the files say what they have to is tested (``tests/synth/test_templates.py``), not checked whenever they are loaded.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, model_validator

from deltamem.config import StrictModel
from deltamem.sessions import Split
from synth.config import FactLimits
from synth.names import invent_name
from synth.pools import Texts, packaged, slots_in
from synth.records import Domain, Fact, FactChange, Method, Track

INVENTED, ANYTHING, PLACE = "[A-Z][a-z]+", ".+?", "[A-Z][a-z]+ [A-Z][a-z]+"
"""What slots hold, as regular expressions: an invented word, whatever was given, the place of an event."""

_ARTICLE = re.compile(r"\b([Aa]) (?!uni|eu|one|use)(?=[aeiou])", re.IGNORECASE)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Fill the slots of a text; ``a`` becomes ``an`` before a vowel."""
    return _ARTICLE.sub(r"\1n ", text.format_map(values))


def reading(text: str, values_of: Callable[[str], str]) -> str:
    """A regular expression that reads the slots of a filled text; `values_of` gives that of a slot."""
    parts, seen = list[str](), set[str]()
    for literal, slot, _, _ in string.Formatter().parse(text):
        escaped = re.escape(literal)
        parts.append(re.sub(r"(^|(?<=[ -]))([Aa])(\\ )$", r"\1\2n?\3", escaped) if slot else escaped)
        if slot in seen:
            parts.append(f"(?P={slot})")
        elif slot:
            seen.add(slot)
            parts.append(f"(?P<{slot}>{values_of(slot)})")
    return "".join(parts)


# --- words.yaml and facts.yaml ---------------------------------------------------------------------------------------------


class Group(StrictModel):
    """What is liked and disliked in categories whose name has one of these names in it; the last group has no names."""

    names: tuple[str, ...]
    things: Texts


class WordLists(StrictModel):
    """What slots are drawn from."""

    facts: dict[str, Texts]
    things: tuple[Group, ...]


words = packaged(Path(__file__).with_name("words.yaml"), WordLists)


@cache
def things(category: str) -> tuple[str, ...]:
    """What may be liked or disliked in a category, as plurals."""
    folded = category.casefold()
    groups = words().things
    return next((group.things for group in groups if any(name in folded for name in group.names)), groups[-1].things)


ANCHOR, THING = "anchor", "thing"
GIVEN = frozenset("job firm industry date city degree major goal trait who role place".split())  # noqa: SIM905
"""Slots that the writer fills from its task; all others are drawn."""


def slot_source(slot: str) -> str:
    """The list that a slot is drawn from: ``day2`` is another ``day``."""
    return slot.rstrip(string.digits)


@cache
def _values_of(slot: str) -> str:
    name = slot_source(slot)
    if name in GIVEN:
        return ANYTHING
    if name == ANCHOR:
        return INVENTED
    pool = [thing for group in words().things for thing in group.things] if name == THING else words().facts[name]
    return "|".join(re.escape(value) for value in sorted(pool, key=len, reverse=True))


class Form(StrictModel):
    """How one version of a fact is worded; the memory sentence comes without the person's name in front."""

    memory: str
    keywords: tuple[str, str, str]
    said: Texts

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The slots of the memory sentence."""
        return slots_in(self.memory)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Reads the memory sentence."""
        return re.compile(reading(self.memory, _values_of))


class FactTemplate(Form):
    """A kind of fact: as it is at first, how the user mentions that once it has changed, and after each kind of change."""

    name: str
    track: Track | None
    """None for facts that never change."""
    before: tuple[str, ...] = ()
    changes: dict[FactChange, Form] = Field(default_factory=dict)

    def form(self, change: FactChange | None) -> Form:
        """The fact after a change, or at first."""
        return self if change is None else self.changes[change]

    def draw(
        self,
        rng: random.Random,
        split: Split,
        change: FactChange | None,
        given: Mapping[str, str],
        things: tuple[str, ...] = (),
    ) -> dict[str, str]:
        """Values for all slots of a form: the given ones, the others drawn, no word twice; ``{thing}`` is of `things`."""
        values = dict(given)
        for slot in self.form(change).slots:
            if slot in values:
                continue
            name = slot_source(slot)
            if name == ANCHOR:
                values[slot] = invent_name(rng, split)
            else:
                pool = things if name == THING else words().facts[name]
                taken = set(values.values())
                values[slot] = rng.choice([word for word in pool if word not in taken])
        return values

    def fact(self, person: str, change: FactChange | None, values: Mapping[str, str], limits: FactLimits) -> Fact:
        """The memory sentence with its keywords, each cut to the words that it may have."""
        form, longest = self.form(change), limits.keyword_words.max
        keywords = tuple(" ".join(fill(keyword, values).split()[:longest]) for keyword in form.keywords)
        return Fact(text=f"{person} {fill(form.memory, values)}", keywords=keywords)


class Known(NamedTuple):
    """What a memory sentence says."""

    kind: FactTemplate
    change: FactChange | None
    values: dict[str, str]

    def say(self, rng: random.Random) -> str:
        """The fact in the first person."""
        return fill(rng.choice(self.kind.form(self.change).said), self.values)

    def say_before(self, rng: random.Random) -> str:
        """The fact as something that has changed."""
        if self.change is None and self.kind.before:
            return fill(rng.choice(self.kind.before), self.values)
        return self.say(rng)


_TRACKS: dict[str, Track | None] = {"profession": Track.CAREER, **{track.value: track for track in Track}}
"""Groups whose facts change; the other groups have no track."""


class Facts(StrictModel):
    """All kinds of facts, in groups."""

    profession: tuple[FactTemplate, ...]
    career: tuple[FactTemplate, ...]
    health: tuple[FactTemplate, ...]
    relationship: tuple[FactTemplate, ...]
    preference: tuple[FactTemplate, ...]
    background: tuple[FactTemplate, ...]
    detail: tuple[FactTemplate, ...]

    @model_validator(mode="before")
    @classmethod
    def _with_tracks(cls, groups: Any) -> Any:
        def with_track(group: str, kind: Any) -> Any:
            return {"track": _TRACKS.get(group), **kind} if isinstance(kind, dict) else kind

        return {group: [with_track(group, kind) for kind in kinds] for group, kinds in groups.items()}

    @cached_property
    def kinds(self) -> tuple[FactTemplate, ...]:
        """The kinds of all groups."""
        return tuple(kind for group in Facts.model_fields for kind in getattr(self, group))

    @cached_property
    def named(self) -> dict[str, FactTemplate]:
        """The kinds by name."""
        return {kind.name: kind for kind in self.kinds}

    @cached_property
    def _by_first_word(self) -> dict[str, list[tuple[FactTemplate, FactChange | None]]]:
        found: dict[str, list[tuple[FactTemplate, FactChange | None]]] = {}
        for kind in self.kinds:
            for change in (None, *kind.changes):
                found.setdefault(kind.form(change).memory.split(" ", 1)[0], []).append((kind, change))
        return found

    def read(self, person: str, text: str) -> Known | None:
        """What a memory sentence about the person of this name says; None if it is of no kind."""
        rest = text.removeprefix(f"{person} ")
        if rest != text:
            for kind, change in self._by_first_word.get(rest.split(" ", 1)[0], ()):
                if found := kind.form(change).pattern.fullmatch(rest):
                    return Known(kind, change, found.groupdict())
        return None


facts = packaged(Path(__file__).with_name("facts.yaml"), Facts)


# --- profile.yaml, events.yaml and dialogue.yaml ---------------------------------------------------------------------------


class ProfileTexts(StrictModel):
    """Texts for what drafts of profiles leave empty, by field, and reasons for likes and dislikes."""

    family: dict[str, Texts]
    life_goal: dict[str, Texts]
    fixed: dict[str, Texts]
    career: dict[str, Texts]
    health: dict[str, Texts]
    relationship: dict[str, Texts]
    liked: Texts
    disliked: Texts


profile_texts = packaged(Path(__file__).with_name("profile.yaml"), ProfileTexts)


class ValenceTexts(StrictModel):
    """How an event felt: a sentence, its result, and the emotion."""

    feeling: Texts
    result: str
    emotions: Texts


class DomainTexts(StrictModel):
    """Events of a domain: what they are about, second words of places, and what they were like."""

    occasions: Texts
    places: Texts
    middle: Texts


class MethodTexts(StrictModel):
    """The memory of a thread, its words for views, and how the user says it: all views, or the latest."""

    memory: str
    words: Texts
    said: str
    said_last: str


class EventTexts(StrictModel):
    """What events are about, and the sentences in which they are told."""

    opening: str
    company: Texts
    agency: dict[str, str]
    character: Texts
    change: Texts
    goal: str
    padding: Texts
    follow_ups: Texts
    goal_follow_up: str
    grounding: Texts
    valences: dict[str, ValenceTexts]
    domains: dict[Domain, DomainTexts]
    thread: str
    methods: dict[Method, MethodTexts]

    @cached_property
    def domain_of(self) -> dict[str, Domain]:
        """The domain of each occasion."""
        return {occasion: domain for domain, texts in self.domains.items() for occasion in texts.occasions}

    @cached_property
    def opening_pattern(self) -> re.Pattern[str]:
        """Reads occasion and place from an opening."""
        known = {"date": "[^,]+", "place": PLACE}
        return re.compile(reading(self.opening, lambda slot: known.get(slot, ANYTHING)))

    @cached_property
    def memory_patterns(self) -> dict[Method, re.Pattern[str]]:
        """Read the memory sentences of threads, without the person's name."""
        known = {"place": f"{PLACE}|home", "views": "[a-z]+(?:, then [a-z]+ after [A-Z][a-z]+)*"}
        return {
            method: re.compile(reading(texts.memory, lambda slot: known.get(slot, ANYTHING)))
            for method, texts in self.methods.items()
        }


event_texts = packaged(Path(__file__).with_name("events.yaml"), EventTexts)


class DialogueTexts(StrictModel):
    """What is said in sessions besides the facts."""

    goals: Texts
    summaries: Texts
    first_words: Texts
    leads: Texts
    tails: Texts
    pauses: Texts
    farewells: Texts
    changed: Texts
    known_already: Texts
    listening: Texts
    recalls: Texts
    advice: Texts
    questions: Texts
    closing_replies: Texts


dialogue_texts = packaged(Path(__file__).with_name("dialogue.yaml"), DialogueTexts)
