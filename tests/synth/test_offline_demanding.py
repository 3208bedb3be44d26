"""The offline writer of `demanding` reads back what it writes, keeps all rules, converses, and states nothing by chance."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from functools import cache
from itertools import pairwise

import pytest
from offline_people import Recorder, life, shape

from deltamem.memory import Event
from rewards.fidelity import folded
from synth.assembly import labelled_sessions
from synth.offline import OfflineWriter
from synth.offline.scenes import GIVEN, distractors, say_distractor, scenes
from synth.offline.speaker import relative
from synth.offline.topics import (
    Cast,
    KnownValues,
    Topic,
    adjusted,
    expanded,
    over,
    read,
    topics,
    values,
    without_detail,
)  # fmt: skip
from synth.pools import pools
from synth.records import Aside, AsideKind, Dialogue, Person
from synth.tasks import DialogueTask, Unit
from synth.validators.base import invented_full_names, occurs
from synth.validators.session import judge_chain

NAME = "Belno"
CAST = Cast(NAME, "train")
by_topic = pytest.mark.parametrize("topic", (*topics(), *topics(short=True)), ids=lambda topic: topic.name)


@by_topic
def test_what_a_memory_says_is_read_back_after_every_change(topic: Topic) -> None:
    rng = random.Random(topic.name)
    changes = (expanded, without_detail, adjusted, lambda rng, cast, known: adjusted(rng, cast, known, 2))
    for _ in range(3):
        known = KnownValues(topic, CAST.fill(rng, topic))
        for change in rng.choices(changes, k=rng.randint(0, 4)):
            known = change(rng, CAST, known)
        known = replace(known, since=rng.choice(("", "12 May 2026")), until=rng.choice(("", "3 June 2026")))
        known = over(rng, known) if rng.random() < 0.3 else known
        fact = known.fact(NAME, 4)
        back = read(NAME, fact.text)
        assert back is not None and back.topic is topic and back.text(NAME) == fact.text
        assert (back.details, back.end, back.since) == (known.details, known.end, known.since)
        assert 2 <= len(fact.keywords) <= 4 and all(word.casefold() in fact.text.casefold() for word in fact.keywords)
        assert all(len(word.split()) <= 4 for word in fact.keywords)
    assert read("Else", fact.text) is None and read(NAME, f"{NAME} sleeps in a tree.") is None


@pytest.mark.parametrize("days", [-30, -21, -9, -6, -2, -1, 1, 2, 5, 7, 12, 28])
def test_a_date_said_from_a_day_gives_the_date(days: int) -> None:
    today = date(2026, 5, 13)
    day = today + timedelta(days=days)
    for seed in range(8):
        said = relative(random.Random(seed), day, today)
        found = re.search(r"\b(?:in|exactly) (?:exactly )?(\w+) (day|week)|(\w+) (day|week)s? (?:ago|from now)", said)
        if found:
            number = found[1] or found[3]
            words = "zero one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905
            count = (words.index(number) if number in words else int(number)) * (7 if "week" in found[0] else 1)
            assert count == abs(days), said
        elif said.startswith(("last ", "this coming ")):
            assert said.split()[-1] == day.strftime("%A") and abs(days) < 7
        else:
            assert abs(days) <= 2, said


@cache
def written(sizes: str = "demanding") -> tuple[list[Person], list[tuple[DialogueTask, Dialogue]]]:
    """Two people, and their dialogues with what was asked."""
    writer = Recorder(1)
    people = [life(number, shape(sizes), writer, sessions=10, real=number and sizes == "demanding") for number in range(2)]
    return people, [(task, done) for task, done, _ in writer.asked if task.unit is Unit.DIALOGUE and done is not None]


def test_lives_keep_all_rules() -> None:
    people, _ = written()
    for person in people:
        labelled = list(labelled_sessions(person))
        assert not judge_chain(labelled).violations
        rejected = Counter(rule for rejection in person.rejections for rule in rejection.rules)
        assert sum(rejected.values()) <= 1, rejected
        assert len(labelled) >= 9
    events = Counter(op.event for person in people for one in labelled_sessions(person) for op in one.operations)
    assert 0.15 < events[Event.UPDATE] / events.total() < 0.35 and events[Event.NONE]


def test_a_change_in_the_tiny_form_keeps_whom_it_is_about_and_gives_another_word_or_ends_it() -> None:
    ended = changed = 0
    for number in range(28, 37):
        person = life(number, shape("demanding_tiny"), OfflineWriter(1), sessions=4)
        name = person.profile.name
        for fact in (fact for session in person.sessions for fact in session.facts if fact.event is Event.UPDATE):
            before, after = (read(name, text) for text in (fact.previous_text, fact.text))
            assert before.topic is after.topic and after.topic.short
            others = {slot for slot, value in after.values.items() if before.values[slot] != value}
            assert others <= set(after.topic.change) and after.topic.key not in others
            ended, changed = ended + (not others), changed + bool(others)
            assert bool(others) or "longer" in fact.keywords
    assert changed > 10 and ended


def test_quotes_give_no_operation_away() -> None:
    quotes = Counter[bool]()
    for task, dialogue in written()[1]:
        keywords = {folded(word) for fact in task.facts for word in fact.keywords}
        for turn in dialogue.turns:
            quotes.update(folded(quote) in keywords for quote in re.findall("“([^”]+)”", turn.assistant))
    assert quotes.total() > 10 and 0.2 < quotes[True] / quotes.total() < 0.8


def test_the_assistant_reads_back_nothing_that_is_over() -> None:
    read_back = 0
    for task, dialogue in written()[1]:
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


@pytest.mark.parametrize("sizes", ["demanding", "demanding_tiny"])
def test_no_mark_follows_another_and_no_word_itself(sizes: str) -> None:
    wrong = re.compile(r"[.!?…]\s*,|,\s*[.,;:!?]|[?!]\.|(?<!\.)\.\.(?!\.)| [,;.]|[.!?]”\.|[:;]\s*[,;:.]|\b(\w+) \1\b")
    for _, dialogue in written(sizes)[1]:
        for turn in dialogue.turns:
            assert not wrong.search(turn.user) and not wrong.search(turn.assistant), turn


AROUND = dict(zip(GIVEN, ("Brelo", "Tiode", "Pastix", "Necex"), strict=True))
TOLD = Aside(id="a1", kind=AsideKind.QUESTION, words=tuple(AROUND.values()), memory="")
SPOKEN = tuple(kind for kind in AsideKind if kind is not AsideKind.CUE)

# What would be a fact about the user, had they said it: habits, belongings, work, tastes, people, changes.
_VERBS = (
    "work|live|own|play|keep|collect|hate|love|enjoy|prefer|drive|wear|sleep|study|learn|teach|train|rent|attend|suffer|smoke"
    "|used to|no longer|quit|gave up|have given up|switched|stopped|started|moved|bought|sold|got married|broke up"
)
_PEOPLE = (
    "wife|husband|partner|girlfriend|boyfriend|son|daughter|children|kids|mother|father|mum|dad|parents|brother|sister|aunt|uncle"
    "|cousin|niece|nephew|boss|job|flat|house|dog|cat|car|bike|doctor|dentist|diet|allergy|salary|rent|landlord|hobby"
)
FACTS = re.compile(
    rf"\bI (?:always |usually |often |never |still |also |now |only |just |really )?(?:{_VERBS})\b"
    r"|\bI(?: am|'m) (?:a|an|allergic|married|single|vegetarian|vegan|retired|engaged)\b"
    r"|\bI(?:'ve| have) (?:had|got|always|never|given|stopped|started|quit|two|three)\b"
    r"|\bI(?:'ve| have) an? (?!feeling|question|guess|hunch|moment)"
    rf"|\b[Mm]y (?:own |new |old )?(?:{_PEOPLE})\b"
)


def is_plain(text: str) -> bool:
    return bool(text) and not re.search(r"[{}\[\]<>|]|  | [,.;:?!](?!\))|,,|[,;:]\.|(?<!\.)\.\.(?!\.)", text)


def judge(user: str, assistant: str) -> Iterator[str]:
    for text in (user, assistant):
        if not is_plain(text) or not re.match(r"[“'(]?[A-Z0-9À-ž]|[“'(]", text):
            yield f"not a finished text: {text!r}"
    if not 5 <= len(assistant.split()) <= 75:
        yield f"too short or too long: {assistant!r}"
    if (found := FACTS.search(user)) is not None:
        yield f"{found[0]!r} may state a fact about the user: {user!r}"
    for name in invented_full_names([user], TOLD):
        yield f"{name!r} is nobody that the user has heard of: {user!r}"


def test_a_scene_is_said_with_any_seed_and_states_nothing() -> None:
    for scene in scenes():
        for seed in range(3):
            said = scene.say(random.Random(seed), AROUND)
            assert len(said) == len(scene.steps)
            assert not [problem for user, assistant in said for problem in judge(user, assistant)], scene.name


def words_of(slot: str) -> str:
    return {"date": "27 March 2026", "proper": "Blemo House", "phrase": "hung up", "who": "Kliotion", "spot": "Zofaind"}.get(
        slot
    ) or ("Kimo" if slot == "name" else values().draw(random.Random(slot), slot))


@pytest.mark.parametrize("kind", SPOKEN)
def test_an_aside_says_its_words_and_states_nothing(kind: AsideKind) -> None:
    rng, others = random.Random(kind), [slot for slots in distractors().kinds.values() for slot in slots]
    spoken = {*values().lists, "who", "spot", "name", "date", "proper", "phrase"}
    for slot in (slot for slot in others if slot in spoken):
        slots = [slot, rng.choice(others)] if rng.random() < 0.5 else [slot]
        words = list(dict.fromkeys(words_of(one) for one in slots))
        user, assistant = say_distractor(rng, kind, words, slots[: len(words)], AROUND)
        speaker = assistant if kind is AsideKind.ASSISTANT_CLAIM else user
        assert all(occurs(word, speaker) for word in words), (words, speaker)
        problems = [problem for problem in judge(user, assistant) if "nobody that" not in problem]
        assert not problems, problems


def test_words_of_change_are_said_of_what_is_no_fact() -> None:
    for cue in pools().cues:
        said = {say_distractor(random.Random(seed), AsideKind.CUE, (cue,), (), AROUND) for seed in range(6)}
        assert len({user for user, _ in said}) >= 2
        for user, assistant in said:
            assert occurs(cue, user) and not list(judge(user, assistant)), (cue, user, assistant)
