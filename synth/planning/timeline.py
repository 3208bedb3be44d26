"""The plan of a life: when its events happen, where in life, and what they change.

By quota (paper, appendix A): changes a track, operators, domains and events for the life goal are drawn within the quotas,
so that a writer that keeps to the plan keeps to them. By chance: each session draws its facts for itself.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta

from deltamem.errors import DeltaMemError
from synth.planning.changes import plan_changes
from synth.planning.scaling import scaled_minimum, span_days
from synth.records import Change, Domain, EventSlot, PlannedChange, TrackedFact
from synth.shape import Quotas, Range, Shape, Shares

FIRST_DAY = date(2026, 1, 2)
"""No event is earlier: the paper's events are strictly after 2026-01-01."""

_WINDOW_DAYS = 3
"""Days by which the last possible date of a planned event is later than the first."""

_DOMAIN_WEIGHTS = {
    Domain.WORK: 4,
    Domain.SOCIAL: 5,
    Domain.HEALTH: 3,
    Domain.LEISURE: 5,
    Domain.ADMIN: 2,
    Domain.FINANCE: 2,
}


def plan_events(
    rng: random.Random, shape: Shape, start: datetime, count: int, initial: Sequence[TrackedFact]
) -> tuple[EventSlot, ...]:
    """Plan the events of a life.

    Args:
        rng: What is drawn depends on this alone.
        shape: Numbers for 25 events; `synth.planning.scaling` tells how they apply to `count` events.
        start: Time of the initial memories; every event is on a later day.
        count: How many events, at least 1.
        initial: The facts of the initial memory state, which events may change or repeat.

    Returns:
        The slots, in order. Whatever days of their windows the writer chooses, the days between events and the length of the
        life are those of the shape. An update is planned only where a fact of its track is left to update, whichever facts
        the writer chooses for the earlier ones.

    Raises:
        DeltaMemError: If no plan fits the shape.
    """
    plan = shape.plan
    if isinstance(plan, Quotas):
        windows = _windows(rng, shape, start, count, _WINDOW_DAYS)
        domains = _domains(rng, plan, count)
        changes = plan_changes(rng, plan, domains, Counter(fact.track for fact in initial), shape.events.updates_per_fact)
        goals = _life_goals(rng, scaled_minimum(plan.life_goal_events, count), count)
        reused = _repeats(rng, plan.reused, changes, len(initial), shape.filling.min)
    else:
        windows = _windows(rng, shape, start, count, 0)
        domains = [_any_domain(rng) for _ in range(count)]
        changes, reused = _by_chance(rng, plan, count, initial, shape.events.updates_per_fact)
        goals = set()
    return tuple(
        EventSlot(
            index=index,
            not_before=windows[index][0],
            not_after=windows[index][1],
            domain=domains[index],
            life_goal=index in goals,
            changes=changes[index],
            reused=reused[index],
        )
        for index in range(count)
    )


# --- dates -----------------------------------------------------------------------------------------------------------------


def _windows(rng: random.Random, shape: Shape, start: datetime, count: int, width: int) -> list[tuple[date, date]]:
    """First and last day of each event, for windows of `width` further days, or fewer where there is no room."""
    each, total = shape.days_between, span_days(shape.years, count)
    if count > 1:
        width = min(width, (each.max - each.min) // 2, (total.max - total.min) // 2)
    # Whatever day is chosen on either side, a step stays within its bounds; it always is a day at least.
    least, most = max(each.min, 1) + width, each.max - width
    lowest, highest = max(total.min + width, least * (count - 1)), min(total.max - width, most * (count - 1))
    if least > most or (count > 1 and lowest > highest):
        raise DeltaMemError(
            f"{count} events that are {each} days apart cannot span {total} days (shape: days_between, years)"
        )
    steps = (
        _steps(rng, count - 1, Range(min=least, max=most), Range(min=lowest, max=highest), even=width == 0)
        if count > 1
        else []
    )
    first = start.date() + timedelta(days=rng.randint(least, most))
    days = [max(first, FIRST_DAY)]
    for step in steps:
        days.append(days[-1] + timedelta(days=step))
    return [(day, day + timedelta(days=width)) for day in days]


def _steps(rng: random.Random, count: int, each: Range, total: Range, *, even: bool) -> list[int]:
    """Days from each event to the next. `even`: every step is as likely as any other, where the total allows."""
    if even:
        steps = [rng.randint(each.min, each.max) for _ in range(count)]
    else:
        mean = rng.randint(total.min, total.max) / count
        steps = [min(max(round(mean * rng.uniform(0.3, 1.7)), each.min), each.max) for _ in range(count)]
    while not total.min <= sum(steps) <= total.max:
        change = 1 if sum(steps) < total.min else -1
        index = rng.choice([index for index, step in enumerate(steps) if step + change in each])
        steps[index] += change
    return steps


# --- domains and life goal -------------------------------------------------------------------------------------------------


def _any_domain(rng: random.Random) -> Domain:
    return rng.choices(list(_DOMAIN_WEIGHTS), list(_DOMAIN_WEIGHTS.values()))[0]


def _domains(rng: random.Random, plan: Quotas, count: int) -> list[Domain]:
    domains = [domain for domain, minimum in plan.domains.items() for _ in range(scaled_minimum(minimum, count))]
    if len(domains) > count:
        raise DeltaMemError(f"the domains of {count} events add up to {len(domains)} (shape: plan.domains)")
    domains += [_any_domain(rng) for _ in range(count - len(domains))]
    rng.shuffle(domains)
    return domains


def _life_goals(rng: random.Random, minimum: int, count: int) -> set[int]:
    if minimum > count:
        raise DeltaMemError(f"{minimum} of {count} events cannot serve the life goal (shape: plan.life_goal_events)")
    return set(rng.sample(range(count), min(count, minimum + rng.randint(0, max(minimum, 1)))))


# --- what is repeated, and changes by chance -------------------------------------------------------------------------------


def _repeats(
    rng: random.Random, wanted: Range, changes: Sequence[tuple[PlannedChange, ...]], known: int, filled: int
) -> list[int]:
    """Repeated memories of each event: none of the first, and never more than are known and not updated by the event."""
    reused = []
    for index, planned in enumerate(changes):
        new = sum(change.change is Change.NEW for change in planned)
        free = known - (len(planned) - new)
        reused.append(min(rng.randint(wanted.min, wanted.max), max(free, 0)) if index else 0)
        known += new + filled
    return reused


def _by_chance(
    rng: random.Random, plan: Shares, count: int, initial: Sequence[TrackedFact], updates_per_fact: int | None
) -> tuple[list[tuple[PlannedChange, ...]], list[int]]:
    """Draw the facts of each session; one that is known is used once a session, one of no track is not updated."""
    known, tracked, updates = len(initial), sum(fact.track is not None for fact in initial), 0
    changes, reused = [], []
    for _ in range(count):
        adjusted = repeated = new = 0
        updatable = tracked if updates_per_fact is None else tracked - updates // updates_per_fact
        for _ in range(rng.randint(plan.facts.min, plan.facts.max)):
            draw, left = rng.random(), adjusted + repeated < known
            if left and adjusted < updatable and draw < plan.update_share:
                adjusted += 1
            elif left and draw < plan.update_share + plan.repeat_share:
                repeated += 1
            else:
                new += 1
        planned = [PlannedChange(track=None, change=Change.ADJUST)] * adjusted
        planned += [PlannedChange(track=None, change=Change.NEW)] * new
        rng.shuffle(planned)
        changes.append(tuple(planned))
        reused.append(repeated)
        known, tracked, updates = known + new, tracked + new, updates + adjusted
    return changes, reused
