"""The lexical scores: cases worked out by hand, and what holds for any text."""

import sys
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from eval.metrics import abstains, bleu1, locomo_f1, set_f1, token_set_f1, treebank_words

texts = st.text(max_size=40) | st.text(alphabet="ab ,.;!'the\n", max_size=40)
words = st.lists(st.sampled_from(["dog", "ran", "Bo's", "7", "May", "well-known", "a", "the", "and", ","]), max_size=8).map(
    " ".join
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
        ("running and painting", "running, painting", 2 / 3),
        ("pottery", "pottery", 1.0),
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
        ("The cat.", "an CAT!!", 1.0),
        ("self-care", "selfcare", 1.0),  # punctuation leaves no gap
        ("running", "runs", 1.0),
        ("Melanie's paintings", "Melanie painting", 1.0),
        ("very very good", "very good", 0.8),  # repeated words count
        ("york york", "new york", 0.5),
        ("in the summer of 2022", "2022", 0.4),
        (2022, "2022", 1.0),
        ("2022", 2022, 1.0),
        ("2021", 2022, 0.0),
        (0, 0, 1.0),
        ("1,000", "1000", 1.0),
        ("the", "the", 0.0),  # nothing is left to compare
        ("android", "roid", 0.0),  # articles are words, not letters
        ("", "", 0.0),
        ("", "dog", 0.0),
        ("dog", "", 0.0),
        (None, None, 0.0),
        ("None", None, 0.0),
        (None, "None", 0.0),
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
        ("self-care", 0.0),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_adversarial_answers_are_right_if_they_abstain(prediction: object, expected: float) -> None:
    for gold in ("self-care", None, "no information available"):
        assert locomo_f1(prediction, gold, 5) == expected
    assert abstains(prediction) == bool(expected)


@pytest.mark.parametrize("category", [0, 6, -1])
def test_there_are_five_categories(category: int) -> None:
    with pytest.raises(ValueError, match="categories 1 to 5"):
        locomo_f1("a", "b", category)


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("running", "runs", 0.0),
        ("the dog and a cat", "dog cat", 4 / 7),
        ("very very good", "very good", 1.0),
        ("york york", "new york", 2 / 3),
        ("7 May 2023", "May 7, 2023", 1.0),
        ("Paris!", "paris?", 1.0),
        ("self-care", "selfcare", 0.0),
        ("Bo's", "Bo", 0.0),
        ("no;", "no", 0.0),  # only . , ! ? are cut off
        ("(no)", "no", 0.0),
        ("a.b", "b a", 1.0),
        (3, "3", 1.0),
        ("...", "...", 0.0),
        ("", "", 0.0),
        ("dog", "", 0.0),
        (None, "none", 0.0),
    ],
)
def test_set_f1(prediction: object, gold: object, expected: float) -> None:
    assert set_f1(prediction, gold) == pytest.approx(expected)
    assert set_f1(gold, prediction) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("running", "runs", 0.0),
        ("very very good", "very good", 1.0),
        ("7 May 2023", "May 7, 2023", 6 / 7),  # the comma is a token
        ("Paris!", "paris?", 0.5),
        ("Bo's", "Bo", 2 / 3),
        ("can't", "can not", 0.0),  # ca n't
        ("cannot", "can not", 1.0),
        ("no;", "no", 2 / 3),
        ("No, no.", "no", 0.5),
        (3, "3", 1.0),
        ("...", "...", 1.0),
        ("", "", 0.0),
        ("dog", "", 0.0),
        (None, "none", 0.0),
    ],
)
def test_token_set_f1(prediction: object, gold: object, expected: float) -> None:
    assert token_set_f1(prediction, gold) == pytest.approx(expected)
    assert token_set_f1(gold, prediction) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("Paris", "paris", 1.0),
        ("in paris today", "paris", 1 / 3),
        ("paris", "in paris today", exp(-2)),  # too short
        ("7 May 2023", "May 7, 2023", exp(-1 / 3)),
        ("very very good", "very good", 2 / 3),  # a gold word is used once
        ("york york", "new york", 0.5),
        ("running", "runs", 0.0),
        (2022, 2022, 1.0),
        ("", "", 0.0),
        ("", "dog", 0.0),
        ("dog", "", 0.0),
        (None, "none", 0.0),
    ],
)
def test_bleu1(prediction: object, gold: object, expected: float) -> None:
    assert bleu1(prediction, gold) == pytest.approx(expected)


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
        ("wait... what", ["wait", "...", "what"]),
        ("one.\ntwo.", ["one", ".", "two", "."]),
        ("", []),
        (" \n", []),
    ],
)
def test_treebank_words(text: str, expected: list[str]) -> None:
    assert list(treebank_words(text)) == expected


@given(texts, texts, st.integers(1, 5))
def test_scores_lie_between_0_and_1(prediction: str, gold: str, category: int) -> None:
    for score in (
        locomo_f1(prediction, gold, category),
        set_f1(prediction, gold),
        token_set_f1(prediction, gold),
        bleu1(prediction, gold),
    ):
        assert isinstance(score, float)
        assert 0.0 <= score <= 1.0


@given(words | texts, words | texts)
def test_whole_texts_are_compared_both_ways_alike(one: str, other: str) -> None:
    for category in (2, 4):
        assert locomo_f1(one, other, category) == locomo_f1(other, one, category)
    assert set_f1(one, other) == set_f1(other, one)
    assert token_set_f1(one, other) == token_set_f1(other, one)


@given(words)
def test_a_text_with_words_is_right_against_itself(text: str) -> None:
    full = f"{text} dog".strip()
    assert locomo_f1(full, full, 2) == locomo_f1(full, full, 3) == locomo_f1(full, full, 4) == 1.0
    assert set_f1(full, full) == token_set_f1(full, full) == bleu1(full, full) == 1.0


@given(st.lists(st.sampled_from(["dog", "two cats", "7 May"]), min_size=1, max_size=4).map(", ".join))
def test_a_list_is_right_against_itself_and_its_other_order(text: str) -> None:
    assert locomo_f1(text, text, 1) == 1.0
    assert locomo_f1(", ".join(reversed(text.split(", "))), text, 1) == 1.0


@given(st.permutations(["dog", "ran", "seven", "times", "times"]))
def test_the_order_of_words_plays_no_part(order: list[str]) -> None:
    gold = "times dog ran seven"
    assert locomo_f1(" ".join(order), gold, 4) == pytest.approx(8 / 9)
    assert set_f1(" ".join(order), gold) == token_set_f1(" ".join(order), gold) == 1.0
    assert bleu1(" ".join(order), gold) == pytest.approx(0.8)


def test_lone_surrogates_are_text_like_any_other() -> None:
    broken = "\ud83d dog"
    assert (
        locomo_f1(broken, broken, 4)
        == set_f1(broken, broken)
        == token_set_f1(broken, broken)
        == bleu1(broken, broken)
        == 1.0
    )


def test_without_nltk_the_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from eval import metrics as lexical

    for module in ("nltk", "nltk.stem.porter", "nltk.tokenize.destructive"):
        monkeypatch.setitem(sys.modules, module, None)
    for function in (lexical._stemmer, lexical._treebank):
        with pytest.raises(DeltaMemError, match=r"nltk.*pip install 'deltamem\[eval\]'"):
            function.__wrapped__()
    assert set_f1("a dog", "a dog") == 1.0
