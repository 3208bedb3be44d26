"""Stage 3 of a person: memories that evolve over linked events, further facts of every event, changes of known memories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from deltamem.memory import Event
from deltamem.text import normalised
from synth.assembly import Due, Relatedness, held_at_first, hold, revision_dues, session_day
from synth.author import Author
from synth.config import Demands, Range
from synth.demands import Candidate, Chain, RevisionPlanner, plan_facts, wanted_updates
from synth.planning import scaled
from synth.records import (
    EventGroup,
    EventSlot,
    Evolution,
    Fact,
    FactPlan,
    LifeEvent,
    Origin,
    PastEvent,
    PlannedRevision,
    Profile,
)
from synth.tasks import EvolutionTask, Filling, FillingTask, LinksTask, RevisionTask, Unit, Violation

MOST_EXISTING = 60
"""Facts that a filling task is told of: about as many as the initial facts, deltas and threads of 25 events."""


def briefs(events: Sequence[LifeEvent]) -> tuple[PastEvent, ...]:
    """Events as later units are told of them; those of idle sessions are left out."""
    return tuple(PastEvent.of(event) for event in events if event.title or event.narrative)


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


async def write_threads(author: Author, profile: Profile, events: Sequence[LifeEvent]) -> list[tuple[EventGroup, Evolution]]:
    """First part: link events, and let one memory evolve over each group."""
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


def filling_plans(author: Author, slots: Sequence[EventSlot]) -> list[tuple[FactPlan, ...]]:
    """The plans of the further facts of every event; nothing where facts are not planned."""
    plan, count = author.shape.plan, author.shape.filling
    if not isinstance(plan, Demands):
        return [()] * len(slots)
    found = []
    for slot in slots:
        rng = author.rng(f"filling/{slot.index}")
        found.append(() if slot.idle else plan_facts(rng, plan, rng.randint(count.min, count.max)))
    return found


async def write_fillings(
    author: Author,
    profile: Profile,
    slots: Sequence[EventSlot],
    events: Sequence[LifeEvent],
    certain: Mapping[int, Sequence[Due]],
    plans: Sequence[tuple[FactPlan, ...]],
) -> list[Filling | None]:
    """Second part: the further facts of every event; None for an idle one."""
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


async def write_revisions(
    author: Author,
    profile: Profile,
    slots: Sequence[EventSlot],
    events: Sequence[LifeEvent],
    certain: Mapping[int, tuple[Due, ...]],
    further: Sequence[tuple[Due, ...]],
    initial: Sequence[FactPlan],
) -> Mapping[int, tuple[Due, ...]]:
    """Third part: let known memories change until UPDATEs have their share; returns `certain` with them."""
    plan = author.shape.plan
    if not isinstance(plan, Demands):
        return certain
    rng = author.rng("revisions")
    load = Counter({index: sum(change.event is Event.UPDATE for change in changes) for index, changes in certain.items()})
    additions = sum(map(len, certain.values())) - load.total() + sum(map(len, further))
    days = {slot.index: session_day(event, slot) for slot, event in zip(slots, events, strict=True) if not slot.idle}
    candidates = _candidates(profile, initial, certain, further)
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
