"""What a memory keeps of a session, counted without a judge. Functions of texts and an embedder.

Every measure is a ratio of sums, so each session gives a numerator and a denominator by name: `Counts`. Two texts are about
the same if the cosine of their embeddings reaches the threshold. Recall alone flatters whoever copies everything, so what a
system found stands beside as many sentences of the owner: the first ones, random ones, and those that a bag of words picks;
and beside the first ones of as many tokens. Texts are compared without the owner's name: a name that two texts share makes
them near whatever they say, and people do not name themselves.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError
from deltamem.memory import Event
from deltamem.sessions import read_sessions
from deltamem.text import content_stems
from eval.answer import ContextBlock, cut_to_budget
from eval.evidence import EvidenceFinder
from eval.systems.base import DialogueSession, Passage, WithTime
from eval.tokens import ESTIMATED
from eval.transfer.data import PointUpdate, TransferQuestion, TransferSession
from rewards.cues import EVENTS, EventWords, sentences

Counts = dict[str, tuple[float, float]]
Cosines = npt.NDArray[np.floating]


def cosines(embedder: Embedder, rows: Sequence[str], columns: Sequence[str]) -> Cosines:
    """Cosine of each row's text with each column's, of shape ``(len(rows), len(columns))``."""
    if not rows or not columns:
        return np.zeros((len(rows), len(columns)), dtype=np.float32)
    return embedder.documents(rows) @ embedder.documents(columns).T


def nameless(texts: Iterable[str], owner: str, *others: str) -> list[str]:
    """Texts without the names of the owner and others, their parts, and ``the user``, as some systems call the owner."""
    names = sorted({part for name in (owner, *others) for part in (name, *name.split())}, key=len, reverse=True)
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))}|(?:[Tt]he )?User|[Tt]he user)\b(?:['\u2019]s\b)?:?")
    return [" ".join(pattern.sub(" ", text).split()) or text for text in texts]


def points_found(near: Cosines, threshold: float) -> int:
    """How many points (columns) some text (row) is about."""
    return int((near >= threshold).any(axis=0).sum())


def matched(near: Cosines, threshold: float) -> int:
    """How many pairs of a text and a point there are if each may be in one pair, the sum of cosines being the largest."""
    if not near.size:
        return 0
    from scipy.optimize import linear_sum_assignment  # takes a while to import

    worth = np.where(near >= threshold, near, 0.0)
    rows, columns = linear_sum_assignment(worth, maximize=True)
    return int((worth[rows, columns] > 0).sum())


def foreign_found(to_foreign: Cosines, to_points: Cosines, threshold: float) -> int:
    """How many foreign points (columns) some text is about that is nearer to it than to every point."""
    best = to_points.max(axis=1, initial=-1.0)
    return int(((to_foreign >= threshold) & (to_foreign > best[:, None])).any(axis=0).sum())


def owner_sentences(session: DialogueSession) -> list[str]:
    """What the owner says, sentence by sentence, as ``system=copy_all`` keeps it."""
    return [sentence for turn in session.turns if turn.role == "user" for sentence in sentences(turn.text)]


def word_support(text: str, session: DialogueSession, owner: str) -> float | None:
    """Share of a memory's content words, without the owner's name, that the owner says; None of a memory without any."""
    said = frozenset[str]().union(*(content_stems(turn.text) for turn in session.turns if turn.role == "user"))
    own = content_stems(text) - content_stems(owner)
    return len(own & said) / len(own) if own else None


def bag_of_words(sessions: Path) -> EventWords:
    """What a bag of words learns from the training split of a ``sessions.jsonl``.

    Raises:
        DeltaMemError: If the file is missing, cannot be read or has no such split.
    """
    train = list(read_sessions(sessions, split="train"))
    if not train:
        raise DeltaMemError(f"{sessions}: no sessions to train on, of which a bag of words could learn")
    return EventWords.of(train)


@dataclass(frozen=True, slots=True)
class Ruler:
    """What sessions are measured with."""

    embedder: Embedder
    threshold: float
    draws: int  # Of random sentences
    seed: int
    words: EventWords | None = None  # Of the sessions that a bag of words learned from, if there is to be one

    def session(
        self, session: TransferSession, owner: str, memories: Sequence[str] | None, elsewhere: Sequence[str] = ()
    ) -> Counts:
        """What was kept of a session: `memories` are what was written, None by systems that extract nothing.

        `elsewhere` are points of another session, by which it is told how many are found by chance.

        The copiers need no system: ``copy_all``, and as many sentences as there are points, the first (``bar``), random ones
        (``random``) and those that a bag of words picks (``bag``).
        """
        wanted, points = nameless(session.points, owner), len(session.points)
        # What the other speaker said of themselves may be kept under either name.
        names = [owner, *{turn.speaker for turn in session.dialogue.turns if turn.speaker} - {owner}]
        foreigners = nameless(session.foreign, *names)

        def compared(texts: Sequence[str]) -> tuple[Cosines, Cosines]:
            to_points = cosines(self.embedder, nameless(texts, owner), wanted)
            return to_points, cosines(self.embedder, nameless(texts, *names), foreigners)

        copied = nameless(owner_sentences(session.dialogue), owner)
        near, foreign = compared(copied)
        picked = self._picked(copied)
        place = f"{owner} {session.dialogue.id}"
        counts = self._kept("copy_all", near, foreign) | self._kept("bar", near[:points], foreign[:points])
        counts |= self._random("random", near, foreign, points, place)
        if picked is not None:
            counts |= self._kept("bag", near[picked[:points]], foreign[picked[:points]])
        if memories is None:
            return counts
        written, k = nameless(memories, owner), len(memories)
        counts |= self._kept("system", *compared(memories))
        by_chance = cosines(self.embedder, written, nameless(elsewhere, owner))
        counts["system/by_chance"] = points_found(by_chance, self.threshold), len(elsewhere)
        counts["first_k/found"] = points_found(near[:k], self.threshold), points
        counts["random_k/found"] = self._random("random_k", near, foreign, k, place)["random_k/found"]
        spent = np.cumsum([ESTIMATED.size(sentence) for sentence in copied])
        fitting = int((spent <= sum(map(ESTIMATED.size, written))).sum())
        counts["first_tokens/found"] = points_found(near[:fitting], self.threshold), points
        if picked is not None:
            counts["bag_k/found"] = points_found(near[picked[:k]], self.threshold), points
        supports = [word_support(text, session.dialogue, owner) for text in memories]
        known = [share for share in supports if share is not None]
        counts["support/mean"] = sum(known), len(known)
        counts["support/half"] = sum(share >= 0.5 for share in known), len(known)
        return counts

    def _picked(self, copied: Sequence[str]) -> npt.NDArray[np.intp] | None:
        """The sentences by how much a bag of words sees something new in them, most first."""
        if self.words is None:
            return None
        new = self.words.chances(copied)[:, [EVENTS.index(Event.ADD), EVENTS.index(Event.UPDATE)]].max(axis=1)
        return np.argsort(-new, kind="stable")

    def _random(self, name: str, near: Cosines, foreign: Cosines, k: int, place: str) -> Counts:
        """Of so many random sentences, the mean of the draws."""
        generator, number = random.Random(f"{self.seed} {place}"), len(near)
        drawn = [sorted(generator.sample(range(number), min(k, number))) for _ in range(self.draws)]
        found = [self._kept(name, near[rows], foreign[rows]) for rows in drawn]
        return {measure: (sum(one[measure][0] for one in found) / self.draws, found[0][measure][1]) for measure in found[0]}

    def _kept(self, name: str, near: Cosines, foreign: Cosines) -> Counts:
        """Of some texts (rows) by their cosines with points and foreign points."""
        (texts, points), pairs = near.shape, matched(near, self.threshold)
        return {
            f"{name}/found": (points_found(near, self.threshold), points),
            f"{name}/precision": (pairs, texts),
            f"{name}/recall": (pairs, points),
            f"{name}/f1": (2 * pairs, texts + points),
            f"{name}/foreign": (foreign_found(foreign, near, self.threshold), foreign.shape[1]),
        }

    def update(self, update: PointUpdate, owner: str, hits: Sequence[str]) -> Counts:
        """Whether a hit says the new text rather than an old one, and none an old text rather than the new one."""
        shown = nameless(hits, owner)
        new = cosines(self.embedder, shown, nameless([update.text], owner))[:, 0]
        old = cosines(self.embedder, shown, nameless(update.originals, owner))
        found = bool(((new >= self.threshold) & (new > old.max(axis=1, initial=-1.0))).any())
        gone = not ((old >= self.threshold) & (old > new[:, None])).any()
        return {"update/found": (found, 1), "update/old_gone": (gone, 1), "update/both": (found and gone, 1)}


def question_counts(
    question: TransferQuestion,
    passages: Sequence[Passage],
    finder: EvidenceFinder,
    budgets: Sequence[int],
    *,
    by_time: bool,
    with_time: WithTime,
) -> Counts:
    """The pieces of evidence, and the share of their words, that the passages show which fit each budget of tokens.

    `by_time` says that the passages are not ranked.
    """
    counts: Counts = {}
    turns = {turn for piece in question.evidence for turn in piece}
    for budget in budgets:
        shown = cut_to_budget([ContextBlock("", tuple(passages), by_time)], budget, with_time=with_time)
        fitting = [passage for block in shown.blocks for passage in block.passages]
        ranks = finder.ranks(question.evidence, fitting)
        counts[f"evidence@{budget}"] = sum(rank is not None for rank in ranks), len(ranks)
        counts[f"words@{budget}"] = finder.words_shown(turns, fitting), 1
    return counts


def summed(counts: Iterable[Counts]) -> Counts:
    """Several counts of one session in one."""
    sums: Counts = {}
    for one in counts:
        for name, (top, bottom) in one.items():
            before = sums.get(name, (0, 0))
            sums[name] = before[0] + top, before[1] + bottom
    return sums


def pooled(counts: Mapping[tuple[str, str], Counts], name: str) -> tuple[list[float], list[float], list[str]]:
    """Numerators, denominators and stores of a measure, one of each for each session that has it."""
    found = [(*own[name], store) for (store, _), own in counts.items() if name in own]
    tops, bottoms, stores = zip(*found, strict=True)
    return list(tops), list(bottoms), list(stores)
