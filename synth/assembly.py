"""The program's part of stage 3: from deltas, memory threads and filling to the operations of each session; their replay.

An UPDATE always finds its memory: deltas change initial facts and the texts of earlier deltas, a thread changes its own
earlier text, and both happen whether or not the rest of their session was written.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from typing import Any, NamedTuple

from deltamem.memory import Event, Keyword, Memory, MemoryState, Operation, apply
from deltamem.sessions import Difficulty, LabelledSession, OperationDifficulty, Session, Signal, Turn
from deltamem.text import marked_words, normalised
from synth.config import Demands, Shape
from synth.demands import Chain, wanted_repeats
from synth.records import (
    EventGroup,
    EventSlot,
    Evolution,
    FactChange,
    FactOrigin,
    FactPlan,
    LifeEvent,
    Person,
    Profile,
    Revision,
    SessionFact,
    SynthSession,
)
from synth.tasks import Filling
from synth.validators.base import Similarity, keyword_origins, memory_stems, rivals

SAME_FACT = 0.92
"""Cosine similarity from which a filling fact repeats another one.

With all-MiniLM-L6-v2, paraphrases of such sentences lie at 0.90 to 0.97, and sentences that differ in a name or a thing lie
below 0.87. A repetition that stays does less harm than a fact that is lost.
"""

_FIRST_HOUR, _LAST_HOUR = 8, 22
_BEST = 3
"""Among how many of the memories closest to an event each repeated one is drawn."""


class Due(NamedTuple):
    """A change of the memory state that a session brings.

    `plan` and `signal` say how it comes up and shows; `misspoken`, `outdated`, `statement` are those of `SessionFact`. Later
    sessions may repeat a `lasting` memory: one that does not say that something has ended, or when it will.
    """

    event: Event
    text: str
    previous_text: str
    keywords: tuple[Keyword, ...]
    origin: FactOrigin
    plan: FactPlan = FactPlan()
    signal: Signal = "value"
    misspoken: str = ""
    outdated: tuple[str, ...] = ()
    statement: int = 0
    lasting: bool = True


def revision_dues(chain: Chain, revision: Revision, *, statement: int) -> Iterator[tuple[int, Due]]:
    """The changes that a revision makes, each with its session."""
    previous = [candidate.fact.text for candidate in chain.memories]
    for step, written in zip(chain.steps, revision.steps, strict=True):
        for place, fact in enumerate(written.facts):
            yield (
                step.session,
                Due(
                    Event.UPDATE,
                    fact.text,
                    previous[place],
                    fact.keywords,
                    FactOrigin.REVISION,
                    FactPlan(provenance=step.provenance, dated=step.dated),
                    step.signal,
                    fact.misspoken,
                    fact.outdated,
                    statement if len(chain.memories) > 1 else 0,
                    lasting=step.change not in (FactChange.RETRACT, FactChange.EXPIRE),
                ),
            )
            previous[place] = fact.text


class Held(NamedTuple):
    """What is known of a memory that holds: its keywords, how many times it has been changed, and `Due.lasting`."""

    keywords: tuple[Keyword, ...]
    chain: int
    lasting: bool


class Relatedness:
    """How much memories have to do with an event: the content stems that they share, the rare ones counting more."""

    def __init__(self, name: str) -> None:
        self._name = name

    def stems(self, text: str) -> frozenset[str]:
        """The content stems of a text, less the person's name."""
        return memory_stems(text, self._name)

    def ranked(self, texts: Sequence[str], about: Sequence[str]) -> list[str]:
        """The texts that share a stem with `about`, the closest first; equally close ones in their order."""
        known = [memory_stems(text, self._name) for text in texts]
        wanted = frozenset[str]().union(*map(self.stems, about))
        shared = [stems & wanted for stems in known]
        spread = Counter(itertools.chain.from_iterable(shared))
        weights = {stem: math.log((1 + len(texts)) / count) for stem, count in spread.items()}
        scores = []
        for place, stems in enumerate(shared):
            if stems:
                # Sorted, because the last bits of a sum depend on its order and that of a set on the process.
                score = sum([weights[stem] for stem in sorted(stems)])
                scores.append((-score / math.sqrt(len(known[place])), place))
        return [texts[place] for _, place in sorted(scores)]


def dues(
    events: Sequence[LifeEvent], groups: Sequence[EventGroup], evolutions: Sequence[Evolution]
) -> dict[int, tuple[Due, ...]]:
    """What each event changes for certain: itself, its deltas, then the memory threads that it belongs to."""
    found: dict[int, list[Due]] = {event.index: [] for event in events}
    for event in events:
        if event.memory is not None:
            found[event.index].append(Due(Event.ADD, event.memory.text, "", event.memory.keywords, FactOrigin.EVENT))
        for delta in event.changes:
            kind = Event.ADD if delta.change is FactChange.NEW else Event.UPDATE
            found[event.index].append(Due(kind, delta.text, delta.previous_text, delta.keywords, FactOrigin.DELTA))
    for group, evolution in zip(groups, evolutions, strict=True):
        previous = ""
        for index, memory in zip(group.events, evolution.memories, strict=True):
            kind = Event.UPDATE if previous else Event.ADD
            due = Due(kind, memory.text, previous, memory.keywords, FactOrigin.EVOLUTION)
            # A view that has changed is told with the one before it.
            found[index].append(due._replace(signal="explicit") if previous else due)
            previous = memory.text
    return {index: tuple(changes) for index, changes in found.items()}


def hold(held: dict[str, Held], changes: Sequence[Due]) -> None:
    """Bring the texts that hold up to date in place."""
    for change in changes:
        chain = held.pop(change.previous_text).chain + 1 if change.event is Event.UPDATE else 0
        if change.event is not Event.NONE:
            held[change.text] = Held(change.keywords, chain, change.lasting)


def held_at_first(profile: Profile, plans: Sequence[FactPlan] = ()) -> dict[str, Held]:
    """The texts that hold before the first session; `plans` are those of the initial facts, if they were planned."""
    temporary = {fact.text for fact, plan in zip(profile.initial, plans, strict=False) if plan.temporary}
    return {fact.text: Held(fact.keywords, 0, fact.text not in temporary) for fact in profile.initial}


def further_facts(
    profile: Profile,
    certain: Mapping[int, Sequence[Due]],
    fillings: Sequence[Filling | None],
    plans: Sequence[Sequence[FactPlan]],
    similarity: Similarity | None = None,
) -> tuple[list[tuple[Due, ...]], int]:
    """The facts of the fillings, without those that repeat something: the ADDs of each event, and how many were left out.

    A fact is left out if it repeats a fact of the life, earlier, later or outdated, or another filling fact: the same text
    once normalised, the same content stems and `marked_words`, or a similarity of `SAME_FACT` (not compared without a
    `similarity`). Siblings are alike on purpose; of a family only the same text is left out.
    """
    stems = Relatedness(profile.name).stems

    def shape(text: str) -> frozenset[str]:
        return stems(text) | marked_words(text)

    known = [fact.text for fact in profile.initial]
    known += [change.text for changes in certain.values() for change in changes]
    pairs = [
        [(fact, plan[place] if plan else FactPlan()) for place, fact in enumerate(filling.facts if filling else ())]
        for filling, plan in zip(fillings, plans, strict=True)
    ]
    offered = list(dict.fromkeys(fact.text for facts in pairs for fact, plan in facts if not plan.family))
    alike: dict[str, set[str]] = {}
    if similarity is not None and offered:
        # All are compared at once, because embedding is slow.
        others = [*offered, *known]
        for text, row in zip(offered, similarity.between(offered, others), strict=True):
            alike[text] = {other for other, score in zip(others, row, strict=True) if score >= SAME_FACT}
    texts, shapes = set(known), {normalised(text) for text in known} | {shape(text) for text in known}

    def new(text: str, plan: FactPlan) -> bool:
        """Whether a text repeats nothing that is known; if so, it is known from now on."""
        if normalised(text) in shapes:
            return False
        if not plan.family and (shape(text) in shapes or not texts.isdisjoint(alike.get(text, ()))):
            return False
        texts.add(text)
        shapes.update((normalised(text), shape(text)))
        return True

    found = [
        tuple(
            Due(
                Event.ADD,
                fact.text,
                "",
                fact.keywords,
                FactOrigin.FILLING,
                plan,
                misspoken=fact.misspoken,
                lasting=not plan.temporary,
            )
            for fact, plan in facts
            if new(fact.text, plan)
        )
        for facts in pairs
    ]
    return found, sum(map(len, pairs)) - sum(map(len, found))


def assemble(
    profile: Profile,
    slots: Sequence[EventSlot],
    events: Sequence[LifeEvent],
    fillings: Sequence[Filling | None],
    certain: Mapping[int, Sequence[Due]],
    further: Sequence[Sequence[Due]],
    shape: Shape,
    *,
    seed: int,
    plans: Sequence[FactPlan] = (),
) -> tuple[SynthSession, ...]:
    """Put the facts of every session together (paper, section 3.2, memory generation).

    `certain` is what each event changes whatever becomes of its filling (`dues`, and the revisions), `further` what the
    fillings add. A session whose filling was rejected (None) has neither filling nor repeated memories. There is one session
    an event, without a dialogue. In the shape ``demanding``, facts are numbered in the order of the story, but stand in
    another one.
    """
    related = Relatedness(profile.name)
    held = held_at_first(profile, plans)
    demanding = isinstance(shape.plan, Demands)
    reused = _repeats(profile, slots, fillings, certain, further, shape, seed)
    sessions = []
    previous = profile.start
    for slot, event, filling, new in zip(slots, events, fillings, further, strict=True):
        rng = random.Random(f"{seed}/{profile.persona.person_id}/session/{event.index}")
        previous = time = max(
            datetime.combine(session_day(event, slot), time_of_day(rng.randint(_FIRST_HOUR, _LAST_HOUR), rng.randrange(60))),
            previous + timedelta(minutes=1),
        )
        facts = list(certain[event.index])
        if filling is not None:
            updated = {change.previous_text for change in facts}
            free = [text for text, known in held.items() if known.lasting and text not in updated]
            count = reused[event.index]
            if count and shape.plan.kind == "quotas":
                about = [*(change.text for change in facts), *(fact.text for fact in new)]
                free = related.ranked(free, [event.title, event.narrative, *about])[: _BEST * count]
            repeated = rng.sample(free, min(count, len(free)))
            facts += [Due(Event.NONE, text, text, held[text].keywords, FactOrigin.REUSE) for text in repeated]
            facts = _mixed(rng, facts, new)
        bank = {text: related.stems(text) for text in held} if demanding else None
        numbered = [
            _session_fact(fact, f"f{number}", slot, held, related, bank) for number, fact in enumerate(facts, start=1)
        ]
        session = SynthSession(
            index=event.index,
            time=time,
            goal=filling.goal if filling else "",
            summary=filling.summary if filling else "",
            facts=tuple(rng.sample(numbered, len(numbered)) if demanding else numbered),
            dialogue=None,
        )
        sessions.append(session)
        hold(held, facts)
    return tuple(sessions)


def _session_fact(
    due: Due,
    fact_id: str,
    slot: EventSlot,
    held: Mapping[str, Held],
    related: Relatedness,
    bank: Mapping[str, frozenset[str]] | None,
) -> SessionFact:
    """A fact with its difficulty, if that is planned; `bank` are the stems of what is held."""
    plain: dict[str, Any] = {
        "id": fact_id,
        "event": due.event,
        "text": due.text,
        "previous_text": due.previous_text,
        "keywords": due.keywords,
        "origin": due.origin,
    }
    if bank is None:
        return SessionFact(**plain)
    about = due.previous_text or due.text
    difficulty = OperationDifficulty(
        signal=due.signal,
        rivals=rivals(related.stems(about), bank, about),
        provenance=due.plan.provenance,
        time="relative" if due.plan.dated else "days_after" if slot.days_after else "same_day",
        chain=(held[about].chain if due.previous_text else 0) + (due.event is Event.UPDATE),
        kind=due.plan.kind,
    )
    changed = due.previous_text if due.event is Event.UPDATE else ""
    return SessionFact(
        **plain,
        origins=keyword_origins(due.keywords, changed, relative=due.plan.dated),
        misspoken=due.misspoken,
        outdated=due.outdated,
        statement=due.statement,
        difficulty=difficulty,
    )


def _repeats(
    profile: Profile,
    slots: Sequence[EventSlot],
    fillings: Sequence[Filling | None],
    certain: Mapping[int, Sequence[Due]],
    further: Sequence[Sequence[Due]],
    shape: Shape,
    seed: int,
) -> dict[int, int]:
    """How many memories each session repeats: planned with the slots, or so many that they have their share."""
    if not isinstance(shape.plan, Demands):
        return {slot.index: slot.reused for slot in slots}
    rng = random.Random(f"{seed}/{profile.persona.person_id}/repeats")
    room = {}
    known = len(profile.initial)
    for slot, filling, new in zip(slots, fillings, further, strict=True):
        changes = certain[slot.index]
        updates = sum(change.event is Event.UPDATE for change in changes)
        if filling is not None:
            room[slot.index] = known - updates
        known += len(changes) - updates + len(new)
    found = dict.fromkeys(certain, 0)
    for _ in range(wanted_repeats(rng, shape.plan, sum(map(len, certain.values())) + sum(map(len, further)))):
        open_to = [index for index, free in room.items() if found[index] < free]
        if open_to:
            least = min(found[index] for index in open_to)
            found[rng.choice([index for index in open_to if found[index] == least])] += 1
    return found


def replay(person: Person) -> Iterator[tuple[SynthSession, MemoryState, tuple[Operation, ...], MemoryState]]:
    """Go through the memory states of a person, sessions that were rejected included."""
    if person.profile is None:
        return
    state = MemoryState(
        Memory(f"m{number}", fact.text, person.profile.start) for number, fact in enumerate(person.profile.initial, start=1)
    )
    for session in person.sessions:
        ids = {memory.text: memory.id for memory in state.memories}
        operations = tuple(
            Operation(
                fact.event,
                fact.text,
                ids[fact.previous_text] if fact.previous_text else None,
                fact.keywords,
                (*fact.outdated, fact.misspoken) if fact.misspoken else fact.outdated,
            )
            for fact in session.facts
        )
        after = apply(state, operations, session.time)
        yield session, state, operations, after
        state = after


def labelled_sessions(person: Person) -> Iterator[LabelledSession]:
    """The sessions to train on: those with a dialogue, in order."""
    persona = person.persona
    for session, before, operations, after in replay(person):
        if session.dialogue is None or person.profile is None:
            continue
        pairs = [(Turn("user", each.user), Turn("assistant", each.assistant)) for each in session.dialogue.turns]
        turns = tuple(turn for pair in pairs for turn in pair)
        # A session without facts is planned to have none; otherwise its difficulty is that of its facts, if it was planned.
        planned = tuple(fact.difficulty for fact in session.facts if fact.difficulty is not None)
        difficulty = None
        if len(planned) == len(session.facts):
            chat = len(session.dialogue.turns) - len({entry.turn for entry in session.dialogue.plan})
            difficulty = Difficulty(planned, chat / max(len(planned), 1), len(before))
        said = Session(persona.person_id, person.profile.name, session.time, turns)
        yield LabelledSession(said, session.index, persona.split, before, operations, after, difficulty)


def session_day(event: LifeEvent, slot: EventSlot) -> date:
    """The day on which an event is talked about."""
    return event.date + timedelta(days=slot.days_after)


def _mixed(rng: random.Random, others: Sequence[Due], filling: Sequence[Due]) -> list[Due]:
    """Put changes and repetitions at random places of the filling, which keeps its order because it tells a story.

    No kind of operation is then bound to a part of the session, which a trained model would learn to expect.
    """
    mixed = list(filling)
    for due in rng.sample(others, len(others)):
        mixed.insert(rng.randint(0, len(mixed)), due)
    return mixed
