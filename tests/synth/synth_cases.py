"""Invented names and texts of people that the offline writer wrote, and draws of its kinds of facts."""

from __future__ import annotations

import random

from synth.assembly import labelled_sessions
from synth.config import FactLimits, Range
from synth.offline.templates import Kind, words
from synth.offline.tiny import INVENTED_SLOTS, read_fact
from synth.records import Change, Person

NAME = "Mara Lind Bell"
LIMITS = FactLimits(words=Range(min=5, max=32), keywords=Range(min=3, max=3), keyword_words=Range(min=1, max=4))

# What callers give, as long as it gets.
GIVEN = {
    "job": "wind turbine technician",
    "firm": "Copperfield Medical Centre",
    "industry": "public service",
    "who": "Anna-Lena O'Hara",
    "role": "online friend",
    "date": "24 September 1990",
    "city": "Dunedin, New Zealand",
    "degree": "high school diploma",
    "major": "general studies",
    "goal": "philosophical inquiry",
    "trait": "open to new ideas",
    "trait2": "attentive to detail",
    "place": "Brelo Hall",
}


def drawn(kind: Kind, change: Change | None, seed: int) -> tuple[dict[str, str], dict[str, str]]:
    """Values of a fact at first, and after a change."""
    rng = random.Random(seed)
    given = {slot: GIVEN[slot] for slot in kind.template.slots if slot in GIVEN}
    things = rng.choice(words().things).things
    before = kind.draw(rng, "train", None, given, things)
    return before, kind.draw(rng, "train", change, before, things)


def invented_names(someone: Person) -> set[str]:
    """The name of a person of the tiny shape and every anchor and city, old ones included."""
    assert someone.profile is not None
    name = someone.profile.name
    sentences = [fact.text for fact in someone.profile.initial]
    sentences += [delta.text for event in someone.events for delta in event.changes]
    found = [read_fact(name, text) for text in sentences]
    values = [known.values for known in found if known is not None]
    assert len(values) == len(sentences)
    return {value for known in values for slot, value in known.items() if slot in INVENTED_SLOTS} | {name}


def texts(someone: Person) -> list[str]:
    """Everything a model may read or write about the person."""
    assert someone.profile is not None
    sessions = list(labelled_sessions(someone))
    found = [memory.text for labelled in sessions for memory in labelled.next_state.memories]
    found += [memory.text for labelled in sessions[:1] for memory in labelled.prior_state.memories]
    found += [turn.content for labelled in sessions for turn in labelled.session.dialogue]
    return [*found, someone.profile.name]
