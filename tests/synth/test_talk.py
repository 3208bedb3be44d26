"""Dialogues of the shape `demanding` are conversations: segments of one thing each, answers to what was said."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
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
from synth.offline.speaker import NUMBERS, Speaker, matter_of, span, suits, talk
from synth.offline.talk import write_dialogue
from synth.offline.telling import Telling
from synth.offline.topics import Cast, Known, Topic, over, read, topic_named, topics
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
            # What is confirmed was said by the assistant.
            told = [fact for fact in told if fact.difficulty and fact.difficulty.provenance != "assistant_confirmed"]
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


def test_what_happened_comes_first_or_second() -> None:
    places = Counter[int]()
    for task, dialogue in written():
        events = [fact.id for fact in task.facts if fact.origin is Origin.EVENT]
        groups = [
            fact.statement or fact.id for planned in dialogue.plan for fact in task.facts if fact.id == planned.fact_id
        ]
        if events:
            places[list(dict.fromkeys(groups)).index(events[0])] += 1
    assert places.keys() == {0, 1}


def test_the_day_on_which_something_was_to_be_told_is_said_of_anything() -> None:
    found = Counter[str]()
    for task, dialogue in written():
        origins = {
            planned.turn: fact.origin for planned in dialogue.plan for fact in task.facts if fact.id == planned.fact_id
        }
        for number, turn in enumerate(dialogue.turns, start=1):
            if re.search(r"(?:meant|wanted|nearly|note|noted|forgot).{3,30}(?:yesterday|ago|earlier today|day)", turn.user):
                found[str(origins.get(number))] += 1
    assert found[str(Origin.EVENT)] and found.total() > found[str(Origin.EVENT)]


@pytest.mark.parametrize("days", [-20, -14, -9, -5, -2, -1, 0, 1, 4, 7, 12, 21])
def test_since_when_and_from_when_on_give_the_date(days: int) -> None:
    today = date(2026, 5, 12)
    for seed in range(6):
        said = span(random.Random(seed), today + timedelta(days=days), today)
        number = re.search(r"\b(\d+|" + "|".join(NUMBERS) + r")\b (day|week)", said)
        assert said.startswith(("since", "for") if days < 0 else ("from", "in", str(days), NUMBERS[min(days, 12)])), said
        if number:
            counted = NUMBERS.index(number[1]) if number[1] in NUMBERS else int(number[1])
            assert counted * (7 if number[2] == "week" else 1) == abs(days), said


def test_a_yes_answers_a_question() -> None:
    yes = re.compile(r"(?:yes|yep|exactly|correct|that's right|quite right|indeed|absolutely|spot on)\b", re.IGNORECASE)
    answers = 0
    for _, dialogue in written():
        for turn, after in pairwise(dialogue.turns):
            if yes.match(after.user):
                answers += 1
                assert turn.assistant.endswith("?"), (turn.assistant, after.user)
    assert answers > 10


@pytest.mark.parametrize("topic", topics(), ids=lambda topic: topic.name)
def test_what_a_fact_is_about_is_no_bare_value(topic: Topic) -> None:
    known = Known(topic, CAST.fill(random.Random(1), topic))
    key = known.values[topic.key]
    for seed in range(60):
        said = told(a_fact(known), seed)[0]
        bare = re.match(rf"(?:[\w ]+ )?(?:as for|about|concerning|when it comes to|on to|now for) {re.escape(key)}:", said)
        assert not bare or key in (*CAST.people, *CAST.places) or topic.key == "name", said


@pytest.mark.parametrize("topic", topics(), ids=lambda topic: topic.name)
def test_what_the_assistant_asks_and_offers_suits_the_topic(topic: Topic) -> None:
    area = talk().area_of(topic.name)[1]
    assert any(suits(line, topic.name) for line in (*area.follow_ups, *area.offers))
    lost = "lost-property" in " ".join(text for line in area.follow_ups if suits(line, topic.name) for text in line.ask)
    assert lost == (topic.name == "lost")


def test_the_assistant_asks_one_thing_at_a_time() -> None:
    fact = a_fact(a_course(), provenance="assistant_confirmed")
    for seed in range(40):
        dialogue = write_dialogue(a_task(fact), random.Random(seed))
        # Before the first thing that is told there is but a greeting.
        if dialogue.plan[0].turn == 2 and not dialogue.asides:
            assert dialogue.turns[0].assistant.count("?") == 1 or "“" in dialogue.turns[0].assistant


def test_a_claim_names_what_it_is_about() -> None:
    found = Counter[bool]()
    for task, dialogue in written():
        claims = {aside.id: aside for aside in task.asides if aside.kind == "assistant_claim" and aside.words}
        for planned in dialogue.asides:
            if planned.aside_id in claims and (known := read(task.fixed.name, claims[planned.aside_id].memory)):
                said = dialogue.turns[planned.turn - 1].assistant.casefold()
                area = talk().area_of(known.topic.name)[1]
                found[any(matter in said for matter in matters(area.matters))] += 1
    assert found[True] > 5 and found[True] > 0.8 * found.total()


def test_nothing_is_asked_of_what_is_over() -> None:
    speaker = Speaker(random.Random(1), NAME)
    questions = [follow.ask for follow in talk().areas["study"].follow_ups]
    asked = tuple({speaker.line(texts) for texts in questions for _ in range(60)})
    ended = a_fact(over(random.Random(1), a_course()), Event.UPDATE, old=a_course())
    found = Counter[str]()
    for fact in (ended, a_fact(a_course())):
        for seed in range(40):
            dialogue = write_dialogue(a_task(fact), random.Random(seed))
            found[fact.event] += dialogue.turns[dialogue.plan[0].turn - 1].assistant.endswith(asked)
    assert not found[Event.UPDATE] and found[Event.ADD]


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


@pytest.mark.parametrize("seed", range(200))
def test_a_contrast_stands_beside_what_it_is_about(seed: int) -> None:
    said = " ".join(told(a_fact(replace(a_course(who="Stailai", price="145"), details=("has", "has", ""))), seed))
    for sentence in re.split(r"(?<=[.?!:]) ", said):
        if found := re.search(r",(?: and)? (?:no longer|not|after) \w+day", sentence):
            assert "Stailai" not in sentence[: found.start()] and "145" not in sentence[: found.start()], said


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


def test_the_assistant_reads_back_nothing_that_is_over() -> None:
    read_back = 0
    for task, dialogue in written():
        true = " ".join(fact.text for fact in task.facts).casefold()
        old = {word.casefold() for fact in task.facts for word in fact.outdated if word.casefold() not in true}
        for turn, after in pairwise(dialogue.turns):
            for quote in re.findall("“([^”]+)”[^“]*[?]", turn.assistant):
                read_back += 1
                # What the user puts right may be wrong.
                assert quote.casefold() not in old or re.search(r"(?i)\b(no|not|mixed|almost|wrong)\b", after.user), (
                    turn,
                    after,
                )
    assert read_back


@pytest.mark.parametrize("seed", range(6))
def test_a_question_about_something_known_names_whom_it_is_about(seed: int) -> None:
    old = a_course()
    new = replace(old, values={**old.values, "day": "Friday"}, changed=("day",))
    fact = a_fact(new, Event.UPDATE, old=old, provenance="assistant_corrected", misspoken="Sunday")
    statement = Telling(Speaker(random.Random(seed), NAME), a_task(fact)).statement([fact])
    assert new.values["spot"] in statement.asked and re.search("course|lessons", statement.asked), statement.asked
    # The user does not ask back.
    assert "?" not in statement.said[0]


def test_users_say_once_a_session_that_they_meant_to_write() -> None:
    meant = re.compile(
        r"(?i)\b(meant to (tell|write|mention)|wanted to (tell|write|get)|made a note for you|nearly (wrote|forgot,))"
    )
    counts = [sum(len(meant.findall(turn.user)) for turn in dialogue.turns) for _, dialogue in written()]
    assert max(counts) == 1


def test_every_topic_has_a_name_for_the_assistant() -> None:
    speaker = Speaker(random.Random(1), NAME)
    for topic in topics():
        assert matter_of(speaker, topic.name)


def test_a_fact_is_led_up_to_once() -> None:
    for _, dialogue in written():
        for turn in dialogue.turns:
            assert not re.search(r"\w[:,] (?:you remember|remember|you know about) [\w ]+\? Well", turn.user), turn.user


def test_days_and_months_keep_their_capital_within_a_sentence() -> None:
    speaker = Speaker(random.Random(1), NAME)
    assert speaker.inner("Monday is when I swim.") == "Monday is when I swim"
    assert speaker.inner("March is when we meet.") == "March is when we meet" and speaker.inner("We meet.") == "we meet"


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


@pytest.mark.parametrize("sizes", ["demanding", "demanding_tiny"])
def test_no_mark_follows_another_and_no_word_itself(sizes: str) -> None:
    wrong = re.compile(r"[.!?…]\s*,|,\s*[.,;:!?]|[?!]\.|(?<!\.)\.\.(?!\.)| [,;.]|[.!?]”\.|[:;]\s*[,;:.]|\b(\w+) \1\b")
    for _, dialogue in written(sizes):
        for turn in dialogue.turns:
            assert not wrong.search(turn.user) and not wrong.search(turn.assistant), turn
