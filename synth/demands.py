"""What the program plans for data that demand memory: families of facts, changes of known memories, asides.

The writer writes; what is planned here is known for certain, so that labels and shares hold by construction. Counts are
rounded at random, so that shares hold over a data set though a single life is short.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import NamedTuple, TypeVar

from deltamem.memory import Keyword, wordings
from deltamem.sessions import FactKind, Provenance, Signal
from deltamem.text import content_stems
from rewards.fidelity import folded
from synth.config import Demands
from synth.planning import rounded
from synth.pools import pools
from synth.records import Aside, AsideKind, Fact, FactChange, FactPlan, SessionFact
from synth.validators.base import dates_in, memory_stems, wording_in

Choice = TypeVar("Choice")

_ABOUT_OTHERS: tuple[Provenance, ...] = ("third_person", "hearsay")
_CORRECTED: tuple[Provenance, ...] = ("assistant_corrected", "self_corrected")
_SUITS: Mapping[FactChange, Collection[Signal]] = {
    FactChange.EXPAND: ("explicit", "value"),
    FactChange.ADJUST: ("explicit", "value"),
    FactChange.SHIFT: ("explicit", "value", "implied"),
    FactChange.PARTIAL_DELETION: ("explicit", "implied"),
    FactChange.RETRACT: ("explicit", "implied"),
    FactChange.EXPIRE: ("explicit", "implied"),
}
"""How a change can show: an end has no new value, and a detail that is added does not follow from anything else."""
_NOT_DATED = (FactKind.PREFERENCE, FactKind.OPINION, FactKind.STATUS, FactKind.ATTRIBUTE)
_NOT_TEMPORARY = (FactKind.EVENT, FactKind.PREFERENCE, FactKind.OPINION, FactKind.MOTIVATION, FactKind.ATTRIBUTE)
"""Kinds of facts that no date is told of, and that do not end on one."""
_LAST = (FactChange.RETRACT, FactChange.EXPIRE)
_SHARED = (FactChange.ADJUST, FactChange.SHIFT, FactChange.RETRACT)
"""What one statement can do to several memories."""
_FAMILY_FIRST = 0.96
"""Chance that a memory with siblings is chosen to change, where there is one; others change as well, so as to be no tell."""
_EXPIRED = 0.08
"""Share of the changes that may be ends of temporary states, at most."""


_BLOCK = 10


def is_newcomer(number: int, share: float, seed: int) -> bool:
    """Whether a person begins with an empty bank: their share of every ten people in a row."""
    block, place = divmod(number, _BLOCK)
    rng = random.Random(f"{seed}/newcomers/{block}")
    return place in rng.sample(range(_BLOCK), rounded(rng, share * _BLOCK))


def plan_facts(rng: random.Random, plan: Demands, count: int, *, initial: bool = False) -> tuple[FactPlan, ...]:
    """Plan the facts of one answer: families first, then those that stand alone.

    Of `initial` facts, known before the first session, only what the text says of them is planned.
    """
    size = plan.rivals + 1
    families = [
        number
        for number in range(1, rounded(rng, plan.families * count / size) + 1)
        for _ in range(size)
        if size > 1 and number * size <= count
    ]
    plans = []
    shared: dict[int, FactPlan] = {}
    for family in [*families, *[0] * (count - len(families))]:
        # Siblings are of the same kind, so what shows in their wording is drawn once for all of them.
        base = shared.get(family) or _drawn(rng, plan, initial)
        if family:
            shared[family] = base
        provenance = base.provenance
        if not initial and provenance not in _ABOUT_OTHERS:
            provenance = _provenance(rng, plan, exclude=_ABOUT_OTHERS)
        plans.append(base.model_copy(update={"family": family, "provenance": provenance}))
    # Drawn last, so that kinds change nothing else that is drawn.
    kinds: dict[int, FactKind | None] = {}
    for place, planned in enumerate(plans, start=1):
        kinds.setdefault(planned.family or -place, _kind(rng, plan, planned))
    return tuple(
        planned.model_copy(update={"kind": kinds[planned.family or -place]}) for place, planned in enumerate(plans, start=1)
    )


def _kind(rng: random.Random, plan: Demands, planned: FactPlan) -> FactKind | None:
    barred = (_NOT_DATED if planned.dated else ()) + (_NOT_TEMPORARY if planned.temporary else ())
    suited = {kind: weight for kind, weight in plan.kinds.items() if weight and kind not in barred}
    return _weighted(rng, suited or plan.kinds) if plan.kinds else None


def _drawn(rng: random.Random, plan: Demands, initial: bool) -> FactPlan:
    draw = rng.random()
    return FactPlan(
        provenance="said" if initial else _provenance(rng, plan),
        dated=not initial and draw < plan.dated,
        temporary=plan.dated <= draw < plan.dated + plan.temporary,
    )


def _provenance(rng: random.Random, plan: Demands, exclude: Collection[Provenance] = ()) -> Provenance:
    return _weighted(rng, {kind: weight for kind, weight in plan.provenances.items() if kind not in exclude})


def _weighted(rng: random.Random, weights: Mapping[Choice, float]) -> Choice:
    return rng.choices(list(weights), list(weights.values()))[0]


# --- changes of known memories --------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """A memory that may change: the session that brings it (-1: an initial one), a key that its siblings share."""

    fact: Fact
    session: int
    family: str
    temporary: bool


class PlannedStep(NamedTuple):
    """One planned change, and the session that brings it."""

    session: int
    change: FactChange
    signal: Signal
    provenance: Provenance
    dated: bool


class Chain(NamedTuple):
    """The changes of a memory in order of time, or of several siblings that change together."""

    memories: tuple[Candidate, ...]
    steps: tuple[PlannedStep, ...]


def wanted_updates(rng: random.Random, plan: Demands, additions: int, updates: int) -> int:
    """How many UPDATEs are missing for their share."""
    operations = additions / (1 - plan.updates - plan.repeats)
    return max(rounded(rng, plan.updates * operations - updates), 0)


def wanted_repeats(rng: random.Random, plan: Demands, changing: int) -> int:
    """How many NONEs belong to so many ADDs and UPDATEs."""
    return rounded(rng, plan.repeats * changing / (1 - plan.repeats))


class RevisionPlanner:
    """Chooses which memories change, when and how."""

    def __init__(
        self,
        rng: random.Random,
        plan: Demands,
        candidates: Sequence[Candidate],
        days: Mapping[int, date],
        load: Mapping[int, int],
    ) -> None:
        self._rng = rng
        self._plan = plan
        self._free = list(candidates)
        self._days = days
        self._load = Counter(load)
        self._left = 0

    def chains(self, number: int) -> tuple[Chain, ...]:
        """Plan so many changes, or as many as there are memories for."""
        self._left = number
        found = list(self._expiries(rounded(self._rng, _EXPIRED * number)))
        while self._left > 0 and (chain := self._together() or self._single()) is not None:
            found.append(chain)
        return tuple(found)

    def _expiries(self, most: int) -> list[Chain]:
        """Ends of temporary states, told in a session after the last date that the state names; siblings first."""
        found: list[Chain] = []
        for candidate in sorted(self._rng.sample(self._free, len(self._free)), key=lambda candidate: not candidate.family):
            ends = dates_in(candidate.fact.text) if candidate.temporary else []
            sessions = [index for index in self._after(candidate.session) if ends and self._days[index] > max(ends)]
            if sessions and len(found) < min(most, self._left):
                self._free.remove(candidate)
                found.append(Chain((candidate,), (self._step(self._lightest(sessions), FactChange.EXPIRE),)))
        self._left -= len(found)
        # What else may happen to a state before it ends would have to fit its last day.
        self._free = [candidate for candidate in self._free if not candidate.temporary]
        return found

    def _together(self) -> Chain | None:
        """Siblings that one statement changes; None if it is not drawn, or if there are none."""
        if self._left < 2 or self._rng.random() >= self._plan.together:
            return None
        families: defaultdict[str, list[Candidate]] = defaultdict(list)
        for candidate in self._free:
            if candidate.family and self._after(candidate.session):
                families[candidate.family].append(candidate)
        several = [members for members in families.values() if len(members) > 1]
        if not several:
            return None
        members = self._rng.choice(several)
        chosen = tuple(self._rng.sample(members, min(self._rng.randint(2, 3), len(members), self._left)))
        session = self._lightest(self._after(max(candidate.session for candidate in chosen)))
        operators = {change: weight for change, weight in self._plan.operators.items() if change in _SHARED}
        change = _weighted(self._rng, operators) if any(operators.values()) else FactChange.ADJUST
        for candidate in chosen:
            self._free.remove(candidate)
        self._load[session] += len(chosen) - 1
        self._left -= len(chosen)
        return Chain(chosen, (self._step(session, change, plain=True),))

    def _single(self) -> Chain | None:
        """A memory that changes once or several times, beginning in a session that has few changes."""
        earliest = min((candidate.session for candidate in self._free), default=None)
        starts = [] if earliest is None else self._after(earliest)
        if not starts:
            return None
        # The last sessions leave no room for a long chain.
        depth = min(_weighted(self._rng, self._plan.chains), self._left, len(starts))
        first = self._lightest(starts[: len(starts) - depth + 1])
        fitting = [candidate for candidate in self._free if candidate.session < first]
        siblings = [candidate for candidate in fitting if candidate.family]
        if siblings and self._rng.random() < _FAMILY_FIRST:
            fitting = siblings
        candidate = self._rng.choice(fitting)
        self._free.remove(candidate)
        later = self._after(first)
        sessions = [first]
        for _ in range(depth - 1):
            sessions.append(self._lightest([index for index in later if index not in sessions]))
        steps = []
        for number, index in enumerate(sorted(sessions), start=1):
            operators = self._plan.operators
            if number < depth:
                operators = {change: weight for change, weight in operators.items() if change not in _LAST}
            change = _weighted(self._rng, operators) if any(operators.values()) else FactChange.ADJUST
            steps.append(self._step(index, change))
        self._left -= depth
        return Chain((candidate,), tuple(steps))

    def _step(self, session: int, change: FactChange, *, plain: bool = False) -> PlannedStep:
        """A change in a session; `plain`: said by the person, without a date, because several memories depend on it."""
        self._load[session] += 1
        rng, plan = self._rng, self._plan
        signals = {signal: weight for signal, weight in plan.signals.items() if signal in _SUITS[change]}
        signal = _weighted(rng, signals)
        provenance: Provenance = "said"
        if not plain and signal != "implied":
            barred = (*_ABOUT_OTHERS, *_CORRECTED) if "value" not in _SUITS[change] else _ABOUT_OTHERS
            provenance = _provenance(rng, plan, exclude=barred)
        dated = (
            not plain and provenance == "said" and change in (FactChange.ADJUST, FactChange.SHIFT) and signal != "implied"
        ) and rng.random() < plan.dated
        return PlannedStep(session, change, signal, provenance, dated)

    def _after(self, session: int) -> list[int]:
        return [index for index in self._days if index > session]

    def _lightest(self, sessions: Sequence[int]) -> int:
        """One of the sessions with the fewest changes so far."""
        least = min(self._load[index] for index in sessions)
        return self._rng.choice([index for index in sessions if self._load[index] == least])


# --- asides ---------------------------------------------------------------------------------------------------------------


_TOUCHED = 0.5
"""Share of a memory's content words that an aside has at most; what is said round them may by chance have another one."""


def plan_asides(
    rng: random.Random,
    plan: Demands,
    name: str,
    facts: Sequence[SessionFact],
    held: Mapping[str, Sequence[Keyword]],
    *,
    idle: bool,
) -> tuple[Aside, ...]:
    """Plan what else comes up in a session.

    Asides use no keyword of `facts`, the session's own; `held` are the memories before it with their keywords.
    """
    taken = {word for fact in facts for wording in wordings(fact.keywords) for word in folded(wording).split()}
    touched = {fact.previous_text for fact in facts}
    distractors = []
    for text, keywords in held.items():
        if text in touched or len(keywords) < 2:
            continue
        free = [keyword for keyword, words in _touching(text, tuple(keywords), name) if taken.isdisjoint(words)]
        # Not all of them, or the memory would be told.
        if free:
            distractors.append((text, free[: len(keywords) - 1]))
    count = rng.randint(plan.asides.min, plan.asides.max) + idle
    kinds = rng.sample(list(AsideKind), min(count, len(AsideKind)))
    chosen = rng.sample(distractors, min(count, len(distractors)))
    asides = []
    for number, kind in enumerate(kinds, start=1):
        memory = ""
        words: tuple[str, ...] = ()
        if kind is AsideKind.CUE:
            words = (rng.choice(pools().cues),)
        elif chosen:
            memory, free = chosen.pop()
            words = tuple(rng.sample(free, min(rng.randint(1, 2), len(free))))
            words = words if _only_touches(memory, words, name) else words[:1]
        asides.append(Aside(id=f"a{number}", kind=kind, words=words, memory=memory))
    return tuple(asides)


# Every session of a life asks for the same memories.
@lru_cache(maxsize=8_192)
def _touching(memory: str, keywords: tuple[Keyword, ...], name: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The keywords, as the memory words them, that do not tell it by themselves, each with its folded words."""
    words = [wording_in(keyword, memory) for keyword in keywords]
    return tuple((word, tuple(folded(word).split())) for word in words if _only_touches(memory, (word,), name))


def _only_touches(memory: str, words: Sequence[str], name: str) -> bool:
    stems = memory_stems(memory, name)
    return len(stems & content_stems(" ".join(words))) <= _TOUCHED * len(stems)
