"""The offline writer of the paper shape: profiles, first memories, events, threads, dialogues."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import NamedTuple

from deltamem.errors import DeltaMemError
from deltamem.memory import Event
from deltamem.sessions import Split
from synth.config import FactLimits, InitialCounts
from synth.offline import scenes, words
from synth.offline.background import BIRTH, DEGREE, DETAILS, GOAL, ORIGINS, PLACE, TRAITS
from synth.offline.health import HEALTH
from synth.offline.kinds import Index, Kind, Known
from synth.offline.people import PEOPLE, ROLE, WHO
from synth.offline.tastes import DISLIKES, LIKES, TASTES
from synth.offline.templates import fill
from synth.offline.words import POOLS, day, invent, invent_full, split_of, things
from synth.offline.work import JOB, JOB_HUNT, WORK
from synth.records import (
    Change,
    Dialogue,
    DynamicPart,
    EventGroup,
    EventSlot,
    Evolution,
    Exchange,
    Fact,
    FixedPart,
    LifeEvent,
    Method,
    Participant,
    PlannedChange,
    PlannedFact,
    Preference,
    PreferenceGroup,
    Preferences,
    Record,
    SessionFact,
    StateDelta,
    Track,
    TrackedFact,
)
from synth.tasks import (
    DialogueTask,
    DynamicTask,
    Events,
    EventsTask,
    EvolutionTask,
    Filling,
    FillingTask,
    FixedTask,
    InitialFacts,
    InitialTask,
    Links,
    LinksTask,
    PastEvent,
    PreferencesTask,
)


def write_fixed(task: FixedTask, rng: random.Random) -> FixedPart:
    """The draft, each empty text filled."""
    draft = task.draft
    family = _filled(draft.family, parents=words.PARENTS, partner=words.PARTNER, children=words.CHILDREN, rng=rng)
    goal = _filled(
        draft.life_goal,
        kind=words.GOAL_KINDS,
        statement=words.GOAL_STATEMENTS,
        motivation=words.GOAL_MOTIVATIONS,
        target=words.GOAL_TARGETS,
        rng=rng,
    )
    told = _filled(draft, location=words.LOCATIONS, degree=words.DEGREES, rng=rng)
    return draft.model_copy(
        update={
            **told,
            "family": draft.family.model_copy(update=family),
            "life_goal": draft.life_goal.model_copy(update=goal),
        }
    )


def write_dynamic(task: DynamicTask, rng: random.Random) -> DynamicPart:
    """The draft, each empty text filled."""
    draft = task.draft
    career = _filled(draft.career, description=words.CAREER_DESCRIPTIONS, rng=rng)
    health = _filled(draft.health, physical=("good",), mental=("good",), reason=words.HEALTH_REASONS, rng=rng)
    relationships = tuple(
        other.model_copy(update=_filled(other, kind=("Friend",), description=words.RELATIONSHIP_DESCRIPTIONS, rng=rng))
        for other in draft.relationships
    )
    return draft.model_copy(
        update={
            "career": draft.career.model_copy(update=career),
            "health": draft.health.model_copy(update=health),
            "relationships": relationships,
        }
    )


def write_preferences(task: PreferencesTask, rng: random.Random) -> Preferences:
    """Likes and dislikes in every category; no thing comes twice."""
    split = words.split_of(task.fixed.name)
    groups = []
    for category in task.categories:
        count = rng.randint(task.limits.items.min, task.limits.items.max)
        things = rng.sample(words.things(category), count)
        named = [Preference(item=f"{thing} from {words.invent(rng, split)}", reason="") for thing in things]
        likes = -(-count // 2)
        groups.append(
            PreferenceGroup(
                category=category,
                likes=_reasoned(rng, named[:likes], words.LIKED),
                dislikes=_reasoned(rng, named[likes:], words.DISLIKED),
            )
        )
    return Preferences(groups=tuple(groups))


def _reasoned(rng: random.Random, items: Sequence[Preference], reasons: Sequence[str]) -> tuple[Preference, ...]:
    return tuple(item.model_copy(update={"reason": rng.choice(reasons)}) for item in items)


def _filled(part: Record, *, rng: random.Random, **pools: Sequence[str]) -> dict[str, str]:
    """A text from its pool for each of the fields that is empty."""
    return {field: rng.choice(pool) for field, pool in pools.items() if not getattr(part, field)}


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


_BEGINNINGS = {
    Method.EMOTIONAL: ("thinks of the", "with"),
    Method.MEANING: ("regards the", "as"),
    Method.SELF_BELIEF: ("left the", "feeling"),
}
VIEWS = {
    method: tuple(words.split())
    for method, words in {
        Method.EMOTIONAL: "worry relief pride serenity doubt delight unease gratitude envy confidence nostalgia amusement",
        Method.MEANING: "luck duty coincidence routine preparation progress proof training comfort nonsense wisdom play",
        Method.SELF_BELIEF: "clumsy patient capable hesitant reliable brave outspoken stubborn talented ordinary resilient",
    }.items()
}
_READ = re.compile(
    r"(?P<begin>thinks of the|regards the|left the) (?P<occasion>.+?) at (?P<place>[A-Z][a-z]+ [A-Z][a-z]+|home)"
    r" (?:with|as|feeling) (?P<views>[a-z]+(?:, then [a-z]+ after [A-Z][a-z]+)*)\."
)


class View(NamedTuple):
    """A memory of a thread: the first event, and how it is seen after each one."""

    method: Method
    occasion: str
    place: str
    views: tuple[str, ...]
    """The first is one word, the others are like ``pride after Brelo``."""

    def text(self, name: str) -> str:
        """The memory sentence."""
        begin, link = _BEGINNINGS[self.method]
        return f"{name} {begin} {self.occasion} at {self.place} {link} {', then '.join(self.views)}."

    def keywords(self) -> tuple[str, str, str]:
        """The anchor, and the latest view."""
        word, _, later = self.views[-1].partition(" ")
        return self.place, word, later or self.occasion

    def say(self) -> str:
        """The memory in the first person, with all its views."""
        first, *later = self.views
        link = {Method.EMOTIONAL: "it fills me with", Method.MEANING: "I take it for", Method.SELF_BELIEF: "I find myself"}
        told = f"When I look back at the {self.occasion} at {self.place}, {link[self.method]} {first}"
        return told + "".join(f", and then {view}" for view in later) + "."

    def say_last(self) -> str:
        """The latest view in the first person."""
        word, _, later = self.views[-1].partition(" ")
        beginning = f"Now, {later}," if later else "Now"
        link = {
            Method.EMOTIONAL: "what I feel when I think of {it} is",
            Method.MEANING: "what I see in {it} is",
            Method.SELF_BELIEF: "what I believe of myself when I think of {it} is that I am",
        }[self.method]
        return f"{beginning} {link.format(it=f'the {self.occasion} at {self.place}')} {word}."


def read_view(name: str, text: str) -> View | None:
    """Read the memory of a thread; None if it is none."""
    found = _READ.fullmatch(text.removeprefix(name).strip())
    if not found:
        return None
    method = next(method for method, (begin, _) in _BEGINNINGS.items() if begin == found["begin"])
    return View(method, found["occasion"], found["place"], tuple(found["views"].split(", then ")))


def write_links(task: LinksTask, rng: random.Random) -> Links:
    """Groups of events, of the same domain as far as it goes."""
    sizes = task.events_per_group
    domain_of = {occasion: domain for domain, occasions in scenes.OCCASIONS.items() for occasion in occasions}
    by_domain: dict[str, list[PastEvent]] = {}
    for event in task.events:
        by_domain.setdefault(domain_of.get(scene_of(event.narrative).occasion, ""), []).append(event)
    count = rng.randint(task.groups.min, min(task.groups.max, max(task.groups.min, len(task.events) // max(sizes.min, 1))))
    chosen: list[list[PastEvent]] = []
    for events in rng.sample(list(by_domain.values()), len(by_domain)):
        if len(chosen) < count and len(events) >= max(sizes.min, 1):
            chosen.append(_part(rng, events, rng.randint(sizes.min, sizes.max)))
    while len(chosen) < count:
        taken = {event.index for group in chosen for event in group}
        free = [event for event in task.events if event.index not in taken]
        if len(free) < max(sizes.min, 1):
            longest = max(chosen, key=len, default=[])
            if len(longest) <= sizes.min:
                break
            longest.pop()
            continue
        missing = (count - len(chosen) - 1) * sizes.min
        chosen.append(_part(rng, free, min(sizes.max, max(sizes.min, len(free) - missing))))
    return Links(groups=tuple(_group(events) for events in chosen))


def _part(rng: random.Random, events: Sequence[PastEvent], size: int) -> list[PastEvent]:
    return sorted(rng.sample(events, min(size, len(events))), key=lambda event: event.index)


def _group(events: Sequence[PastEvent]) -> EventGroup:
    first, last = scene_of(events[0].narrative).occasion, scene_of(events[-1].narrative).occasion
    return EventGroup(events=tuple(event.index for event in events), thread=scenes.THREAD.format(first=first, last=last))


def write_evolution(task: EvolutionTask, rng: random.Random) -> Evolution:
    """One view of the first event, and another one after each later event."""
    method = rng.choice(list(Method))
    views = rng.sample(VIEWS[method], len(task.events))
    found = [scene_of(event.narrative) for event in task.events]
    view = View(method, *found[0], (views[0],))
    memories = [_memory(task.fixed.name, view)]
    for word, scene in zip(views[1:], found[1:], strict=True):
        view = _shortened(task, view._replace(views=(*view.views, f"{word} after {scene.place.split()[0]}")))
        memories.append(_memory(task.fixed.name, view))
    return Evolution(method=method, memories=tuple(memories))


def _memory(name: str, view: View) -> Fact:
    return Fact(text=view.text(name), keywords=view.keywords())


def _shortened(task: EvolutionTask, view: View) -> View:
    """Leave out the second view while the sentence is too long."""
    limits: FactLimits = task.limits
    while len(view.text(task.fixed.name).split()) > limits.words.max and len(view.views) > 2:
        view = view._replace(views=(view.views[0], *view.views[2:]))
    return view


def write_filling(task: FillingTask, rng: random.Random) -> Filling:
    """Details of the event, each of another kind."""
    name, split = task.fixed.name, split_of(task.fixed.name)
    count = rng.randint(task.count.min, task.count.max)
    if not count:
        return Filling(goal="", summary="", facts=())
    scene = scene_of(task.event.narrative)
    existing = set(task.existing)
    facts: list[Fact] = []
    for kind in rng.sample(DETAILS, min(count, len(DETAILS))):
        while True:
            fact = kind.fact(name, None, kind.draw(rng, split, None, {PLACE: scene.place}), task.limits)
            if fact.text not in existing:
                break
        facts.append(fact)
    about = scene._asdict()
    return Filling(
        goal=rng.choice(scenes.GOALS).format(**about),
        summary=rng.choice(scenes.SUMMARIES).format(**about),
        facts=tuple(facts),
    )


_FURTHER_TURNS = 3
"""Turns beyond one a fact, at most."""
_EARLIER = 0.3
"""Chance that what held before an update comes up one turn earlier."""


def write_dialogue(task: DialogueTask, rng: random.Random) -> Dialogue:
    """Spread the facts over the turns, then write the turns."""
    count, limits = len(task.facts), task.limits
    turns = min(max(count + rng.randint(0, _FURTHER_TURNS), limits.turns.min, 1), limits.turns.max)
    said: list[list[str]] = [[] for _ in range(turns)]
    facts: list[list[SessionFact]] = [[] for _ in range(turns)]
    plan = []
    for number, fact in enumerate(task.facts):
        turn = (2 * number + 1) * turns // (2 * count)
        previous_turn = 0
        if fact.event is Event.UPDATE:
            previous_turn = turn if turn == 0 or rng.random() >= _EARLIER else turn - 1
            said[previous_turn].append(_say_before(rng, task.fixed.name, fact))
            if previous_turn == turn:
                said[turn].append(rng.choice(scenes.CHANGED))
            previous_turn += 1
        elif fact.event is Event.NONE:
            said[turn].append(rng.choice(scenes.KNOWN_ALREADY))
        said[turn].append(_say(rng, task.fixed.name, fact))
        facts[turn].append(fact)
        plan.append(PlannedFact(fact_id=fact.id, turn=turn + 1, previous_turn=previous_turn))
    answers = _Answers(rng)
    exchanges = []
    for number, user in enumerate(_users(task, rng, said)):
        last = number == turns - 1
        exchanges.append(Exchange(user=user, assistant=answers.last() if last else answers.to(user, facts[number])))
    return Dialogue(plan=tuple(plan), turns=tuple(exchanges))


def _say(rng: random.Random, name: str, fact: SessionFact) -> str:
    if (known := index().read(name, fact.text)) is not None:
        return known.say(rng)
    if (view := read_view(name, fact.text)) is not None:
        return view.say_last() if fact.event is Event.UPDATE else view.say()
    return _anyhow(name, fact.text)


def _say_before(rng: random.Random, name: str, fact: SessionFact) -> str:
    if (known := index().read(name, fact.previous_text)) is not None:
        return known.say_before(rng)
    if (view := read_view(name, fact.previous_text)) is not None:
        return view.say()
    return _anyhow(name, fact.previous_text)


def _anyhow(name: str, text: str) -> str:
    """A sentence of no known kind, broken in two so that it is not recited."""
    words = text.removeprefix(name).strip().split()
    half = len(words) // 2
    return f"What they say of me is this: {' '.join(words[:half])}, well, {' '.join(words[half:])}"


def _users(task: DialogueTask, rng: random.Random, said: Sequence[Sequence[str]]) -> Iterator[str]:
    """What the user says in each turn."""
    about = scene_of(task.event.narrative)._asdict()
    leads, tails, pauses = _Deck(rng, scenes.LEADS), _Deck(rng, scenes.TAILS), _Deck(rng, scenes.PAUSES)
    for number, sentences in enumerate(said):
        if number == 0:
            first = rng.choice(scenes.FIRST_WORDS).format(**about)
        else:
            first = leads.draw() if sentences else pauses.draw()
        last = rng.choice(scenes.FAREWELLS) if number == len(said) - 1 else tails.draw() if sentences else ""
        yield " ".join(filter(None, (first, *sentences, last)))


class _Answers:
    """What the assistant says: it takes up words that the user has just said, and otherwise nothing in particular."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._listening, self._recalls = _Deck(rng, scenes.LISTENING), _Deck(rng, scenes.RECALLS)
        self._advice, self._questions = _Deck(rng, scenes.ADVICE), _Deck(rng, scenes.QUESTIONS)
        self._said: set[str] = set()

    def to(self, user: str, facts: Sequence[SessionFact]) -> str:
        """Answer an utterance that says these facts, never twice in the same words."""
        while (answer := self._drawn(user, facts)) in self._said:
            pass  # decks that have been through may meet again in the same cards
        self._said.add(answer)
        return answer

    def _drawn(self, user: str, facts: Sequence[SessionFact]) -> str:
        heard = [keyword for fact in facts for keyword in fact.keywords if keyword in user]
        recall = self._recalls.draw().format(keyword=self._rng.choice(heard)) if heard else ""
        return " ".join(filter(None, (self._listening.draw(), recall, self._advice.draw(), self._questions.draw())))

    def last(self) -> str:
        """Answer the user's farewell."""
        return self._rng.choice(scenes.CLOSING_REPLIES)


class _Deck:
    """Draws each text once before any comes again."""

    def __init__(self, rng: random.Random, texts: Sequence[str]) -> None:
        self._rng = rng
        self._texts = texts
        self._left: list[str] = []

    def draw(self) -> str:
        self._left = self._left or self._rng.sample(self._texts, len(self._texts))
        return self._left.pop()
