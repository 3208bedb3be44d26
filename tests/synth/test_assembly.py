"""Sessions are put together so that every state follows from the one before, whatever was rejected."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest
from handmade import PROFILE, START, edit, event, slot
from hypothesis import given, settings
from hypothesis import strategies as st
from offline_people import shape

from deltamem.memory import Event
from deltamem.text import normalised
from synth.assembly import (
    SAME_FACT,
    Relatedness,
    assemble,
    dues,
    further_facts,
    held_at_first,
    labelled_sessions,
    replay,
    revision_dues,
)
from synth.demands import Candidate, Chain, PlannedStep
from synth.records import (
    Dialogue,
    EventGroup,
    Evolution,
    Exchange,
    Fact,
    FactChange,
    FactOrigin,
    FactPlan,
    LifeEvent,
    Method,
    Person,
    PlannedFact,
    RevisedFact,
    Revision,
    RevisionStep,
    SaidFact,
    StateDelta,
    Track,
    TrackedFact,
)
from synth.tasks import Filling
from synth.validators.session import judge_chain

NAME = PROFILE.name
THINGS = (
    "piano", "garden", "novel", "bridge", "marathon", "budget", "clinic", "pottery", "bakery", "violin", "museum", "canoe",
)  # fmt: skip


def keywords(text: str) -> tuple[str, ...]:
    return tuple(text.rstrip(".").split()[-2:])


def happening(index: int, *changes: StateDelta, narrative: str = "Something happened.") -> LifeEvent:
    day = START.date() + timedelta(days=10 * (index + 1))
    return event(index, day, title=f"Day {index}", narrative=narrative, changes=changes)


def delta(text: str, previous: str = "") -> StateDelta:
    return StateDelta(
        track=Track.PREFERENCE,
        change=FactChange.ADJUST if previous else FactChange.NEW,
        subject="",
        previous_text=previous,
        text=text,
        keywords=keywords(text),
    )


def filling(*texts: str) -> Filling:
    return Filling(
        goal="Talk.", summary="A talk.", facts=tuple(SaidFact(text=text, keywords=keywords(text)) for text in texts)
    )


def thread(*texts: str) -> Evolution:
    return Evolution(method=Method.MEANING, memories=tuple(Fact(text=text, keywords=keywords(text)) for text in texts))


class Life:
    """The parts of a life, put together; how many facts of the fillings were dropped."""

    def __init__(
        self, initial, events, fillings, *, groups=(), evolutions=(), reused=0, sizes="paper", seed=1, similarity=None
    ):
        known = [TrackedFact(text=text, keywords=keywords(text), track=Track.PREFERENCE, subject="") for text in initial]
        self.profile, self.shape, self.demanding = edit(PROFILE, {"initial": known}), shape(sizes), sizes != "paper"
        self.slots = tuple(slot(happened, reused=reused) for happened in events)
        self.events, self.fillings = tuple(events), list(fillings)
        self.groups, self.evolutions = tuple(groups), tuple(evolutions)
        certain, plans = dues(self.events, self.groups, self.evolutions), [()] * len(self.events)
        further, self.dropped = further_facts(self.profile, certain, self.fillings, plans, similarity)
        parts = (self.profile, self.slots, self.events, self.fillings, certain, further, self.shape)
        self.sessions = assemble(*parts, seed=seed)
        assert self.sessions == assemble(*parts, seed=seed)

    def person(self, silent=()) -> Person:
        """The person, whose dialogues say every fact word for word; the sessions `silent` have none."""
        sessions = tuple(
            session.model_copy(update={"dialogue": None if session.index in silent else said(session.facts)})
            for session in self.sessions
        )
        parts = {"groups": self.groups, "evolutions": self.evolutions, "sessions": sessions}
        return Person(persona=self.profile.persona, profile=self.profile, slots=self.slots, events=self.events, **parts)


def said(facts) -> Dialogue:
    return Dialogue(
        plan=tuple(
            PlannedFact(fact_id=fact.id, turn=number, previous_turn=number if fact.event is Event.UPDATE else 0)
            for number, fact in enumerate(facts, start=1)
        ),
        turns=tuple(Exchange(user=f"{fact.previous_text} {fact.text}", assistant="I see.") for fact in facts),
    )


@st.composite
def lives(draw) -> Life:
    """Lives with changes of all kinds, threads, filling that partly repeats, and rejected fillings."""
    rng = draw(st.randoms(use_true_random=False))
    count = rng.randint(1, 7)
    numbers = iter(range(10_000))

    def fresh() -> str:
        return f"{NAME} keeps {rng.choice(THINGS)} near {rng.choice(THINGS)} {next(numbers)}."

    initial = [fresh() for _ in range(rng.randint(0, 5))]
    known, held, events = list(initial), list(initial), []
    for index in range(count):
        changed = rng.sample(held, rng.randint(0, min(2, len(held))))
        deltas = [delta(fresh(), text) for text in changed] + [delta(fresh()) for _ in range(rng.randint(0, 2))]
        held = [text for text in held if text not in changed] + [change.text for change in deltas]
        known += [change.text for change in deltas]
        narrative = f"About the {rng.choice(THINGS)} and the {rng.choice(THINGS)}."
        events.append(happening(index, *rng.sample(deltas, len(deltas)), narrative=narrative))
    places = rng.sample(range(count), count)
    groups = []
    while len(places) >= 2 and rng.random() < 0.7:
        size = rng.randint(2, len(places))
        groups.append(EventGroup(events=tuple(sorted(places[:size])), thread="A thread"))
        places = places[size:]
    evolutions = [thread(*(fresh() for _ in group.events)) for group in groups]
    known += [memory.text for evolution in evolutions for memory in evolution.memories]
    fillings = []
    for _ in range(count):
        texts = [rng.choice(known) if known and rng.random() < 0.3 else fresh() for _ in range(rng.randint(0, 4))]
        known += texts
        fillings.append(None if rng.random() < 0.2 else filling(*texts))
    options = {"reused": rng.randint(0, 3), "sizes": rng.choice(["paper", "demanding_tiny"]), "seed": rng.random()}
    return Life(initial, events, fillings, groups=groups, evolutions=evolutions, **options)


@settings(max_examples=25, deadline=None)
@given(life=lives(), data=st.data())
def test_every_state_follows_from_the_one_before_and_the_rules_hold(life, data):
    silent = data.draw(st.sets(st.integers(0, len(life.events) - 1)))
    silent |= {session.index for session in life.sessions if not session.facts}
    whole = life.person(silent)
    states = list(replay(whole))
    assert [session for session, *_ in states] == list(whole.sessions)
    for (_, _, _, after), (_, before, _, _) in pairwise(states):
        assert after == before
    labelled = list(labelled_sessions(whole))
    assert [item.session_index for item in labelled] == [place for place in range(len(states)) if place not in silent]
    assert judge_chain(labelled).violations == ()
    by_index = {session.index: (before, operations, after) for session, before, operations, after in states}
    for item in labelled:
        assert (item.prior_state, item.operations, item.next_state) == by_index[item.session_index]
    times = [life.profile.start, *(session.time for session in life.sessions)]
    assert all(earlier < later for earlier, later in pairwise(times))
    for session, happened in zip(life.sessions, life.events, strict=True):
        assert session.time.date() == happened.date
        assert 8 <= session.time.hour <= 22


@settings(max_examples=25, deadline=None)
@given(life=lives())
def test_the_last_state_holds_what_deltas_threads_and_new_filling_left_and_only_what_held_is_repeated(life):
    held = Counter(fact.text for fact in life.profile.initial)
    for change in (change for happened in life.events for change in happened.changes):
        held.subtract([change.previous_text] if change.previous_text else [])
        held.update([change.text])
    held.update(evolution.memories[-1].text for evolution in life.evolutions)
    held.update(fact.text for session in life.sessions for fact in session.facts if fact.origin is FactOrigin.FILLING)
    states = list(replay(life.person()))
    kinds = Counter(operation.event for *_, operations, _ in states for operation in operations)
    for session, before, operations, _ in states:
        nones = [operation for operation in operations if operation.event is Event.NONE]
        updated = {operation.target_memory_id for operation in operations if operation.event is Event.UPDATE}
        assert all(operation.text == before[operation.target_memory_id].text for operation in nones)
        assert len({operation.target_memory_id for operation in nones} - updated) == len(nones)
        most = len(before) - len(updated) if life.demanding else life.slots[session.index].reused
        assert len(nones) <= (0 if life.fillings[session.index] is None else most)
    if life.demanding:
        repeats = life.shape.plan.repeats
        assert kinds[Event.NONE] < (kinds[Event.ADD] + kinds[Event.UPDATE]) * repeats / (1 - repeats) + 1
    after = states[-1][3]
    assert Counter(memory.text for memory in after.memories) == +held
    assert len({normalised(memory.text) for memory in after.memories}) == len(after)


PIANO = f"{NAME} plays the piano on Sundays."
GARDEN = f"{NAME} grows tomatoes in the garden."
BAKERY = f"{NAME} buys rye bread at the bakery."


@pytest.mark.parametrize(
    "text", [PIANO, f"  {PIANO.upper()} ", f"{NAME} played the piano on Sunday.", f"On Sundays the piano plays {NAME}."]
)
def test_filling_that_says_what_is_known_in_about_the_same_words_is_dropped(text):
    life = Life([PIANO], [happening(0)], [filling(text, GARDEN)])
    assert life.dropped == 1
    assert [fact.text for fact in life.sessions[0].facts] == [GARDEN]


class Alike:
    """Similarities of chosen pairs of texts; all others are 0."""

    def __init__(self, *pairs: tuple[str, str], score: float) -> None:
        self.pairs = {frozenset(pair) for pair in pairs}
        self.score = score

    def between(self, texts, others):
        return [
            [1.0 if text == other else self.score * (frozenset((text, other)) in self.pairs) for other in others]
            for text in texts
        ]


@pytest.mark.parametrize(("score", "dropped"), [(SAME_FACT, 1), (SAME_FACT - 0.001, 0)])
def test_filling_that_means_what_is_known_is_dropped(score, dropped):
    life = Life([PIANO], [happening(0)], [filling(GARDEN, BAKERY)], similarity=Alike((PIANO, BAKERY), score=score))
    assert life.dropped == dropped
    assert [fact.text for fact in life.sessions[0].facts] == [GARDEN, BAKERY][: 2 - dropped]


def test_memories_with_rare_words_of_the_event_come_first_and_unrelated_ones_not_at_all():
    others = [f"{NAME} likes hiking number {place}." for place in range(6)]
    found = Relatedness(NAME).ranked([BAKERY, *others, PIANO], ["She played piano", "and likes it"])
    assert found == [PIANO, *others]


def test_a_memory_keeps_its_id_through_a_rejected_session():
    organ, harp = f"{NAME} plays the organ on Sundays.", f"{NAME} plays the harp on Sundays."
    events = [happening(0, delta(organ, PIANO)), happening(1, delta(harp, organ))]
    life = Life([GARDEN, PIANO], events, [None, filling()])
    (labelled,) = labelled_sessions(life.person(silent={0}))
    assert labelled.session_index == 1
    assert labelled.prior_state["m2"].text == organ
    assert labelled.prior_state["m2"].time == life.sessions[0].time
    assert [(item.event, item.target_memory_id) for item in labelled.operations] == [(Event.UPDATE, "m2")]
    assert labelled.next_state["m2"].text == harp


def test_what_names_its_end_or_has_ended_is_not_repeated():
    profile = edit(PROFILE, {"initial": [TrackedFact(text=PIANO, keywords=keywords(PIANO), track=Track.CAREER, subject="")]})
    chain = Chain(
        (Candidate(Fact(text=GARDEN, keywords=keywords(GARDEN)), -1, "", False),),
        (
            PlannedStep(0, FactChange.RETRACT, "explicit", "said", False),
            PlannedStep(2, FactChange.ADJUST, "value", "said", True),
        ),
    )
    facts = (
        RevisedFact(text=f"{NAME} grows nothing any longer.", keywords=("nothing",)),
        RevisedFact(text=BAKERY, keywords=()),
    )
    revision = Revision(steps=tuple(RevisionStep(facts=(fact,)) for fact in facts))
    made = [(at, due.lasting, due.previous_text, due.plan.dated) for at, due in revision_dues(chain, revision, statement=0)]
    assert made == [(0, False, GARDEN, False), (2, True, facts[0].text, True)]
    assert [held_at_first(profile, [FactPlan(temporary=ends)])[PIANO].lasting for ends in (False, True)] == [True, False]
    plans = [[FactPlan(temporary=True), FactPlan()]]
    (found,), _ = further_facts(profile, {}, [filling(GARDEN, BAKERY)], plans)
    assert [due.lasting for due in found] == [False, True]
    # Of all that is known only one memory holds on.
    shape_ = edit(shape("demanding_tiny"), {"plan.repeats": 0.5})
    events = [happening(index) for index in range(4)]
    parts = profile, [slot(event, reused=0) for event in events], events, [filling(GARDEN, BAKERY), *[filling()] * 3]
    certain = {event.index: () for event in events}
    sessions = assemble(*parts, certain, [found, (), (), ()], shape_, seed=1, plans=[FactPlan(temporary=True)])
    assert {fact.text for session in sessions for fact in session.facts if fact.event is Event.NONE} == {BAKERY}
