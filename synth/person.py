"""One person: the graph of its units, what each is told, and how they are asked for."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from deltamem.memory import Event
from deltamem.text import normalised
from synth.assembly import (
    Due,
    Relatedness,
    assemble,
    dues,
    further_facts,
    held_at_first,
    hold,
    labelled_sessions,
    revision_dues,
    session_day,
)
from synth.cards import Cards
from synth.config import Demands, Range, Shape
from synth.demands import Candidate, Chain, RevisionPlanner, is_newcomer, plan_asides, plan_facts, wanted_updates
from synth.names import NameSource
from synth.planning import draft_categories, draft_dynamic, draft_fixed, plan_events, scaled
from synth.records import (
    Aside,
    Change,
    EventGroup,
    EventSlot,
    Evolution,
    Fact,
    FactPlan,
    LifeEvent,
    Origin,
    PastEvent,
    Person,
    Persona,
    PlannedRevision,
    Preferences,
    Profile,
    Rejection,
    StateDelta,
    SynthSession,
    Track,
    TrackedFact,
    UnitUsage,
    Voice,
)
from synth.tasks import (
    AnswerT,
    DialogueTask,
    DynamicTask,
    Events,
    EventsTask,
    EvolutionTask,
    Filling,
    FillingTask,
    FixedTask,
    InitialTask,
    KnownFact,
    LinksTask,
    Observer,
    PreferencesTask,
    RevisionTask,
    Task,
    Unit,
    UnitId,
    UnitResult,
    Verdict,
    Violation,
    Writer,
)
from synth.validators import judge_answer, judge_life
from synth.validators.base import Similarity
from synth.validators.session import judge_session


class Account:
    """Counts units as they are done; what it tells does not depend on the order in which they were."""

    def __init__(self) -> None:
        self._checked: Counter[str] = Counter()
        self._violations: Counter[str] = Counter()
        self._usage: defaultdict[Unit, Counter[str]] = defaultdict(Counter)
        self._rejected: list[tuple[int, int, Rejection]] = []

    def take(self, unit: Unit, written: UnitResult[Any]) -> None:
        """Count a unit and the reviews of it."""
        for review, result in written.reviews:
            self.take(review, result)
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


_PARALLEL = (Unit.EVOLUTION, Unit.FILLING, Unit.REVISION, Unit.DIALOGUE)
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
        cards: Cards | None = None,
    ) -> None:
        """Start an empty account; see `write_person`."""
        self.number = number
        self.persona = persona
        self.shape = shape
        self.seed = seed
        self.cards = cards
        self.account = Account()
        self._writer = writer
        self._observer = observer

    def rng(self, what: str) -> random.Random:
        """A generator of its own for each thing that the program draws, so that none depends on how often another drew."""
        return random.Random(f"{self.seed}/{self.persona.person_id}/{what}")

    async def ask(self, task: Task[AnswerT], place: int | None = None) -> AnswerT | None:
        """Have a unit written, at a place if there are several of its kind; None if it is rejected, which is then named."""
        written = await self.attempt(task, place)
        if written.answer is None:
            self.account.reject(task.unit, _last_violations(written), place)
        return written.answer

    async def attempt(self, task: Task[AnswerT], place: int | None = None) -> UnitResult[AnswerT]:
        """As `ask`, but what becomes of a unit without an answer is up to the caller."""
        unit, index = task.unit, place or 0
        # Of units that run at the same time, those of earlier sessions come first.
        step = _STEPS * tuple(Unit).index(unit) + (_STEPS - 1 - index if unit in _PARALLEL else index)
        written = await self._writer.write(task, UnitId(self.number, step, f"{self.persona.person_id}/{unit}/{index}"))
        self.account.take(unit, written)
        if self._observer is not None:
            for done in (*written.reviews, (unit, written)):
                self._observer(*done)
        return written

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


def _last_violations(written: UnitResult[Any]) -> tuple[Violation, ...]:
    return written.verdicts[-1].violations if written.verdicts else ()


MOST_EXISTING = 60
"""Facts that a filling task is told of: about as many as the initial facts, deltas and threads of 25 events."""


MOST_BACKGROUND = 20
"""Memories that a dialogue is told of besides its facts: job, health, tastes, as far as they bear on the event."""


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
    """Events as later units are told of them, those of idle sessions left out; of more than `most`, the latest."""
    told = [PastEvent.of(event) for event in events if event.title or event.narrative]
    return tuple(told if most is None else told[max(0, len(told) - most) :])


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


def background(event: LifeEvent, session: SynthSession, held: Sequence[str], related: Relatedness) -> tuple[str, ...]:
    """What a dialogue is told of the person as they are now: memories close to the event that the session leaves alone."""
    own = {text for fact in session.facts for text in (fact.text, fact.previous_text)}
    free = [text for text in held if text not in own]
    closest = related.ranked(free, [event.title, event.narrative, *own])
    chosen = set(dict.fromkeys([*closest, *free][:MOST_BACKGROUND]))
    return tuple(text for text in free if text in chosen)


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
    if shape.initial.total.max and not _newcomer(author):
        initial = await author.ask(
            InitialTask(
                fixed=fixed,
                dynamic=dynamic,
                preferences=preferences,
                counts=shape.initial,
                limits=shape.facts,
                plans=initial_plans(author),
            )
        )
        if initial is None:
            return None
        facts = initial.facts
    return Profile(persona=persona, fixed=fixed, dynamic=dynamic, preferences=preferences, start=start, initial=facts)


def _newcomer(author: Author) -> bool:
    share = author.shape.initial.newcomers
    if isinstance(author.shape.plan, Demands):
        return is_newcomer(author.number, share, author.seed)
    return author.rng("newcomer").random() < share


def initial_plans(author: Author) -> tuple[FactPlan, ...]:
    """The plan of the initial facts, where facts are planned."""
    plan, total = author.shape.plan, author.shape.initial.total
    if not isinstance(plan, Demands):
        return ()
    rng = author.rng("initial")
    return plan_facts(rng, plan, rng.randint(total.min, total.max), initial=True)


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
    """Go through the stages, as far as none is rejected."""
    profile = await write_profile(author, names)
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
    threads = await _threads(author, profile, [event for event, slot in zip(events, slots, strict=True) if not slot.idle])
    groups, evolutions = tuple(group for group, _ in threads), tuple(evolution for _, evolution in threads)
    certain = dues(events, groups, evolutions)
    plans = _filling_plans(author, slots)
    fillings = await _fillings(author, profile, slots, events, certain, plans)
    # Embedding takes long enough to hold up the answers to other people's units.
    further, dropped = await asyncio.to_thread(further_facts, profile, certain, fillings, plans, similarity)
    revised = await _revised(author, profile, slots, events, certain, further)
    sessions = assemble(
        profile, slots, events, fillings, revised, further, author.shape, seed=author.seed, plans=initial_plans(author)
    )
    sessions = await _with_dialogues(author, profile, slots, events, fillings, sessions)
    person = person.model_copy(update={"groups": groups, "evolutions": evolutions, "sessions": sessions, "dropped": dropped})
    return _confirmed(author, person)


async def _events(
    author: Author, profile: Profile, slots: Sequence[EventSlot]
) -> tuple[tuple[EventSlot, ...], tuple[LifeEvent, ...]] | None:
    """Stage 2: events in calls of a few slots, each call told of all events before it.

    An event that stays wrong to the last repair costs neither the person nor the events before it, which are kept. It is
    planned anew without its changes, because most rules are about these and nothing that follows can depend on changes that
    were never made, and is written alone. Only an event that fails even so rejects the person.

    Idle slots have no call.

    Returns:
        The slots as they were planned in the end, and their events; None if the person is rejected.
    """
    left, done = [slot for slot in slots if not slot.idle], [slot for slot in slots if slot.idle]
    bare = [_nothing_happens(slot) for slot in done]
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
            facts=known_facts(profile, events),
            past=briefs(events),
            names=known_names(profile, events),
            slots=tuple(left[:size]),
            limits=author.shape.events,
            fact_limits=author.shape.facts,
        )
        written = await author.attempt(task, place)
        sound = sound_events(task, written.partial) if written.answer is None else written.answer.events
        events += sound
        done += left[: len(sound)]
        del left[: len(sound)]
        size = author.shape.events_per_call
        if written.answer is None:
            author.account.reject(Unit.EVENTS, _last_violations(written), left[0].index)
            if len(task.slots) == 1 and not left[0].changes:
                return None
            left[0] = left[0].model_copy(update={"changes": (), "given_up": left[0].changes})
            size = 1
    raise AssertionError("unreachable")


def sound_events(task: EventsTask, answer: Events | None) -> tuple[LifeEvent, ...]:
    """The longest beginning of an answer that keeps the rules; what it leaves is not all of the task."""
    events = () if answer is None else answer.events
    for count in range(min(len(events), len(task.slots) - 1), 0, -1):
        part: Task[Any] = task.model_copy(update={"slots": task.slots[:count]})
        if not judge_answer(part, Events(events=events[:count])).violations:
            return events[:count]
    return ()


def _nothing_happens(slot: EventSlot) -> LifeEvent:
    """What stands for an event where a session is only chat."""
    return LifeEvent(
        index=slot.index,
        date=slot.not_before,
        domain=slot.domain,
        valence="neutral",
        agency="user_initiated",
        title="",
        narrative="",
        participants=(),
        grounding=(),
        result="",
        emotion="",
        follow_ups=(),
        serves_life_goal=False,
        changes=(),
    )


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
    by_index = {event.index: event for event in events}
    evolutions = await author.ask_all(
        (
            place,
            EvolutionTask(
                fixed=profile.fixed,
                thread=group.thread,
                events=briefs([by_index[index] for index in group.events]),
                known=tuple(delta.text for index in group.events for delta in by_index[index].changes),
                limits=author.shape.facts,
            ),
        )
        for place, group in enumerate(links.groups)
    )
    # Threads are told of their own events only and not of one another, so they may say what is remembered elsewhere.
    taken = {normalised(fact.text) for fact in profile.initial}
    taken.update(normalised(delta.text) for event in events for delta in event.changes)
    taken.update(normalised(event.memory.text) for event in events if event.memory is not None)
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


def _filling_plans(author: Author, slots: Sequence[EventSlot]) -> list[tuple[FactPlan, ...]]:
    """The plans of the further facts of every event; nothing where facts are not planned."""
    plan, count = author.shape.plan, author.shape.filling
    if not isinstance(plan, Demands):
        return [()] * len(slots)
    found = []
    for slot in slots:
        rng = author.rng(f"filling/{slot.index}")
        found.append(() if slot.idle else plan_facts(rng, plan, rng.randint(count.min, count.max)))
    return found


async def _fillings(
    author: Author,
    profile: Profile,
    slots: Sequence[EventSlot],
    events: Sequence[LifeEvent],
    certain: Mapping[int, Sequence[Due]],
    plans: Sequence[tuple[FactPlan, ...]],
) -> list[Filling | None]:
    """Stage 3, second part: the further facts of every event; None for an idle one."""
    if not author.shape.filling.max:
        return [None if slot.idle else Filling(goal="", summary="", facts=()) for slot in slots]
    planned = isinstance(author.shape.plan, Demands)
    related = Relatedness(profile.name)
    held = held_at_first(profile)
    tasks = []
    for slot, event, plan in zip(slots, events, plans, strict=True):
        task = FillingTask(
            fixed=profile.fixed,
            past=briefs(events[: slot.index]),
            event=event,
            existing=existing(event, certain[slot.index], tuple(held), related),
            count=Range(min=len(plan), max=len(plan)) if planned else author.shape.filling,
            limits=author.shape.facts,
            today=session_day(event, slot),
            plans=plan,
        )
        if not slot.idle:
            tasks.append((slot.index, task))
        hold(held, certain[slot.index])
    answers = await author.ask_all(tasks)
    return [answers.get(slot.index) for slot in slots]


async def _revised(
    author: Author,
    profile: Profile,
    slots: Sequence[EventSlot],
    events: Sequence[LifeEvent],
    certain: Mapping[int, tuple[Due, ...]],
    further: Sequence[tuple[Due, ...]],
) -> Mapping[int, tuple[Due, ...]]:
    """Stage 3, third part: let known memories change until UPDATEs have their share; returns `certain` with them."""
    plan = author.shape.plan
    if not isinstance(plan, Demands):
        return certain
    rng = author.rng("revisions")
    load = Counter({index: sum(change.event is Event.UPDATE for change in changes) for index, changes in certain.items()})
    additions = sum(map(len, certain.values())) - load.total() + sum(map(len, further))
    days = {slot.index: session_day(event, slot) for slot, event in zip(slots, events, strict=True) if not slot.idle}
    candidates = _candidates(profile, initial_plans(author), certain, further)
    planner = RevisionPlanner(rng, plan, candidates, days, load)
    chains = planner.chains(wanted_updates(rng, plan, additions, load.total()))
    related = Relatedness(profile.name)
    texts = [fact.text for fact in profile.initial]
    texts += [change.text for index in days for change in (*certain[index], *further[index])]
    revisions = await author.ask_all(
        (
            place,
            RevisionTask(
                fixed=profile.fixed,
                memories=tuple(candidate.fact for candidate in chain.memories),
                steps=tuple(
                    PlannedRevision(
                        change=step.change,
                        signal=step.signal,
                        provenance=step.provenance,
                        dated=step.dated,
                        today=days[step.session],
                        event=PastEvent.of(events[step.session]),
                    )
                    for step in chain.steps
                ),
                known=close_texts(chain, texts, related),
                limits=author.shape.facts,
            ),
        )
        for place, chain in enumerate(chains)
    )
    # Revisions are not told of one another, so two of them may come to the same text.
    taken = {normalised(text) for text in texts}
    found = {index: list(changes) for index, changes in certain.items()}
    for place, revision in revisions.items():
        if revision is None:
            continue
        new = [normalised(fact.text) for step in revision.steps for fact in step.facts]
        if taken.isdisjoint(new) and len(set(new)) == len(new):
            taken.update(new)
            for index, due in revision_dues(chains[place], revision, statement=place + 1):
                found[index].append(due)
        else:
            message = f"a change of {chains[place].memories[0].fact.text!r} repeats what is remembered elsewhere"
            author.account.reject(Unit.REVISION, [Violation("revision.new_in_life", message)], place)
    return {index: tuple(changes) for index, changes in found.items()}


def _candidates(
    profile: Profile,
    initial: Sequence[FactPlan],
    certain: Mapping[int, Sequence[Due]],
    further: Sequence[Sequence[Due]],
) -> list[Candidate]:
    """The memories that may change: all but those of threads, which change by themselves."""
    plans = [*initial, *[FactPlan()] * len(profile.initial)]
    found = [_candidate(fact, plan, -1) for fact, plan in zip(profile.initial, plans, strict=False)]
    for (index, changes), new in zip(certain.items(), further, strict=True):
        for due in (*changes, *new):
            if due.event is Event.ADD and due.origin is not Origin.EVOLUTION:
                found.append(_candidate(Fact(text=due.text, keywords=due.keywords), due.plan, index))
    return found


def _candidate(fact: Fact, plan: FactPlan, session: int) -> Candidate:
    plain = Fact(text=fact.text, keywords=fact.keywords)
    return Candidate(plain, session, f"{session}/{plan.family}" if plan.family else "", plan.temporary)


MOST_CLOSE = 12
"""Texts that a revision is told to keep clear of."""


def close_texts(chain: Chain, texts: Sequence[str], related: Relatedness) -> tuple[str, ...]:
    """What is remembered besides the memories of a chain, the closest first."""
    own = [candidate.fact.text for candidate in chain.memories]
    others = [text for text in dict.fromkeys(texts) if text not in own]
    return tuple(related.ranked(others, own)[:MOST_CLOSE])


async def _with_dialogues(
    author: Author,
    profile: Profile,
    slots: Sequence[EventSlot],
    events: Sequence[LifeEvent],
    fillings: Sequence[Filling | None],
    sessions: Sequence[SynthSession],
) -> tuple[SynthSession, ...]:
    """Stage 4: the dialogues of all sessions that have something to tell."""
    told: dict[str, int] = {}
    held = {fact.text: fact.keywords for fact in profile.initial}
    plan = author.shape.plan
    related = Relatedness(profile.name)
    tasks = []
    for slot, event, filling, session in zip(slots, events, fillings, sessions, strict=True):
        past = mentionable(session, events, told, author.shape.past_events)
        told.update((fact.text, session.index) for fact in session.facts if fact.event is not Event.NONE)
        asides: tuple[Aside, ...] = ()
        if isinstance(plan, Demands):
            asides = plan_asides(author.rng(f"asides/{slot.index}"), plan, session.facts, held, idle=slot.idle)
        known = background(event, session, tuple(held), related)
        for fact in session.facts:
            held.pop(fact.previous_text, None)
        held.update((fact.text, fact.keywords) for fact in session.facts)
        if filling is None and not slot.idle:
            continue
        if not session.facts and not slot.idle:
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
            facts=tuple(sorted(session.facts, key=lambda fact: int(fact.id[1:]))),
            limits=author.shape.dialogue,
            asides=asides,
            known=known,
            voice=_voice(author, event),
        )
        tasks.append((session.index, task))
    dialogues = await author.ask_all(tasks)
    return tuple(session.model_copy(update={"dialogue": dialogues.get(session.index)}) for session in sessions)


def _voice(author: Author, event: LifeEvent) -> Voice:
    if author.cards is None:
        return Voice()
    guests = [participant.name for participant in event.participants]
    return author.cards.voice(author.rng("voice"), author.rng(f"voice/{event.index}"), guests)


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
