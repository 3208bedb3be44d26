"""The numbers: cases by hand, published values, and what holds for any input."""

from __future__ import annotations

import statistics
import sys
from itertools import combinations
from math import exp
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from eval.metrics import (
    abstains,
    bleu1,
    cumulative_accuracy,
    load_nltk,
    locomo_f1,
    pass_at_k,
    recall_at,
    reciprocal_rank,
    set_f1,
    token_set_f1,
    treebank_words,
)


def test_the_worked_case_of_the_protocols() -> None:
    case = ("running and painting", "running, painting")
    assert locomo_f1(*case, category=4) == 1.0
    assert set_f1(*case) == pytest.approx(0.8)
    assert token_set_f1(*case) == pytest.approx(2 / 3)
    assert bleu1(*case) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("pottery, camping", "Pottery, camping, painting, swimming", 0.5),
        ("camping, pottery", "pottery, camping", 1.0),
        ("pottery, camping, chess", "pottery, camping", 1.0),  # too many parts cost nothing
        ("pottery and camping", "pottery, camping", 2 / 3),  # without a comma it is one part, right by half for each
        ("a red kite, two dogs", "two dogs, kite", (1 + 2 / 3) / 2),
        ("pottery", "pottery,", 0.5),  # the empty part counts, as upstream
        ("1,000", "1,000", 1.0),  # cut into "1" and "000" on both sides
        (3, 3, 1.0),
        ("three", 3, 0.0),
        ("", "pottery, camping", 0.0),
        ("pottery", "", 0.0),
    ],
)
def test_multi_hop_answers_are_comma_lists(prediction: object, gold: object, expected: float) -> None:
    assert locomo_f1(prediction, gold, 1) == pytest.approx(expected)


def test_open_domain_gold_ends_at_its_first_semicolon() -> None:
    gold = "Likely no; she is scared; of heights"
    assert locomo_f1("likely no", gold, 3) == 1.0
    assert locomo_f1("she is scared", gold, 3) == 0.0
    assert locomo_f1("likely no; she", "likely no", 3) == pytest.approx(4 / 5)  # that of the prediction is only punctuation
    assert locomo_f1("likely no", "Likely no; she is scared", 4) == pytest.approx(4 / 7)
    assert locomo_f1("anything", "; reason", 3) == 0.0


@pytest.mark.parametrize("category", [2, 3, 4])
@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("7 May 2023", "May 7, 2023", 1.0),
        ("the dog and a cat", "dog cat", 1.0),
        ("self-care", "selfcare", 1.0),  # punctuation leaves no gap
        ("running", "runs", 1.0),
        ("Melanie's paintings", "Melanie painting", 1.0),
        ("very very good", "very good", 0.8),  # repeated words count
        ("york york", "new york", 0.5),
        ("in the summer of 2022", "2022", 0.4),
        (2022, "2022", 1.0),
        (0, 0, 1.0),
        ("1,000", "1000", 1.0),
        ("the", "the", 0.0),  # nothing is left to compare
        ("android", "roid", 0.0),  # articles are words, not letters
        ("", "", 0.0),
        ("", "dog", 0.0),
        ("dog", "", 0.0),
        (None, None, 0.0),
    ],
)
def test_other_answers_are_compared_as_a_whole(prediction: object, gold: object, expected: float, category: int) -> None:
    assert locomo_f1(prediction, gold, category) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        ("No information available", 1.0),
        ("That is NOT MENTIONED in the conversation.", 1.0),
        ("Not mentioned, but perhaps Paris", 1.0),
        ("She mentioned information", 0.0),
        ("No information is available", 0.0),
        ("I don't know", 0.0),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_adversarial_answers_are_right_if_they_abstain(prediction: object, expected: float) -> None:
    for gold in ("self-care", None, "no information available"):
        assert locomo_f1(prediction, gold, 5) == expected
    assert abstains(prediction) == bool(expected)


@pytest.mark.parametrize(
    ("prediction", "gold", "of_sets", "of_token_sets", "bleu"),
    [
        ("Paris!", "paris?", 1.0, 0.5, 0.5),
        ("very very good", "very good", 1.0, 1.0, 2 / 3),  # in BLEU a gold word is used once
        ("7 May 2023", "May 7, 2023", 1.0, 6 / 7, exp(-1 / 3)),  # the comma is a token
        ("paris", "in paris today", 0.5, 0.5, exp(-2)),  # too short
        ("Bo's", "Bo", 0.0, 2 / 3, 0.5),
        ("no;", "no", 0.0, 2 / 3, 0.5),  # of sets only . , ! ? are cut off
        ("a.b", "b a", 1.0, 0.0, 0.0),
        ("can't", "can not", 0.0, 0.0, 0.0),  # ca n't
        ("cannot", "can not", 0.0, 1.0, 1.0),
        (3, "3", 1.0, 1.0, 1.0),
        ("", "", 0.0, 0.0, 0.0),
        (None, "none", 0.0, 0.0, 0.0),
    ],
)
def test_scores_of_sets_and_bleu(
    prediction: object, gold: object, of_sets: float, of_token_sets: float, bleu: float
) -> None:
    assert set_f1(prediction, gold) == set_f1(gold, prediction) == pytest.approx(of_sets)
    assert token_set_f1(prediction, gold) == token_set_f1(gold, prediction) == pytest.approx(of_token_sets)
    assert bleu1(prediction, gold) == pytest.approx(bleu)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("she met mr. jones. they ran.", ["she", "met", "mr.", "jones", ".", "they", "ran", "."]),
        ("it ended at 5 p.m. on friday.", ["it", "ended", "at", "5", "p.m.", "on", "friday", "."]),
        ("in 2022. they went", ["in", "2022.", "they", "went"]),  # Punkt takes it for an ordinal before a small letter
        ("is it? yes! ok.", ["is", "it", "?", "yes", "!", "ok", "."]),
        ("i can't go, ok", ["i", "ca", "n't", "go", ",", "ok"]),
        ('he said "hi." then left.', ["he", "said", "``", "hi", ".", "''", "then", "left", "."]),
        ("gonna pay $5.50; (a-b)", ["gon", "na", "pay", "$", "5.50", ";", "(", "a-b", ")"]),
        ("one.\ntwo.", ["one", ".", "two", "."]),
        ("", []),
    ],
)
def test_treebank_words(text: str, expected: list[str]) -> None:
    assert list(treebank_words(text)) == expected


def test_lone_surrogates_are_text_like_any_other() -> None:
    pair = ("\ud83d dog", "\ud83d dog")
    assert [locomo_f1(*pair, 4), set_f1(*pair), token_set_f1(*pair), bleu1(*pair)] == [1.0] * 4


def test_without_nltk_the_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nltk", "nltk.stem.porter", "nltk.tokenize.destructive"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DeltaMemError, match=r"nltk.*pip install 'deltamem\[eval\]'"):
        load_nltk.__wrapped__()
    assert set_f1("a dog", "a dog") == 1.0


def test_recall_counts_the_evidence_up_to_rank_k() -> None:
    ranks = [1, 5, 6, None]
    assert [recall_at(ranks, k) for k in (1, 4, 5, 6, 100)] == [0.25, 0.25, 0.5, 0.75, 0.75]
    assert recall_at([None], 20) == reciprocal_rank([None, None]) == 0.0
    assert reciprocal_rank([4, None, 2]) == 0.5
    assert recall_at([2, 2], 2) == 1.0  # one passage may hold two pieces of evidence


trials = st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


@given(trials)
def test_is_the_share_of_all_draws(case: tuple[int, int, int]) -> None:
    n, c, k = case
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))


questions = st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=12)


def test_users_by_hand() -> None:
    ana = [(0, True), (0, False), (2, True), (2, True)]  # 1/2, 1/2, 3/4
    bo = [(1, False), (2, True)]  # nothing, 0, 1/2
    first, second, third, fourth = cumulative_accuracy([ana, bo, [(3, 1.0)]])
    assert (first.session, first.mean, first.low, first.high, first.users) == (0, 0.5, 0.5, 0.5, 1)
    assert (second.session, second.mean, second.low, second.high, second.users) == (1, 0.25, 0.0, 0.5, 2)
    assert (third.session, third.users) == (2, 2)
    assert (third.mean, third.low, third.high) == pytest.approx((0.625, 0.5, 0.75))
    assert fourth.mean == pytest.approx((3 / 4 + 1 / 2 + 1) / 3), "who is asked no more keeps the accuracy"
    (point,) = cumulative_accuracy([[(0, 1.0)] * 9, [(0, 1.0)], [(0, 0.0)]])  # every user counts once
    assert point.low == pytest.approx(2 / 3 - statistics.pstdev([1, 1, 0])) and point.high == 1.0
    whole = cumulative_accuracy([ana, bo])
    assert cumulative_accuracy([ana, bo], sessions=2) == whole[:2] and cumulative_accuracy([ana, bo], sessions=9) == whole
    assert cumulative_accuracy([[(30, True)]], sessions=25) == cumulative_accuracy([[], []]) == []


@settings(max_examples=40)
@given(st.lists(questions, max_size=4), st.randoms())
def test_is_a_plain_count_in_any_order(users: list[list[tuple[int, bool]]], draw: Random) -> None:
    points = cumulative_accuracy(users)
    for point in points:
        shares = []
        for user in users:
            until = [value for session, value in user if session <= point.session]
            if until:
                shares.append(sum(until) / len(until))
        assert point.users == len(shares)
        assert point.mean == pytest.approx(statistics.fmean(shares))
        assert point.high - point.low <= 2 * statistics.pstdev(shares) + 1e-9
    mixed = [draw.sample(user, len(user)) for user in users]
    assert cumulative_accuracy(mixed) == points
