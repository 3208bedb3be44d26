"""One person: the graph of its units, what each is told, and how they are asked for."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from deltamem.memory import Event
from deltamem.text import normalised
from synth.assembly import Due, Relatedness, assemble, dues, hold, labelled_sessions
from synth.config import Range, Shape
from synth.names import NameSource
from synth.planning import draft_categories, draft_dynamic, draft_fixed, plan_events, scaled
from synth.records import (
    Change,
    EventGroup,
    EventSlot,
    Evolution,
    LifeEvent,
    Person,
    Persona,
    Preferences,
    Profile,
    Rejection,
    StateDelta,
    SynthSession,
    Track,
    TrackedFact,
    UnitUsage,
)
from synth.tasks import (
    AnswerT,
    DialogueTask,
    DynamicTask,
    EventsTask,
    EvolutionTask,
    Filling,
    FillingTask,
    FixedTask,
    InitialTask,
    KnownFact,
    LinksTask,
    Observer,
    PastEvent,
    PreferencesTask,
    Task,
    Unit,
    UnitId,
    UnitResult,
    Verdict,
    Violation,
    Writer,
)
from synth.validators import judge_life
from synth.validators.base import Similarity
from synth.validators.session import judge_session


class Account:
    """Counts units as they are done; what it tells does not depend on the order in which they were."""

    def __init__(self) -> None:
        self._checked: Counter[str] = Counter()
        self._violations: Counter[str] = Counter()
        self._usage: defaultdict[Unit, Counter[str]] = defaultdict(Counter)
        self._rejected: list[tuple[int, int, Rejection]] = []

    def take(self, unit: Unit, written: UnitResult[Any], place: int | None = None) -> None:
        """Count a unit, and name it among the rejections if it has no answer; see `reject` for `place`."""
        for verdict in written.verdicts:
            self.judged(verdict)
        self._usage[unit].update(
            units=1,
            attempts=len(written.verdicts),
            rejected=int(written.answer is None),
            prompt_tokens=written.prompt_tokens,
            completion_tokens=written.completion_tokens,
            reasoning_tokens=written.reasoning_tokens,
        )
        if written.answer is None:
            self.reject(unit, written.verdicts[-1].violations if written.verdicts else (), place)

    def judged(self, verdict: Verdict) -> None:
        """Count what one answer, or one finished whole, was checked for and has broken."""
        self._checked.update(set(verdict.checked))
        self._violations.update({violation.rule for violation in verdict.violations})

    def reject(self, unit: Unit, violations: Sequence[Violation], place: int | None = None) -> None:
        """Name something that is given up, with the rules that it breaks.

        Args:
            unit: Its kind.
            violations: What is wrong with it.
            place: Which one of the person's; None where there is only one.
        """
        rules = tuple(dict.fromkeys(violation.rule for violation in violations))
        reasons = tuple(violation.message for violation in violations)
        where = "" if place is None else str(place)
        order = (tuple(Unit).index(unit), -1 if place is None else place)
        self._rejected.append((*order, Rejection(unit=unit, where=where, rules=rules, reasons=reasons)))

    def record(self) -> dict[str, Any]:
        """The account as fields of a `Person`: rules by name, units and rejections in the order of a person's life."""
        return {
            "rejections": tuple(rejection for *_, rejection in sorted(self._rejected, key=lambda item: item[:2])),
            "checked": dict(sorted(self._checked.items())),
            "violations": dict(sorted(self._violations.items())),
            "usage": {unit.value: UnitUsage(**self._usage[unit]) for unit in Unit if unit in self._usage},
        }


_PARALLEL = (Unit.EVOLUTION, Unit.FILLING, Unit.DIALOGUE)
_STEPS = 1_000
"""More than a person has units of one kind."""


class Author:
    """Asks a writer for the units of one person, and keeps account of what became of them."""

    def __init__(
        self,
        number: int,
        persona: Persona,
        writer: Writer,
        shape: Shape,
        *,
        seed: int,
        observer: Observer | None = None,
    ) -> None:
        """Start an empty account; see `write_person`."""
        self.number = number
        self.persona = persona
        self.shape = shape
        self.seed = seed
        self.account = Account()
        self._writer = writer
        self._observer = observer

    def rng(self, what: str) -> random.Random:
        """A generator of its own for each thing that the program draws, so that none depends on how often another drew."""
        return random.Random(f"{self.seed}/{self.persona.person_id}/{what}")

    async def ask(self, task: Task[AnswerT], place: int | None = None) -> AnswerT | None:
        """Have a unit written, at a place if there are several of its kind; None if it is rejected."""
        unit, index = task.unit, place or 0
        # Of units that run at the same time, those of earlier sessions come first.
        step = _STEPS * tuple(Unit).index(unit) + (_STEPS - 1 - index if unit in _PARALLEL else index)
        written = await self._writer.write(task, UnitId(self.number, step, f"{self.persona.person_id}/{unit}/{index}"))
        self.account.take(unit, written, place)
        if self._observer is not None:
            self._observer(unit, written)
        return written.answer

    async def ask_all(self, tasks: Iterable[tuple[int, Task[AnswerT]]]) -> dict[int, AnswerT | None]:
        """Have several units written at the same time; the answers come by place, in the order of the tasks.

        Raises:
            DeltaMemError: If no answer can be got for one of them; the others are cancelled.
        """
        try:
            async with asyncio.TaskGroup() as group:
                running = {place: group.create_task(self.ask(task, place)) for place, task in tasks}
        except BaseExceptionGroup as errors:
            # One person's failure is one error: the first.
            raise errors.exceptions[0] from None
        return {place: task.result() for place, task in running.items()}


MOST_EXISTING = 60
"""Facts that a filling task is told of: about as many as the initial facts, deltas and threads of 25 events."""


def known_facts(profile: Profile, events: Iterable[LifeEvent]) -> tuple[KnownFact, ...]:
    """All facts that hold after some events, which break no rule, and how often these have changed each."""
    facts = [_known(fact, 0) for fact in profile.initial]
    for event in events:
        for delta in event.changes:
            if delta.change is Change.NEW:
                facts.append(_known(delta, 0))
            else:
                place = next(place for place, fact in enumerate(facts) if fact.text == delta.previous_text)
                facts[place] = _known(delta, facts[place].updates + 1)
    return tuple(facts)


def _known(fact: TrackedFact | StateDelta, updates: int) -> KnownFact:
    return KnownFact(text=fact.text, keywords=fact.keywords, track=fact.track, subject=fact.subject, updates=updates)


def known_names(profile: Profile, events: Iterable[LifeEvent]) -> tuple[str, ...]:
    """Full names of everybody who has been mentioned, the person first."""
    found = [profile.name, *(somebody.name for somebody in profile.dynamic.relationships)]
    found += [fact.subject for fact in profile.initial if fact.track is Track.RELATIONSHIP]
    for event in events:
        found += [participant.name for participant in event.participants]
        found += [delta.subject for delta in event.changes if delta.track is Track.RELATIONSHIP]
    return tuple(dict.fromkeys(name for name in found if name))


def briefs(events: Sequence[LifeEvent], most: int | None = None) -> tuple[PastEvent, ...]:
    """Events as later units are told of them; of more than `most`, the latest."""
    begin = 0 if most is None else max(0, len(events) - most)
    return tuple(PastEvent.of(event) for event in events[begin:])


def existing(event: LifeEvent, changes: Sequence[Due], held: Sequence[str], related: Relatedness) -> tuple[str, ...]:
    """What is remembered already when the filling of an event is written.

    Returns:
        The texts of its changes, then what held before it; of more than `MOST_EXISTING`, those closest to the event.
    """
    new = [change.text for change in changes]
    room = MOST_EXISTING - len(new)
    if len(held) > room:
        ranked = related.ranked(held, [event.title, event.narrative, *new])
        # Those that share nothing with the event fill up what room is left.
        closest = set(dict.fromkeys([*ranked, *held][:room]))
        held = [text for text in held if text in closest]
    return (*new, *held)


def mentionable(
    session: SynthSession, events: Sequence[LifeEvent], told: dict[str, int], most: int
) -> tuple[PastEvent, ...]:
    """The earlier events that a dialogue may mention.

    They are the latest `most`, and as many others from which updated and repeated memories come, by the session in which
    each text was first remembered (`told`).
    """
    latest = range(max(0, session.index - most), session.index)
    sources = {
        told[fact.previous_text] for fact in session.facts if fact.event is not Event.ADD and fact.previous_text in told
    }
    older = sorted(sources.difference(latest))[-most:] if most else []
    return briefs([events[index] for index in (*older, *latest)])


_FIRST_DAY = datetime(2026, 1, 1)
"""Events are later (paper, prompt appendix)."""
_START_DAYS = 90
_FIRST_HOUR, _LAST_HOUR = 8, 22


async def write_profile(author: Author, names: NameSource) -> Profile | None:
    """Have the drafts of the program enriched part after part; None if one is rejected."""
    persona, shape = author.persona, author.shape
    limits = shape.profile
    rng = author.rng("start")
    start = _FIRST_DAY + timedelta(days=rng.randrange(_START_DAYS), hours=rng.randint(_FIRST_HOUR, _LAST_HOUR))
    today = start.date()
    name, gender = names.person(author.number, persona.split)
    draft = draft_fixed(author.rng("fixed"), name, gender, today)
    fixed = await author.ask(FixedTask(persona=persona.seed, draft=draft))
    if fixed is None:
        return None
    friends = _friends(author, name, names)
    sketch = draft_dynamic(author.rng("dynamic"), fixed, friends, today)
    dynamic = await author.ask(DynamicTask(persona=persona.seed, fixed=fixed, today=today, draft=sketch, limits=limits))
    if dynamic is None:
        return None
    preferences = Preferences(groups=())
    if limits.categories.max:
        categories = draft_categories(author.rng("categories"), limits)
        tastes = await author.ask(
            PreferencesTask(persona=persona.seed, fixed=fixed, dynamic=dynamic, categories=categories, limits=limits)
        )
        if tastes is None:
            return None
        preferences = tastes
    facts: tuple[TrackedFact, ...] = ()
    if shape.initial.total.max and author.rng("newcomer").random() >= shape.initial.newcomers:
        initial = await author.ask(
            InitialTask(fixed=fixed, dynamic=dynamic, preferences=preferences, counts=shape.initial, limits=shape.facts)
        )
        if initial is None:
            return None
        facts = initial.facts
    return Profile(persona=persona, fixed=fixed, dynamic=dynamic, preferences=preferences, start=start, initial=facts)


def _friends(author: Author, name: str, names: NameSource) -> list[str]:
    """Names for the relationships of the start, no two the same."""
    rng, limits = author.rng("names"), author.shape.profile.relationships
    found = [name]
    size = 1 + rng.randint(limits.min, limits.max)
    while len(found) < size:
        other = names.other(rng, author.persona.split)
        if other not in found:
            found.append(other)
    return found[1:]


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
    person = await _stages(author, Person(persona=persona), names, sessions, similarity)
    return person.model_copy(update=author.account.record())


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
