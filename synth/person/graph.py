"""The graph of one person: which units are asked for, in which order, with what in their tasks.

Profile and events go one after the other, because each builds on the last; memory threads, filling and dialogues of all
events go in parallel. What the program draws in between (names, skeleton, plan) comes from the seed and the person's id. So
a person depends neither on other people nor on the order in which units get done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from deltamem.memory import Event
from deltamem.text.words import normalised
from synth.person.asking import Author
from synth.person.assembly import Relatedness, assemble, dues, hold, labelled_sessions
from synth.person.profile import write_profile
from synth.person.telling import briefs, existing, known_facts, known_names, mentionable
from synth.planning.names import NameSource
from synth.planning.scaling import scaled
from synth.planning.timeline import plan_events
from synth.records import (
    EventGroup,
    EventSlot,
    Evolution,
    LifeEvent,
    Person,
    Persona,
    Profile,
    SynthSession,
)
from synth.rules import Similarity, Violation, judge_life
from synth.rules.session import judge_session
from synth.shape import Range, Shape
from synth.tasks import (
    DialogueTask,
    EventsTask,
    EvolutionTask,
    Filling,
    FillingTask,
    LinksTask,
    Unit,
)
from synth.writing import Observer, Writer


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

    Returns:
        The person, with what was rejected named. A rejected profile, or a rejected life of events, rejects the person.

    Raises:
        DeltaMemError: If the writer gets no answer at all for a unit; the person's other units are cancelled.
    """
    author = Author(number, persona, writer, shape, seed=seed, observer=observer)
    person = Person(
        persona=persona,
        profile=None,
        slots=(),
        events=(),
        groups=(),
        evolutions=(),
        sessions=(),
        rejections=(),
        checked={},
        violations={},
        usage={},
    )
    person = await _stages(author, person, names, sessions, similarity)
    account = author.account
    return person.model_copy(
        update={
            "rejections": account.rejections,
            "checked": account.checked,
            "violations": account.violations,
            "usage": account.usage,
        }
    )


async def _stages(author: Author, person: Person, names: NameSource, count: int, similarity: Similarity | None) -> Person:
    """Go through the stages, as far as none is rejected."""
    profile = await write_profile(author, names)
    if profile is None:
        return person
    slots = plan_events(author.rng("timeline"), author.shape, profile.start, count, profile.initial)
    person = person.model_copy(update={"profile": profile, "slots": slots})
    events = await _events(author, profile, slots)
    if events is None:
        return person
    person = person.model_copy(update={"events": events})
    verdict = judge_life(person, author.shape)
    author.account.judged(verdict)
    if verdict.violations:
        author.account.reject(Unit.EVENTS, verdict.violations)
        return person.model_copy(update={"events": ()})
    threads = await _threads(author, profile, events)
    groups, evolutions = tuple(group for group, _ in threads), tuple(evolution for _, evolution in threads)
    fillings = await _fillings(author, profile, events, groups, evolutions)
    parts = (profile, slots, events, groups, evolutions, fillings, author.shape)
    if similarity is None:
        sessions, dropped = assemble(*parts, seed=author.seed)
    else:
        # Embedding takes long enough to hold up the answers to other people's units.
        sessions, dropped = await asyncio.to_thread(assemble, *parts, seed=author.seed, similarity=similarity)
    sessions = await _with_dialogues(author, profile, events, fillings, sessions)
    person = person.model_copy(update={"groups": groups, "evolutions": evolutions, "sessions": sessions, "dropped": dropped})
    return _confirmed(author, person)


async def _events(author: Author, profile: Profile, slots: Sequence[EventSlot]) -> tuple[LifeEvent, ...] | None:
    """Stage 2: events in calls of a few slots, each call told of all events before it."""
    size = author.shape.events_per_call
    calls = [tuple(slots[begin : begin + size]) for begin in range(0, len(slots), size)]
    events: list[LifeEvent] = []
    for place, call in enumerate(calls):
        task = EventsTask(
            fixed=profile.fixed,
            dynamic=profile.dynamic,
            preferences=profile.preferences,
            facts=known_facts(profile, events),
            past=briefs(events),
            names=known_names(profile, events),
            slots=call,
            limits=author.shape.events,
            fact_limits=author.shape.facts,
        )
        answer = await author.ask(task, place if len(calls) > 1 else None)
        if answer is None:
            return None
        events += answer.events
    return tuple(events)


async def _threads(author: Author, profile: Profile, events: Sequence[LifeEvent]) -> list[tuple[EventGroup, Evolution]]:
    """Stage 3, first part: link events, and let one memory evolve over each group."""
    sizes = author.shape.events_per_group
    wanted = scaled(author.shape.groups, len(events))
    most = min(wanted.max, len(events) // max(sizes.min, 2))
    if not most:
        return []
    links = await author.ask(
        LinksTask(
            name=profile.name,
            events=briefs(events),
            groups=Range(min=min(wanted.min, most), max=most),
            events_per_group=Range(min=sizes.min, max=min(sizes.max, len(events))),
        )
    )
    if links is None:
        return []
    evolutions = await author.ask_all(
        (
            place,
            EvolutionTask(
                fixed=profile.fixed,
                thread=group.thread,
                events=briefs([events[index] for index in group.events]),
                known=tuple(delta.text for index in group.events for delta in events[index].changes),
                limits=author.shape.facts,
            ),
        )
        for place, group in enumerate(links.groups)
    )
    # Threads are told of their own events only and not of one another, so they may say what is remembered elsewhere.
    taken = {normalised(fact.text) for fact in profile.initial}
    taken.update(normalised(delta.text) for event in events for delta in event.changes)
    threads = []
    for place, evolution in evolutions.items():
        if evolution is None:
            continue
        texts = [normalised(memory.text) for memory in evolution.memories]
        if taken.isdisjoint(texts) and len(set(texts)) == len(texts):
            taken.update(texts)
            threads.append((links.groups[place], evolution))
        else:
            message = f"the memories of the thread {links.groups[place].thread!r} repeat what is remembered elsewhere"
            author.account.reject(Unit.EVOLUTION, [Violation("evolution.new_in_life", message)], place)
    return threads


async def _fillings(
    author: Author,
    profile: Profile,
    events: Sequence[LifeEvent],
    groups: Sequence[EventGroup],
    evolutions: Sequence[Evolution],
) -> list[Filling | None]:
    """Stage 3, second part: the further facts of every event."""
    if not author.shape.filling.max:
        return [Filling(goal="", summary="", facts=())] * len(events)
    changes = dues(events, groups, evolutions)
    related = Relatedness(profile.name)
    held = {fact.text: fact.keywords for fact in profile.initial}
    tasks = []
    for place, event in enumerate(events):
        task = FillingTask(
            fixed=profile.fixed,
            past=briefs(events[:place], author.shape.past_events),
            event=event,
            existing=existing(event, changes[place], tuple(held), related),
            count=author.shape.filling,
            limits=author.shape.facts,
        )
        tasks.append((place, task))
        hold(held, changes[place])
    return list((await author.ask_all(tasks)).values())


async def _with_dialogues(
    author: Author,
    profile: Profile,
    events: Sequence[LifeEvent],
    fillings: Sequence[Filling | None],
    sessions: Sequence[SynthSession],
) -> tuple[SynthSession, ...]:
    """Stage 4: the dialogues of all sessions that have something to tell."""
    told: dict[str, int] = {}
    tasks = []
    for event, filling, session in zip(events, fillings, sessions, strict=True):
        past = mentionable(session, events, told, author.shape.past_events)
        told.update((fact.text, session.index) for fact in session.facts if fact.event is not Event.NONE)
        if filling is None:
            continue
        if not session.facts:
            message = f"session {session.index} has no fact that is not remembered already"
            author.account.reject(Unit.DIALOGUE, [Violation("session.some_fact", message)], session.index)
            continue
        task = DialogueTask(
            fixed=profile.fixed,
            today=session.time.date(),
            goal=session.goal,
            summary=session.summary,
            past=past,
            event=event,
            facts=session.facts,
            limits=author.shape.dialogue,
        )
        tasks.append((session.index, task))
    dialogues = await author.ask_all(tasks)
    return tuple(session.model_copy(update={"dialogue": dialogues.get(session.index)}) for session in sessions)


def _confirmed(author: Author, person: Person) -> Person:
    """Reject the sessions that break a rule as a whole, because they must not be trained on.

    Those that keep the rules are counted when they are judged together with the other sessions (`synth.output`).
    """
    wrong = set()
    for labelled in labelled_sessions(person):
        verdict = judge_session(labelled)
        if verdict.violations:
            author.account.judged(verdict)
            author.account.reject(Unit.DIALOGUE, verdict.violations, labelled.session_index)
            wrong.add(labelled.session_index)
    if not wrong:
        return person
    sessions = (
        session.model_copy(update={"dialogue": None}) if session.index in wrong else session for session in person.sessions
    )
    return person.model_copy(update={"sessions": tuple(sessions)})
