"""Shallow policies and what they earn: rows that stand beside every trained policy, so that no figure flatters.

None of them is trained for longer than seconds, and none reads a session against the memories before it. The policies that
know the target ("gold") show how little of it the reward asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from deltamem.embedding import CachedEmbedder, Embedder
from deltamem.episode import Trajectory
from deltamem.intervals import RESAMPLES, bootstrap_interval
from deltamem.memory import Event, Operation
from deltamem.sessions import LabelledSession, sessions_by_cell
from deltamem.text import normalised
from rewards.cues import (
    EVENTS,
    EventWords,
    Flags,
    Ranking,
    boilerplate,
    flags,
    places,
    ranked_by_vectors,
    ranked_by_words,
    user_sentences,
)
from rewards.diagnostics import count, rates, total_counts
from rewards.reward import DEFAULT_OPTIONS, RewardOptions, needed_ids, score

PARTS = ("reward", "format", "retrieval", "transition")
RATES = ("update_recall", "add_for_update_rate", "wrong_target_rate")


class Answer(NamedTuple):
    """What a policy makes of a session."""

    operations: list[Operation]
    seen: Sequence[Sequence[str]] = ()
    """Ids that its searches returned, one list a query."""


class Surface:
    """What the probes are given: sentences known from people to train on, a classifier of sentences, and two searches."""

    def __init__(self, train: Sequence[LabelledSession], by_vectors: Ranking) -> None:
        """Learn from people to train on; takes seconds.

        Args:
            train: Their sessions; may be empty, and no sentence is known then, nor any event expected.
            by_vectors: The search by embeddings.
        """
        self.by_vectors = by_vectors
        self.by_words: Ranking = ranked_by_words
        self._boilerplate = boilerplate(train)
        texts: list[str] = []
        held: list[Flags] = []
        for labelled in train:
            said = user_sentences(labelled)
            texts += said
            held.append(flags(labelled.operations, places(labelled, said), len(said)))
        self._words = EventWords(texts, np.concatenate(held) if held else np.zeros((0, len(EVENTS)), dtype=bool))

    def new_sentences(self, labelled: LabelledSession) -> list[str]:
        """The user's sentences that are not known to recur between people."""
        return [sentence for sentence in user_sentences(labelled) if normalised(sentence) not in self._boilerplate]

    def guessed(self, labelled: LabelledSession) -> dict[Event, list[str]]:
        """The user's sentences by the operation that their words speak for; those that speak for none are left out."""
        said = user_sentences(labelled)
        found: dict[Event, list[str]] = {event: [] for event in EVENTS}
        for sentence, chances in zip(said, self._words.chances(said), strict=True):
            if chances.max() > 0.5:
                found[EVENTS[int(chances.argmax())]].append(sentence)
        return found


Policy = Callable[[LabelledSession, Surface], Answer]


class Probe(NamedTuple):
    """A shallow policy."""

    description: str
    answer: Policy
    knows_target: bool = False
    """Whether it is given the operations that it is to find."""
    searches: bool = False
    """Whether it looks memories up. One that does not earns the retrieval reward only where no memory is needed."""


def _do_nothing(labelled: LabelledSession, surface: Surface) -> Answer:
    return Answer([])


def _copy_all(labelled: LabelledSession, surface: Surface) -> Answer:
    return Answer(_copied(labelled, user_sentences(labelled)))


def _copy_new(labelled: LabelledSession, surface: Surface) -> Answer:
    return Answer(_copied(labelled, surface.new_sentences(labelled)))


def _bag_of_words(labelled: LabelledSession, surface: Surface) -> Answer:
    guessed = surface.guessed(labelled)
    found = surface.by_vectors(labelled, guessed[Event.UPDATE] + guessed[Event.NONE])
    copied = _copied(labelled, guessed[Event.UPDATE])
    return Answer([*_copied(labelled, guessed[Event.ADD]), *_rewritten(copied, found[: len(copied)])], found)


def _add_only(labelled: LabelledSession, surface: Surface) -> Answer:
    return Answer([_add(op.text) for op in labelled.operations if op.event is not Event.NONE])


def _without_updates(labelled: LabelledSession, surface: Surface) -> Answer:
    return Answer([_add(op.text) for op in labelled.operations if op.event is Event.ADD])


def _targets_by_words(labelled: LabelledSession, surface: Surface) -> Answer:
    return _with_targets(labelled, surface.by_words)


def _targets_by_vectors(labelled: LabelledSession, surface: Surface) -> Answer:
    return _with_targets(labelled, surface.by_vectors)


def _with_targets(labelled: LabelledSession, ranking: Ranking) -> Answer:
    """The target's texts; what is to be rewritten is the memory that the new text finds first."""
    due = [op for op in labelled.operations if op.event is not Event.ADD]
    found = dict(zip(due, ranking(labelled, [op.text for op in due]), strict=True))
    updates = [op for op in due if op.event is Event.UPDATE]
    added = [_add(op.text) for op in labelled.operations if op.event is Event.ADD]
    rewritten = _rewritten([_add(op.text) for op in updates], [found[op] for op in updates])
    return Answer([*added, *rewritten], list(found.values()))


def _all_as_update(labelled: LabelledSession, surface: Surface) -> Answer:
    told = [_add(op.text) for op in labelled.operations]
    found = surface.by_vectors(labelled, [op.text for op in told])
    return Answer(_rewritten(told, found), found)


def _target(labelled: LabelledSession, surface: Surface) -> Answer:
    return Answer(
        [Operation(op.event, op.text, op.target_memory_id) for op in labelled.operations],
        [sorted(needed_ids(labelled.operations))],
    )


def _add(text: str) -> Operation:
    return Operation(Event.ADD, text)


def _copied(labelled: LabelledSession, texts: Iterable[str]) -> list[Operation]:
    """Sentences as new memories; the name in front is what makes them resemble memories, which begin with it."""
    return [_add(f"{labelled.session.person_name}: {text}") for text in texts]


def _rewritten(texts: Sequence[Operation], found: Sequence[Sequence[str]]) -> list[Operation]:
    """Each text as an UPDATE of the first memory found that no earlier text took; an ADD if there is none."""
    operations: list[Operation] = []
    taken: set[str] = set()
    for added, ids in zip(texts, found, strict=True):
        free = next((memory_id for memory_id in ids if memory_id not in taken), None)
        if free is None:
            operations.append(added)
        else:
            taken.add(free)
            operations.append(Operation(Event.UPDATE, added.text, free))
    return operations


PROBES: Mapping[str, Probe] = {
    "do_nothing": Probe("no operation", _do_nothing),
    "copy_all": Probe("every sentence of the user as ADD", _copy_all),
    "copy_new": Probe("the same without sentences that recur between people", _copy_new),
    "bag_of_words": Probe("sentences as ADD, or UPDATE of the nearest, as their words say", _bag_of_words, searches=True),
    "gold_without_updates": Probe("perfect ADDs alone", _without_updates, knows_target=True),
    "gold_as_add": Probe("perfect texts, all as ADD", _add_only, knows_target=True),
    "gold_as_update": Probe("perfect texts, all as UPDATE of the nearest", _all_as_update, knows_target=True, searches=True),
    "gold_tfidf_target": Probe(
        "perfect, but UPDATE of the memory that shares most words", _targets_by_words, knows_target=True, searches=True
    ),
    "gold_nearest_target": Probe(
        "perfect, but UPDATE of the nearest memory", _targets_by_vectors, knows_target=True, searches=True
    ),
    "gold": Probe("the target itself", _target, knows_target=True, searches=True),
}
"""The shallow policies by name, those that see only the session first."""


@dataclass(frozen=True, slots=True)
class ProbeScore:
    """What a shallow policy earned."""

    description: str
    knows_target: bool
    searches: bool
    parts: dict[str, dict[str, float]]
    """By the names of `PARTS`, the reward (weighted total) and its parts: ``estimate``, ``low`` and ``high`` by person."""
    rates: dict[str, float | None]
    """Of `RATES`, as `rewards.diagnostics.rates` counts them."""
    cells: dict[str, dict[str, float]]
    """The reward by cell of difficulty (`deltamem.sessions.AXES`); empty where none was planned."""


def run_probes(
    train: Sequence[LabelledSession],
    heldout: Sequence[LabelledSession],
    embedder: Embedder,
    *,
    options: RewardOptions = DEFAULT_OPTIONS,
    probes: Mapping[str, Probe] = PROBES,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, ProbeScore]:
    """Score shallow policies on people held out.

    A probe answers in one turn that keeps to the protocol, so its format score is 1.

    Args:
        train: Sessions of other people, for what some of the probes learn.
        heldout: The sessions to score on.
        embedder: For searches and the reward.
        options: Of the reward.
        probes: Which.
        resamples: Bootstrap draws of people.
        seed: Of the bootstrap.

    Returns:
        The scores by name; empty if there is no session to score on.
    """
    if not heldout:
        return {}
    cached = embedder if isinstance(embedder, CachedEmbedder) else CachedEmbedder(embedder)
    trajectories = play(train, heldout, cached, probes)
    people = [labelled.session.person_id for labelled in heldout]
    cells = sessions_by_cell(labelled.difficulty.cells() if labelled.difficulty else () for labelled in heldout)
    scores = {}
    for name, probe in probes.items():
        totals, counts = [], []
        for labelled, trajectory in zip(heldout, trajectories[name], strict=True):
            totals.append(score(trajectory, labelled, cached.documents, options))
            counts.append(count(labelled, trajectory, totals[-1].transition))
        values = {
            part: [total.transition.reward if part == "transition" else getattr(total, part) for total in totals]
            for part in PARTS
        }
        found = rates(total_counts(counts))

        def reward(rows: Sequence[int], rewards: Sequence[float] = values["reward"]) -> dict[str, float]:
            return by_person([rewards[row] for row in rows], [people[row] for row in rows], resamples=resamples, seed=seed)

        scores[name] = ProbeScore(
            probe.description,
            probe.knows_target,
            probe.searches,
            {part: by_person(of_part, people, resamples=resamples, seed=seed) for part, of_part in values.items()},
            {rate: found[rate] for rate in RATES},
            {cell: reward(rows) for cell, rows in cells.items()},
        )
    return scores


def play(
    train: Sequence[LabelledSession],
    heldout: Sequence[LabelledSession],
    embedder: CachedEmbedder,
    probes: Mapping[str, Probe] = PROBES,
) -> dict[str, list[Trajectory]]:
    """Let policies answer sessions; the embedder then knows all texts that a reward compares.

    Args:
        train: Sessions of other people, for what some of the policies learn.
        heldout: The sessions to answer.
        embedder: For searches.
        probes: The policies.

    Returns:
        By the names of the policies, a trajectory for each session.
    """
    # Few large batches are much faster than many small ones; what follows finds everything in the cache.
    embedder.documents(_distinct(memory.text for labelled in heldout for memory in labelled.prior_state.values()))
    embedder.queries(_distinct(op.text for labelled in heldout for op in labelled.operations))
    surface = Surface(train, ranked_by_vectors(embedder))
    answers = {name: [probe.answer(labelled, surface) for labelled in heldout] for name, probe in probes.items()}
    predicted = (op.text for given in answers.values() for answer in given for op in answer.operations)
    embedder.documents(_distinct((*predicted, *(op.text for labelled in heldout for op in labelled.operations))))
    return {
        name: [
            Trajectory((), retrieved_ids=tuple(map(tuple, answer.seen)), operations=tuple(answer.operations))
            for answer in given
        ]
        for name, given in answers.items()
    }


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def by_person(
    values: Sequence[float], people: Sequence[str], *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, float]:
    """The mean of some values, at least one, as ``estimate``, ``low`` and ``high`` of its 95% interval.

    Args:
        values: One a session.
        people: Whose session each is; the bootstrap draws whole people, in the order of their names.
        resamples: Draws.
        seed: Of the draws.
    """
    rows = sorted(range(len(people)), key=people.__getitem__)
    ordered, groups = [values[row] for row in rows], [people[row] for row in rows]
    interval = bootstrap_interval(ordered, groups, resamples=resamples, seed=seed)
    assert interval is not None
    return interval.bounds()
