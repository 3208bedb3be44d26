"""Lives put together from scenes: whatever is drawn, labels hold and shares are those of the plan."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import date, datetime
from functools import cache

import pytest
from episode_texts import WordEmbedder
from omegaconf import OmegaConf
from synth_runs import synth

from deltamem.config import composed
from deltamem.embedding import CachedEmbedder
from deltamem.memory import Event
from deltamem.sessions import FactKind, LabelledSession, read_sessions
from deltamem.text import content_stems
from synth.assembly import labelled_sessions
from synth.config import MOST_INTRODUCED, Everyday, Range, Shape
from synth.everyday.life import Life, PlayedScene
from synth.everyday.person import write_life
from synth.everyday.scenes import scenes
from synth.names import RealNames
from synth.output.probe import find
from synth.records import Person, Persona
from synth.validators.session import judge_chain


@cache
def demanding() -> Shape:
    config = composed("synth", ["shape=demanding", "out=unused"])
    return Shape.model_validate(OmegaConf.to_container(config.shape, resolve=True))


def life(number: int, sessions: int = 8, *, seed: int = 1, **plan: object) -> Person:
    sizes = demanding()
    assert sizes.everyday is not None
    sizes = sizes.model_copy(update={"everyday": sizes.everyday.model_copy(update=plan)})
    split = "heldout" if number % 10 == 9 else "train"
    persona = Persona(person_id=f"p{number:06}", seed="Somebody.", source="generated", split=split)
    return write_life(number, persona, sizes, RealNames(1), sessions=sessions, seed=seed)


@cache
def lives(count: int = 30) -> tuple[tuple[LabelledSession, ...], ...]:
    return tuple(tuple(labelled_sessions(life(number))) for number in range(count))


def test_no_session_breaks_a_rule_and_none_is_left_out() -> None:
    for sessions in lives():
        assert judge_chain(sessions).violations == ()
        assert len(sessions) == 8


def test_the_same_seed_gives_the_same_life_and_another_one_another() -> None:
    assert life(3) == life(3)
    assert life(3) != life(3, seed=2)


def test_operations_have_the_shares_of_the_plan() -> None:
    found = Counter(one.event for sessions in lives() for session in sessions for one in session.operations)
    total = found.total()
    assert 0.18 < found[Event.UPDATE] / total < 0.34
    assert 0.04 < found[Event.NONE] / total < 0.16
    idle = sum(not session.operations for sessions in lives() for session in sessions)
    assert 0 < idle / sum(map(len, lives())) < 0.25


def test_most_turns_leave_nothing_to_remember() -> None:
    noise = [session.difficulty.noise for sessions in lives() for session in sessions if session.difficulty]
    assert sum(noise) / len(noise) > 0.8


def test_friends_have_their_names_before_what_they_say_and_assistants_have_not() -> None:
    def named(session: LabelledSession) -> set[bool]:
        first = session.session.person_name.split()[0]
        return {turn.content.startswith(f"{first}: ") for turn in session.session.dialogue if turn.role == "user"}

    kinds = Counter(tuple(named(session)) for sessions in lives() for session in sessions)
    assert kinds.keys() == {(True,), (False,)}
    assert 0.15 < kinds[(True,)] / kinds.total() < 0.45


def test_nobody_says_the_same_twice_in_a_session() -> None:
    """Scenes that may come again came twice in a session, and what became of two of them was told in the same words."""
    for number in range(40):
        for session in labelled_sessions(life(number, 4, families=0.6, stated=0.0)):
            said = Counter(turn.content for turn in session.session.dialogue if turn.role == "user")
            assert [text for text, times in said.items() if times > 1 and len(text.split()) > 12] == []


def test_what_comes_a_second_time_has_other_values_as_long_as_there_are_any() -> None:
    sizes, profile = demanding(), life(1).profile
    assert sizes.everyday is not None and profile is not None
    again = 0
    for seed in range(30):
        plan = sizes.everyday.model_copy(update={"families": 0.8, "idle": 0.0})
        one = Life(random.Random(seed), plan, profile.fixed, "train", newcomer=False)
        one.initial(datetime(2026, 3, 4, 9))
        for index in range(8):
            one.session(index, datetime(2026, 3, 4 + index, 9))
        first: dict[str, PlayedScene] = {}
        second: dict[str, PlayedScene] = {}
        for played in one._instances:
            (second if played.scene.name in first else first).setdefault(played.scene.name, played)
        again += len(second)
        for name, played in second.items():
            lists = [slot for slot, source in played.scene.slots.items() if not isinstance(source, str)]
            same = [slot for slot in lists if slot in played.values and played.values[slot] == first[name].values[slot]]
            assert same == [], name
    assert again > 20, again


def test_a_life_that_has_had_all_scenes_tells_again_what_may_come_again_and_then_only_talks() -> None:
    sizes, profile = demanding(), life(9).profile
    assert sizes.everyday is not None and profile is not None
    wanted = Range(min=30, max=30)
    plan = sizes.everyday.model_copy(update={"families": 0.0, "idle": 0.0, "facts": wanted})
    one = Life(random.Random(1), plan, profile.fixed, "heldout", newcomer=False)
    one._used = {scene.name for scene in scenes()}
    assert 0 < len(one.session(1, datetime(2026, 3, 4, 9)).facts) < 30
    names = Counter(played.scene.name for played in one._instances)
    assert names and set(names.values()) == {1}


def test_newcomers_begin_with_nothing_and_introduce_themselves() -> None:
    person = life(1, newcomers=1.0)
    assert person.profile is not None and person.profile.initial == ()
    first = next(labelled_sessions(person))
    assert len(first.operations) >= 6
    assert {one.event for one in first.operations} == {Event.ADD}


def best_said(session: LabelledSession) -> list[float]:
    """Of each new memory the largest share of its words that stands in one turn of the person."""
    name = content_stems(session.session.person_name)
    turns = [content_stems(turn.content) for turn in session.session.dialogue if turn.role == "user"]
    stems = [content_stems(one.text) - name for one in session.operations if one.event is Event.ADD]
    return [max(len(words & turn) / len(words) for turn in turns) for words in stems if words]


def test_an_introduction_states_its_facts_nearly_word_for_word() -> None:
    for number in range(4):
        first = next(labelled_sessions(life(number, 1, newcomers=1.0, introductions=1.0, introduced=Range(min=9, max=12))))
        assert 9 <= len(first.operations) < 12 + 6
        assert {one.event for one in first.operations} == {Event.ADD}
        shares = best_said(first)
        assert sum(shares) / len(shares) > 0.9  # all but dates and persons


def test_the_longest_introduction_fits_a_session() -> None:
    """Up to four facts more than are wanted come with the last scene; 40 of them were refused by the dialogue's record."""
    longest = Range(min=MOST_INTRODUCED, max=MOST_INTRODUCED)
    for number in range(12):
        first = next(labelled_sessions(life(number, 1, newcomers=1.0, introductions=1.0, introduced=longest)))
        assert MOST_INTRODUCED <= len(first.operations) <= 40
    assert max(len(scene.facts) for scene in scenes()) <= 40 - MOST_INTRODUCED + 1
    sizes = demanding().everyday
    assert sizes is not None
    with pytest.raises(ValueError, match=f"introduced: max is {MOST_INTRODUCED + 1}"):
        Everyday.model_validate(sizes.model_dump() | {"introduced": {"min": 1, "max": MOST_INTRODUCED + 1}})


def test_nothing_comes_twice_in_an_introduction() -> None:
    sizes, profile = demanding(), life(1).profile
    assert sizes.everyday is not None and profile is not None
    plan = sizes.everyday.model_copy(update={"families": 1.0, "introductions": 1.0})
    one = Life(random.Random(1), plan, profile.fixed, "train", newcomer=True)
    one.session(0, datetime(2026, 3, 4, 9))
    names = [played.scene.name for played in one._instances]
    assert len(names) == len(set(names)) > 5


def test_what_is_stated_is_nearer_to_the_memory_than_what_is_told() -> None:
    def mean(stated: float) -> float:
        plan = {"stated": stated, "newcomers": 0.0}
        shares = [
            one for number in range(4) for session in labelled_sessions(life(number, **plan)) for one in best_said(session)
        ]
        return sum(shares) / len(shares)

    assert mean(1.0) > mean(0.0) + 0.1


def test_a_kind_that_is_left_out_is_nowhere() -> None:
    kinds = dict.fromkeys(FactKind, 1.0) | {FactKind.PLAN: 0.0}
    labels = {one.text for session in labelled_sessions(life(2, 12, kinds=kinds)) for one in session.operations}
    plans = [fact for scene in scenes() for fact in scene.facts.values() if fact.kind is FactKind.PLAN]
    beginnings = {label.split("}", 1)[-1].split("{")[0].strip(" .") for fact in plans for label in fact.label}
    telling = {text for text in beginnings if len(text.split()) > 4}
    assert telling and not [label for label in labels if any(text in label for text in telling)]


def test_dates_of_labels_are_computed_from_what_is_said() -> None:
    relative = [
        one
        for sessions in lives()
        for session in sessions
        if session.difficulty
        for one in session.difficulty.operations
        if one.time == "relative"
    ]
    operations = sum(len(session.operations) for sessions in lives() for session in sessions)
    assert 0.05 < len(relative) / operations < 0.4


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_sessions_with_friends_follow_their_share(share: float) -> None:
    sessions = [session.session for session in labelled_sessions(life(4, friends=share))][1:]
    named = {session.dialogue[0].content.startswith(f"{session.person_name.split()[0]}: ") for session in sessions}
    assert named == {share == 1.0}


def test_the_command_writes_a_data_set_of_which_nothing_is_rejected(tmp_path) -> None:
    done = synth("shape=demanding", "people=3", "sessions=4", f"out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "out" / "dataset.json").read_text("utf-8"))
    assert manifest["counts"]["train/people"] + manifest["counts"]["heldout/people"] == 3
    assert len(list(read_sessions(tmp_path / "out" / "sessions.jsonl"))) == 12
    assert (tmp_path / "out" / "rejected.jsonl").read_text("utf-8") == ""


def test_nobody_is_without_a_partner_and_speaks_of_one() -> None:
    sizes = demanding()
    assert sizes.everyday is not None
    single = next(scene for scene in scenes() if "partner" in scene.without and "partner" not in scene.mentioned)
    couple = next(scene for scene in scenes() if "partner" in scene.mentioned and not (scene.without or scene.group))
    profile = life(1).profile
    assert profile is not None
    for first, second in ((single, couple), (couple, single)):
        one = Life(random.Random(1), sizes.everyday, profile.fixed, "train", newcomer=True)
        one._today = date(2026, 3, 4)
        assert one._free(second, friend=False)
        one._begun(first, first.facts)
        assert not one._free(second, friend=False)


def test_operations_stand_in_no_telling_order() -> None:
    orders = []
    for number in range(8):
        for session in life(number).sessions:
            told = [int(fact.id[1:]) for fact in session.facts]
            orders.append(told == sorted(told))
            assert sorted(told) == list(range(1, len(told) + 1))
    assert not all(orders)
    assert sum(orders) < len(orders) / 2


def test_who_goes_on_in_one_breath_says_more_in_a_turn() -> None:
    def words(share: float) -> float:
        turns = [
            len(turn.content.split())
            for number in range(6)
            for session in labelled_sessions(life(number, in_one_breath=share))
            for turn in session.session.dialogue
            if turn.role == "user"
        ]
        return sum(turns) / len(turns)

    assert words(1.0) > 1.05 * words(0.0)


def test_what_comes_again_differs_in_values_alone() -> None:
    def rivals(share: float) -> int:
        found = [session.difficulty for number in range(6) for session in labelled_sessions(life(number, families=share))]
        return sum(one.rivals > 0 for each in found if each for one in each.operations)

    assert rivals(0.5) > 2 * rivals(0.0)


def test_shallow_policies_stay_below_their_bars() -> None:
    parts: dict[str, list[LabelledSession]] = {"train": [], "heldout": []}
    for number in range(20):
        parts["heldout" if number % 2 else "train"] += lives()[number]
    found = find(parts["train"], parts["heldout"], embedder=CachedEmbedder(WordEmbedder()))["policies"]
    earned = {name: score["parts"]["transition"]["estimate"] for name, score in found.items()}
    assert earned["gold"] == 1.0
    assert earned["copy_all"] <= 0.45 and earned["copy_new"] <= 0.45, earned
    assert earned["bag_of_words"] <= 0.65, earned
    assert earned["gold_as_add"] <= 0.90, earned
