"""Dialogues of the shape `demanding` are conversations: segments of one thing each, answers to what was said."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from dataclasses import replace
from datetime import date
from functools import cache
from itertools import pairwise

import pytest
from offline_people import shape

from deltamem.memory import Event
from deltamem.sessions import OperationDifficulty, Provenance, Signal
from rewards.fidelity import folded
from synth.names import InventedNames
from synth.offline import OfflineWriter
from synth.offline.grammar import draw_voice
from synth.offline.talk import write_dialogue
from synth.offline.telling import Speaker, Telling, matter_of, talk
from synth.offline.topics import Cast, Known, read, topic_named, topics
from synth.person import write_person
from synth.records import Dialogue, Origin, Persona, SessionFact
from synth.tasks import DialogueTask, Unit
from synth.validators.dialogue import stands_in

NAME = "Belno"
CAST = Cast(NAME, "train")
TURNS = range(40)


class Recorder(OfflineWriter):
    """Keeps the dialogues that it writes, with their tasks."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.written: list[tuple[DialogueTask, Dialogue]] = []

    async def write(self, task, place):  # type: ignore[no-untyped-def]
        result = await super().write(task, place)
        if task.unit is Unit.DIALOGUE and result.answer is not None:
            self.written.append((task, result.answer))
        return result


@cache
def written(sizes: str = "demanding") -> list[tuple[DialogueTask, Dialogue]]:
    """Dialogues of three people."""
    writer = Recorder(1)
    for number in range(3):
        persona = Persona(person_id=f"p{number:06d}", seed="somebody", source="generated", split="train")
        asyncio.run(write_person(number, persona, writer, shape(sizes), InventedNames(1), sessions=12, seed=1))
    return writer.written


def a_task(*facts: SessionFact) -> DialogueTask:
    task = next(task for task, _ in written() if task.fixed.name and task.event.date == task.today)
    fixed = task.fixed.model_copy(update={"name": NAME})
    return task.model_copy(update={"fixed": fixed, "facts": facts, "asides": ()})


def a_fact(
    known: Known,
    event: Event = Event.ADD,
    *,
    old: Known | None = None,
    signal: Signal = "value",
    provenance: Provenance = "said",
    misspoken: str = "",
    origin: Origin = Origin.FILLING,
) -> SessionFact:
    return SessionFact(
        id="f1",
        event=event,
        text=known.text(NAME),
        previous_text=old.text(NAME) if old else "",
        keywords=known.keywords(4),
        origin=origin,
        misspoken=misspoken,
        difficulty=OperationDifficulty(signal=signal, rivals=0, provenance=provenance, time="same_day", chain=0),
    )


def a_course(**values: str) -> Known:
    topic = topic_named("course")
    return Known(topic, {**CAST.fill(random.Random(3), topic), "subject": "typography", "day": "Monday", **values})


def told(fact: SessionFact, seed: int) -> list[str]:
    rng = random.Random(seed)
    return Telling(Speaker(rng, NAME), a_task(fact)).statement([fact]).said


def test_what_else_comes_up_in_a_turn_comes_after_its_facts() -> None:
    joined = alone = 0
    for task, dialogue in written():
        asides = {aside.id: aside for aside in task.asides if aside.words and aside.kind != "assistant_claim"}
        facts = {fact.id: fact for fact in task.facts}
        for planned in dialogue.asides:
            if planned.aside_id not in asides:
                continue
            told = [facts[each.fact_id] for each in dialogue.plan if each.turn == planned.turn]
            joined, alone = joined + bool(told), alone + (not told)
            user = dialogue.turns[planned.turn - 1].user.casefold()
            found = [user.find(word.casefold()) for fact in told for word in fact.spoken]
            ends = user.rfind(asides[planned.aside_id].words[0].casefold())
            assert not told or min(place for place in [*found, len(user)] if place >= 0) < ends, user
    assert joined > 10 < alone


def test_in_the_tiny_form_a_turn_of_facts_has_nothing_else() -> None:
    asides = 0
    for task, dialogue in written("demanding_tiny"):
        claims = {aside.id for aside in task.asides if aside.kind == "assistant_claim"}
        others = {planned.turn for planned in dialogue.asides if planned.aside_id not in claims}
        asides += len(others)
        assert others.isdisjoint(planned.turn for planned in dialogue.plan)
    assert asides > 5


@pytest.mark.parametrize("seed", range(8))
def test_a_new_fact_that_is_confirmed_is_told_whole(seed: int) -> None:
    known = replace(a_course(who="Stailai", price="145"), details=("has", "has", ""))
    fact = a_fact(known, provenance="assistant_confirmed").model_copy(update={"keywords": a_course().keywords(4)})
    asked = Telling(Speaker(random.Random(seed), NAME), a_task(fact)).statement([fact]).asked
    assert "Stailai" in asked and "145" in asked


def test_what_happened_comes_first_or_second_and_says_when() -> None:
    days = Counter[str]()
    for task, dialogue in written():
        events = [fact.id for fact in task.facts if fact.origin is Origin.EVENT]
        order = [planned.fact_id for planned in dialogue.plan]
        if not events:
            continue
        assert order[0] == events[0]
        turn = next(planned.turn for planned in dialogue.plan if planned.fact_id == events[0])
        user = dialogue.turns[turn - 1].user
        late = (task.today - task.event.date).days
        when = r"\btoday\b" if late == 0 else r"\b(?:yesterday|ago|last \w+day)\b"
        days[str(late > 0)] += 1
        assert re.search(when, user, re.IGNORECASE), user
    assert days["True"] and days["False"]


@pytest.mark.parametrize("seed", TURNS)
def test_a_self_correction_corrects_the_value_alone(seed: int) -> None:
    said = told(a_fact(a_course(), provenance="self_corrected", misspoken="Friday"), seed)
    text = " ".join(said)
    assert len(re.findall("typography", text)) == 1, text
    assert re.search(r"Fridays?\W.{2,30}\WMonday", text), text


@pytest.mark.parametrize("seed", TURNS)
def test_an_explicit_change_says_both_values_and_an_implied_one_only_the_new(seed: int) -> None:
    old, new = a_course(), replace(a_course(day="Friday"), changed=("day",))
    explicit = " ".join(told(a_fact(new, Event.UPDATE, old=old, signal="explicit"), seed))
    assert "Monday" in explicit and "Friday" in explicit
    value = " ".join(told(a_fact(new, Event.UPDATE, old=old, signal="value"), seed))
    assert "Friday" in value and "Monday" not in value


def test_the_past_is_said_in_the_past() -> None:
    speaker = Speaker(random.Random(1), NAME)
    assert speaker.used_to("I take a course at Brelo") == "I used to take a course at Brelo"
    assert speaker.used_to("I'm taking a course") == "I was taking a course"
    assert speaker.used_to("at Brelo it is pottery") == "" and speaker.used_to("I found a compass") == ""


def test_the_assistant_names_what_was_told_and_asks_what_the_user_can_answer() -> None:
    answers = Counter[bool]()
    for task, dialogue in written():
        topics_ = {fact.id: topic for fact in task.facts if (topic := topic_of(task, fact))}
        for planned in dialogue.plan:
            if planned.fact_id in topics_:
                answer = dialogue.turns[planned.turn - 1].assistant.casefold()
                name, area = talk().area_of(topics_[planned.fact_id])
                assert name in talk().areas
                answers[any(matter in answer for matter in matters(area.matters))] += 1
    assert answers[True] / answers.total() > 0.4


def test_what_the_assistant_asks_is_answered() -> None:
    speaker = Speaker(random.Random(1), NAME)
    follow_ups = [follow for area in talk().areas.values() for follow in area.follow_ups]
    asked = [
        ({speaker.line(follow.ask) for _ in range(20)}, {speaker.line(follow.answers) for _ in range(60)})
        for follow in follow_ups
    ]
    found = Counter[bool]()
    for _, dialogue in written():
        for turn, after in pairwise(dialogue.turns):
            answers = [answer for questions, said in asked for answer in said if turn.assistant.endswith(tuple(questions))]
            if answers:
                found[any(plainly(after.user).startswith(plainly(answer)[:8]) for answer in answers)] += 1
    # Ways of speaking, and slips, change some of them.
    assert found.total() > 20 and found[True] > 0.85 * found.total()


def plainly(text: str) -> str:
    return re.sub("[^a-z ]", "", text.casefold())


def matters(found: dict[str, tuple[str, ...]]) -> list[str]:
    return [text.casefold() for texts in found.values() for text in texts]


def topic_of(task: DialogueTask, fact: SessionFact) -> str:
    known = read(task.fixed.name, fact.text)
    return known.topic.name if known else ""


def test_quotes_give_no_operation_away() -> None:
    quotes = Counter[bool]()
    for task, dialogue in written():
        keywords = {folded(word) for fact in task.facts for word in fact.keywords}
        for turn in dialogue.turns:
            quotes.update(folded(quote) in keywords for quote in re.findall("“([^”]+)”", turn.assistant))
    assert quotes.total() > 20 and 0.3 < quotes[True] / quotes.total() < 0.7


def test_every_topic_has_a_name_for_the_assistant() -> None:
    speaker = Speaker(random.Random(1), NAME)
    for topic in topics():
        assert matter_of(speaker, topic.name)


def test_people_keep_their_way_of_speaking_and_begin_with_capitals_unless_they_never_do() -> None:
    voices = Counter(draw_voice(random.Random(f"voice of {number}")).kind for number in range(300))
    assert voices.keys() == {"plain", "chatty", "formal", "terse"}
    for task, dialogue in written():
        voice = draw_voice(random.Random(f"voice of {task.fixed.name}"))
        starts = [turn.user[0] for turn in dialogue.turns if turn.user[0].isalpha()]
        assert voice.lower or all(start.isupper() for start in starts)


def test_a_session_can_have_but_a_greeting_or_only_facts() -> None:
    counts = [(len(task.facts), len(dialogue.turns)) for task, dialogue in written("demanding_tiny")]
    assert counts and all(1 <= turns <= 8 for _, turns in counts)


def test_the_same_task_is_told_in_many_ways_and_never_says_an_outdated_value_of_a_bare_change() -> None:
    old = a_course()
    new = replace(a_course(day="Friday"), changed=("day",))
    task = a_task(
        a_fact(new, Event.UPDATE, old=old), a_fact(a_course(), origin=Origin.EVENT).model_copy(update={"id": "f2"})
    )
    task = task.model_copy(update={"today": date(2026, 5, 12)})
    said = set()
    for seed in range(30):
        dialogue = write_dialogue(task, random.Random(seed))
        turn = next(planned.turn for planned in dialogue.plan if planned.fact_id == "f1")
        alone = all(planned.turn != turn for planned in dialogue.plan if planned.fact_id != "f1")
        assert not alone or not stands_in("monday", folded(dialogue.turns[turn - 1].user))
        said.add(dialogue.turns[turn - 1].user)
    assert len(said) > 25
