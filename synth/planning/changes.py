"""Which events change which track in which way, by quota."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from deltamem.errors import DeltaMemError
from synth.planning.scaling import scaled, scaled_maximum
from synth.records import Change, Domain, PlannedChange, Track
from synth.shape import Quotas

_UPDATES = (Change.EXPAND, Change.ADJUST, Change.SHIFT, Change.PARTIAL_DELETION)
_PER_EVENT = 2
"""Changes of one event, at most where there is room; never two of the same track."""

_FITTING: dict[Track, dict[Domain, int]] = {
    Track.CAREER: {Domain.WORK: 8, Domain.FINANCE: 2, Domain.ADMIN: 1},
    Track.HEALTH: {Domain.HEALTH: 8, Domain.LEISURE: 1},
    # People are met at work and among others, not over forms.
    Track.RELATIONSHIP: {Domain.SOCIAL: 6, Domain.WORK: 3, Domain.LEISURE: 2},
    Track.PREFERENCE: {Domain.LEISURE: 6, Domain.SOCIAL: 4, Domain.HEALTH: 2, Domain.FINANCE: 1, Domain.ADMIN: 1},
}
"""How likely a track changes in events of a domain; of others only if none of these is free."""


class _Totals(NamedTuple):
    """Changes of each track, and how many of all changes are new facts."""

    changes: dict[Track, int]
    new: int


def plan_changes(
    rng: random.Random,
    plan: Quotas,
    domains: Sequence[Domain],
    initial: Mapping[Track | None, int],
    updates_per_fact: int | None,
) -> list[tuple[PlannedChange, ...]]:
    """Plan the changes of each event.

    Args:
        rng: What is drawn depends on this alone.
        plan: The quotas, for 25 events.
        domains: Of each event.
        initial: Number of initial facts by track.
        updates_per_fact: How often a fact may be updated; None sets no limit.

    Returns:
        The changes of each event: totals by track and operators within the scaled quotas, and for each update a fact of its
        track that holds and may still be updated.

    Raises:
        DeltaMemError: If nothing fits.
    """
    count = len(domains)
    fitting = list(_fitting_totals(plan, count, initial, updates_per_fact))
    if not fitting:
        raise DeltaMemError(
            f"no plan of changes for {count} events fits: with so few initial facts, each updated at most "
            f"{updates_per_fact or 'any number of'} times, too few new ones are allowed (shape: plan.changes, plan.balance)"
        )
    totals = rng.choice(fitting)
    new = _new_by_track(rng, totals, initial, updates_per_fact)
    operators = _operators(rng, sum(totals.changes.values()) - totals.new)
    planned: list[list[PlannedChange]] = [[] for _ in domains]
    for track in sorted(totals.changes, key=lambda track: (-totals.changes[track], track)):
        events = _place(rng, track, totals.changes[track], domains, planned)
        fresh = _order(rng, len(events), new[track], initial.get(track, 0), updates_per_fact)
        for event, is_new in zip(events, fresh, strict=True):
            planned[event].append(PlannedChange(track=track, change=Change.NEW if is_new else operators.pop()))
    return [tuple(changes) for changes in planned]


def _fitting_totals(
    plan: Quotas, count: int, initial: Mapping[Track | None, int], updates_per_fact: int | None
) -> Iterator[_Totals]:
    """All totals within the quotas for which there are enough facts to update."""
    balance = scaled_maximum(plan.balance, count)
    ranges = {track: scaled(counts, count) for track, counts in plan.changes.items()}
    for numbers in product(*(range(counts.min, min(counts.max, count) + 1) for counts in ranges.values())):
        changes = dict(zip(ranges, numbers, strict=True))
        total = sum(numbers)
        needed = sum(_needed_new(track, changes[track], initial, updates_per_fact) for track in changes)
        for new in range(needed, total + 1):
            fewest, most = (total - new) // len(_UPDATES), -(-(total - new) // len(_UPDATES))
            if max(new, most) - min(new, fewest) <= balance and total <= _PER_EVENT * count:
                yield _Totals(changes, new)


def _needed_new(track: Track, changes: int, initial: Mapping[Track | None, int], updates_per_fact: int | None) -> int:
    """The least number of new facts among `changes` with which there is a fact for every update."""
    known = initial.get(track, 0)
    if updates_per_fact is None:
        return int(changes > 0 and known == 0)
    # changes - new <= (known + new) * updates_per_fact
    return max(0, -(-(changes - known * updates_per_fact) // (updates_per_fact + 1)))


def _new_by_track(
    rng: random.Random, totals: _Totals, initial: Mapping[Track | None, int], updates_per_fact: int | None
) -> dict[Track, int]:
    new = {track: _needed_new(track, number, initial, updates_per_fact) for track, number in totals.changes.items()}
    room = [track for track, number in totals.changes.items() for _ in range(number - new[track])]
    for track in rng.sample(room, totals.new - sum(new.values())):
        new[track] += 1
    return new


def _operators(rng: random.Random, number: int) -> list[Change]:
    """As many of each kind of update as of any other, give or take one, in random order."""
    each, rest = divmod(number, len(_UPDATES))
    operators = [*(_UPDATES * each), *rng.sample(_UPDATES, rest)]
    rng.shuffle(operators)
    return operators


def _place(
    rng: random.Random, track: Track, number: int, domains: Sequence[Domain], planned: Sequence[Sequence[PlannedChange]]
) -> list[int]:
    """Choose the events that change a track, in order."""
    chosen: set[int] = set()
    for _ in range(number):
        free = [event for event in range(len(domains)) if event not in chosen]
        free = [event for event in free if len(planned[event]) < _PER_EVENT] or free
        weights = [_FITTING[track].get(domains[event], 0) for event in free]
        chosen.add(rng.choices(free, weights)[0] if any(weights) else rng.choice(free))
    return sorted(chosen)


def _order(rng: random.Random, number: int, new: int, known: int, updates_per_fact: int | None) -> list[bool]:
    """Which changes of a track make a new fact, so that each of the others finds one to update."""
    order: list[bool] = []
    updates = 0
    for left in range(number, 0, -1):
        full = 0 if updates_per_fact is None else updates // updates_per_fact
        is_new = known <= full or rng.randrange(left) < new
        order.append(is_new)
        known, new, updates = known + is_new, new - is_new, updates + (not is_new)
    return order
