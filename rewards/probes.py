"""Shallow policies and what they earn: rows that stand beside every trained policy, so that no figure flatters.

None of them is trained for longer than seconds, and none reads a session against the memories before it. The policies that
know the target ("gold") show how little of it the reward asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from deltamem.embedding import CachedEmbedder, Embedder
from deltamem.episode import Trajectory
from deltamem.intervals import RESAMPLES, bootstrap_interval
from deltamem.memory import Event, Operation
from deltamem.sessions import LabelledSession, sessions_by_cell
from deltamem.text import normalised
from rewards.cues import (
    EVENTS,
    EventWords,
    Ranking,
    boilerplate,
    ranked_by_vectors,
    ranked_by_words,
    user_sentences,
)
from rewards.diagnostics import count, rates, total_counts
from rewards.reward import DEFAULT_OPTIONS, RewardOptions, needed_ids, score

PARTS = ("reward", "format", "retrieval", "transition")
RATES = ("update_recall", "add_for_update_rate", "wrong_target_rate")


class ProbeAnswer(NamedTuple):
    """What a policy makes of a session."""

    operations: list[Operation]
    seen: Sequence[Sequence[str]] = ()  # Ids that its searches returned, one list a query


class Surface:
    """What the probes are given: sentences known from people to train on, a classifier of sentences, and two searches."""

    def __init__(self, train: Sequence[LabelledSession], by_vectors: Ranking) -> None:
        """Learn from sessions of people to train on, which takes seconds; without any, nothing is known or expected."""
        self.by_vectors = by_vectors
        self._boilerplate = boilerplate(train)
        self._words = EventWords.of(train)

    def new_sentences(self, labelled: LabelledSession) -> list[str]:
        """The user's sentences that are not known to recur between people."""
        return [sentence for sentence in user_sentences(labelled) if normalised(sentence) not in self._boilerplate]

    def guessed(self, labelled: LabelledSession) -> dict[Event, list[str]]:
        """The user's sentences by the operation that their words speak for; those that speak for none are left out."""
        said = user_sentences(labelled)
        by_event: dict[Event, list[str]] = {event: [] for event in EVENTS}
        for sentence, chances in zip(said, self._words.chances(said), strict=True):
            if chances.max() > 0.5:
                by_event[EVENTS[int(chances.argmax())]].append(sentence)
        return by_event


Policy = Callable[[LabelledSession, Surface], ProbeAnswer]


class Probe(NamedTuple):
    """A shallow policy."""

    description: str
    answer: Policy
    knows_target: bool = False  # Whether it is given the operations that it is to find
    searches: bool = False  # One that does not earns the retrieval reward only where no memory is needed


def _bag_of_words(labelled: LabelledSession, surface: Surface) -> ProbeAnswer:
    guessed = surface.guessed(labelled)
    found = surface.by_vectors(labelled, guessed[Event.UPDATE] + guessed[Event.NONE])
    copied = _copied(labelled, guessed[Event.UPDATE])
    return ProbeAnswer([*_copied(labelled, guessed[Event.ADD]), *_rewritten(copied, found[: len(copied)])], found)


def _added(labelled: LabelledSession, *events: Event) -> list[Operation]:
    """The target's operations of some kinds, all as ADD."""
    return [Operation(Event.ADD, op.text) for op in labelled.operations if op.event in events]


def _with_targets(labelled: LabelledSession, ranking: Ranking) -> ProbeAnswer:
    """The target's texts; what is to be rewritten is the memory that the new text finds first."""
    due = [op for op in labelled.operations if op.event is not Event.ADD]
    found = dict(zip(due, ranking(labelled, [op.text for op in due]), strict=True))
    nearest = [found[op] for op in due if op.event is Event.UPDATE]
    rewritten = _rewritten(_added(labelled, Event.UPDATE), nearest)
    return ProbeAnswer([*_added(labelled, Event.ADD), *rewritten], list(found.values()))


def _all_as_update(labelled: LabelledSession, surface: Surface) -> ProbeAnswer:
    added = _added(labelled, *EVENTS)
    found = surface.by_vectors(labelled, [op.text for op in added])
    return ProbeAnswer(_rewritten(added, found), found)


def _target(labelled: LabelledSession, surface: Surface) -> ProbeAnswer:
    operations = [Operation(op.event, op.text, op.target_memory_id) for op in labelled.operations]
    return ProbeAnswer(operations, [sorted(needed_ids(labelled.operations))])


def _copied(labelled: LabelledSession, texts: Iterable[str]) -> list[Operation]:
    """Sentences as new memories; the name in front is what makes them resemble memories, which begin with it."""
    return [Operation(Event.ADD, f"{labelled.session.person_name}: {text}") for text in texts]


def _rewritten(added: Sequence[Operation], found: Sequence[Sequence[str]]) -> list[Operation]:
    """Each ADD as an UPDATE of the first memory found that no earlier one took; as it is if there is none."""
    operations: list[Operation] = []
    taken: set[str] = set()
    for op, ids in zip(added, found, strict=True):
        free = next((memory_id for memory_id in ids if memory_id not in taken), None)
        if free is not None:
            taken.add(free)
        operations.append(op if free is None else Operation(Event.UPDATE, op.text, free))
    return operations


_gold = partial(Probe, knows_target=True)
PROBES: Mapping[str, Probe] = {
    "do_nothing": Probe("no operation", lambda it, _: ProbeAnswer([])),
    "copy_all": Probe("every sentence of the user as ADD", lambda it, _: ProbeAnswer(_copied(it, user_sentences(it)))),
    "copy_new": Probe(
        "the same without sentences that recur between people",
        lambda it, known: ProbeAnswer(_copied(it, known.new_sentences(it))),
    ),
    "bag_of_words": Probe("sentences as ADD, or UPDATE of the nearest, as their words say", _bag_of_words, searches=True),
    "gold_without_updates": _gold("perfect ADDs alone", lambda it, _: ProbeAnswer(_added(it, Event.ADD))),
    "gold_as_add": _gold("perfect texts, all as ADD", lambda it, _: ProbeAnswer(_added(it, Event.ADD, Event.UPDATE))),
    "gold_as_update": _gold("perfect texts, all as UPDATE of the nearest", _all_as_update, searches=True),
    "gold_tfidf_target": _gold(
        "perfect, but UPDATE of the memory that shares most words",
        lambda it, _: _with_targets(it, ranked_by_words),
        searches=True,
    ),
    "gold_nearest_target": _gold(
        "perfect, but UPDATE of the nearest memory", lambda it, known: _with_targets(it, known.by_vectors), searches=True
    ),
    "gold": _gold("the target itself", _target, searches=True),
}
"""The shallow policies by name, those that see only the session first."""


@dataclass(frozen=True, slots=True)
class ProbeScore:
    """What a shallow policy earned; intervals are ``estimate``, ``low`` and ``high`` by person."""

    description: str
    knows_target: bool
    searches: bool
    parts: dict[str, dict[str, float]]  # By the names of `PARTS`: the weighted total and its parts
    rates: dict[str, float | None]  # Of `RATES`, as `rewards.diagnostics.rates` counts them
    cells: dict[str, dict[str, float]]  # The reward by cell of difficulty (`deltamem.sessions.AXES`); empty if not planned


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
    """Score shallow policies on the sessions of people held out; some of them learn from those of others, `train`.

    A probe answers in one turn that keeps to the protocol, so its format score is 1. The bootstrap draws people `resamples`
    times with the `seed`.

    Returns:
        The scores by name; empty if there is no session to score on.
    """
    if not heldout:
        return {}
    cached = embedder if isinstance(embedder, CachedEmbedder) else CachedEmbedder(embedder)
    trajectories = play(train, heldout, cached, probes)
    people = [labelled.session.person_id for labelled in heldout]
    cells = sessions_by_cell(labelled.difficulty.cells() if labelled.difficulty else () for labelled in heldout)
    mean = partial(by_person, resamples=resamples, seed=seed)
    scores = {}
    for name, probe in probes.items():
        totals, counts = [], []
        for labelled, trajectory in zip(heldout, trajectories[name], strict=True):
            totals.append(score(trajectory, labelled, cached.documents, options))
            counts.append(count(labelled, trajectory, totals[-1].transition))
        values = {part: [getattr(total, part) for total in totals] for part in PARTS[:-1]}
        values["transition"] = [total.transition.reward for total in totals]
        known = rates(total_counts(counts))
        scores[name] = ProbeScore(
            probe.description,
            probe.knows_target,
            probe.searches,
            {part: mean(of_part, people) for part, of_part in values.items()},
            {rate: known[rate] for rate in RATES},
            {
                cell: mean([values["reward"][row] for row in rows], [people[row] for row in rows])
                for cell, rows in cells.items()
            },
        )
    return scores


def play(
    train: Sequence[LabelledSession],
    heldout: Sequence[LabelledSession],
    embedder: CachedEmbedder,
    probes: Mapping[str, Probe] = PROBES,
) -> dict[str, list[Trajectory]]:
    """Let policies answer sessions: by name a trajectory for each. The embedder then knows all that a reward compares."""
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
    """The mean of a value a session and its 95% interval, by a bootstrap of people in the order of their names."""
    rows = sorted(range(len(people)), key=people.__getitem__)
    ordered, groups = [values[row] for row in rows], [people[row] for row in rows]
    interval = bootstrap_interval(ordered, groups, resamples=resamples, seed=seed)
    assert interval is not None
    return interval.bounds()
