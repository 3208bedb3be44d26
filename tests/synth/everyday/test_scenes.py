"""The authored scenes, and what reads them over."""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, datetime

import pytest
from pydantic import ValidationError

from deltamem.sessions import FactKind
from synth.everyday.cast import LifeCast
from synth.everyday.check import problems
from synth.everyday.scenes import AuthoredScene, draw, phrases, satisfied, scenes, scenes_of

TODAY = date(2026, 5, 20)


def scene(**changes: object) -> AuthoredScene:
    given = {
        "name": "lake",
        "facts": {
            "swam": {"kind": "event", "label": "{name} swam in a lake {ago_date}.", "keys": ["lake", "{ago_day}"]},
        },
        "tell": [["I swam in a lake {ago}!", "Brr."]],
        "later": [
            {
                "op": "merge",
                "change": {
                    "swam": {"kind": "event", "label": "{name} swims in a lake weekly.", "keys": ["weekly"], "old": []}
                },
                "tell": [["Lake again. I go every week now.", "Weekly? Brave."]],
            }
        ],
    }
    return AuthoredScene.model_validate({**given, **changes})


def test_every_scene_of_the_library_is_sound() -> None:
    assert [problem for one in scenes() for problem in problems(one)] == []


def test_no_two_scenes_have_the_same_name_and_no_two_tellings_the_same_words() -> None:
    names = Counter(one.name for one in scenes())
    assert [name for name, times in names.items() if times > 1] == []
    told = Counter(text for one in scenes() for telling in one.tell for text in telling.own if len(text.split()) > 6)
    assert [text for text, times in told.items() if times > 1] == []


def test_all_kinds_are_there_with_many_scenes_and_changes() -> None:
    kinds = Counter(kind for one in scenes() for kind in one.kinds)
    assert kinds.keys() == set(FactKind)
    assert min(kinds.values()) >= 15, kinds
    told = [one for one in scenes() if one.facts]
    assert sum(bool(one.later) for one in told) > len(told) / 2
    assert sum(1 for one in scenes() if not one.facts) >= 60


def test_held_out_people_remember_what_is_told_to_nobody_in_training() -> None:
    train, heldout = ([one for one in scenes_of(split) if one.facts] for split in ("train", "heldout"))
    assert {one.name for one in train}.isdisjoint(one.name for one in heldout)
    assert len(train) + len(heldout) == sum(1 for one in scenes() if one.facts)
    assert 80 < len(heldout) < len(train) / 3
    assert {kind for one in heldout for kind in one.kinds} == set(FactKind)


def test_every_phrase_of_what_is_recalled_holds_what_is_recalled() -> None:
    rules = phrases()
    assert all("{recall}" in text for rule in ("recalled", "guessed") for text in rules[rule])
    assert all("{said}" in text for text in rules["asked_back"])


def test_a_sound_scene_has_no_problem() -> None:
    assert list(problems(scene())) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"facts": {"swam": {"kind": "event", "label": "Swam in a lake {ago_date}.", "keys": ["lake"]}}}, "names {name}"),
        ({"facts": {"swam": {"kind": "event", "label": "{name} told me of a lake.", "keys": ["lake"]}}}, "third person"),
        ({"facts": {"swam": {"kind": "event", "label": "{name} swam in a pond.", "keys": ["lake"]}}}, "none of ('lake',)"),
        ({"tell": [["I swam in a lake {ago}!", "Brr.", "Yes."]]}, "turns are even"),
        ({"tell": [["I, {name}, swam in a lake {ago}!", "Brr."]]}, "call themselves"),
        ({"tell": [["Guess what happened?", "No idea."]]}, "hardly a word"),
        ({"tell": [["I swam in a lake with {nobody}!", "Brr."]]}, "unknown slot 'nobody'"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], expected: str) -> None:
    assert any(expected in problem for problem in problems(scene(**changes)))


def test_a_change_has_no_day_but_its_own() -> None:
    """Days are drawn anew for a change, so what was before it cannot be dated in it."""
    again = {"kind": "event", "label": "{name} swims weekly since {ago_date}.", "keys": ["weekly"]}
    tell = ["Lake again. I go every week now.", "Weekly? Brave."]
    made = scene(later=[{"op": "merge", "change": {"swam": again}, "tell": [tell]}])
    assert any("nobody says the day" in problem for problem in problems(made))
    told = scene(later=[{"op": "merge", "change": {"swam": again}, "tell": [["Lake again, weekly since {ago}.", "Brave."]]}])
    assert list(problems(told)) == []


def test_what_may_come_again_is_another_memory_then() -> None:
    same = scene(once=False)  # Another day alone makes no other memory: "for the first time" may be in it
    assert any("the same memory again" in problem for problem in problems(same))
    swam = {"kind": "event", "label": "{name} swam in {lake} {ago_date}.", "keys": ["{lake}", "{ago_day}"]}
    told: dict[str, object] = {
        "facts": {"swam": swam},
        "later": [],
        "tell": [["I swam in {lake} {ago}!", "Brr."]],
        "slots": {"lake": ["Ness", "Garda"]},
    }
    assert list(problems(scene(once=False, **told))) == []
    assert any("a scene of a group comes once" in problem for problem in problems(scene(once=False, group=["lake"], **told)))
    del told["later"]  # "{name} swims in a lake weekly."
    assert any("merge.swam: if the scene comes again" in problem for problem in problems(scene(once=False, **told)))


OUT = {"kind": "event", "label": "{name} is out.", "keys": ["out"]}
TOLD = {"op": "end", "tell": [["a", "b"]]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tell": [{"facts": ["sank"], "turns": ["a", "b"]}]}, "sank"),
        ({"later": [{**TOLD, "after": "x", "change": {"swam": OUT}}]}, "'x'"),
        ({"later": [{**TOLD, "change": {"sank": OUT}}]}, "sank"),
    ],
)
def test_a_scene_that_names_what_is_not_there_is_refused(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        scene(**changes)


def test_days_are_said_and_remembered_alike() -> None:
    one = scene(tell=[["I swam in a lake {ago}, and shall again {ahead} ({ahead_date}).", "Brr."]])
    for seed in range(200):
        rng = random.Random(seed)
        values = LifeCast(rng, "Ana Bell", "female", "train").fill(one, rng, TODAY)
        assert values["ago_day"] in values["ago_date"]
        assert values["ago"] != values["ago_date"] and values["ahead"] != values["ahead_date"]
        if values["ago"] == "yesterday":
            assert values["ago_day"] == "19 May 2026"
        if values["ahead"] == "tomorrow":
            assert values["ahead_date"] == "on 21 May 2026"
        if values["ago"].startswith("last ") and values["ago"].endswith("day"):
            day, _, year = values["ago_day"].split()
            assert date(int(year), 5, int(day)).strftime("%A") == values["ago"].removeprefix("last ")


def test_what_is_recent_is_two_weeks_old_at_most() -> None:
    one = scene(tell=[["I swam in a lake {ago}, and was ill {recent} ({recent_day}).", "Oh."]])
    for seed in range(50):
        rng = random.Random(seed)
        values = LifeCast(rng, "Nora Bell", "female", "train").fill(one, rng, TODAY)
        assert 1 <= (TODAY - datetime.strptime(values["recent_day"], "%d %B %Y").date()).days <= 14


def test_the_people_of_a_life_stay_the_same_and_are_of_their_gender() -> None:
    rng = random.Random(1)
    cast = LifeCast(rng, "Ana Bell", "female", "train")
    people = scene(tell=[["{sister} and {friend_m} ({friend_m_they}) and {friend_m2}.", "{partner_their} {spouse}."]])
    first, again = cast.fill(people, rng, TODAY), cast.fill(people, rng, TODAY)
    assert all(first[slot] == again[slot] for slot in ("sister", "friend_m", "friend_m2", "spouse"))
    assert len({first["sister"], first["friend_m"], first["friend_m2"], "Ana"}) == 4
    assert first["friend_m_they"] == "he"
    assert (first["spouse"], first["partner_their"]) in (("wife", "her"), ("husband", "his"))


def test_articles_fit_what_they_stand_before() -> None:
    rng = random.Random(1)
    assert draw(rng, ["a {x} and the {y} album"], {"x": "omelette", "y": "The Smiths"}) == "an omelette and The Smiths album"


def test_a_key_is_satisfied_by_one_of_its_alternatives() -> None:
    assert satisfied(["lake", ("weekly", "every week")], "At the Lake every week")
    assert not satisfied(["lake", ("weekly", "daily")], "At the lake every week")


def test_a_slot_at_the_beginning_of_a_sentence_has_a_capital() -> None:
    values = {"ahead": "this Friday", "drink": "iced tea"}
    text = draw(random.Random(1), ["{ahead}, then. {drink}? No: {drink}."], values)
    assert text == "This Friday, then. Iced tea? No: iced tea."
