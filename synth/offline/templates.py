"""The engine of the offline writer: the schemas of its YAML files, and sentences whose slots are filled and read back.

Records hold texts only, and a writer may use nothing but its task. So what a sentence says is recovered from its template.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, Self, TypeVar

from pydantic import Field, model_validator

from deltamem.config import StrictModel
from deltamem.sessions import Split
from synth.config import FactLimits
from synth.names import invent_name
from synth.planning import UPDATES
from synth.pools import Texts, Words, check_slots, load, slots, slots_in, unique
from synth.records import (
    Career,
    Change,
    Domain,
    Fact,
    Family,
    FixedPart,
    Health,
    LifeGoal,
    Method,
    Record,
    Relationship,
    Track,
)

KeyT = TypeVar("KeyT")
Pool = Sequence[str] | re.Pattern[str]
"""The values of a slot: these texts, or whatever matches."""

INVENTED = re.compile("[A-Z][a-z]+")
ANYTHING = re.compile(".+?")

_ARTICLE = re.compile(r"\b([Aa]) (?!uni|eu|one|use)(?=[aeiou])", re.IGNORECASE)
_MONTHS = tuple(
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)


def day(value: date) -> str:
    """A date in words, for example ``4 May 2026``."""
    return f"{value.day} {_MONTHS[value.month - 1]} {value.year}"


def fill(text: str, values: Mapping[str, str]) -> str:
    """Fill the slots of a text; ``a`` becomes ``an`` before a vowel."""
    return _ARTICLE.sub(r"\1n ", text.format_map(values))


class Template:
    """A sentence with slots.

    Args:
        text: The sentence, with ``{slot}`` for each slot.
        pools: The values of each slot; further ones may be there.
    """

    def __init__(self, text: str, pools: Mapping[str, Pool]) -> None:
        self.text = text
        self.slots = slots_in(text)
        self._pools = pools

    def fill(self, values: Mapping[str, str]) -> str:
        """The sentence for these values."""
        return fill(self.text, values)

    def read(self, text: str) -> dict[str, str] | None:
        """The values for which `fill` gives the text; None if none do."""
        found = self._pattern.fullmatch(text)
        return found.groupdict() if found else None

    def read_start(self, text: str) -> dict[str, str] | None:
        """The values for which the text begins with what `fill` gives; None if none do."""
        found = self._pattern.match(text)
        return found.groupdict() if found else None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts, seen = [], set()
        for literal, slot, _, _ in string.Formatter().parse(self.text):
            escaped = re.escape(literal)
            parts.append(re.sub(r"(^|(?<=[ -]))([Aa])(\\ )$", r"\1\2n?\3", escaped) if slot else escaped)
            if slot in seen:
                parts.append(f"(?P={slot})")
            elif slot:
                seen.add(slot)
                parts.append(f"(?P<{slot}>{_alternatives(self._pools[slot])})")
        return re.compile("".join(parts))


class Index(Generic[KeyT]):
    """Finds the template of a memory sentence."""

    def __init__(self, templates: Iterable[tuple[KeyT, Template]]) -> None:
        self._by_first_word: dict[str, list[tuple[KeyT, Template]]] = {}
        for key, template in templates:
            self._by_first_word.setdefault(template.text.split(" ", 1)[0], []).append((key, template))

    def read(self, person: str, text: str) -> tuple[KeyT, dict[str, str]] | None:
        """What a memory sentence about the person of this name says, with its values; None if no template fits."""
        if not text.startswith(person + " "):
            return None
        rest = text[len(person) + 1 :]
        for key, template in self._by_first_word.get(rest.split(" ", 1)[0], ()):
            if (values := template.read(rest)) is not None:
                return key, values
        return None


def _alternatives(pool: Pool) -> str:
    if isinstance(pool, re.Pattern):
        return pool.pattern
    return "|".join(re.escape(value) for value in sorted(pool, key=len, reverse=True))


# --- words.yaml ------------------------------------------------------------------------------------------------------------


class Group(StrictModel):
    """What is liked and disliked in categories whose name has one of these names in it."""

    names: tuple[str, ...]
    things: Words


class WordLists(StrictModel):
    """What slots are drawn from."""

    facts: dict[str, Words]
    things: tuple[Group, ...]

    @model_validator(mode="after")
    def _has_a_last_resort(self) -> Self:
        if [bool(group.names) for group in self.things] != [True] * (len(self.things) - 1) + [False]:
            raise ValueError("things: the last group, and no other, has no names")
        return self

    @cached_property
    def all_things(self) -> tuple[str, ...]:
        """The things of all groups."""
        return tuple(thing for group in self.things for thing in group.things)


@cache
def words() -> WordLists:
    """What slots are drawn from."""
    return load(_path("words"), WordLists)


@cache
def things(category: str) -> tuple[str, ...]:
    """What may be liked or disliked in a category, as plurals."""
    folded = category.casefold()
    groups = words().things
    return next((group.things for group in groups if any(name in folded for name in group.names)), groups[-1].things)


def _path(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.yaml")


# --- facts.yaml ------------------------------------------------------------------------------------------------------------

ANCHOR, THING = "anchor", "thing"
_GIVEN = {
    "job": {"job", "firm"},
    "job hunt": {"industry"},
    "likes": set(),
    "dislikes": set(),
    "birth": {"date", "city"},
    "degree": {"degree", "major"},
    "goal": {"goal"},
    "traits": {"trait"},
    "relationship": {"who", "role"},
    "detail": {"place"},
}
"""Kinds that paper.py asks for by name, and groups, with the slots that it gives them; all others are drawn."""
_ALL_GIVEN = frozenset[str]().union(*_GIVEN.values())


def _source(slot: str) -> str:
    return slot.rstrip(string.digits)


def _pool(slot: str) -> Pool:
    """The values that a slot can have; a `ValueError` if it can have none."""
    source = _source(slot)
    if source in _ALL_GIVEN:
        return ANYTHING
    if source == ANCHOR:
        return INVENTED
    if source == THING:
        return words().all_things
    if source in words().facts:
        return words().facts[source]
    raise ValueError(f"no words for the slot {slot!r}: words.yaml has no list {source!r}")


class Form(StrictModel):
    """How one version of a fact is worded."""

    memory: str
    """The memory sentence without the person's name in front."""
    keywords: tuple[str, str, str]
    said: Texts

    @cached_property
    def template(self) -> Template:
        """The memory sentence, without the person's name."""
        return Template(self.memory, {slot: _pool(slot) for slot in slots_in(self.memory)})

    @model_validator(mode="after")
    def _says_its_keywords(self) -> Self:
        check_slots(self.said, self.template.slots)
        for keyword in self.keywords:
            if without := [text for text in (self.memory, *self.said) if keyword.casefold() not in text.casefold()]:
                raise ValueError(f"the keyword {keyword!r} is missing in {without[0]!r}")
        return self


class Kind(Form):
    """A kind of fact: the fact as it is at first, and after each kind of change."""

    name: str
    track: Track | None
    """None for facts that never change."""
    before: tuple[str, ...] = ()
    """How the user mentions the first form when it has changed."""
    changes: dict[Change, Form] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _changes_as_its_track_does(self) -> Self:
        if set(self.changes) != (set(UPDATES) if self.track else set()) or bool(self.before) != bool(self.track):
            raise ValueError("a kind of a track has `before` and each kind of change, any other kind has neither")
        check_slots(self.before, self.template.slots)
        for change, form in self.changes.items():
            if not set(form.keywords) & set(self.keywords):
                raise ValueError(f"{change}: no keyword of the fact before is left")
            if all(keyword.casefold() in self.memory.casefold() for keyword in form.keywords):
                raise ValueError(f"{change}: no keyword is new")
        return self

    def form(self, change: Change | None) -> Form:
        """The fact after a change, or at first."""
        return self if change is None else self.changes[change]

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
            given: Values that are settled.
            things: What ``{thing}`` is drawn from.
        """
        values = dict(given)
        for slot in self.form(change).template.slots:
            if slot in values:
                continue
            source = _source(slot)
            if source == ANCHOR:
                values[slot] = invent_name(rng, split)
            else:
                taken = set(values.values())
                pool = things if source == THING else words().facts[source]
                values[slot] = rng.choice([word for word in pool if word not in taken])
        return values

    def fact(self, person: str, change: Change | None, values: Mapping[str, str], limits: FactLimits) -> Fact:
        """The memory sentence with its keywords, each cut to the words that it may have."""
        form, longest = self.form(change), limits.keyword_words.max
        keywords = tuple(" ".join(fill(keyword, values).split()[:longest]) for keyword in form.keywords)
        return Fact(text=f"{person} {form.template.fill(values)}", keywords=keywords)


class Known(NamedTuple):
    """What a memory sentence says."""

    kind: Kind
    change: Change | None
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

    profession: tuple[Kind, ...]
    career: tuple[Kind, ...]
    health: tuple[Kind, ...]
    relationship: tuple[Kind, ...]
    preference: tuple[Kind, ...]
    background: tuple[Kind, ...]
    detail: tuple[Kind, ...]

    @model_validator(mode="before")
    @classmethod
    def _with_tracks(cls, groups: Any) -> Any:
        def with_track(group: str, kind: Any) -> Any:
            return {"track": _TRACKS.get(group), **kind} if isinstance(kind, dict) else kind

        return {group: [with_track(group, kind) for kind in kinds] for group, kinds in groups.items()}

    @model_validator(mode="after")
    def _known_to_the_writer(self) -> Self:
        unique(tuple(kind.name for kind in self.kinds))
        if missing := set(_GIVEN).difference(self.named, Facts.model_fields):
            raise ValueError(f"the writer needs the kinds {sorted(missing)}")
        for group in Facts.model_fields:
            for kind in getattr(self, group):
                asked = {_source(slot) for form in (kind, *kind.changes.values()) for slot in form.template.slots}
                if unknown := (asked & _ALL_GIVEN) - _GIVEN.get(kind.name, _GIVEN.get(group, set())):
                    raise ValueError(f"{group}, {kind.name}: the writer gives no {sorted(unknown)}")
        return self

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of all groups."""
        return tuple(kind for group in Facts.model_fields for kind in getattr(self, group))

    @cached_property
    def named(self) -> dict[str, Kind]:
        """The kinds by name."""
        return {kind.name: kind for kind in self.kinds}

    def of(self, track: Track) -> tuple[Kind, ...]:
        """The kinds of a track, the profession aside."""
        kinds: tuple[Kind, ...] = getattr(self, track.value)
        return kinds

    @cached_property
    def _index(self) -> Index[tuple[Kind, Change | None]]:
        forms = ((kind, change) for kind in self.kinds for change in (None, *kind.changes))
        return Index(((kind, change), kind.form(change).template) for kind, change in forms)

    def read(self, person: str, text: str) -> Known | None:
        """What a memory sentence about the person of this name says; None if it is of no kind."""
        found = self._index.read(person, text)
        return Known(*found[0], found[1]) if found else None


@cache
def facts() -> Facts:
    """All kinds of facts."""
    return load(_path("facts"), Facts)


# --- profile.yaml ----------------------------------------------------------------------------------------------------------


class ProfileTexts(StrictModel):
    """Texts for what drafts of profiles leave empty, by field, and reasons for likes and dislikes."""

    family: dict[str, Words]
    life_goal: dict[str, Words]
    fixed: dict[str, Words]
    career: dict[str, Words]
    health: dict[str, Words]
    relationship: dict[str, Words]
    liked: Words
    disliked: Words

    @model_validator(mode="after")
    def _names_fields(self) -> Self:
        parts: dict[str, type[Record]] = {
            "family": Family,
            "life_goal": LifeGoal,
            "fixed": FixedPart,
            "career": Career,
            "health": Health,
            "relationship": Relationship,
        }
        for name, part in parts.items():
            if unknown := set(getattr(self, name)).difference(part.model_fields):
                raise ValueError(f"{name}: no such field: {sorted(unknown)}")
        return self


@cache
def profile_texts() -> ProfileTexts:
    """Texts for what drafts of profiles leave empty."""
    return load(_path("profile"), ProfileTexts)


# --- events.yaml -----------------------------------------------------------------------------------------------------------

_OfEvent = slots("date", "name", "occasion", "place", "people", "trait", "statement", "city", "major", "mbti")
_Sentence = Annotated[str, _OfEvent]
_Sentences = Annotated[Texts, _OfEvent]
_Plain = Annotated[str, slots()]


class ValenceTexts(StrictModel):
    """How an event felt: a sentence, its result, and the emotion."""

    feeling: Words
    result: _Plain
    emotions: Words


class DomainTexts(StrictModel):
    """Events of a domain: what they are about, second words of places, and what they were like."""

    occasions: Words
    places: Words
    middle: Words


class MethodTexts(StrictModel):
    """The memory of a thread, its words for views, and how the user says it: all views, or the latest."""

    memory: Annotated[str, slots("occasion", "place", "views")]
    words: Words
    said: Annotated[str, slots("occasion", "place", "views")]
    said_last: Annotated[str, slots("occasion", "place", "view")]


class EventTexts(StrictModel):
    """What events are about, and the sentences in which they are told."""

    opening: Annotated[str, slots("date", "name", "occasion", "place")]
    company: _Sentences
    agency: dict[str, _Sentence]
    character: _Sentences
    change: Annotated[Texts, slots("topic")]
    goal: _Sentence
    padding: Words
    follow_ups: _Sentences
    goal_follow_up: _Sentence
    grounding: _Sentences
    valences: dict[str, ValenceTexts]
    domains: dict[Domain, DomainTexts]
    thread: Annotated[str, slots("first", "last")]
    methods: dict[Method, MethodTexts]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if set(self.domains) != set(Domain) or set(self.methods) != set(Method):
            raise ValueError("domains, methods: not all of them")
        unique(tuple(occasion for texts in self.domains.values() for occasion in texts.occasions))
        return self

    @cached_property
    def domain_of(self) -> dict[str, Domain]:
        """The domain of each occasion."""
        return {occasion: domain for domain, texts in self.domains.items() for occasion in texts.occasions}

    @cached_property
    def opening_template(self) -> Template:
        """The opening, from which occasion and place are read back."""
        place = re.compile("[A-Z][a-z]+ [A-Z][a-z]+")
        return Template(self.opening, {"date": re.compile("[^,]+"), "name": ANYTHING, "occasion": ANYTHING, "place": place})

    @cached_property
    def memory_templates(self) -> dict[Method, Template]:
        """The memory sentences of threads, without the person's name."""
        pools = {
            "occasion": ANYTHING,
            "place": re.compile("[A-Z][a-z]+ [A-Z][a-z]+|home"),
            "views": re.compile("[a-z]+(?:, then [a-z]+ after [A-Z][a-z]+)*"),
        }
        return {method: Template(texts.memory, pools) for method, texts in self.methods.items()}


@cache
def event_texts() -> EventTexts:
    """What events are about, and the sentences in which they are told."""
    return load(_path("events"), EventTexts)


# --- dialogue.yaml ---------------------------------------------------------------------------------------------------------

_AboutScene = Annotated[Texts, slots("occasion", "place")]


class DialogueTexts(StrictModel):
    """What is said in sessions besides the facts."""

    goals: _AboutScene
    summaries: _AboutScene
    first_words: _AboutScene
    leads: Words
    tails: Words
    pauses: Words
    farewells: Words
    changed: Words
    known_already: Words
    listening: Words
    recalls: Annotated[Texts, slots("keyword")]
    advice: Words
    questions: Words
    closing_replies: Words


@cache
def dialogue_texts() -> DialogueTexts:
    """What is said in sessions besides the facts."""
    return load(_path("dialogue"), DialogueTexts)
