"""Data that demand memory: shares and rivals hold by construction, whatever the sentences say."""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, timedelta
from itertools import pairwise
from statistics import mean

import pytest
from handmade import edit, span
from offline_people import Recorder, life, shape

from deltamem.memory import Event, wordings
from deltamem.sessions import FactKind
from deltamem.text import content_stems
from synth.assembly import labelled_sessions
from synth.demands import Candidate, Chain, RevisionPlanner, is_newcomer, plan_asides, plan_facts
from synth.records import AsideKind, Fact, FactChange, FactOrigin
from synth.tasks import DialogueTask, FillingTask, InitialTask, LinksTask, RevisionTask, Unit

SHAPE = shape("demanding")
PLAN = SHAPE.plan
SCRIPTED = SHAPE.scripted
"""What templates can tell of it; all else is planned alike."""
PEOPLE = 3


def written(number, *, sessions=15, sizes=SCRIPTED, writer=None):
    writer = writer or Recorder(1)
    return writer, life(number, sizes, writer, sessions=sessions)


@pytest.fixture(scope="module")
def lives():
    return [written(number) for number in range(PEOPLE)]


@pytest.fixture(scope="module")
def sessions(lives):
    return [labelled for _, person in lives for labelled in labelled_sessions(person)]


def test_the_shares_hold_over_a_data_set(sessions):
    events = Counter(operation.event for labelled in sessions for operation in labelled.operations)
    assert events[Event.UPDATE] / events.total() == pytest.approx(PLAN.updates, abs=0.04)
    assert events[Event.NONE] / events.total() == pytest.approx(PLAN.repeats, abs=0.04)
    assert mean(not labelled.operations for labelled in sessions) == pytest.approx(PLAN.idle, abs=0.06)
    late = mean("time=days_after" in labelled.difficulty.cells() for labelled in sessions if labelled.operations)
    assert late == pytest.approx(PLAN.late, abs=0.2)


def test_a_due_memory_has_its_rivals_in_the_bank(lives):
    """Siblings of a target are remembered by then, whatever they have become."""
    for writer, person in lives:
        families = {}
        for task, answer, _ in writer.asked:
            if isinstance(task, InitialTask | FillingTask):
                for fact, plan in zip(answer.facts, task.plans, strict=True):
                    if plan.family:
                        families[fact.text] = (task.unit, getattr(task, "today", None), plan.family)
        sizes = Counter(families.values())
        assert set(sizes.values()) <= {PLAN.rivals + 1}
        initial = {fact.text for fact in person.profile.initial}
        for session in person.sessions:
            for fact in session.facts:
                if fact.event is Event.UPDATE and fact.previous_text in families and fact.difficulty.chain == 1:
                    siblings = [text for text in families if families[text] == families[fact.previous_text]]
                    assert len(siblings) == PLAN.rivals + 1
                    if fact.previous_text in initial:
                        assert initial.issuperset(siblings)
        targets = [
            fact.previous_text in families
            for session in person.sessions
            for fact in session.facts
            if fact.origin is FactOrigin.REVISION and fact.difficulty.chain == 1
        ]
        assert mean(targets) > 0.6


def test_a_newcomer_begins_with_an_empty_bank():
    nobody = edit(SCRIPTED, {"initial.newcomers": 1.0})
    _, person = written(1, sizes=nobody, sessions=12)
    first, *later = labelled_sessions(person)
    assert first.difficulty.bank == 0
    assert {operation.event for operation in first.operations} <= {Event.ADD}
    events = Counter(operation.event for labelled in (first, *later) for operation in labelled.operations)
    assert events[Event.UPDATE] / events.total() == pytest.approx(PLAN.updates, abs=0.05)


def test_an_idle_session_is_chat_and_nobody_writes_an_event_for_it(lives):
    for writer, person in lives:
        idle = {slot.index for slot in person.slots if slot.idle}
        for task, _, place in writer.asked:
            index = int(place.name.rpartition("/")[2])
            if isinstance(task, LinksTask):
                assert idle.isdisjoint(event.index for event in task.events)
            if isinstance(task, FillingTask):
                assert task.count == span(len(task.plans), len(task.plans))
                assert index not in idle and idle.isdisjoint(event.index for event in task.past)
            if isinstance(task, RevisionTask):
                assert idle.isdisjoint(step.event.index for step in task.steps)
            if isinstance(task, DialogueTask) and index in idle:
                assert task.facts == () and not task.event.narrative
                assert len(task.asides) in range(PLAN.asides.min + 1, PLAN.asides.max + 2)


def test_operations_do_not_follow_the_order_of_the_story(lives):
    steps = [
        (int(later.id[1:]) - int(earlier.id[1:])) > 0
        for _, person in lives
        for session in person.sessions
        for earlier, later in pairwise(session.facts)
    ]
    assert mean(steps) == pytest.approx(0.5, abs=0.1)
    for writer, _ in lives:
        for task, _, _ in writer.asked:
            if isinstance(task, DialogueTask):
                assert [fact.id for fact in task.facts] == [f"f{number}" for number in range(1, len(task.facts) + 1)]


def test_nobody_repeats_what_has_ended(lives):
    repeated, gone = set(), set()
    for writer, person in lives:
        repeated |= {fact.text for session in person.sessions for fact in session.facts if fact.event is Event.NONE}
        for task, answer, _ in writer.asked:
            if isinstance(task, RevisionTask) and answer is not None:
                for plan, step in zip(task.steps, answer.steps, strict=True):
                    gone |= {fact.text for fact in step.facts if plan.change in (FactChange.RETRACT, FactChange.EXPIRE)}
    assert repeated and gone and repeated.isdisjoint(gone)


def test_two_revisions_that_come_to_the_same_text_are_not_both_taken():
    class Copying(Recorder):
        async def write(self, task, place):
            result = await super().write(task, place)
            if task.unit is not Unit.REVISION:
                return result
            first = result.answer.steps[0].facts[0].model_copy(update={"text": f"{task.fixed.name} has moved to the sea."})
            steps = (result.answer.steps[0].model_copy(update={"facts": (first, *result.answer.steps[0].facts[1:])}),)
            return type(result)(result.answer.model_copy(update={"steps": steps + result.answer.steps[1:]}), result.verdicts)

    _, person = written(2, sessions=8, writer=Copying(1))
    refused = [rejection for rejection in person.rejections if rejection.unit == "revision"]
    assert {rejection.rules for rejection in refused} == {("revision.new_in_life",)}
    texts = [fact.text for session in person.sessions for fact in session.facts if fact.origin is FactOrigin.REVISION]
    assert Counter(texts)[f"{person.profile.name} has moved to the sea."] == 1


DAYS = {index: date(2026, 3, 1) + timedelta(days=20 * index) for index in range(12)}


def planned_chains(number: int = 12, **plan: object) -> list[Chain]:
    """Chains of changes of twelve memories in families of three; one in two names its last day, 15 April 2026."""
    found = list[Chain]()
    for seed in range(20):
        memories = [
            Candidate(
                Fact(text=f"Ana owns {place}" + " until 15 April 2026." * (place % 2), keywords=(str(place),)),
                -1,
                f"family {place // 3}",
                bool(place % 2),
            )
            for place in range(12)
        ]
        sizes = PLAN.model_copy(update=plan)
        found += RevisionPlanner(random.Random(seed), sizes, memories, DAYS, {}).chains(number)
    return found


def test_what_names_its_last_day_ends_after_it_and_changes_in_no_other_way():
    temporary = [chain for chain in planned_chains() if chain.memories[0].temporary]
    assert temporary
    for chain in temporary:
        assert [step.change for step in chain.steps] == [FactChange.EXPIRE] and len(chain.memories) == 1
        assert DAYS[chain.steps[0].session] > date(2026, 4, 15)


def test_siblings_that_change_together_do_so_once_in_one_session():
    chains = [chain for chain in planned_chains(together=1.0) if len(chain.memories) > 1]
    assert chains
    for chain in chains:
        assert len({memory.family for memory in chain.memories}) == 1 < len(chain.memories) <= 3
        (step,) = chain.steps
        assert step.change in (FactChange.ADJUST, FactChange.SHIFT, FactChange.RETRACT)
        assert step.provenance == "said" and not step.dated
    assert all(len(chain.memories) == 1 for chain in planned_chains(together=0.0))


def test_how_a_change_shows_suits_it():
    steps = [step for chain in planned_chains() for step in chain.steps]
    shown = {signal: {step.change for step in steps if step.signal == signal} for signal in PLAN.signals}
    assert all(shown.values())
    assert shown["value"] <= {FactChange.EXPAND, FactChange.ADJUST, FactChange.SHIFT}
    assert shown["implied"].isdisjoint({FactChange.EXPAND, FactChange.ADJUST})
    assert {step.provenance for step in steps if step.signal == "implied"} == {"said"}
    assert {step.change for step in steps if step.dated} <= {FactChange.ADJUST, FactChange.SHIFT}
    for chain in planned_chains():
        assert not {FactChange.RETRACT, FactChange.EXPIRE} & {step.change for step in chain.steps[:-1]}
        sessions = [step.session for step in chain.steps]
        assert sessions == sorted(set(sessions))


def test_the_plan_that_templates_can_tell_is_the_plan_without_the_rest():
    assert SCRIPTED.plan.operators == {FactChange.ADJUST: 0.4, FactChange.RETRACT: 0.15}
    assert SCRIPTED.plan.provenances == {"said": 0.66, "assistant_confirmed": 0.08, "self_corrected": 0.06}
    assert SCRIPTED.plan.signals == {"explicit": 0.1, "value": 0.6}
    assert SCRIPTED.plan.dated == SCRIPTED.plan.temporary == SCRIPTED.plan.together == 0
    assert SCRIPTED.model_copy(update={"plan": PLAN}) == SHAPE
    for unchanged in (shape("demanding_tiny"), shape("paper")):
        assert unchanged.scripted == unchanged


def test_newcomers_are_their_share_of_every_ten_people():
    found = [is_newcomer(number, 0.2, seed=1) for number in range(200)]
    assert {sum(found[begin : begin + 10]) for begin in range(0, 200, 10)} == {2}
    assert len({tuple(found[begin : begin + 10]) for begin in range(0, 200, 10)}) > 5
    assert 0.2 < mean(is_newcomer(number, 0.25, seed=1) for number in range(400)) < 0.3
    assert not any(is_newcomer(number, 0.0, seed=1) for number in range(50))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 24])
def test_facts_come_in_whole_families_and_then_alone(count):
    for seed in range(20):
        plans = plan_facts(random.Random(seed), PLAN, count)
        assert len(plans) == count
        families = [plan.family for plan in plans]
        assert families == sorted(families, key=lambda family: family or 99)
        assert all(size == PLAN.rivals + 1 for family, size in Counter(families).items() if family)
        for plan, other in pairwise(plans):
            if plan.family and plan.family == other.family:
                assert (plan.dated, plan.temporary) == (other.dated, other.temporary)
                about_others = {"third_person", "hearsay"}
                assert (plan.provenance in about_others) == (other.provenance in about_others)


def test_kinds_have_their_shares_and_suit_dates_and_ends():
    plans = [plan for seed in range(300) for plan in plan_facts(random.Random(seed), PLAN, 24)]
    shares = {kind: mean(plan.kind is kind for plan in plans) for kind in PLAN.kinds}
    assert sum(shares.values()) == pytest.approx(1)
    assert all(shares[kind] == pytest.approx(share, abs=0.04) for kind, share in PLAN.kinds.items())
    assert {plan.kind for plan in plans if plan.dated}.isdisjoint({FactKind.PREFERENCE, FactKind.OPINION, FactKind.STATUS})
    assert {plan.kind for plan in plans if plan.temporary}.isdisjoint({FactKind.EVENT, FactKind.OPINION})
    for plan, other in pairwise(plans):
        assert not plan.family or plan.family != other.family or plan.kind is other.kind


def test_the_kind_of_a_fact_is_known_in_its_session(lives):
    for writer, person in lives:
        planned = {
            fact.text: plan.kind
            for task, answer, _ in writer.asked
            if isinstance(task, FillingTask)
            for fact, plan in zip(answer.facts, task.plans, strict=True)
        }
        told = [fact for session in person.sessions for fact in session.facts if fact.origin is FactOrigin.FILLING]
        assert told and {fact.text: fact.difficulty.kind for fact in told}.items() <= planned.items()
        assert None not in planned.values()


def test_kinds_change_nothing_else_that_is_planned():
    bare = PLAN.model_copy(update={"kinds": {}})
    for seed in range(20):
        plans = plan_facts(random.Random(seed), PLAN, 7)
        assert plan_facts(random.Random(seed), bare, 7) == tuple(plan.model_copy(update={"kind": None}) for plan in plans)
    # Without one that suits, any will do.
    opinions = PLAN.model_copy(update={"kinds": {FactKind.OPINION: 1.0}, "dated": 1.0, "temporary": 0.0})
    assert {plan.kind for plan in plan_facts(random.Random(1), opinions, 7)} == {FactKind.OPINION}


def test_asides_leave_the_session_and_whole_memories_alone():
    held = {f"Ana owns the {thing} of Leo.": (thing, "Leo") for thing in ("kite", "boat", "drum", "harp", "lamp")}
    held["Ana naps."] = ("naps",)
    held["Ana jogs in water with Leo on Mondays."] = ("jogs in water", "Leo", "Mondays")
    held["Ana owns the flute of Leo."] = (("pipe", "flute"), "Leo")
    for seed in range(60):
        asides = plan_asides(random.Random(seed), PLAN, "Ana", (), held, idle=False)
        assert len(asides) in PLAN.asides
        assert len({aside.kind for aside in asides}) == len(asides)
        for aside in asides:
            if aside.kind is AsideKind.CUE:
                assert aside.memory == "" and len(aside.words) == 1
            else:
                assert set(aside.words) < set(wordings(held[aside.memory])) - {"pipe"}, "the memory's own wording is said"
                # A word more, said by chance, and the memory is still not told.
                stems = content_stems(aside.memory) - content_stems("Ana")
                assert 2 * len(content_stems(" ".join(aside.words))) <= len(stems)
    assert all(not aside.memory for aside in plan_asides(random.Random(1), PLAN, "Ana", (), {}, idle=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plan.updates": 0.7, "plan.repeats": 0.2}, "must not add up to more than 0.8"),
        ({"plan.dated": 0.7, "plan.temporary": 0.4}, "must not add up to more than 1"),
        ({"plan.chains": {1: 0.0}}, "one weight at least"),
        ({"plan.kinds": {FactKind.PLAN: 0.0}}, "kinds: one weight at least"),
        ({"plan.operators": {FactChange.NEW: 1.0}}, "cannot be drawn"),
        ({"plan.signals": {"explicit": 1.0}}, "explicit and value"),
        ({"plan.provenances": {"hearsay": 1.0}}, "said must have"),
    ],
)
def test_shares_that_contradict_one_another_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        edit(SHAPE, changes)
