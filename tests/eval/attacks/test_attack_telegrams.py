"""Passages of the rarest words of many turns, which recall by words rewards: what is printed beside it finds them out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from eval.attacks import Lab, Result
from eval.invented import Store, turns_of, words
from eval.summary import ALL, GOLD_WORDS
from eval.systems.base import Passage


def telegrams(store: Store, query: str, k: int) -> list[Passage]:
    """Naive RAG's passages, and as many again and again, with the two rarest words of each of four turns in one."""
    counts = Counter(word for _, turn in store.turns for word in words(turn.spoken))
    found = [passage.text for passage in turns_of(store, query, 4 * k)]
    short = [" ".join(sorted(words(text), key=lambda word: (counts[word], word))[:2]) for text in found]
    return [Passage(". ".join(short[at : at + 4])) for at in range(0, len(short), 4)]


def shown(result: Result) -> float:
    found = result.summary.score(GOLD_WORDS, ALL)
    assert found is not None
    return found.estimate


def test_telegrams_raise_recall_and_show_few_of_the_words(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    honest, attack = lab.honest, lab.run("telegrams", find=telegrams)
    assert attack.summary.passages is not None and honest.summary.passages is not None
    assert attack.summary.passages["tokens_each"] < honest.summary.passages["tokens_each"]
    assert attack.recall > honest.recall
    assert shown(attack) < shown(honest) / 2
