"""Shallow policies and cues: what a small world with loud cues must yield, and what they may not see."""

from __future__ import annotations

from collections import Counter

import pytest
from episode_texts import WordEmbedder
from probe_cases import START, life, lives, session

from deltamem.memory import Event, Memory, MemoryState, Operation
from rewards.cues import (
    boilerplate,
    measure_cues,
    places,
    ranked_by_vectors,
    ranked_by_words,
    sentences,
    target_accuracy,
    user_turns,
)
from rewards.probes import PARTS, PROBES, Surface, by_person, run_probes
from rewards.reward import RewardOptions

BANK = MemoryState(
    [Memory("m1", "Eve lives in Oslo near the harbour.", START), Memory("m2", "Eve drinks black tea.", START)]
)


def update(text: str, target: str, *keywords: str) -> Operation:
    return Operation(Event.UPDATE, text, target, keywords)


def test_sentences_keep_their_marks_and_lose_nothing_but_blanks():
    assert sentences(' Hm. "Really?" I said no… Then 4.5 km! ') == ["Hm.", '"Really?"', "I said no…", "Then 4.5 km!"]
    assert sentences("   ") == []


def test_boilerplate_is_what_two_people_say_not_what_one_repeats():
    train, _ = lives()
    assert boilerplate(train) == {"good evening"}
    assert boilerplate(life(0, "train")) == frozenset()


def test_an_operation_is_said_where_its_rarest_keywords_are():
    said = ["In Oslo it rains.", "Oslo again, with my violin.", "In  OSLO, yes."]
    told = [Operation(Event.ADD, "x", None, ("Oslo", "violin")), Operation(Event.ADD, "y", None, ("tuba",))]
    labelled = session("eve", 0, said, BANK, [*told, Operation(Event.ADD, "z", None, ("oslo",))])
    assert places(labelled, said) == [1, None, 0]
    told = [Operation(Event.ADD, "x", None, (("tuba", "violin"),)), Operation(Event.ADD, "y", None, (("tuba", "cello"), ""))]
    told.append(Operation(Event.ADD, "z", None, (("Oslo", "violin"), ("yes", "no"))))
    assert places(session("eve", 0, said, BANK, told), said) == [1, None, 2]


def test_loud_cues_tell_every_operation_and_target():
    train, heldout = lives()
    cues = measure_cues(train, heldout)
    assert cues.auc == {Event.ADD: 1.0, Event.UPDATE: 1.0, Event.NONE: 1.0}
    assert cues.counts_exact == 1.0 and cues.turns == 12
    assert "still" in cues.telling[Event.NONE] and "moved" in cues.telling[Event.UPDATE]
    assert (cues.turn_holds, cues.first_turn_holds, cues.last_turn_holds) == (0.5, 0.0, 1.0)
    assert cues.unsaid == 0.0 and cues.length is None and cues.order is None  # all sessions have one operation
    assert cues.target_words == 1.0


def test_words_without_cues_tell_nothing():
    """Whether a turn holds an operation is drawn: no word of it can tell."""
    train, heldout = [], []
    for number in range(60):
        name = f"eve{number}"
        held = [bool((number * 7 + turn * 5) % 3) for turn in range(4)]
        turns = [f"word{number % 7} word{turn} word{(number + turn) % 5} thing{turn}" for turn in range(4)]
        told = [Operation(Event.ADD, f"a {turn}", None, (f"thing{turn}",)) for turn in range(4) if held[turn]]
        (train if number < 40 else heldout).append(session(name, 0, turns, MemoryState(), told))
    auc = measure_cues(train, heldout).auc
    assert 0.2 < auc[Event.ADD] < 0.8 and auc[Event.UPDATE] is None


def test_the_plan_says_better_than_keywords_where_something_is_said():
    train, heldout = lives()
    known = {item.key: [0] for item in (*train, *heldout)}  # all in the greeting
    cues = measure_cues(train, heldout, known=known)
    assert (cues.first_turn_holds, cues.last_turn_holds) == (1.0, 0.0)
    assert cues.order is None and cues.unsaid == 0.0


def test_label_order_is_compared_with_turn_order():
    bank = MemoryState()
    told = [Operation(Event.ADD, f"t{number}", None, (word,)) for number, word in enumerate(("red", "blue", "green"))]
    same = session("eve", 0, ["red", "blue", "green", "bye"], bank, told)
    turned = session("eve", 1, ["green", "blue", "red"], bank, told)
    assert measure_cues([same], [same]).order == 1.0
    assert measure_cues([same], [turned]).order == -1.0
    assert measure_cues([same], [same, turned]).order == 0.0


def test_the_target_is_looked_for_by_words_and_by_vectors():
    found = session("eve", 0, ["Bergen"], BANK, [update("Eve lives in Bergen near the harbour.", "m1", "Bergen")])
    hidden = session("eve", 1, ["tea"], BANK, [update("Eve lives in Bergen near the harbour.", "m2", "tea")])
    for ranking in (ranked_by_words, ranked_by_vectors(WordEmbedder())):
        assert target_accuracy([found], ranking) == 1.0
        assert target_accuracy([found, hidden], ranking) == 0.5
        assert ranking(session("eve", 2, ["hi"], MemoryState(), []), ["Oslo"]) == [[]]
    # The turn is all that a policy has: here it speaks of the other memory.
    assert target_accuracy([hidden], ranked_by_words, {hidden.key: [0]}) == 1.0
    assert target_accuracy([hidden], ranked_by_words, {hidden.key: [None]}) is None


def test_each_probe_earns_what_it_must():
    train, heldout = lives()
    found = run_probes(train, heldout, WordEmbedder(), options=RewardOptions(tau=0.5), resamples=50)
    assert list(found) == list(PROBES)
    transition = {name: round(score.parts["transition"]["estimate"], 3) for name, score in found.items()}
    third = round(1 / 3, 3)
    assert transition["gold"] == transition["gold_tfidf_target"] == 1.0
    assert transition["do_nothing"] == third  # the session in which nothing changes
    assert transition["gold_without_updates"] == round(2 / 3, 3)
    assert transition["gold_as_add"] == round((1 + 2 / 3 + 1) / 3, 3)
    assert transition["gold_as_update"] < transition["gold_as_add"]
    assert transition["copy_all"] < transition["copy_new"] <= transition["gold_as_add"]
    for name, score in found.items():
        assert set(score.parts) == set(PARTS) and score.parts["format"]["estimate"] == 1.0
        if not score.searches:
            assert score.parts["retrieval"]["estimate"] == pytest.approx(1 / 3), name  # only the ADD needs no memory
    assert found["gold"].parts["reward"]["estimate"] == found["gold"].parts["retrieval"]["estimate"] == 1.0
    assert found["gold_as_add"].rates["add_for_update_rate"] == 1.0
    assert found["gold"].rates == {"update_recall": 1.0, "add_for_update_rate": 0.0, "wrong_target_rate": 0.0}


def test_a_stale_weight_costs_those_who_never_update():
    train, heldout = lives()
    chosen = {name: PROBES[name] for name in ("gold_as_add", "gold")}

    def transition(weight: float) -> list[float]:
        options = RewardOptions(tau=0.5, stale_weight=weight)
        found = run_probes(train, heldout, WordEmbedder(), options=options, probes=chosen, resamples=10)
        return [score.parts["transition"]["estimate"] for score in found.values()]

    assert transition(2.0) == pytest.approx([(1 + 1 / 2 + 1) / 3, 1.0])


def test_a_probe_that_does_not_know_the_target_does_not_see_it():
    train, heldout = lives()
    surface = Surface(train, ranked_by_vectors(WordEmbedder()))
    for name, probe in PROBES.items():
        for labelled in heldout:
            blind = session(
                labelled.session.person_id, labelled.session_index, user_turns(labelled), labelled.prior_state, []
            )
            same = probe.answer(labelled, surface) == probe.answer(blind, surface)
            assert same or probe.knows_target, name
    # The bag of words reads events off the words.
    kinds = [[op.event for op in PROBES["bag_of_words"].answer(item, surface).operations] for item in heldout[:3]]
    assert kinds == [[Event.ADD], [Event.UPDATE], []]


def test_no_two_updates_of_one_memory_and_adds_where_there_is_none():
    told = [Operation(Event.ADD, f"Eve drinks {kind} tea.", None, (kind,)) for kind in ("green", "white", "red")]
    labelled = session("eve", 0, ["tea"], BANK, told)
    answer = PROBES["gold_as_update"].answer(labelled, Surface([], ranked_by_vectors(WordEmbedder())))
    assert Counter(op.target_memory_id for op in answer.operations) == {"m1": 1, "m2": 1, None: 1}


def test_intervals_are_by_person():
    spread = by_person([0.0] * 10 + [1.0] * 10, ["a"] * 10 + ["b"] * 10)
    assert spread == {"estimate": 0.5, "low": 0.0, "high": 1.0}
    mixed = by_person([0.0, 1.0] * 10, [f"p{number // 2}" for number in range(20)])
    assert (mixed["low"], mixed["high"]) == (0.5, 0.5)
    assert by_person([0.2, 0.4], ["a", "a"]) == pytest.approx(dict.fromkeys(("estimate", "low", "high"), 0.3))


def test_nobody_held_out_and_nobody_to_learn_from():
    train, heldout = lives()
    assert run_probes(train, [], WordEmbedder()) == {}
    found = run_probes([], heldout, WordEmbedder(), options=RewardOptions(tau=0.5), resamples=10)
    assert found["bag_of_words"].parts["transition"] == found["do_nothing"].parts["transition"]
