"""A person's units are asked for in order, what is rejected is named, and nothing depends on when an answer comes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from offline_people import Recorder
from offline_people import shape as named_shape

from deltamem.errors import DeltaMemError
from synth.assembly import labelled_sessions, replay
from synth.names import InventedNames, RealNames
from synth.person import write_person
from synth.records import Person, Persona
from synth.tasks import (
    DialogueTask,
    Events,
    EventsTask,
    RuleVerdict,
    RuleViolation,
    Task,
    Unit,
    UnitId,
    UnitResult,
    Writer,
)
from synth.validators import judge_life
from synth.validators.session import judge_chain

PAPER = named_shape("paper")
SESSIONS = 10
PERSONA = Persona(person_id="p000007", seed="A baker who sings in a choir.", source="generated", split="train")
BROKEN = RuleViolation("demo.rule", "the answer breaks the rule")


Told = Callable[[Task[Any], UnitId], bool]


class Wrapper(Recorder):
    """The offline writer, which rejects some units, fails at others, and keeps which it has begun, ended and been torn from.

    `change` makes another result of what was written; the length of a pause before each answer is one of `delays`.
    """

    def __init__(self, *, reject=lambda *_: False, fail=lambda *_: False, change=lambda *given: given[-1], delays=None):
        super().__init__(1)
        self.reject, self.fail, self.change, self.delays = reject, fail, change, delays
        self.begun, self.ended, self.cancelled = [], [], []

    async def write(self, task, place):
        self.begun.append((task, place))
        try:
            if self.delays is not None:
                await asyncio.sleep(self.delays.random() / 500)
            if self.fail(task, place):
                raise DeltaMemError(f"no answer for {place.name}")
        except asyncio.CancelledError:
            self.cancelled.append(place)
            raise
        self.ended.append(place)
        if self.reject(task, place):
            return UnitResult(None, (RuleVerdict(("demo.rule",), (BROKEN,)),) * 3, 10, 5)
        return self.change(task, place, await super().write(task, place))

    def tasks(self, kind):
        return [task for task, _ in self.begun if isinstance(task, kind)]


def at(unit: Unit, *indices: int) -> Told:
    names = {f"{PERSONA.person_id}/{unit}/{index}" for index in indices}
    return lambda task, place: place.name in names


def spoiling(unit: Unit, spoil: Callable[[Task[Any], Any], Any]) -> Wrapper:
    """Every answer of a unit is another one, which no rule of the unit has judged."""

    def change(task, place, written):
        return UnitResult(spoil(task, written.answer), written.verdicts) if task.unit is unit else written

    return Wrapper(change=change)


async def write(writer: Writer | None = None, *, shape="paper", sessions=SESSIONS, **options):
    sizes = named_shape(shape)
    names = RealNames(1) if shape == "paper" else InventedNames(1, sizes.profile.name_syllables)
    return await write_person(7, PERSONA, writer or Wrapper(), sizes, names, sessions=sessions, seed=1, **options)


def rejected(person: Person) -> list[tuple[str, str]]:
    return [(item.unit, item.where) for item in person.rejections]


def check_sound(person: Person) -> None:
    """States can be replayed, labelled sessions keep the rules, and every session is there or named."""
    states = list(replay(person))
    assert [session.index for session, *_ in states] == [slot.index for slot in person.slots]
    assert all(earlier[3] == later[1] for earlier, later in pairwise(states))
    assert judge_chain(labelled_sessions(person)).violations == ()
    named = {int(item.where) for item in person.rejections if item.unit in (Unit.FILLING, Unit.DIALOGUE)}
    assert {session.index for session in person.sessions if session.dialogue is None} == named


@pytest.mark.parametrize("shape", ["paper", "demanding_tiny"])
async def test_a_person_does_not_depend_on_when_answers_come(shape):
    lost = at(Unit.DIALOGUE, 2, 3)
    expected = await write(Wrapper(reject=lost), shape=shape, sessions=6)
    orders = set()
    for seed in range(2):
        writer = Wrapper(delays=random.Random(seed), reject=lost)
        found = await write(writer, shape=shape, sessions=6)
        orders.add(tuple(place.name for place in writer.ended))
        assert found.model_dump_json() == expected.model_dump_json()
    assert len(orders) == 2


@pytest.mark.parametrize("unit", [Unit.FIXED, Unit.DYNAMIC, Unit.PREFERENCES, Unit.INITIAL])
async def test_a_rejected_profile_rejects_the_person(unit):
    writer = Wrapper(reject=at(unit, 0))
    person = await write(writer)
    assert person.profile is None and person.slots == person.events == person.sessions == ()
    assert rejected(person) == [(unit, "")]
    assert (person.rejections[0].rules, person.rejections[0].reasons) == (("demo.rule",), ("the answer breaks the rule",))
    assert writer.begun[-1][0].unit is unit
    assert list(labelled_sessions(person)) == []


async def test_an_event_that_stays_wrong_is_planned_anew_without_its_changes_and_nobody_is_lost():
    """Event 7 is the third of its call: the two before it are kept, it is written alone, and the rest goes on as planned."""
    whole = await write()
    target = next(slot.index for slot in whole.slots if slot.index % 5 in (1, 2, 3) and slot.changes)

    def change(task, place, written):
        if task.unit is not Unit.EVENTS or not any(slot.index == target and slot.changes for slot in task.slots):
            return written
        wrong = tuple(
            event.model_copy(update={"title": ""} if event.index == target else {}) for event in written.answer.events
        )
        return UnitResult(None, (RuleVerdict(("demo.rule",), (BROKEN,)),) * 3, partial=Events(events=wrong))

    writer = Wrapper(change=change)
    person = await write(writer)
    check_sound(person)
    assert rejected(person) == [("events", str(target))] and person.rejections[0].rules == ("demo.rule",)
    assert [session.index for session in person.sessions if session.dialogue is not None] == list(range(SESSIONS))
    slot = person.slots[target]
    assert slot.changes == () and slot.given_up == whole.slots[target].changes and person.events[target].changes == ()
    assert [other for other in person.slots if other != slot] == [*whole.slots[:target], *whole.slots[target + 1 :]]
    assert judge_life(person, PAPER).violations == ()
    # What was sound is not asked for again.
    asked = [[slot.index for slot in task.slots] for task in writer.tasks(EventsTask)]
    begin = target - target % 5
    rest = list(range(target + 1, SESSIONS))
    assert asked == [
        *(list(range(first, first + 5)) for first in range(0, begin + 5, 5)),
        [target],
        *(rest[first : first + 5] for first in range(0, len(rest), 5)),
    ]
    assert person.usage["events"].rejected == 1 and person.usage["events"].units == len(asked)


async def test_a_life_that_breaks_a_rule_as_a_whole_is_rejected():
    def late(task, answer):
        """Moves the last event of a life to the day of the first."""
        *rest, last = answer.events
        return Events(events=(*rest, last.model_copy(update={"date": task.past[0].date} if last.index == 9 else {})))

    person = await write(spoiling(Unit.EVENTS, late))
    assert person.events == person.sessions == ()
    assert rejected(person) == [("events", "")]
    assert "life.dates_increase" in person.rejections[0].rules
    assert person.violations["life.dates_increase"] == person.checked["life.dates_increase"] == 1


async def test_rejected_sessions_change_the_state_all_the_same():
    writer = Wrapper(reject=lambda task, place: at(Unit.FILLING, 3, 8)(task, place) or at(Unit.DIALOGUE, 5)(task, place))
    person, whole = await write(writer), await write()
    assert rejected(person) == [("filling", "3"), ("filling", "8"), ("dialogue", "5")]
    assert len(list(labelled_sessions(person))) == SESSIONS - 3
    assert len(writer.tasks(DialogueTask)) == SESSIONS - 2
    check_sound(person)
    for index, kept in ((3, {"delta", "evolution"}), (8, {"delta", "evolution"}), (5, {"delta", "evolution", "filling"})):
        own, expected = (
            sorted(fact.text for fact in item.sessions[index].facts if fact.origin in kept) for item in (person, whole)
        )
        assert own == expected
        assert {fact.origin for fact in person.sessions[index].facts} <= kept | ({"reuse"} if index == 5 else set())


async def test_a_session_that_breaks_a_rule_as_a_whole_is_not_trained_on():
    def silent(task, answer):
        """Has the user say nothing."""
        turns = tuple(turn.model_copy(update={"user": " "}) for turn in answer.turns)
        return answer.model_copy(update={"turns": turns} if task.event.index == 4 else {})

    person = await write(spoiling(Unit.DIALOGUE, silent), sessions=6)
    assert rejected(person) == [("dialogue", "4")]
    rules = person.rejections[0].rules
    assert rules == tuple(person.violations) and rules[0].startswith("session.")
    check_sound(person)


@pytest.mark.parametrize(("unit", "last"), [(Unit.FIXED, 0), (Unit.EVENTS, 0), (Unit.FILLING, 6), (Unit.DIALOGUE, 6)])
async def test_an_error_of_the_writer_ends_the_person(unit, last):
    writer = Wrapper(fail=at(unit, last), delays=random.Random(2))
    with pytest.raises(DeltaMemError, match=f"^no answer for p000007/{unit}/{last}$"):
        await write(writer)
    # What was under way has been cancelled, and nothing goes on behind the back.
    asked = len(writer.begun)
    assert len(writer.ended) + len(writer.cancelled) + 1 == asked
    await asyncio.sleep(0.02)
    assert len(writer.begun) == asked
    assert len(asyncio.all_tasks()) == 1


async def test_the_account_counts_every_unit_and_attempt():
    seen: list[tuple[Unit, UnitResult[Any]]] = []
    writer = Wrapper(reject=at(Unit.DIALOGUE, 1))
    person = await write(writer, observer=lambda unit, written: seen.append((unit, written)))
    assert len(seen) == len(writer.begun)
    assert Counter(unit for unit, _ in seen) == {Unit(unit): usage.units for unit, usage in person.usage.items()}
    assert list(person.usage) == [unit for unit in Unit if unit in person.usage]
    dialogue = person.usage["dialogue"]
    attempts = sum(len(written.verdicts) for unit, written in seen if unit is Unit.DIALOGUE)
    assert (dialogue.units, dialogue.rejected, dialogue.attempts) == (SESSIONS, 1, attempts)
    assert (dialogue.prompt_tokens, dialogue.completion_tokens) == (10, 5)
    assert person.checked["demo.rule"] == person.violations["demo.rule"] == 3
    judged = Counter(rule for _, written in seen for verdict in written.verdicts for rule in set(verdict.checked))
    assert {rule: count for rule, count in person.checked.items() if not rule.startswith("life.")} == judged
    assert list(person.checked) == sorted(person.checked)
