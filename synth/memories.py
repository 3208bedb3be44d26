"""Stage 3 of a person: memories that evolve over linked events, further facts of every event, changes of known memories."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

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
    revision_dues,
    session_day,
)
from synth.author import Author
from synth.config import Demands, Range
from synth.demands import Candidate, RevisionPlanner, plan_facts, wanted_updates
from synth.planning import scaled
from synth.records import (
    EventGroup,
    EventSlot,
    Evolution,
    Fact,
    FactOrigin,
    FactPlan,
    LifeEvent,
    PastEvent,
    PlannedRevision,
    Profile,
    SynthSession,
)
from synth.tasks import EvolutionTask, Filling, FillingTask, LinksTask, RevisionTask, RuleViolation, Unit
from synth.validators.base import Similarity

MOST_EXISTING, MOST_CLOSE = 60, 12
"""Texts that a filling task is told of (about the initial facts, deltas and threads of 25 events), and a revision task."""


def briefs(events: Sequence[LifeEvent]) -> tuple[PastEvent, ...]:
    """Events as later units are told of them; those of idle sessions are left out."""
    return tuple(PastEvent.of(event) for event in events if event.title or event.narrative)


class Memories:
    """Writes what is remembered of a life; keeps threads and fillings, and how many facts were dropped."""

    def __init__(
        self,
        author: Author,
        profile: Profile,
        slots: Sequence[EventSlot],
        events: Sequence[LifeEvent],
        initial: Sequence[FactPlan],
    ) -> None:
        """Take stages 1 and 2, and the plans of the initial facts, if they were planned."""
        self._author, self._profile, self._slots, self._events, self._initial = author, profile, slots, events, initial
        self._related = Relatedness(profile.name)
        self.groups: tuple[EventGroup, ...] = ()
        self.evolutions: tuple[Evolution, ...] = ()
        self.fillings: list[Filling | None] = []
        self.dropped = 0

    async def write(self, similarity: Similarity | None) -> tuple[SynthSession, ...]:
        """Write all parts, and put them together to sessions without dialogues."""
        author, profile = self._author, self._profile
        threads = await self._threads()
        self.groups, self.evolutions = tuple(group for group, _ in threads), tuple(evolution for _, evolution in threads)
        certain = dues(self._events, self.groups, self.evolutions)
        plans = self._filling_plans()
        self.fillings = await self._fillings(certain, plans)
        parts = profile, certain, self.fillings, plans
        if similarity is None:
            further, self.dropped = further_facts(*parts)
        else:
            # Embedding takes long enough to hold up the answers to other people's units.
            further, self.dropped = await asyncio.to_thread(further_facts, *parts, similarity)
        revised = await self._revised(certain, further)
        lived = profile, self._slots, self._events, self.fillings, revised, further
        return assemble(*lived, author.shape, seed=author.seed, plans=self._initial)

    async def _threads(self) -> list[tuple[EventGroup, Evolution]]:
        """First part: link events, and let one memory evolve over each group."""
        author, profile = self._author, self._profile
        events = [event for event, slot in zip(self._events, self._slots, strict=True) if not slot.idle]
        sizes, wanted = author.shape.events_per_group, scaled(author.shape.groups, len(events))
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
        linked = [[by_index[index] for index in group.events] for group in links.groups]
        tasks = [
            EvolutionTask(
                fixed=profile.fixed,
                thread=group.thread,
                events=briefs(members),
                known=tuple(delta.text for event in members for delta in event.changes),
                limits=author.shape.facts,
            )
            for group, members in zip(links.groups, linked, strict=True)
        ]
        # Threads are told of their own events only and not of one another, so they may say what is remembered elsewhere.
        taken = {normalised(fact.text) for fact in profile.initial}
        taken.update(normalised(delta.text) for event in events for delta in event.changes)
        taken.update(normalised(event.memory.text) for event in events if event.memory is not None)
        threads = []
        for place, evolution in (await author.ask_all(enumerate(tasks))).items():
            group = links.groups[place]
            if evolution is None:
                continue
            if _all_new([memory.text for memory in evolution.memories], taken):
                threads.append((group, evolution))
            else:
                message = f"the memories of the thread {group.thread!r} repeat what is remembered elsewhere"
                author.account.reject(Unit.EVOLUTION, [RuleViolation("evolution.new_in_life", message)], place)
        return threads

    def _filling_plans(self) -> list[tuple[FactPlan, ...]]:
        """The plans of the further facts of every event; nothing where facts are not planned."""
        plan, count = self._author.shape.plan, self._author.shape.filling
        if not isinstance(plan, Demands):
            return [()] * len(self._slots)
        rngs = [self._author.rng(f"filling/{slot.index}") for slot in self._slots]
        return [
            () if slot.idle else plan_facts(rng, plan, rng.randint(count.min, count.max))
            for slot, rng in zip(self._slots, rngs, strict=True)
        ]

    async def _fillings(
        self, certain: Mapping[int, Sequence[Due]], plans: Sequence[tuple[FactPlan, ...]]
    ) -> list[Filling | None]:
        """Second part: the further facts of every event; None for an idle one."""
        shape = self._author.shape
        held = held_at_first(self._profile)
        tasks = []
        for slot, event, plan in zip(self._slots, self._events, plans, strict=True):
            if not slot.idle:
                planned = Range(min=len(plan), max=len(plan)) if isinstance(shape.plan, Demands) else shape.filling
                task = FillingTask(
                    fixed=self._profile.fixed,
                    past=briefs(self._events[: slot.index]),
                    event=event,
                    existing=self._existing(event, certain[slot.index], tuple(held)),
                    count=planned,
                    limits=shape.facts,
                    today=session_day(event, slot),
                    plans=plan,
                )
                tasks.append((slot.index, task))
            hold(held, certain[slot.index])
        answers = await self._author.ask_all(tasks)
        return [answers.get(slot.index) for slot in self._slots]

    def _existing(self, event: LifeEvent, changes: Sequence[Due], held: Sequence[str]) -> tuple[str, ...]:
        """What is remembered when the filling of an event is written: its changes, then what held before it.

        Of more than `MOST_EXISTING` texts those closest to the event; others fill up what room is left.
        """
        new = [change.text for change in changes]
        room = MOST_EXISTING - len(new)
        if len(held) > room:
            ranked = self._related.ranked(held, [event.title, event.narrative, *new])
            closest = set(dict.fromkeys([*ranked, *held][:room]))
            held = [text for text in held if text in closest]
        return (*new, *held)

    async def _revised(
        self, certain: Mapping[int, tuple[Due, ...]], further: Sequence[tuple[Due, ...]]
    ) -> Mapping[int, tuple[Due, ...]]:
        """Third part: let known memories change until UPDATEs have their share; returns `certain` with them."""
        author, events, plan = self._author, self._events, self._author.shape.plan
        if not isinstance(plan, Demands):
            return certain
        rng = author.rng("revisions")
        load = Counter({index: sum(due.event is Event.UPDATE for due in changes) for index, changes in certain.items()})
        additions = sum(map(len, certain.values())) - load.total() + sum(map(len, further))
        slots = zip(self._slots, events, strict=True)
        days = {slot.index: session_day(event, slot) for slot, event in slots if not slot.idle}
        planner = RevisionPlanner(rng, plan, self._candidates(certain, further), days, load)
        chains = planner.chains(wanted_updates(rng, plan, additions, load.total()))
        texts = [fact.text for fact in self._profile.initial]
        texts += [change.text for index in days for change in (*certain[index], *further[index])]
        tasks = []
        for chain in chains:
            own = [candidate.fact.text for candidate in chain.memories]
            others = [text for text in dict.fromkeys(texts) if text not in own]
            steps = tuple(
                PlannedRevision(
                    change=step.change,
                    signal=step.signal,
                    provenance=step.provenance,
                    dated=step.dated,
                    today=days[step.session],
                    event=PastEvent.of(events[step.session]),
                )
                for step in chain.steps
            )
            task = RevisionTask(
                fixed=self._profile.fixed,
                memories=tuple(candidate.fact for candidate in chain.memories),
                steps=steps,
                known=tuple(self._related.ranked(others, own)[:MOST_CLOSE]),
                limits=author.shape.facts,
            )
            tasks.append(task)
        # Revisions are not told of one another, so two of them may come to the same text.
        taken = {normalised(text) for text in texts}
        found = {index: list(changes) for index, changes in certain.items()}
        for place, revision in (await author.ask_all(enumerate(tasks))).items():
            if revision is None:
                continue
            if _all_new([fact.text for step in revision.steps for fact in step.facts], taken):
                for index, due in revision_dues(chains[place], revision, statement=place + 1):
                    found[index].append(due)
            else:
                message = f"a change of {chains[place].memories[0].fact.text!r} repeats what is remembered elsewhere"
                author.account.reject(Unit.REVISION, [RuleViolation("revision.new_in_life", message)], place)
        return {index: tuple(changes) for index, changes in found.items()}

    def _candidates(self, certain: Mapping[int, Sequence[Due]], further: Sequence[Sequence[Due]]) -> list[Candidate]:
        """The memories that may change: all but those of threads, which change by themselves."""

        def candidate(fact: Fact | Due, plan: FactPlan, session: int) -> Candidate:
            plain = Fact(text=fact.text, keywords=fact.keywords)
            return Candidate(plain, session, f"{session}/{plan.family}" if plan.family else "", plan.temporary)

        plans = [*self._initial, *[FactPlan()] * len(self._profile.initial)]
        found = [candidate(fact, plan, -1) for fact, plan in zip(self._profile.initial, plans, strict=False)]
        for (index, changes), new in zip(certain.items(), further, strict=True):
            for due in (*changes, *new):
                if due.event is Event.ADD and due.origin is not FactOrigin.EVOLUTION:
                    found.append(candidate(due, due.plan, index))
        return found


def _all_new(texts: Sequence[str], taken: set[str]) -> bool:
    """Whether texts repeat neither what is taken nor one another; if so, they are taken from now on."""
    new = list(map(normalised, texts))
    if not taken.isdisjoint(new) or len(set(new)) < len(new):
        return False
    taken.update(new)
    return True
