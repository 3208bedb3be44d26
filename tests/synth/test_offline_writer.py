"""The offline writer: deterministic, split by names, and templates that say what they must."""

import random
import re
import string
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synth_cases import INVENTED_SLOTS, invented_names, person, texts

from deltamem.memory import Event
from synth.invariants import chain_violations
from synth.offline import OfflineConfig
from synth.offline.names import invent_name, name_split
from synth.offline.topics import CLOSERS, OPENERS, POOLS, REPLIES, SMALL_TALK, TOPICS, Topic
from synth.records import Change
from synth.settings import OfflineSettings

WORD = re.compile(r"[A-Za-z]+")
by_topic = pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)


def slots(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def test_same_seed_gives_the_same_person_and_another_seed_another_one():
    assert person(3) == person(3)
    assert person(3, config=OfflineConfig(seed=2)) != person(3)
    assert person(3).profile.name != person(4).profile.name


def test_a_person_does_not_depend_on_how_many_sessions_are_written():
    assert person(5, sessions=6).sessions[:2] == person(5, sessions=2).sessions


def test_heldout_and_training_people_share_no_invented_name_in_any_text():
    train = [person(number, sessions=8) for number in range(60)]
    heldout = [person(number, split="heldout", sessions=8) for number in range(60, 100)]
    train_names = set().union(*map(invented_names, train))
    heldout_names = set().union(*map(invented_names, heldout))
    assert len(train_names) > 1000 and len(heldout_names) > 600
    assert not train_names & heldout_names
    train_words = {word for someone in train for text in texts(someone) for word in WORD.findall(text)}
    heldout_words = {word for someone in heldout for text in texts(someone) for word in WORD.findall(text)}
    assert train_names <= train_words and heldout_names <= heldout_words
    assert not train_names & heldout_words
    assert not heldout_names & train_words


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_invented_names_belong_to_their_split_and_rarely_repeat(split):
    rng = random.Random(0)
    names = [invent_name(rng, split) for _ in range(2000)]
    assert {name_split(name) for name in names} == {split}
    assert all(re.fullmatch(r"[A-Z][a-z]+", name) for name in names)
    assert len(set(names)) > 1800


def test_a_fifth_of_the_spellings_is_held_out():
    rng = random.Random(1)
    spellings = ["".join(rng.choices(string.ascii_lowercase, k=7)) for _ in range(4000)]
    share = sum(name_split(spelling) == "heldout" for spelling in spellings) / len(spellings)
    assert share == pytest.approx(0.2, abs=0.03)


@by_topic
def test_every_template_contains_its_slots(topic: Topic):
    facts = {topic.slot, "anchor"} | ({topic.fixed} if topic.fixed else set())
    assert slots(topic.memory) == facts | {"person"}
    assert topic.memory.startswith("{person} ")
    assert topic.memory.endswith("{anchor}.")
    assert topic.new and topic.adjust and topic.repeat
    for template in (*topic.new, *topic.repeat):
        assert slots(template) == facts, template
    for template in topic.adjust:
        assert slots(template) == facts | {"old"}, template
    for template in (*topic.new, *topic.adjust, *topic.repeat):
        assert template[-1] in ".!?" and (template[0].isupper() or template.startswith("{anchor}")), template


@by_topic
def test_the_words_of_a_topic_exist(topic: Topic):
    if topic.pool is None:
        assert topic.slot in INVENTED_SLOTS
    else:
        assert len(POOLS[topic.pool]) >= 2
    assert topic.fixed is None or POOLS[topic.fixed]


@pytest.mark.parametrize("pool", POOLS)
def test_no_word_stands_twice_in_a_pool(pool):
    assert len(set(POOLS[pool])) == len(POOLS[pool])


def test_topic_names_are_unique():
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)


def test_every_update_keeps_a_keyword_and_changes_another():
    updates = 0
    for number in range(20):
        for event in person(number, sessions=8).events:
            for delta in event.deltas:
                if delta.change is Change.ADJUST and delta.previous is not None:
                    updates += 1
                    kept = set(delta.fact.keywords) & set(delta.previous.keywords)
                    assert delta.fact.values["anchor"] in kept
                    assert set(delta.fact.keywords) - set(delta.previous.keywords)
    assert updates > 100


def test_the_shares_of_the_configuration_are_met():
    config = OfflineConfig(initial_memories=6, min_facts=3, max_facts=3, update_share=0.5, repeat_share=0.2)
    events = [
        operation.event
        for number in range(40)
        for labelled in person(number, sessions=10, config=config).sessions
        for operation in labelled.operations
    ]
    assert len(events) == 40 * 10 * 3
    assert events.count(Event.UPDATE) / len(events) == pytest.approx(0.5, abs=0.05)
    assert events.count(Event.NONE) / len(events) == pytest.approx(0.2, abs=0.05)


def test_small_talk_can_be_switched_off_and_on():
    def user_turns(share: float) -> int:
        someone = person(sessions=6, config=OfflineConfig(small_talk=share))
        return sum(turn.role == "user" for labelled in someone.sessions for turn in labelled.session.dialogue)

    facts = sum(len(labelled.operations) for labelled in person(sessions=6).sessions)
    assert user_turns(0.0) == facts
    assert user_turns(1.0) == facts + 2 * 6


def test_the_dialogue_reads_well():
    for number in range(30):
        someone = person(number, sessions=6)
        names = invented_names(someone)
        for labelled in someone.sessions:
            dialogue = labelled.session.dialogue
            assert [turn.role for turn in dialogue] == ["user", "assistant"] * (len(dialogue) // 2)
            for user, assistant in zip(dialogue[::2], dialogue[1::2], strict=True):
                assert assistant.content in REPLIES
                check_sentence(user.content, names)


def check_sentence(text: str, names: set[str]) -> None:
    assert "{" not in text and "  " not in text and text == text.strip(), text
    assert text[0].isupper() and text[-1] in ".!?", text
    if text in SMALL_TALK:
        return
    opener = max((opener for opener in OPENERS if text.startswith(opener)), key=len)
    told = text.removeprefix(opener)
    first = WORD.match(told)
    assert first is not None, text
    if opener.endswith(", "):
        # In the middle of a sentence only "I" and names are capitalised.
        assert told[0].islower() or first[0] == "I" or first[0] in names, text
    else:
        assert told[0].isupper(), text
    closer = max((closer for closer in CLOSERS if told.endswith(closer)), key=len)
    body = told.removesuffix(closer)
    assert body[-1] in ".!?" and not re.search(r"\bi\b", body), text


def test_time_moves_on_within_waking_hours():
    someone = person(7, sessions=10)
    times = [someone.profile.start, *(event.time for event in someone.events)]
    assert all(later > earlier for earlier, later in pairwise(times))
    assert all(8 <= time.hour < 23 for time in times)


@st.composite
def valid_configs(draw: st.DrawFn) -> OfflineConfig:
    low = draw(st.integers(1, 12))
    update_share = draw(st.floats(0, 1))
    settings_of_file = OfflineSettings(
        initial_memories=draw(st.integers(0, 30)),
        min_facts=low,
        max_facts=draw(st.integers(low, 12)),
        update_share=update_share,
        repeat_share=draw(st.floats(0, 1)) * (1 - update_share),
        small_talk=draw(st.floats(0, 1)),
    )
    return OfflineConfig(seed=draw(st.integers(-(2**40), 2**40)), **settings_of_file.model_dump())


@settings(max_examples=60, deadline=None)
@given(config=valid_configs(), split=st.sampled_from(["train", "heldout"]), number=st.integers(0, 10**7))
def test_any_valid_configuration_gives_sessions_without_violations(config, split, number):
    someone = person(number, split=split, sessions=4, config=config)
    assert chain_violations(someone.sessions) == []
    assert len(someone.sessions) == 4
    assert len(someone.sessions[0].prior_state) == config.initial_memories
    for labelled in someone.sessions:
        assert config.min_facts <= len(labelled.operations) <= config.max_facts
        assert labelled.split == split


def test_a_session_without_prior_memories_only_adds():
    someone = person(sessions=1, config=replace(OfflineConfig(), initial_memories=0, update_share=1.0, repeat_share=0.0))
    assert {operation.event for operation in someone.sessions[0].operations} == {Event.ADD}
