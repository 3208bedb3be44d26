"""The three F1s that memory papers report under one name, and BLEU-1. PROTOCOLS.md 1.7 tells them apart.

They differ in how words are cut and in whether repeated words count; numbers of one must not stand beside numbers of
another. Predictions and gold answers may be anything that has a text (LoCoMo has integers); None is the empty text, and
nothing is ever right against an empty text.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Collection
from functools import cache, lru_cache
from math import exp
from typing import Protocol

from deltamem.errors import DeltaMemError

MULTI_HOP, TEMPORAL, OPEN_DOMAIN, SINGLE_HOP, ADVERSARIAL = 1, 2, 3, 4, 5
"""LoCoMo's categories by id (PROTOCOLS.md 1.4)."""

_ABBREVIATIONS = (
    "mr mrs ms dr prof st jr sr rev gen gov sen rep lt col capt sgt hon a.m p.m u.s u.k d.c ph.d b.a m.a m.d e.g vs dept "
    "inc corp co ltd bros ave blvd rd mt ft jan feb mar apr jun jul aug sep sept oct nov dec"
)
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
"""Words whose period ends no sentence, without that period, for `treebank_words`."""

_ARTICLES = re.compile(r"\b(?:a|an|the|and)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SENTENCE_MARKS = str.maketrans(dict.fromkeys(".,!?", " "))


class _Stemmer(Protocol):
    def stem(self, word: str) -> str: ...


def locomo_f1(prediction: object, gold: object, category: int) -> float:
    """The score of LoCoMo's own evaluation (snap-research/locomo, ``task_eval/evaluation.py``; PROTOCOLS.md 1.7, 1).

    Words are lower-cased, without punctuation, articles and "and", and stemmed; repeated words count. Then by category:

    * 1, multi-hop: both sides are lists cut at commas; each part of the gold answer gets its best match, and the mean of
      these is taken. An empty part of the gold answer counts as a part that nothing matches, as upstream.
    * 2 and 4, temporal and single-hop: F1 of the whole texts.
    * 3, open-domain: the same, with the gold answer cut at its first semicolon.
    * 5, adversarial: 1 if the prediction abstains, else 0; the gold answer plays no part. See `abstains`.

    Args:
        prediction: What was answered.
        gold: The reference answer.
        category: LoCoMo's id of the category, 1 to 5.

    Returns:
        A score from 0 to 1.

    Raises:
        ValueError: If there is no such category.
        DeltaMemError: If nltk is not installed.
    """
    answer, reference = _text(prediction), _text(gold)
    if category == ADVERSARIAL:
        return float(abstains(answer))
    if category == MULTI_HOP:
        parts = answer.split(",")
        best = [max(_stemmed_f1(part, wanted) for part in parts) for wanted in reference.split(",")]
        return sum(best) / len(best)
    if category == OPEN_DOMAIN:
        return _stemmed_f1(answer, reference.partition(";")[0])
    if category in (TEMPORAL, SINGLE_HOP):
        return _stemmed_f1(answer, reference)
    raise ValueError(f"LoCoMo has categories 1 to 5, not {category}")


def abstains(prediction: object) -> bool:
    """Whether an answer counts as abstention in LoCoMo's category 5: by two phrases, whatever else it says."""
    text = _text(prediction).lower()
    return "no information available" in text or "not mentioned" in text


def set_f1(prediction: object, gold: object) -> float:
    """F1 over sets of words, as Mem0 and A-mem compute it (``calculate_metrics``; PROTOCOLS.md 1.7, 2).

    Words are lower-cased and cut at blanks and at ``. , ! ?``; other punctuation stays in the word. There are no stems, no
    articles are dropped, and no category is special.

    Returns:
        A score from 0 to 1.
    """
    return _set_f1(_blank_words(_text(prediction)), _blank_words(_text(gold)))


def token_set_f1(prediction: object, gold: object) -> float:
    """F1 over sets of Treebank tokens, as MemOS computes it (``calculate_f1_score``; PROTOCOLS.md 1.7, 3).

    Punctuation marks are tokens. See `treebank_words` for what "token" means here.

    Returns:
        A score from 0 to 1.

    Raises:
        DeltaMemError: If nltk is not installed.
    """
    return _set_f1(treebank_words(_text(prediction).lower()), treebank_words(_text(gold).lower()))


def bleu1(prediction: object, gold: object) -> float:
    """BLEU-1 as Mem0, A-mem and MemOS compute it: nltk's ``sentence_bleu``, all weight on single words (PROTOCOLS.md 1.7).

    That is the share of the predicted tokens that are in the gold answer, each at most as often as there, times the brevity
    penalty ``exp(1 - gold tokens / predicted tokens)`` for predictions that are shorter. nltk's first smoothing method,
    which those programs name, changes nothing for single words: without any match the score is 0 before smoothing.

    Returns:
        A score from 0 to 1.

    Raises:
        DeltaMemError: If nltk is not installed.
    """
    predicted, wanted = treebank_words(_text(prediction).lower()), treebank_words(_text(gold).lower())
    matched = (Counter(predicted) & Counter(wanted)).total()
    if matched == 0:
        return 0.0
    brevity = min(1.0, exp(1 - len(wanted) / len(predicted)))
    return brevity * matched / len(predicted)


@lru_cache(maxsize=1 << 10)
def treebank_words(text: str) -> tuple[str, ...]:
    """Words and punctuation marks, as nltk's ``word_tokenize`` cuts them.

    ``word_tokenize`` first finds sentences with Punkt and its trained model for English, which must be downloaded. Here the
    same algorithm runs with a short list of abbreviations (`ABBREVIATIONS`) in place of the model. Where a sentence ends
    matters for little more than one thing: its final period is a token of its own, and that of an abbreviation is not. So
    the result differs where a text of several sentences has, before its last word, an abbreviation that only one of the two
    lists knows ("approx. five"), or one of the few word pairs that the model learned as inseparable. The rest of the model
    is about capital letters, and all scores here lower the text first.

    Raises:
        DeltaMemError: If nltk is not installed.
    """
    sentences, words = _treebank()
    return tuple(word for sentence in sentences(text) for word in words(sentence))


def _text(value: object) -> str:
    return "" if value is None else str(value)


def load_nltk() -> None:
    """Load what the scores need of nltk, which takes seconds: before many answers come, not with the first of them.

    Raises:
        DeltaMemError: If nltk is not installed.
    """
    _stemmer()
    _treebank()


def _blank_words(text: str) -> list[str]:
    return text.lower().translate(_SENTENCE_MARKS).split()


def _set_f1(prediction: Collection[str], gold: Collection[str]) -> float:
    predicted, wanted = set(prediction), set(gold)
    return _f1(len(predicted & wanted), len(predicted), len(wanted))


def _stemmed_f1(prediction: str, gold: str) -> float:
    predicted, wanted = _stems(prediction), _stems(gold)
    return _f1((Counter(predicted) & Counter(wanted)).total(), len(predicted), len(wanted))


def _f1(matched: int, predicted: int, wanted: int) -> float:
    """Harmonic mean of precision and recall; 0 if nothing matches."""
    return 2 * matched / (predicted + wanted) if matched else 0.0


def _stems(text: str) -> list[str]:
    words = _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION))
    return [_stem(word) for word in words.split()]


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
    return _stemmer().stem(word)


@cache
def _stemmer() -> _Stemmer:
    try:
        from nltk.stem.porter import PorterStemmer
    except ImportError as error:
        raise _no_nltk() from error
    stemmer: _Stemmer = PorterStemmer()
    return stemmer


@cache
def _treebank() -> tuple[Callable[[str], list[str]], Callable[[str], list[str]]]:
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer
        from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
    except ImportError as error:
        raise _no_nltk() from error
    parameters = PunktParameters()
    parameters.abbrev_types.update(ABBREVIATIONS)
    return PunktSentenceTokenizer(parameters).tokenize, NLTKWordTokenizer().tokenize


def _no_nltk() -> DeltaMemError:
    return DeltaMemError("lexical scores need nltk; install it with: pip install 'deltamem[eval]'")
