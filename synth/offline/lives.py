"""The paper shape: events that change what is remembered."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import NamedTuple

from deltamem.errors import DeltaMemError
from synth.offline import scenes
from synth.offline.background import DETAILS, ORIGINS
from synth.offline.health import HEALTH
from synth.offline.kinds import Index, Kind, Known
from synth.offline.people import PEOPLE, ROLE, WHO
from synth.offline.tastes import TASTES
from synth.offline.templates import fill
from synth.offline.words import POOLS, day, invent, invent_full, split_of, things
from synth.offline.work import JOB, JOB_HUNT, WORK
from synth.records import (
    Change,
    EventSlot,
    LifeEvent,
    Participant,
    PlannedChange,
    StateDelta,
    Track,
)
from synth.tasks import Events, EventsTask

KINDS = (JOB, JOB_HUNT, *WORK, *HEALTH, *PEOPLE, *TASTES, *ORIGINS, *DETAILS)
"""All kinds of facts of this shape."""

_NEW = {Track.CAREER: WORK, Track.HEALTH: HEALTH, Track.RELATIONSHIP: PEOPLE, Track.PREFERENCE: TASTES}
_SCENE = re.compile(r"On [^,]+, .+? went to the (?P<occasion>.+?) at (?P<place>[A-Z][a-z]+ [A-Z][a-z]+)\.")
_COMPANY = 0.5
"""Chance that somebody known from the beginning comes along where no change is about anybody."""


class Scene(NamedTuple):
    """What an event is about, and where it takes place."""

    occasion: str
    place: str


def scene_of(narrative: str) -> Scene:
    """Read what an event is about from its narrative."""
    found = _SCENE.match(narrative)
    return Scene(found["occasion"], found["place"]) if found else Scene("day", "home")


@cache
def index() -> Index:
    """Finds what the sentences of this shape say, those of memory threads aside."""
    return Index(KINDS)


def write_events(task: EventsTask, rng: random.Random) -> Events:
    """Events with what they change."""
    life = _Life(task, rng)
    return Events(events=tuple(life.event(slot) for slot in task.slots))


class _Held(NamedTuple):
    """A fact that an event may change: its track, subject and contents."""

    track: Track | None
    subject: str
    known: Known


class _Life:
    """What has happened so far."""

    def __init__(self, task: EventsTask, rng: random.Random) -> None:
        self._task = task
        self._rng = rng
        self._name = task.fixed.name
        self._split = split_of(task.fixed.name)
        self._names = {*task.names, self._name}
        self._seen = {fact.text for fact in task.facts}
        self._titles = {past.title for past in task.past}
        self._held: dict[str, _Held] = {}
        for fact in task.facts:
            if (known := index().read(self._name, fact.text)) is not None:
                self._held[fact.text] = _Held(fact.track, fact.subject, known)

    def event(self, slot: EventSlot) -> LifeEvent:
        """Write the event of a slot; what it changes holds from now on."""
        rng = self._rng
        held = dict(self._held)
        changes: list[StateDelta] = []
        company: dict[str, str] = {}
        for planned in slot.changes:
            delta, values = self._new(planned) if planned.change is Change.NEW else self._update(planned, held)
            changes.append(delta)
            if delta.track is Track.RELATIONSHIP:
                company[values[WHO]] = values[ROLE]
        known = [other for other in self._task.dynamic.relationships if other.name in self._names]
        if known and not company and rng.random() < _COMPANY:
            other = rng.choice(known)
            company[other.name] = other.kind.lower()
        return self._told(slot, tuple(changes), company)

    def _new(self, planned: PlannedChange) -> tuple[StateDelta, dict[str, str]]:
        rng = self._rng
        track = planned.track or rng.choice(list(Track))
        present = {held.known.kind for held in self._held.values()}
        kinds = [kind for kind in _NEW[track] if kind not in present] or _NEW[track]
        kind, subject, given = rng.choice(kinds), "", {}
        if track is Track.PREFERENCE:
            groups = self._task.preferences.groups
            subject = rng.choice(groups).category if groups else "leisure"
        elif track is Track.RELATIONSHIP:
            subject = invent_full(rng, self._split)
            while subject in self._names:
                subject = invent_full(rng, self._split)
            self._names.add(subject)
            given = {WHO: subject, ROLE: rng.choice(POOLS["role"])}
        return self._delta(kind, track, Change.NEW, subject, given, "")

    def _update(self, planned: PlannedChange, held: dict[str, _Held]) -> tuple[StateDelta, dict[str, str]]:
        """Change one of the facts that held before the event and that the event has not changed yet."""
        candidates = [
            text
            for text, fact in held.items()
            if fact.track is not None
            and planned.track in (None, fact.track)
            and fact.known.change is None
            and planned.change in fact.known.kind.forms
        ]
        if not candidates:
            raise DeltaMemError(f"no known fact of track {planned.track or 'any'} is left for the change {planned.change}")
        text = self._rng.choice(candidates)
        track, subject, known = held.pop(text)
        del self._held[text]
        assert track is not None
        return self._delta(known.kind, track, planned.change, subject, known.values, text)

    def _delta(
        self, kind: Kind, track: Track, change: Change, subject: str, given: Mapping[str, str], previous: str
    ) -> tuple[StateDelta, dict[str, str]]:
        form = None if change is Change.NEW else change
        while True:
            values = kind.draw(self._rng, self._split, form, given, things(subject))
            fact = kind.fact(self._name, form, values, self._task.fact_limits)
            if fact.text not in self._seen:
                break
        self._seen.add(fact.text)
        self._held[fact.text] = _Held(track, subject, Known(kind, form, values))
        delta = StateDelta(
            text=fact.text, keywords=fact.keywords, track=track, change=change, subject=subject, previous_text=previous
        )
        return delta, values

    def _told(self, slot: EventSlot, changes: tuple[StateDelta, ...], company: Mapping[str, str]) -> LifeEvent:
        rng, fixed = self._rng, self._task.fixed
        title, scene = self._title(slot)
        date = slot.not_before + timedelta(days=rng.randint(0, (slot.not_after - slot.not_before).days))
        valence = rng.choice(list(scenes.FEELING))
        agency = rng.choice(list(scenes.AGENCY))
        goal = fixed.life_goal
        values = {
            "date": day(date),
            "name": self._name,
            "occasion": scene.occasion,
            "place": scene.place,
            "people": _joined(list(company)),
            "trait": rng.choice(fixed.traits),
            "statement": " ".join(f"{goal.statement or goal.kind}".split()[:20]),
            "city": fixed.location,
            "major": fixed.major or "many things",
            "mbti": fixed.mbti,
        }
        sentences = [scenes.OPENING]
        if company:
            sentences.append(rng.choice(scenes.COMPANY))
        sentences += [scenes.AGENCY[agency], rng.choice(scenes.MIDDLE[slot.domain]), rng.choice(scenes.CHARACTER)]
        told = [fill(sentence, values) for sentence in sentences]
        for delta in changes[:2]:
            told.append(rng.choice(scenes.CHANGE).format(topic=delta.keywords[0]))
        if slot.life_goal:
            told.append(fill(scenes.GOAL, values))
        told.append(rng.choice(scenes.FEELING[valence]))
        follow_ups = [fill(text, values) for text in rng.sample(scenes.FOLLOW_UPS, 2)]
        if slot.life_goal:
            follow_ups.append(fill(scenes.GOAL_FOLLOW_UP, values))
        grounding = max(self._task.limits.grounding, rng.randint(1, 2))
        return LifeEvent(
            index=slot.index,
            date=date,
            domain=slot.domain,
            valence=valence,
            agency=agency,
            title=title,
            narrative=self._long_enough(told),
            participants=tuple(Participant(name=who, relationship=role) for who, role in company.items()),
            grounding=tuple(
                fill(text, values) for text in rng.sample(scenes.GROUNDING, min(grounding, len(scenes.GROUNDING)))
            ),
            result=scenes.RESULTS[valence],
            emotion=rng.choice(scenes.EMOTIONS[valence]),
            follow_ups=tuple(follow_ups),
            serves_life_goal=slot.life_goal,
            changes=changes,
        )

    def _title(self, slot: EventSlot) -> tuple[str, Scene]:
        rng = self._rng
        while True:
            occasion = rng.choice(scenes.OCCASIONS[slot.domain])
            scene = Scene(occasion, f"{invent(rng, self._split)} {rng.choice(scenes.PLACES[slot.domain])}")
            title = f"{occasion[0].upper()}{occasion[1:]} at {scene.place}"
            if title not in self._titles:
                self._titles.add(title)
                return title, scene

    def _long_enough(self, told: Sequence[str]) -> str:
        """The sentences, with further ones before the last until the narrative is as long as asked for."""
        limits = self._task.limits.narrative_words
        sentences = list(told)
        for sentence in self._rng.sample(scenes.PADDING, len(scenes.PADDING)):
            if len(" ".join(sentences).split()) >= limits.min + self._rng.randint(0, 20):
                break
            sentences.insert(-1, sentence)
        while len(" ".join(sentences).split()) > limits.max and len(sentences) > 1:
            sentences.pop()
        return " ".join(sentences)


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
