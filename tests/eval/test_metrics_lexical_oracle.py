"""The lexical scores against a second, plain implementation, written from PROTOCOLS.md 1.7 and using nltk's own BLEU."""

import json
import random
import string
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.stem import PorterStemmer
from nltk.tokenize import NLTKWordTokenizer
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

from eval.data import LOCOMO, find
from eval.metrics import bleu1, locomo_f1, set_f1, token_set_f1, treebank_words

STEMMER = PorterStemmer()
WORDS = ["Dogs", "the", "a", "running", "And", "7", "May,", "2023.", "self-care", "Mel's", "x;", "likely", "painted", "!"]
answers = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join) | st.text(string.printable, max_size=30)


def plain_f1(prediction: list[str], gold: list[str]) -> float:
    left = list(gold)
    common = 0
    for word in prediction:
        if word in left:
            left.remove(word)
            common += 1
    if common == 0:
        return 0.0
    precision, recall = common / len(prediction), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def normalised(text: str) -> list[str]:
    kept = "".join(letter for letter in text.replace(",", "").lower() if letter not in string.punctuation)
    return [STEMMER.stem(word) for word in kept.split() if word not in ("a", "an", "the", "and")]


def plain_locomo(prediction: str, gold: str, category: int) -> float:
    if category == 5:
        return 1.0 if "no information available" in prediction.lower() or "not mentioned" in prediction.lower() else 0.0
    if category == 1:
        scores = []
        for wanted in gold.split(","):
            scores.append(max(plain_f1(normalised(part), normalised(wanted)) for part in prediction.split(",")))
        return sum(scores) / len(scores)
    if category == 3:
        gold = gold.split(";")[0]
    return plain_f1(normalised(prediction), normalised(gold))


def plain_set(prediction: str, gold: str) -> float:
    sides = []
    for text in (prediction, gold):
        for mark in ".,!?":
            text = text.replace(mark, " ")
        sides.append(sorted(set(text.lower().split())))
    return plain_f1(*sides)


def plain_bleu(prediction: str, gold: str) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        score: float = sentence_bleu(
            [treebank_words(gold.lower())],
            treebank_words(prediction.lower()),
            weights=(1, 0, 0, 0),
            smoothing_function=SmoothingFunction().method1,
        )
    return score


def check(prediction: str, gold: str, category: int) -> None:
    assert locomo_f1(prediction, gold, category) == pytest.approx(plain_locomo(prediction, gold, category)), category
    assert set_f1(prediction, gold) == pytest.approx(plain_set(prediction, gold))
    tokens = [sorted(set(treebank_words(text.lower()))) for text in (prediction, gold)]
    assert token_set_f1(prediction, gold) == pytest.approx(plain_f1(*tokens))
    assert bleu1(prediction, gold) == pytest.approx(plain_bleu(prediction, gold))


@given(answers, answers, st.integers(1, 5))
def test_agrees_on_random_answers(prediction: str, gold: str, category: int) -> None:
    check(prediction, gold, category)


@given(
    st.lists(st.sampled_from(["dog", "can't", "Mel's", "7", ",", "(", "$5.50", "mr. bo", '"', "and"]), max_size=9).map(
        " ".join
    )
)
def test_one_sentence_is_cut_by_the_treebank_rules_alone(text: str) -> None:
    assert list(treebank_words(f"{text} end.")) == NLTKWordTokenizer().tokenize(f"{text} end.")


def changed(gold: str, draw: random.Random) -> str:
    """An answer that somebody might give where `gold` is right."""
    words = gold.split()
    change = draw.randrange(7)
    if change == 0:
        draw.shuffle(words)
    elif change == 1:
        words = words[: max(1, len(words) // 2)]
    elif change == 2:
        words += words[-2:]
    elif change == 3:
        words = ["The", "answer", "is:", *words]
    elif change == 4:
        return gold.replace(",", " and").upper()
    elif change == 5:
        return f"{gold}. She said so. Not mentioned by others!"
    return " ".join(words)


def test_agrees_on_the_gold_answers_of_locomo() -> None:
    if (path := find(LOCOMO)) is None:
        pytest.skip("the LoCoMo file is not here")
    conversations: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    draw = random.Random(0)
    checked = 0
    asked = [question for conversation in conversations for question in conversation["qa"]]
    for question in asked[::6]:
        gold = str(question.get("answer", question.get("adversarial_answer")))
        check(changed(gold, draw), gold, question["category"])
        checked += 1
    assert (len(asked), checked) == (1986, 331)
