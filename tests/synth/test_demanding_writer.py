"""The offline writer of the shape `demanding`: what it writes it reads back, keeps all rules, and does not repeat itself."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from itertools import combinations, islice

import pytest
from offline_people import shape

from deltamem.memory import Event
from deltamem.sessions import LabelledSession
from deltamem.text import content_stems
from synth.assembly import labelled_sessions
from synth.names import InventedNames, RealNames
from synth.offline import OfflineWriter
from synth.offline.demanding import _misspoken, _siblings, _Stock
from synth.offline.grammar import Grammar, Lines, Speech, draw_voice, finished, inner, parse, pattern, spoken, with_article
from synth.offline.speaker import relative, talk
from synth.offline.topics import (
    Cast,
    Known,
    Topic,
    adjusted,
    begun_anew,
    details_of,
    ends_of,
    expanded,
    over,
    read,
    topic_named,
    topics,
    value_file,
    values,
    with_detail,
    without_detail,
)
from synth.person import write_person
from synth.records import FactPlan, Person, Persona
from synth.validators.base import memory_stems, near, occurs
from synth.validators.session import judge_chain

NAME = "Belno"
CAST = Cast(NAME, "train")
by_topic = pytest.mark.parametrize("topic", (*topics(), *topics(short=True)), ids=lambda topic: topic.name)


def write(number: int, sessions: int, *, real: bool = False, sizes: str = "demanding") -> Person:
    persona = Persona(person_id=f"p{number:06d}", seed="somebody", source="generated", split="train")
    names = RealNames(1) if real else InventedNames(1)
    writer = OfflineWriter(1)
    return asyncio.run(write_person(number, persona, writer, shape(sizes), names, sessions=sessions, seed=1))


@pytest.fixture(scope="module")
def written() -> list[Person]:
    return [write(number, 12, real=number == 2) for number in range(3)]


def test_brackets_are_alternatives_and_read_back() -> None:
    node = parse("[five|half past [six|nine]] sharp[, sir|]")
    said = {
        Grammar({"r": ["[five|half past [six|nine]] sharp[, sir|]"]}, {}).say(random.Random(seed), "r") for seed in range(60)
    }
    assert said == {f"{hour} sharp{end}" for hour in ("five", "half past six", "half past nine") for end in ("", ", sir")}
    assert all(re.fullmatch(pattern(node), text) for text in said)
    for broken in ("a [b", "a] b", "a {b", "a <b c> [x"):
        with pytest.raises(ValueError, match=r"brackets|not a sentence"):
            parse(broken)
    with pytest.raises(ValueError, match=r"no such rule: .'there'"):
        Grammar({"here": ["<there>"]}, {})


def test_slots_are_drawn_once_and_words_get_their_article_and_plural() -> None:
    grammar = Grammar({"r": ["a {pet} and the {pet} and a {pet2}"]}, {"pet": Lines(("[emu|hen]",))})
    assert {grammar.say(random.Random(seed), "r") for seed in range(20)} == {
        "an emu and the emu and a hen",
        "a hen and the hen and an emu",
    }
    assert (
        with_article("a hour, two watchs, three lilys and five days") == "an hour, two watches, three lilies and five days"
    )
    assert finished("so it  is : over. now it is  new") == "So it is: over. Now it is new."
    assert inner("The moon is full.", ()) == "the moon is full" and inner("Brelo is here.", {"Brelo"}) == "Brelo is here"


def test_voices_change_words_but_never_what_must_be_found_again() -> None:
    speech: Speech = talk().speech
    sentence, kept = (
        "I am going to meet Brelo at the second-hand bookshop because it is raining.",
        ("second-hand bookshop", "Brelo"),
    )
    said = set()
    for seed in range(200):
        text = spoken(random.Random(seed), draw_voice(random.Random(seed)), speech, sentence, kept)
        assert all(phrase in text for phrase in kept), text
        said.add(text)
    assert len(said) > 20
    assert any(text.startswith("I'm ") for text in said) and any("cos" in text for text in said)
    assert speech.replaced(random.Random(1), "contractions", "It is late.", 1.0, ()) == "It's late."


@by_topic
def test_what_a_memory_says_is_read_back_after_every_change(topic: Topic) -> None:
    rng = random.Random(topic.name)
    changes = (expanded, without_detail, adjusted, lambda rng, cast, known: adjusted(rng, cast, known, 2))
    for _ in range(25):
        known = Known(topic, CAST.fill(rng, topic))
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
        assert begun_anew(back).end is None
    assert read("Else", fact.text) is None and read(NAME, f"{NAME} sleeps in a tree.") is None


@pytest.mark.parametrize("topic", topics(), ids=lambda topic: topic.name)
def test_dates_follow_what_they_date_and_an_end_names_what_is_over(topic: Topic) -> None:
    known = with_detail(random.Random(1), CAST, Known(topic, CAST.fill(random.Random(topic.name), topic)), 0)
    plain = replace(known, details=("", "", "")).text(NAME).removesuffix(".")
    text = replace(known, since="12 May 2026", until="3 June 2026").text(NAME)
    assert text.startswith(f"{plain} as of 12 May 2026 until 3 June 2026, ")
    dated = replace(with_detail(random.Random(1), CAST, known, 1), since="12 May 2026")
    assert len(dated.text(NAME).split()) <= shape("demanding").facts.words.max
    assert re.search(r"\b(?:is )?no longer (?!is )", over(random.Random(2), known).text(NAME))
    if not topic.single:
        key = known.values[topic.key]
        for line in (*topic.implied, *(line for end in topic.ends for line in (*end.say, *end.implied))):
            assert key in Grammar({"line": [line]}, {}).say(random.Random(3), "line", known.values)


def test_a_topic_says_what_it_is_about() -> None:
    good: dict[str, object] = {
        "name": "swim",
        "track": "health",
        "memory": "swims with {who} on {day}s",
        "say": ["I swim with {who} on {day}s"],
        "change": ["day"],
        "implied": ["my hair is wet on {day}s, {who} loves it"],
        "details": [
            {"memory": "in {spot}", "say": ["{who} likes {spot}"], "lost": "*at sea*", "unsay": ["{who} is at sea"]},
            {"memory": "at {clock}", "say": ["{who} is up at {clock}"], "lost": "*late*", "unsay": ["{who} is late"]},
        ],
        "ends": [{"memory": "having *stopped*", "say": ["{who} and I stopped"], "implied": ["we stopped, {who} is dry"]}],
    }
    assert Topic.model_validate(good).changeable == ("day",)
    for field, wrong, message in (
        ("implied", ["my hair is wet on {day}s"], "what is meant"),
        ("implied", ["{who} loves it in the {part} on {day}s"], "must not be said"),
        ("implied", ["{who} loves it"], "first slot"),
        ("change", ["part"], "change"),
        ("change", ["who"], "change"),
        ("say", ["I swim with {who}"], "not all slots"),
        (
            "ends",
            [{"memory": "having *stopped*", "say": ["I stopped"], "implied": ["we stopped, {who} is dry"]}],
            "what is meant",
        ),
        (
            "ends",
            [{"memory": "having *stopped*", "say": ["{who} and I rest"], "implied": ["{who} stopped"]}],
            "has to be said",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            Topic.model_validate({**good, field: wrong})


@pytest.mark.parametrize(
    "topic", [topic for topic in topics() if not (topic.single or topic.event)], ids=lambda topic: topic.name
)
def test_siblings_of_every_topic_are_alike_and_keep_to_the_length(topic: Topic) -> None:
    limits = shape("demanding").facts
    for seed in range(12):
        rng = random.Random(seed)
        stock = _Stock(rng, NAME, 1, limits)
        plan = FactPlan(family=1, dated=topic.lasts and seed % 3 == 0, temporary=topic.lasts and seed % 3 == 1)
        keys = CAST.keys(rng, topic)[:3]
        texts = [known.text(NAME) for known in _siblings(stock, topic, keys, [plan] * 3, date(2026, 5, 1), {})]
        assert len({*texts}) == 3
        for one, other in combinations(texts, 2):
            assert near(memory_stems(one, NAME), memory_stems(other, NAME)), (one, other)
        assert all(len(text.split()) in limits.words for text in texts)


@pytest.mark.parametrize(
    "topic",
    [topic for topic in topics() if topic.changeable[0] == "day" and not (topic.single or topic.other)],
    ids=lambda topic: topic.name,
)
def test_siblings_that_meet_weekly_mostly_have_days_of_their_own(topic: Topic) -> None:
    apart = 0
    for seed in range(20):
        rng = random.Random(seed)
        stock = _Stock(rng, NAME, 1, shape("demanding").facts)
        siblings = [*_siblings(stock, topic, CAST.keys(rng, topic)[:3], [FactPlan(family=1)] * 3, None, {})]
        apart += len({sibling.values["day"] for sibling in siblings}) == len(siblings)
    assert apart >= 14


def test_what_is_put_right_is_no_value_of_a_sibling() -> None:
    topic = topic_named("course")
    for seed in range(20):
        rng = random.Random(seed)
        known = Known(topic, CAST.fill(rng, topic))
        others = [day for day in values().lists["day"] if day != known.values["day"]]
        # All days but the last are taken, and then all of them.
        assert _misspoken(rng, known, known.fact(NAME, 4), others[:-1]) not in others[:-1]
        assert _misspoken(rng, known, known.fact(NAME, 4), others) not in others


def test_topics_are_many_and_each_can_change_in_every_way() -> None:
    lasting = [topic for topic in topics() if not topic.event]
    assert len(lasting) >= 40 and len(topics(short=True)) == 9
    assert {topic.track for topic in topics()} == {"career", "health", "relationship", "preference"}
    for topic in topics():
        assert topic.changeable and ends_of(topic.name) and len(details_of(topic.name)) == 3
    for topic in topics(short=True):
        assert ends_of(topic.name) and not details_of(topic.name)


def test_short_facts_of_a_life_name_nobody_twice() -> None:
    for name, split, syllables in (("Wel", "train", 1), ("Zaind", "heldout", 1), ("Brelo", "train", 2)):
        cast, rng = Cast(name, split), random.Random(1)
        named = [*cast.people, *(key for topic in topics(short=True) for key in cast.keys(rng, topic))]
        assert len(named) == len({*named, name}) - 1 and len(named) > 100
        assert all(len(re.findall("[aeiou]+", one, re.IGNORECASE)) == syllables for one in named)


@pytest.mark.parametrize("days", [*range(-30, 0), *range(1, 31)])
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


def test_lives_keep_all_rules(written: list[Person]) -> None:
    for person in written:
        labelled = list(labelled_sessions(person))
        assert not judge_chain(labelled).violations
        rejected = Counter(rule for rejection in person.rejections for rule in rejection.rules)
        assert sum(rejected.values()) <= 1, rejected
        assert len(labelled) >= 11
    events = Counter(op.event for person in written for one in labelled_sessions(person) for op in one.operations)
    assert 0.15 < events[Event.UPDATE] / events.total() < 0.35 and events[Event.NONE]


def test_the_tiny_form_keeps_all_rules_with_single_words() -> None:
    people = [write(number, 3, sizes="demanding_tiny") for number in range(25)]
    labelled = [list(labelled_sessions(person)) for person in people]
    assert not any(judge_chain(sessions).violations for sessions in labelled)
    assert sum(map(len, labelled)) >= 0.95 * 3 * len(people)
    operations = [operation for sessions in labelled for one in sessions for operation in one.operations]
    assert all(" " not in word for operation in operations for word in operation.keywords)
    assert {operation.event for operation in operations} == set(Event)
    assert any(not one.operations for sessions in labelled for one in sessions)


def test_a_change_in_the_tiny_form_keeps_whom_it_is_about_and_gives_another_word_or_ends_it() -> None:
    ended = changed = 0
    for person in (write(number, 6, sizes="demanding_tiny") for number in range(12)):
        name = person.profile.name
        for fact in (fact for session in person.sessions for fact in session.facts if fact.event is Event.UPDATE):
            before, after = (read(name, text) for text in (fact.previous_text, fact.text))
            assert before.topic is after.topic and after.topic.short
            others = {slot for slot, value in after.values.items() if before.values[slot] != value}
            assert others <= set(after.topic.change) and after.topic.key not in others
            ended, changed = ended + (not others), changed + bool(others)
            assert bool(others) or "longer" in fact.keywords
    assert changed > 10 and ended


def test_the_tiny_form_says_a_change_in_the_words_of_news_and_what_might_be_as_a_question() -> None:
    people = [write(number, 3, sizes="demanding_tiny") for number in range(25)]
    labelled = [one for person in people for one in labelled_sessions(person)]
    texts = {one.operations: " ".join(user_text([one])) for one in labelled if one.operations}
    changes = [(operation, text) for operations, text in texts.items() for operation in operations if operation.outdated]
    # Most changes show by the new value alone: the bank says that there was another.
    silent = [text for operation, text in changes if not any(occurs(value, text) for value in operation.outdated)]
    assert len(silent) > 0.6 * len(changes) > 10
    said = " ".join(user_text(labelled))
    assert re.search(r"(What|what) if (I|my)", said) and "Who told you that" in said
    # Nobody is left without an answer to what the assistant claims of them.
    asked = re.compile(r"(Did you speak of|Was there something with) .*\?")
    claims = [
        turns[at + 1 :] for one in labelled for turns in [one.session.dialogue] for at, turn in enumerate(turns)
        if turn.role == "assistant" and asked.fullmatch(turn.content)
    ]  # fmt: skip
    assert claims and all("never mind that" in rest[0].content.lower() for rest in claims)


def test_the_same_person_is_written_twice_alike(written: list[Person]) -> None:
    assert write(0, 12) == written[0]


def lived(person: Person) -> list[tuple[Known, str]]:
    """What is remembered of a life in the topics, with what it was before."""
    assert person.profile is not None
    name = person.profile.name
    told = [
        (fact.text, fact.previous_text) for session in person.sessions for fact in session.facts if fact.event != Event.NONE
    ]
    pairs = [*((fact.text, "") for fact in person.profile.initial), *told]
    return [(known, previous) for text, previous in pairs if (known := read(name, text)) is not None]


def test_a_life_does_not_contradict_itself(written: list[Person]) -> None:
    for person in written:
        facts = lived(person)
        new = Counter((known.topic.name, known.values[known.topic.key]) for known, previous in facts if not previous)
        assert new.most_common(1)[0][1] == 1, "two memories of the same thing"
        kinds = Counter(topic for topic, _ in new)
        assert not [topic.name for topic in topics() if topic.single and kinds[topic.name] > 1], "two homes, two jobs..."
        assert not [topic.name for topic in topics() if topic.rare and kinds[topic.name] > 3]
        kin: dict[str, set[str]] = {}
        for known, _ in facts:
            if "kin" in known.values:
                kin.setdefault(known.values["who"], set()).add(known.values["kin"])
            assert not known.heard or known.topic.other, "nobody hears about their own life"
        assert all(len(kinds) == 1 for kinds in kin.values()), kin
        # Flatmates, sweethearts, pets and trainees are no uncles.
        assert not {known.values["name"] for known, _ in facts if "name" in known.values} & set(kin)
    assert {topic.name for topic in topics() if topic.single} >= {"job", "home", "partner", "commute", "sleep", "breakfast"}


def test_nobody_eats_what_they_avoid() -> None:
    lists = value_file().lists
    eaten = {word for name in ("food", "dish", "drink", "snack", "breakfast", "crop") for word in lists[name]}
    for name in ("allergen", "vice", "horror"):
        words = {stem for word in lists[name] for stem in content_stems(word)}
        assert not {word for word in eaten if content_stems(word) <= words}, name
    assert not set(lists["allergen"]) & eaten


def user_text(sessions: list[LabelledSession]) -> list[str]:
    return [turn.content for one in sessions for turn in one.session.dialogue if turn.role == "user"]


def test_users_do_not_repeat_themselves(written: list[Person]) -> None:
    said = [
        word for person in written for text in user_text(list(labelled_sessions(person))) for word in text.lower().split()
    ]
    said = list(islice(said, 10_000))
    threes = list(zip(said, said[1:], said[2:], strict=False))
    assert len(set(threes)) / len(threes) > 0.7
