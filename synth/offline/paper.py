"""The offline writer of the paper shape: profiles, first memories, events, threads, dialogues."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from deltamem.errors import DeltaMemError
from deltamem.memory import Event, wordings
from synth.config import InitialCounts
from synth.names import invent_name, split_of
from synth.offline.templates import (
    FactTemplate,
    Known,
    dialogue_texts,
    event_texts,
    facts,
    fill,
    profile_texts,
    things,
    words,
)
from synth.pools import Deck
from synth.records import (
    Dialogue,
    DynamicPart,
    EventGroup,
    EventSlot,
    Evolution,
    Exchange,
    Fact,
    FactChange,
    FixedPart,
    LifeEvent,
    Method,
    Participant,
    PastEvent,
    PlannedChange,
    PlannedFact,
    Preference,
    PreferenceGroup,
    Preferences,
    Record,
    SaidFact,
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
    PreferencesTask,
)
from synth.validators.base import day

RecordT = TypeVar("RecordT", bound=Record)


def write_fixed(task: FixedTask, rng: random.Random) -> FixedPart:
    """The draft, each empty text filled."""
    draft, texts = task.draft, profile_texts()
    family = _filled(draft.family, texts.family, rng)
    goal = _filled(draft.life_goal, texts.life_goal, rng)
    return _filled(draft, texts.fixed, rng).model_copy(update={"family": family, "life_goal": goal})


def write_dynamic(task: DynamicTask, rng: random.Random) -> DynamicPart:
    """The draft, each empty text filled."""
    draft, texts = task.draft, profile_texts()
    career, health = _filled(draft.career, texts.career, rng), _filled(draft.health, texts.health, rng)
    others = tuple(_filled(other, texts.relationship, rng) for other in draft.relationships)
    return draft.model_copy(update={"career": career, "health": health, "relationships": others})


def _filled(part: RecordT, texts: Mapping[str, Sequence[str]], rng: random.Random) -> RecordT:
    return part.model_copy(update={field: rng.choice(pool) for field, pool in texts.items() if not getattr(part, field)})


def write_preferences(task: PreferencesTask, rng: random.Random) -> Preferences:
    """Likes and dislikes in every category; no thing comes twice."""
    split, texts = split_of(task.fixed.name), profile_texts()
    groups = []
    for category in task.categories:
        count = rng.randint(task.limits.items.min, task.limits.items.max)
        drawn = [f"{thing} from {invent_name(rng, split)}" for thing in rng.sample(things(category), count)]
        half = -(-count // 2)
        likes = tuple(Preference(item=item, reason=rng.choice(texts.liked)) for item in drawn[:half])
        dislikes = tuple(Preference(item=item, reason=rng.choice(texts.disliked)) for item in drawn[half:])
        groups.append(PreferenceGroup(category=category, likes=likes, dislikes=dislikes))
    return Preferences(groups=tuple(groups))


# --- first memories --------------------------------------------------------------------------------------------------------


def write_initial(task: InitialTask, rng: random.Random) -> InitialFacts:
    """Facts of each track, about the work, the people and the tastes of the profile."""
    name, split = task.fixed.name, split_of(task.fixed.name)
    counts = _counts(rng, task.counts, len(task.dynamic.relationships))
    drafts = [
        *_work(rng, task, counts[Track.CAREER]),
        *((kind, "", {}) for kind in _choose(rng, facts().health, counts[Track.HEALTH])),
        *_people(rng, task, counts[Track.RELATIONSHIP]),
        *_tastes(rng, task.preferences, counts[Track.PREFERENCE]),
        *_background(rng, task.fixed, counts[None]),
    ]
    found: dict[str, TrackedFact] = {}
    for kind, subject, given in drafts:
        while True:
            fact = kind.fact(name, None, kind.draw(rng, split, None, given, things(subject)), task.limits)
            if fact.text not in found:
                break
        found[fact.text] = TrackedFact(text=fact.text, keywords=fact.keywords, track=kind.track, subject=subject)
    return InitialFacts(facts=tuple(found.values()))


_Draft = tuple[FactTemplate, str, dict[str, str]]
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


def _choose(rng: random.Random, kinds: Sequence[FactTemplate], count: int) -> list[FactTemplate]:
    """Kinds, each once as far as there are enough."""
    chosen: list[FactTemplate] = []
    while len(chosen) < count:
        chosen += rng.sample(kinds, min(len(kinds), count - len(chosen)))
    return chosen


def _work(rng: random.Random, task: InitialTask, count: int) -> list[_Draft]:
    career, named = task.dynamic.career, facts().named
    if career.job and career.employer:
        first: _Draft = (named["job"], "", {"job": career.job, "firm": career.employer})
    else:
        first = (named["job hunt"], "", {"industry": career.industry or "any industry"})
    return [first, *((kind, "", {}) for kind in _choose(rng, facts().career, count - 1))][:count]


def _people(rng: random.Random, task: InitialTask, count: int) -> Iterator[_Draft]:
    known = [(other.name, other.kind.lower()) for other in task.dynamic.relationships]
    known = known or [(_full_name(rng, task.fixed.name), rng.choice(words().facts["role"]))]
    for number, kind in enumerate(_choose(rng, facts().relationship, count)):
        who, role = known[number % len(known)]
        yield kind, who, {"who": who, "role": role}


def _full_name(rng: random.Random, person: str) -> str:
    split = split_of(person)
    return f"{invent_name(rng, split)} {invent_name(rng, split)}"


def _tastes(rng: random.Random, preferences: Preferences, count: int) -> Iterator[_Draft]:
    groups = rng.sample(preferences.groups, len(preferences.groups))
    likes = {group.category: [item.item for item in group.likes] for group in groups}
    dislikes = {group.category: [item.item for item in group.dislikes] for group in groups}
    for number in range(count):
        category = groups[number % len(groups)].category if groups else "leisure"
        kind = rng.choice(facts().preference)
        items = (dislikes if kind.name == "dislikes" else likes).get(category)
        if not items:
            kind, items = facts().named["likes"], likes.get(category)
        thing, _, maker = items.pop().rpartition(" from ") if items else ("", "", "")
        yield kind, category, {"thing": thing, "anchor": maker} if thing in things(category) else {}


def _background(rng: random.Random, fixed: FixedPart, count: int) -> Iterator[_Draft]:
    given = {
        "birth": {"date": day(fixed.birth_date), "city": fixed.location},
        "degree": {"degree": fixed.degree, "major": fixed.major or "general studies"},
        "goal": {"goal": fixed.life_goal.kind},
        "traits": dict(zip(("trait", "trait2"), fixed.traits, strict=False)),
    }
    kinds = [kind for kind in facts().background if kind.name != "traits" or len(fixed.traits) > 1]
    for kind in _choose(rng, kinds, count):
        yield kind, "", given.get(kind.name, {})


# --- events ----------------------------------------------------------------------------------------------------------------

_COMPANY = 0.5
"""Chance that somebody known from the beginning comes along where no change is about anybody."""


class Place(NamedTuple):
    """What an event is about, and where it takes place."""

    occasion: str
    place: str


def place_of(narrative: str) -> Place:
    """Read what an event is about from its narrative."""
    found = event_texts().opening_pattern.match(narrative)
    return Place(found["occasion"], found["place"]) if found else Place("day", "home")


def write_events(task: EventsTask, rng: random.Random) -> Events:
    """Events with what they change."""
    writer = EventWriter(task, rng)
    return Events(events=tuple(writer.event(slot) for slot in task.slots))


class _Held(NamedTuple):
    """A fact that an event may change."""

    track: Track | None
    subject: str
    known: Known


class EventWriter:
    """Writes one event after the other, and knows what has happened so far."""

    def __init__(self, task: EventsTask, rng: random.Random) -> None:
        self._task, self._rng = task, rng
        self._name, self._split = task.fixed.name, split_of(task.fixed.name)
        self._names = {*task.names, self._name}
        self._seen = {fact.text for fact in task.facts}
        self._titles = {past.title for past in task.past}
        read = ((fact, facts().read(self._name, fact.text)) for fact in task.facts)
        self._held = {fact.text: _Held(fact.track, fact.subject, known) for fact, known in read if known is not None}

    def event(self, slot: EventSlot) -> LifeEvent:
        """Write the event of a slot; what it changes holds from now on."""
        rng = self._rng
        held = dict(self._held)
        changes: list[StateDelta] = []
        company: dict[str, str] = {}
        for planned in slot.changes:
            delta, values = self._new(planned) if planned.change is FactChange.NEW else self._update(planned, held)
            changes.append(delta)
            if delta.track is Track.RELATIONSHIP:
                company[values["who"]] = values["role"]
        known = [other for other in self._task.dynamic.relationships if other.name in self._names]
        if known and not company and rng.random() < _COMPANY:
            other = rng.choice(known)
            company[other.name] = other.kind.lower()
        return self._written(slot, tuple(changes), company)

    def _new(self, planned: PlannedChange) -> tuple[StateDelta, dict[str, str]]:
        rng = self._rng
        present = {held.known.kind.name for held in self._held.values()}
        kinds: tuple[FactTemplate, ...] = getattr(facts(), planned.track.value)
        kind, subject, given = rng.choice([kind for kind in kinds if kind.name not in present] or kinds), "", {}
        if planned.track is Track.PREFERENCE:
            groups = self._task.preferences.groups
            subject = rng.choice(groups).category if groups else "leisure"
        elif planned.track is Track.RELATIONSHIP:
            subject = _full_name(rng, self._name)
            while subject in self._names:
                subject = _full_name(rng, self._name)
            self._names.add(subject)
            given = {"who": subject, "role": rng.choice(words().facts["role"])}
        return self._delta(kind, planned, subject, given, "")

    def _update(self, planned: PlannedChange, held: dict[str, _Held]) -> tuple[StateDelta, dict[str, str]]:
        """Change one of the facts that held before the event and that the event has not changed yet."""
        candidates = [
            text
            for text, (track, _, known) in held.items()
            if track is planned.track and known.change is None and planned.change in known.kind.changes
        ]
        if not candidates:
            raise DeltaMemError(f"no known fact of track {planned.track} is left for the change {planned.change}")
        text = self._rng.choice(candidates)
        _, subject, known = held.pop(text)
        del self._held[text]
        return self._delta(known.kind, planned, subject, known.values, text)

    def _delta(
        self, kind: FactTemplate, planned: PlannedChange, subject: str, given: Mapping[str, str], previous: str
    ) -> tuple[StateDelta, dict[str, str]]:
        form = None if planned.change is FactChange.NEW else planned.change
        while True:
            values = kind.draw(self._rng, self._split, form, given, things(subject))
            fact = kind.fact(self._name, form, values, self._task.fact_limits)
            if fact.text not in self._seen:
                break
        self._seen.add(fact.text)
        self._held[fact.text] = _Held(planned.track, subject, Known(kind, form, values))
        made: dict[str, Any] = {
            "track": planned.track,
            "change": planned.change,
            "subject": subject,
            "previous_text": previous,
        }
        return StateDelta(text=fact.text, keywords=fact.keywords, **made), values

    def _written(self, slot: EventSlot, changes: tuple[StateDelta, ...], company: Mapping[str, str]) -> LifeEvent:
        """The event, told in the sentences of events.yaml."""
        rng, fixed, texts = self._rng, self._task.fixed, event_texts()
        domain = texts.domains[slot.domain]
        while True:
            occasion = rng.choice(domain.occasions)
            place = f"{invent_name(rng, self._split)} {rng.choice(domain.places)}"
            title = f"{occasion[0].upper()}{occasion[1:]} at {place}"
            if title not in self._titles:
                break
        self._titles.add(title)
        date = slot.not_before + timedelta(days=rng.randint(0, (slot.not_after - slot.not_before).days))
        valence = rng.choice(list(texts.valences))
        agency = rng.choice(list(texts.agency))
        felt, goal = texts.valences[valence], fixed.life_goal
        names = list(company)
        values = {
            "date": day(date),
            "name": self._name,
            "occasion": occasion,
            "place": place,
            "people": " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))),
            "trait": rng.choice(fixed.traits),
            "statement": " ".join(f"{goal.statement or goal.kind}".split()[:20]),
            "city": fixed.location,
            "major": fixed.major or "many things",
            "mbti": fixed.mbti,
        }
        templates = [texts.opening]
        if company:
            templates.append(rng.choice(texts.company))
        templates += [texts.agency[agency], rng.choice(domain.middle), rng.choice(texts.character)]
        sentences = [fill(template, values) for template in templates]
        sentences += [rng.choice(texts.change).format(topic=wordings(delta.keywords)[0]) for delta in changes[:2]]
        if slot.life_goal:
            sentences.append(fill(texts.goal, values))
        sentences.append(rng.choice(felt.feeling))
        follow_ups = [fill(text, values) for text in rng.sample(texts.follow_ups, 2)]
        if slot.life_goal:
            follow_ups.append(fill(texts.goal_follow_up, values))
        grounding = min(max(self._task.limits.grounding, rng.randint(1, 2)), len(texts.grounding))
        return LifeEvent(
            index=slot.index,
            date=date,
            domain=slot.domain,
            valence=valence,
            agency=agency,
            title=title,
            narrative=self._long_enough(sentences),
            participants=tuple(Participant(name=who, relationship=role) for who, role in company.items()),
            grounding=tuple(fill(text, values) for text in rng.sample(texts.grounding, grounding)),
            result=felt.result,
            emotion=rng.choice(felt.emotions),
            follow_ups=tuple(follow_ups),
            serves_life_goal=slot.life_goal,
            changes=changes,
        )

    def _long_enough(self, sentences: list[str]) -> str:
        """The sentences, with further ones before the last until the narrative is as long as asked for."""
        limits, padding = self._task.limits.narrative_words, event_texts().padding
        for sentence in self._rng.sample(padding, len(padding)):
            if len(" ".join(sentences).split()) >= limits.min + self._rng.randint(0, 20):
                break
            sentences.insert(-1, sentence)
        while len(" ".join(sentences).split()) > limits.max and len(sentences) > 1:
            sentences.pop()
        return " ".join(sentences)


# --- threads and filling ---------------------------------------------------------------------------------------------------


class View(NamedTuple):
    """A memory of a thread: the first event, and how it is seen after each one.

    The first of the views is one word, the others are like ``pride after Brelo``.
    """

    method: Method
    occasion: str
    place: str
    views: tuple[str, ...]

    def fact(self, name: str) -> Fact:
        """The memory, with the anchor and the latest view as its keywords."""
        word, _, later = self.views[-1].partition(" ")
        text = f"{name} {self._filled(event_texts().methods[self.method].memory, ', then ')}"
        return Fact(text=text, keywords=(self.place, word, later or self.occasion))

    def say(self) -> str:
        """The memory in the first person, with all its views."""
        return self._filled(event_texts().methods[self.method].said, ", and then ")

    def say_last(self) -> str:
        """The latest view in the first person."""
        word, _, later = self.views[-1].partition(" ")
        said = event_texts().methods[self.method].said_last.format(occasion=self.occasion, place=self.place, view=word)
        return f"Now, {later}, {said}" if later else f"Now {said}"

    def _filled(self, template: str, link: str) -> str:
        return template.format(occasion=self.occasion, place=self.place, views=link.join(self.views))


def read_view(name: str, text: str) -> View | None:
    """Read the memory of a thread; None if it is none."""
    sentence = text.removeprefix(name).strip()
    for method, pattern in event_texts().memory_patterns.items():
        if found := pattern.fullmatch(sentence):
            return View(method, found["occasion"], found["place"], tuple(found["views"].split(", then ")))
    return None


def write_links(task: LinksTask, rng: random.Random) -> Links:
    """Groups of events, of the same domain as far as it goes."""
    sizes = task.events_per_group

    def part(events: Sequence[PastEvent], size: int) -> list[PastEvent]:
        return sorted(rng.sample(events, min(size, len(events))), key=lambda event: event.index)

    by_domain: dict[str, list[PastEvent]] = {}
    for event in task.events:
        by_domain.setdefault(event_texts().domain_of.get(place_of(event.narrative).occasion, ""), []).append(event)
    count = rng.randint(task.groups.min, min(task.groups.max, max(task.groups.min, len(task.events) // max(sizes.min, 1))))
    chosen: list[list[PastEvent]] = []
    for events in rng.sample(list(by_domain.values()), len(by_domain)):
        if len(chosen) < count and len(events) >= max(sizes.min, 1):
            chosen.append(part(events, rng.randint(sizes.min, sizes.max)))
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
        chosen.append(part(free, min(sizes.max, max(sizes.min, len(free) - missing))))
    groups = []
    for events in chosen:
        first, last = (place_of(event.narrative).occasion for event in (events[0], events[-1]))
        thread = event_texts().thread.format(first=first, last=last)
        groups.append(EventGroup(events=tuple(event.index for event in events), thread=thread))
    return Links(groups=tuple(groups))


def write_evolution(task: EvolutionTask, rng: random.Random) -> Evolution:
    """One view of the first event, and another one after each later event."""
    name = task.fixed.name
    method = rng.choice(list(Method))
    views = rng.sample(event_texts().methods[method].words, len(task.events))
    places = [place_of(event.narrative) for event in task.events]
    view = View(method, *places[0], (views[0],))
    memories = [view.fact(name)]
    for word, place in zip(views[1:], places[1:], strict=True):
        view = view._replace(views=(*view.views, f"{word} after {place.place.split()[0]}"))
        # While the sentence is too long, the second view is left out.
        while len(view.fact(name).text.split()) > task.limits.words.max and len(view.views) > 2:
            view = view._replace(views=(view.views[0], *view.views[2:]))
        memories.append(view.fact(name))
    return Evolution(method=method, memories=tuple(memories))


def write_filling(task: FillingTask, rng: random.Random) -> Filling:
    """Details of the event, each of another kind."""
    name, split = task.fixed.name, split_of(task.fixed.name)
    count = rng.randint(task.count.min, task.count.max)
    if not count:
        return Filling(goal="", summary="", facts=())
    place = place_of(task.event.narrative)
    existing = set(task.existing)
    details, texts = facts().detail, dialogue_texts()
    found: list[Fact] = []
    for kind in rng.sample(details, min(count, len(details))):
        while True:
            fact = kind.fact(name, None, kind.draw(rng, split, None, {"place": place.place}), task.limits)
            if fact.text not in existing:
                break
        found.append(fact)
    goal, summary = (rng.choice(pool).format(**place._asdict()) for pool in (texts.goals, texts.summaries))
    said = tuple(SaidFact(text=fact.text, keywords=fact.keywords) for fact in found)
    return Filling(goal=goal, summary=summary, facts=said)


# --- dialogues -------------------------------------------------------------------------------------------------------------

_FURTHER_TURNS = 3
"""Turns beyond one a fact, at most."""
_EARLIER = 0.3
"""Chance that what held before an update comes up one turn earlier."""


def write_dialogue(task: DialogueTask, rng: random.Random) -> Dialogue:
    """Spread the facts over the turns, then write the turns."""
    count, limits, texts = len(task.facts), task.limits, dialogue_texts()
    turns = min(max(count + rng.randint(0, _FURTHER_TURNS), limits.turns.min, 1), limits.turns.max)
    said: list[list[str]] = [[] for _ in range(turns)]
    keywords: list[list[str]] = [[] for _ in range(turns)]
    plan = []
    for number, fact in enumerate(task.facts):
        turn = (2 * number + 1) * turns // (2 * count)
        previous_turn = 0
        if fact.event is Event.UPDATE:
            previous_turn = turn if turn == 0 or rng.random() >= _EARLIER else turn - 1
            said[previous_turn].append(say_before(rng, task.fixed.name, fact))
            if previous_turn == turn:
                said[turn].append(rng.choice(texts.changed))
            previous_turn += 1
        elif fact.event is Event.NONE:
            said[turn].append(rng.choice(texts.known_already))
        said[turn].append(say(rng, task.fixed.name, fact))
        keywords[turn] += wordings(fact.keywords)
        plan.append(PlannedFact(fact_id=fact.id, turn=turn + 1, previous_turn=previous_turn))
    return Dialogue(plan=tuple(plan), turns=tuple(_exchanges(task, rng, said, keywords)))


def say(rng: random.Random, name: str, fact: SessionFact) -> str:
    """What the user says of a fact."""
    if (known := facts().read(name, fact.text)) is not None:
        return known.say(rng)
    if (view := read_view(name, fact.text)) is not None:
        return view.say_last() if fact.event is Event.UPDATE else view.say()
    return _anyhow(name, fact.text)


def say_before(rng: random.Random, name: str, fact: SessionFact) -> str:
    """What the user says of what held before it."""
    if (known := facts().read(name, fact.previous_text)) is not None:
        return known.say_before(rng)
    if (view := read_view(name, fact.previous_text)) is not None:
        return view.say()
    return _anyhow(name, fact.previous_text)


def _anyhow(name: str, text: str) -> str:
    """A sentence of no known kind, broken in two so that it is not recited."""
    said = text.removeprefix(name).strip().split()
    half = len(said) // 2
    return f"What they say of me is this: {' '.join(said[:half])}, well, {' '.join(said[half:])}"


def _exchanges(
    task: DialogueTask, rng: random.Random, said: Sequence[Sequence[str]], keywords: Sequence[Sequence[str]]
) -> Iterator[Exchange]:
    """The turns: the assistant takes up words that the user has just said, never twice in the same words."""
    about, texts = place_of(task.event.narrative)._asdict(), dialogue_texts()
    listening, recalls = Deck(rng, texts.listening), Deck(rng, texts.recalls)
    advice, questions = Deck(rng, texts.advice), Deck(rng, texts.questions)
    leads, tails, pauses = Deck(rng, texts.leads), Deck(rng, texts.tails), Deck(rng, texts.pauses)
    answered: set[str] = set()
    for number, sentences in enumerate(said):
        if number == 0:
            first = rng.choice(texts.first_words).format(**about)
        else:
            first = leads.draw() if sentences else pauses.draw()
        closing = number == len(said) - 1
        last = rng.choice(texts.farewells) if closing else tails.draw() if sentences else ""
        user = " ".join(filter(None, (first, *sentences, last)))
        if closing:
            yield Exchange(user=user, assistant=rng.choice(texts.closing_replies))
            return
        heard = [keyword for keyword in keywords[number] if keyword in user]
        answer = ""
        while not answer or answer in answered:  # decks that have been through may meet again in the same cards
            recall = recalls.draw().format(keyword=rng.choice(heard)) if heard else ""
            answer = " ".join(filter(None, (listening.draw(), recall, advice.draw(), questions.draw())))
        answered.add(answer)
        yield Exchange(user=user, assistant=answer)
