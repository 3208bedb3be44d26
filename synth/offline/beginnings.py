"""The paper shape: what is remembered before the first session."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from deltamem.sessions import Split
from synth.offline.background import BIRTH, DEGREE, GOAL, ORIGINS, TRAITS
from synth.offline.health import HEALTH
from synth.offline.kinds import Kind
from synth.offline.people import PEOPLE, ROLE, WHO
from synth.offline.tastes import DISLIKES, LIKES, TASTES
from synth.offline.words import POOLS, day, invent_full, split_of, things
from synth.offline.work import JOB, JOB_HUNT, WORK
from synth.records import Preferences, Track, TrackedFact
from synth.shape import InitialCounts
from synth.tasks import InitialFacts, InitialTask


def write_initial(task: InitialTask, rng: random.Random) -> InitialFacts:
    """Facts of each track, about the work, the people and the tastes of the profile."""
    name, split = task.fixed.name, split_of(task.fixed.name)
    counts = _counts(rng, task.counts, len(task.dynamic.relationships))
    drafts = [
        *_work(rng, task, counts[Track.CAREER]),
        *((kind, "", {}) for kind in _choose(rng, HEALTH, counts[Track.HEALTH])),
        *_people(rng, task, split, counts[Track.RELATIONSHIP]),
        *_tastes(rng, task.preferences, counts[Track.PREFERENCE]),
        *_origins(rng, task, counts[None]),
    ]
    facts: dict[str, TrackedFact] = {}
    for kind, subject, given in drafts:
        while True:
            fact = kind.fact(name, None, kind.draw(rng, split, None, given, things(subject)), task.limits)
            if fact.text not in facts:
                break
        facts[fact.text] = TrackedFact(text=fact.text, keywords=fact.keywords, track=kind.track, subject=subject)
    return InitialFacts(facts=tuple(facts.values()))


_Draft = tuple[Kind, str, dict[str, str]]
"""A kind, the subject, and the values that are settled."""


def _counts(rng: random.Random, counts: InitialCounts, people: int) -> dict[Track | None, int]:
    """How many facts of each track, all in all within the limits and, if possible, one for each of the people."""
    tracks: tuple[Track | None, ...] = (*Track, None)
    found = {track: counts.of(track).min for track in tracks}
    if people in counts.relationship:
        found[Track.RELATIONSHIP] = people
    total = rng.randint(max(counts.total.min, sum(found.values())), counts.total.max)
    room = [track for track in tracks for _ in range(counts.of(track).max - found[track])]
    for track in rng.sample(room, min(total - sum(found.values()), len(room))):
        found[track] += 1
    return found


def _choose(rng: random.Random, kinds: Sequence[Kind], count: int) -> list[Kind]:
    """Kinds, each once as far as there are enough."""
    chosen: list[Kind] = []
    while len(chosen) < count:
        chosen += rng.sample(kinds, min(len(kinds), count - len(chosen)))
    return chosen


def _work(rng: random.Random, task: InitialTask, count: int) -> list[_Draft]:
    career = task.dynamic.career
    if career.job and career.employer:
        first: _Draft = (JOB, "", {"job": career.job, "firm": career.employer})
    else:
        first = (JOB_HUNT, "", {"industry": career.industry or "any industry"})
    return [first, *((kind, "", {}) for kind in _choose(rng, WORK, count - 1))][:count]


def _people(rng: random.Random, task: InitialTask, split: Split, count: int) -> Iterator[_Draft]:
    known = [(other.name, other.kind.lower()) for other in task.dynamic.relationships]
    known = known or [(invent_full(rng, split), rng.choice(POOLS["role"]))]
    kinds = _choose(rng, PEOPLE, count)
    for number, kind in enumerate(kinds):
        who, role = known[number % len(known)]
        yield kind, who, {WHO: who, ROLE: role}


def _tastes(rng: random.Random, preferences: Preferences, count: int) -> Iterator[_Draft]:
    groups = rng.sample(preferences.groups, len(preferences.groups))
    likes = {group.category: [item.item for item in group.likes] for group in groups}
    dislikes = {group.category: [item.item for item in group.dislikes] for group in groups}
    for number in range(count):
        category = groups[number % len(groups)].category if groups else "leisure"
        kind = rng.choice(TASTES)
        items = (dislikes if kind is DISLIKES else likes).get(category)
        if not items:
            kind, items = LIKES, likes.get(category)
        thing, _, maker = items.pop().rpartition(" from ") if items else ("", "", "")
        yield kind, category, {"x": thing, "anchor": maker} if thing in things(category) else {}


def _origins(rng: random.Random, task: InitialTask, count: int) -> Iterator[_Draft]:
    fixed = task.fixed
    given = {
        BIRTH: {"date": day(fixed.birth_date), "city": fixed.location},
        DEGREE: {"degree": fixed.degree, "major": fixed.major or "general studies"},
        GOAL: {"goal": fixed.life_goal.kind},
        TRAITS: dict(zip(("trait", "trait2"), fixed.traits, strict=False)),
    }
    kinds = [kind for kind in ORIGINS if kind is not TRAITS or len(fixed.traits) > 1]
    for kind in _choose(rng, kinds, count):
        yield kind, "", given.get(kind, {})
