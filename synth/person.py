"""One person: the graph of its units, and what each is told; stage 3 is in `synth.memories`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from deltamem.memory import Event
from synth.assembly import Relatedness, labelled_sessions
from synth.author import Account, Author, last_violations
from synth.cards import Cards
from synth.config import Demands, Shape
from synth.demands import is_newcomer, plan_asides, plan_facts
from synth.memories import Memories, briefs
from synth.names import NameSource
from synth.planning import draft_categories, draft_dynamic, draft_fixed, plan_events
from synth.records import (
    Aside,
    EventSlot,
    FactChange,
    FactPlan,
    LifeEvent,
    PastEvent,
    Person,
    Persona,
    Preferences,
    Profile,
    StateDelta,
    SynthSession,
    Track,
    TrackedFact,
    Voice,
)
from synth.tasks import (
    DialogueTask,
    DynamicTask,
    Events,
    EventsTask,
    Filling,
    FixedTask,
    InitialTask,
    KnownFact,
    Observer,
    PreferencesTask,
    RuleViolation,
    Task,
    Unit,
    Writer,
)
from synth.validators import judge_answer, judge_life
from synth.validators.base import Similarity
from synth.validators.session import judge_session

_FIRST_DAY = datetime(2026, 1, 1)
"""Events are later (paper, prompt appendix)."""
_START_DAYS = 90
_FIRST_HOUR, _LAST_HOUR = 8, 22
_MOST_BACKGROUND = 20
"""Memories that a dialogue is told of besides its facts: job, health, tastes, as far as they bear on the event."""


async def write_person(
    number: int,
    persona: Persona,
    writer: Writer,
    shape: Shape,
    names: NameSource,
    *,
    sessions: int,
    seed: int,
    similarity: Similarity | None = None,
    observer: Observer | None = None,
    cards: Cards | None = None,
) -> Person:
    """Write everything of one person (paper, algorithm 1).

    Args:
        number: Of the person; the lower, the earlier its units are asked for.
        persona: The seed.
        writer: Answers the units.
        shape: All sizes.
        names: Where names come from.
        sessions: How many events and sessions.
        seed: What the program draws from, with the person's id.
        similarity: Finds filling facts that repeat others in other words; None compares words only.
        observer: Told of each unit when it is done.
        cards: Topics of events and voices of users are drawn from these; None leaves them to the writer.

    Returns:
        The person, with what was rejected named. A rejected profile, or a rejected life of events, rejects the person.

    Raises:
        DeltaMemError: If the writer gets no answer at all for a unit; the person's other units are cancelled.
    """
    author = Author(number, persona, writer, shape, seed=seed, observer=observer, cards=cards)
    person = await _stages(author, Person(persona=persona), names, sessions, similarity)
    return person.model_copy(update=author.account.record())


async def _stages(author: Author, person: Person, names: NameSource, count: int, similarity: Similarity | None) -> Person:
    initial_plans: tuple[FactPlan, ...] = ()
    if isinstance(plan := author.shape.plan, Demands):
        rng, total = author.rng("initial"), author.shape.initial.total
        initial_plans = plan_facts(rng, plan, rng.randint(total.min, total.max), initial=True)
    profile = await _profile(author, names, initial_plans)
    if profile is None:
        return person
    slots = plan_events(author.rng("timeline"), author.shape, profile.start, count, profile.initial)
    if author.cards is not None:
        slots = author.cards.with_topics(slots, author.rng("topics"))
    person = person.model_copy(update={"profile": profile, "slots": slots})
    lived = await _events(author, profile, slots)
    if lived is None:
        return person
    slots, events = lived
    person = person.model_copy(update={"slots": slots, "events": events})
    verdict = judge_life(person, author.shape)
    author.account.judged(verdict)
    if verdict.violations:
        author.account.reject(Unit.EVENTS, verdict.violations)
        return person.model_copy(update={"events": ()})
    memories = Memories(author, profile, slots, events, initial_plans)
    sessions = await memories.write(similarity)
    sessions = await _with_dialogues(author, profile, slots, events, memories.fillings, sessions)
    written = {"groups": memories.groups, "evolutions": memories.evolutions, "dropped": memories.dropped}
    return confirmed(author.account, person.model_copy(update={**written, "sessions": sessions}))


def drawn_start(rng: random.Random) -> datetime:
    """When the first memories of a person are known."""
    return _FIRST_DAY + timedelta(days=rng.randrange(_START_DAYS), hours=rng.randint(_FIRST_HOUR, _LAST_HOUR))


def bare_event(slot: EventSlot) -> LifeEvent:
    """What stands for an event where nothing happens but the talk of a session."""
    nothing: dict[str, Any] = {"valence": "neutral", "agency": "user_initiated", "serves_life_goal": False}
    nothing |= dict.fromkeys(("title", "narrative", "result", "emotion"), "")
    nothing |= dict.fromkeys(("participants", "grounding", "follow_ups", "changes"), ())
    return LifeEvent(index=slot.index, date=slot.not_before, domain=slot.domain, **nothing)


async def _profile(author: Author, names: NameSource, plans: tuple[FactPlan, ...]) -> Profile | None:
    """Stage 1: have the drafts of the program enriched part after part; None if one is rejected."""
    persona, shape = author.persona, author.shape
    limits = shape.profile
    rng = author.rng("start")
    start = drawn_start(rng)
    today = start.date()
    name, gender = names.person(author.number, persona.split)
    draft = draft_fixed(author.rng("fixed"), name, gender, today)
    fixed = await author.ask(FixedTask(persona=persona.seed, draft=draft))
    if fixed is None:
        return None
    rng, friends = author.rng("names"), [name]
    size = 1 + rng.randint(limits.relationships.min, limits.relationships.max)
    while len(friends) < size:
        other = names.other(rng, persona.split)
        if other not in friends:
            friends.append(other)
    sketch = draft_dynamic(author.rng("dynamic"), fixed, friends[1:], today)
    dynamic = await author.ask(DynamicTask(persona=persona.seed, fixed=fixed, today=today, draft=sketch, limits=limits))
    if dynamic is None:
        return None
    preferences: Preferences | None = Preferences(groups=())
    if limits.categories.max:
        categories = draft_categories(author.rng("categories"), limits)
        preferences = await author.ask(
            PreferencesTask(persona=persona.seed, fixed=fixed, dynamic=dynamic, categories=categories, limits=limits)
        )
    if preferences is None:
        return None
    told: dict[str, Any] = {"fixed": fixed, "dynamic": dynamic, "preferences": preferences}
    facts: tuple[TrackedFact, ...] = ()
    if shape.initial.total.max and not is_newcomer(author.number, shape.initial.newcomers, author.seed):
        initial = await author.ask(InitialTask(**told, counts=shape.initial, limits=shape.facts, plans=plans))
        if initial is None:
            return None
        facts = initial.facts
    return Profile(persona=persona, **told, start=start, initial=facts)


# --- events ----------------------------------------------------------------------------------------------------------------


async def _events(
    author: Author, profile: Profile, slots: Sequence[EventSlot]
) -> tuple[tuple[EventSlot, ...], tuple[LifeEvent, ...]] | None:
    """Stage 2: events in calls of a few slots, each call told of all events before it; idle slots have no call.

    An event that stays wrong to the last repair costs neither the person nor the events before it, which are kept. It is
    planned anew without its changes, because most rules are about these and nothing that follows can depend on changes that
    were never made, and is written alone. Only an event that fails even so rejects the person. Returns the slots as they
    were planned in the end, and their events; None if the person is rejected.
    """
    left, done = [slot for slot in slots if not slot.idle], [slot for slot in slots if slot.idle]
    bare = [bare_event(slot) for slot in done]
    events: list[LifeEvent] = []
    size = author.shape.events_per_call
    for place in itertools.count():
        if not left:
            in_order = sorted(zip(done, (*bare, *events), strict=True), key=lambda pair: pair[0].index)
            return tuple(slot for slot, _ in in_order), tuple(event for _, event in in_order)
        task = EventsTask(
            fixed=profile.fixed,
            dynamic=profile.dynamic,
            preferences=profile.preferences,
            facts=_known_facts(profile, events),
            past=briefs(events),
            names=_known_names(profile, events),
            slots=tuple(left[:size]),
            limits=author.shape.events,
            fact_limits=author.shape.facts,
        )
        written = await author.attempt(task, place)
        sound = _sound_events(task, written.partial) if written.answer is None else written.answer.events
        events += sound
        done += left[: len(sound)]
        del left[: len(sound)]
        size = author.shape.events_per_call
        if written.answer is None:
            author.account.reject(Unit.EVENTS, last_violations(written), left[0].index)
            if len(task.slots) == 1 and not left[0].changes:
                return None
            left[0] = left[0].model_copy(update={"changes": (), "given_up": left[0].changes})
            size = 1
    raise AssertionError("unreachable")


def _known_facts(profile: Profile, events: Iterable[LifeEvent]) -> tuple[KnownFact, ...]:
    """All facts that hold after some events, which break no rule, and how often these have changed each."""

    def known(fact: TrackedFact | StateDelta, updates: int) -> KnownFact:
        return KnownFact(text=fact.text, keywords=fact.keywords, track=fact.track, subject=fact.subject, updates=updates)

    facts = [known(fact, 0) for fact in profile.initial]
    for event in events:
        for delta in event.changes:
            if delta.change is FactChange.NEW:
                facts.append(known(delta, 0))
            else:
                place = next(place for place, fact in enumerate(facts) if fact.text == delta.previous_text)
                facts[place] = known(delta, facts[place].updates + 1)
    return tuple(facts)


def _known_names(profile: Profile, events: Iterable[LifeEvent]) -> tuple[str, ...]:
    """Full names of everybody who has been mentioned, the person first."""
    found = [profile.name, *(somebody.name for somebody in profile.dynamic.relationships)]
    found += [fact.subject for fact in profile.initial if fact.track is Track.RELATIONSHIP]
    for event in events:
        found += [participant.name for participant in event.participants]
        found += [delta.subject for delta in event.changes if delta.track is Track.RELATIONSHIP]
    return tuple(dict.fromkeys(name for name in found if name))


def _sound_events(task: EventsTask, answer: Events | None) -> tuple[LifeEvent, ...]:
    """The longest beginning of an answer that keeps the rules; what it leaves is not all of the task."""
    events = () if answer is None else answer.events
    for count in range(min(len(events), len(task.slots) - 1), 0, -1):
        part: Task[Any] = task.model_copy(update={"slots": task.slots[:count]})
        if not judge_answer(part, Events(events=events[:count])).violations:
            return events[:count]
    return ()


# --- dialogues -------------------------------------------------------------------------------------------------------------


async def _with_dialogues(
    author: Author,
    profile: Profile,
    slots: Sequence[EventSlot],
    events: Sequence[LifeEvent],
    fillings: Sequence[Filling | None],
    sessions: Sequence[SynthSession],
) -> tuple[SynthSession, ...]:
    """Stage 4: the dialogues of all sessions that have something to tell."""
    first_said: dict[str, int] = {}
    held = {fact.text: fact.keywords for fact in profile.initial}
    plan = author.shape.plan
    related = Relatedness(profile.name)
    tasks = []
    for slot, event, filling, session in zip(slots, events, fillings, sessions, strict=True):
        past = _mentionable(session, events, first_said, author.shape.past_events)
        first_said.update((fact.text, session.index) for fact in session.facts if fact.event is not Event.NONE)
        asides: tuple[Aside, ...] = ()
        if isinstance(plan, Demands):
            rng = author.rng(f"asides/{slot.index}")
            asides = plan_asides(rng, plan, profile.name, session.facts, held, idle=slot.idle)
        known = _background(event, session, tuple(held), related)
        for fact in session.facts:
            held.pop(fact.previous_text, None)
        held.update((fact.text, fact.keywords) for fact in session.facts)
        if filling is None and not slot.idle:
            continue
        if not session.facts and not slot.idle:
            message = f"session {session.index} has no fact that is not remembered already"
            author.account.reject(Unit.DIALOGUE, [RuleViolation("session.some_fact", message)], session.index)
            continue
        voice = Voice()
        if author.cards is not None:
            guests = [participant.name for participant in event.participants]
            voice = author.cards.voice(author.rng("voice"), author.rng(f"voice/{event.index}"), guests)
        task = DialogueTask(
            fixed=profile.fixed,
            today=session.time.date(),
            goal=session.goal,
            summary=session.summary,
            past=past,
            event=event,
            facts=tuple(sorted(session.facts, key=lambda fact: int(fact.id[1:]))),
            limits=author.shape.dialogue,
            asides=asides,
            known=known,
            voice=voice,
        )
        tasks.append((session.index, task))
    dialogues = await author.ask_all(tasks)
    return tuple(session.model_copy(update={"dialogue": dialogues.get(session.index)}) for session in sessions)


def _background(event: LifeEvent, session: SynthSession, held: Sequence[str], related: Relatedness) -> tuple[str, ...]:
    """What a dialogue is told of the person as they are now: memories close to the event that the session leaves alone."""
    own = {text for fact in session.facts for text in (fact.text, fact.previous_text)}
    free = [text for text in held if text not in own]
    closest = related.ranked(free, [event.title, event.narrative, *own])
    chosen = set(dict.fromkeys([*closest, *free][:_MOST_BACKGROUND]))
    return tuple(text for text in free if text in chosen)


def _mentionable(
    session: SynthSession, events: Sequence[LifeEvent], first_said: dict[str, int], most: int
) -> tuple[PastEvent, ...]:
    """The earlier events that a dialogue may mention.

    They are the latest `most`, and as many others from which updated and repeated memories come, by the session in which
    each text was first remembered.
    """
    latest = range(max(0, session.index - most), session.index)
    changed = [fact.previous_text for fact in session.facts if fact.event is not Event.ADD]
    sources = {first_said[text] for text in changed if text in first_said}
    older = sorted(sources.difference(latest))[-most:] if most else []
    return briefs([events[index] for index in (*older, *latest)])


def confirmed(account: Account, person: Person) -> Person:
    """Reject the sessions that break a rule as a whole, because they must not be trained on.

    Those that keep the rules are counted when they are judged together with the other sessions (`synth.output`).
    """
    wrong = set()
    for labelled in labelled_sessions(person):
        verdict = judge_session(labelled)
        if verdict.violations:
            account.judged(verdict)
            account.reject(Unit.DIALOGUE, verdict.violations, labelled.session_index)
            wrong.add(labelled.session_index)
    sessions = (
        session.model_copy(update={"dialogue": None}) if session.index in wrong else session for session in person.sessions
    )
    return person.model_copy(update={"sessions": tuple(sessions)})
