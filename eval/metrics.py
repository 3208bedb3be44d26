"""The numbers: lexical scores from 0 to 1, ranks, repeated trials, curves; of no benchmark's data format."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import comb, exp
from typing import NamedTuple

import numpy as np

from deltamem.errors import DeltaMemError

MULTI_HOP, OPEN_DOMAIN, ADVERSARIAL = 1, 3, 5
"""LoCoMo's categories that are scored in a way of their own, by id (PROTOCOLS.md 1.4)."""

_ABBREVIATIONS = (
    "mr mrs ms dr prof st jr sr rev gen gov sen rep lt col capt sgt hon a.m p.m u.s u.k d.c ph.d b.a m.a m.d e.g vs dept "
    "inc corp co ltd bros ave blvd rd mt ft jan feb mar apr jun jul aug sep sept oct nov dec"
)
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
"""Words whose period ends no sentence, without that period, for `treebank_words`."""

_ARTICLES = re.compile(r"\b(?:a|an|the|and)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SENTENCE_MARKS = str.maketrans(dict.fromkeys(".,!?", " "))


def locomo_f1(prediction: object, gold: object, category: int) -> float:
    """The score of LoCoMo's own evaluation (snap-research/locomo, ``task_eval/evaluation.py``; PROTOCOLS.md 1.7, 1).

    Words are lower-cased, without punctuation, articles and "and", and stemmed; repeated words count. Then by category:

    * 1, multi-hop: both sides are lists cut at commas; each part of the gold answer gets its best match, and the mean of
      these is taken. An empty part of the gold answer counts as a part that nothing matches, as upstream.
    * 2 and 4, temporal and single-hop: F1 of the whole texts.
    * 3, open-domain: the same, with the gold answer cut at its first semicolon.
    * 5, adversarial: 1 if the prediction abstains, else 0; the gold answer plays no part. See `abstains`.

    Raises:
        DeltaMemError: If nltk is not installed.
    """
    answer, reference = _text(prediction), _text(gold)
    if category == ADVERSARIAL:
        return float(abstains(answer))
    if category == MULTI_HOP:
        parts = answer.split(",")
        best = [max(_stemmed_f1(part, wanted) for part in parts) for wanted in reference.split(",")]
        return sum(best) / len(best)
    return _stemmed_f1(answer, reference.partition(";")[0] if category == OPEN_DOMAIN else reference)


def abstains(prediction: object) -> bool:
    """Whether an answer counts as abstention in LoCoMo's category 5: by two phrases, whatever else it says."""
    text = _text(prediction).lower()
    return "no information available" in text or "not mentioned" in text


def set_f1(prediction: object, gold: object) -> float:
    """F1 over sets of words, as Mem0 and A-mem compute it (``calculate_metrics``; PROTOCOLS.md 1.7, 2).

    Words are lower-cased and cut at blanks and at ``. , ! ?``; other punctuation stays in the word. There are no stems, no
    articles are dropped, and no category is special.
    """
    answer, reference = (_text(value).lower().translate(_SENTENCE_MARKS).split() for value in (prediction, gold))
    return _set_f1(answer, reference)


def token_set_f1(prediction: object, gold: object) -> float:
    """F1 over sets of Treebank tokens, as MemOS computes it (``calculate_f1_score``; PROTOCOLS.md 1.7, 3).

    Punctuation marks are tokens. See `treebank_words` for what "token" means here.

    Raises:
        DeltaMemError: If nltk is not installed.
    """
    return _set_f1(_tokens(prediction), _tokens(gold))


def bleu1(prediction: object, gold: object) -> float:
    """BLEU-1 as Mem0, A-mem and MemOS compute it: nltk's ``sentence_bleu``, all weight on single words (PROTOCOLS.md 1.7).

    That is the share of the predicted tokens that are in the gold answer, each at most as often as there, times the brevity
    penalty ``exp(1 - gold tokens / predicted tokens)`` for predictions that are shorter. nltk's first smoothing method,
    which those programs name, changes nothing for single words: without any match the score is 0 before smoothing.

    Raises:
        DeltaMemError: If nltk is not installed.
    """
    predicted, wanted = _tokens(prediction), _tokens(gold)
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
    nltk = load_nltk()
    return tuple(word for sentence in nltk.sentences(text) for word in nltk.words(sentence))


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _tokens(value: object) -> tuple[str, ...]:
    return treebank_words(_text(value).lower())


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
    return [_stem(word) for word in _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()]


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
    return load_nltk().stem(word)


class _Nltk(NamedTuple):
    stem: Callable[[str], str]
    sentences: Callable[[str], list[str]]
    words: Callable[[str], list[str]]


@cache
def load_nltk() -> _Nltk:
    """Load what the scores need of nltk, which takes seconds: before many answers come, not with the first of them.

    Raises:
        DeltaMemError: If nltk is not installed.
    """
    try:
        from nltk.stem.porter import PorterStemmer
        from nltk.tokenize.destructive import NLTKWordTokenizer
        from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
    except ImportError as error:
        raise DeltaMemError("lexical scores need nltk; install it with: pip install 'deltamem[eval]'") from error
    parameters = PunktParameters()
    parameters.abbrev_types.update(ABBREVIATIONS)
    return _Nltk(PorterStemmer().stem, PunktSentenceTokenizer(parameters).tokenize, NLTKWordTokenizer().tokenize)


@dataclass(frozen=True, slots=True)
class CumulativePoint:
    """One point of the curve: the mean over users, and one standard deviation across users below and above, in 0 to 1."""

    session: int
    mean: float
    low: float
    high: float
    users: int  # How many users have been asked something by then; the others are not in the mean


def cumulative_accuracy(
    values: Sequence[Sequence[tuple[int, bool | float]]], *, sessions: int | None = None
) -> list[CumulativePoint]:
    """Average cumulative accuracy by session, as in Figures 4 and 5 of the DeltaMem paper (section 5.3, appendix D.3).

    The accuracy of a user at session s is taken over all questions that were asked up to and including s. The mean gives
    each user the same weight, however many questions they were asked. The spread is the population standard deviation across
    users; the paper shades "variability across these users" and does not say which.

    `values` are for each user the session of each question, from 0, and whether it was answered rightly (or a score from 0
    to 1), in any order; of `sessions`, so many are shown, from the first (the paper shows 25).

    Returns:
        One point for each session from the first at which any user was asked something; a user without questions in a
        session keeps the accuracy that they had.
    """
    last = max((session for user in values for session, _ in user), default=-1)
    points = []
    for session in range(last + 1 if sessions is None else min(sessions, last + 1)):
        asked = [[float(value) for when, value in user if when <= session] for user in values]
        accuracies = [sum(own) / len(own) for own in asked if own]
        if accuracies:
            mean, spread = float(np.mean(accuracies)), float(np.std(accuracies))
            low, high = max(0.0, mean - spread), min(1.0, mean + spread)
            points.append(CumulativePoint(session, mean, low, high, len(accuracies)))
    return points


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k trials passes: ``1 - C(n-c, k) / C(n, k)`` (PROTOCOLS.md 5.6; Chen et al. 2021).

    The k trials are drawn without replacement from the n that were run, of which c passed, so the estimate is unbiased.
    """
    return 1 - comb(n - c, k) / comb(n, k)


def recall_at(ranks: Sequence[int | None], k: int) -> float:
    """Share of the evidence that is among the first k passages.

    `ranks` are those of each piece of evidence, from 1; None where it was not found. There is at least one piece.
    """
    return sum(rank is not None and rank <= k for rank in ranks) / len(ranks)


def reciprocal_rank(ranks: Sequence[int | None]) -> float:
    """One over the best rank of any piece of evidence; 0 if none was found."""
    found = [rank for rank in ranks if rank is not None]
    return 1 / min(found) if found else 0.0
