"""What the program draws before a writer is asked: drafts of profiles, plans of events, which event changes what."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import product
from typing import NamedTuple

from deltamem.errors import DeltaMemError
from synth.config import Demands, Lateness, ProfileLimits, Quotas, Range, Shape
from synth.pools import pools
from synth.records import (
    Career,
    Domain,
    DynamicPart,
    EventSlot,
    FactChange,
    Family,
    FixedPart,
    Health,
    LifeGoal,
    PlannedChange,
    Relationship,
    Track,
    TrackedFact,
)

EVENTS = 25
"""The number of events that the numbers of a shape are given for."""


def scaled(counts: Range, count: int) -> Range:
    """A range of counts, for example changes of a track; the lower end is rounded down, the upper end up."""
    return Range(min=scaled_minimum(counts.min, count), max=scaled_maximum(counts.max, count))


def scaled_minimum(minimum: int, count: int) -> int:
    """A least number, for example of events of a domain; rounded down."""
    return minimum * count // EVENTS


def scaled_maximum(maximum: int, count: int) -> int:
    """A largest number, for example by how much operators may differ; rounded up."""
    return -(-maximum * count // EVENTS)


def span_days(years: Range, count: int) -> Range:
    """Days from the first event to the last: `years` are for the 24 steps between 25 events.

    A life of one event has no span. A year counts as 365 days at the lower end and 366 at the upper.
    """
    steps, whole = count - 1, EVENTS - 1
    return Range(min=years.min * 365 * steps // whole, max=-(-years.max * 366 * steps // whole))


UPDATES = (FactChange.EXPAND, FactChange.ADJUST, FactChange.SHIFT, FactChange.PARTIAL_DELETION)
"""The paper's operators that change a known fact."""
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

    Returns the changes of each event: totals by track and operators within the scaled quotas, and for each update a fact of
    its track that holds and may still be updated. Raises `DeltaMemError` if nothing fits.
    """
    count = len(domains)
    fitting = list(_fitting_totals(plan, count, initial, updates_per_fact))
    if not fitting:
        raise DeltaMemError(
            f"no plan of changes for {count} events fits: with so few initial facts, each updated at most "
            f"{updates_per_fact or 'any number of'} times, too few new ones are allowed (shape: plan.changes, plan.balance)"
        )
    totals = rng.choice(fitting)
    new = {track: _needed_new(track, number, initial, updates_per_fact) for track, number in totals.changes.items()}
    room = [track for track, number in totals.changes.items() for _ in range(number - new[track])]
    for track in rng.sample(room, totals.new - sum(new.values())):
        new[track] += 1
    # As many of each kind of update as of any other, give or take one, in random order.
    each, rest = divmod(sum(totals.changes.values()) - totals.new, len(UPDATES))
    operators = [*(UPDATES * each), *rng.sample(UPDATES, rest)]
    rng.shuffle(operators)
    planned: list[list[PlannedChange]] = [[] for _ in domains]
    for track in sorted(totals.changes, key=lambda track: (-totals.changes[track], track)):
        events = _place(rng, track, totals.changes[track], domains, planned)
        fresh = _order(rng, len(events), new[track], initial.get(track, 0), updates_per_fact)
        for event, is_new in zip(events, fresh, strict=True):
            planned[event].append(PlannedChange(track=track, change=FactChange.NEW if is_new else operators.pop()))
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
            fewest, most = (total - new) // len(UPDATES), -(-(total - new) // len(UPDATES))
            if max(new, most) - min(new, fewest) <= balance and total <= _PER_EVENT * count:
                yield _Totals(changes, new)


def _needed_new(track: Track, changes: int, initial: Mapping[Track | None, int], updates_per_fact: int | None) -> int:
    """The least number of new facts among `changes` with which there is a fact for every update."""
    known = initial.get(track, 0)
    if updates_per_fact is None:
        return int(changes > 0 and known == 0)
    # changes - new <= (known + new) * updates_per_fact
    return max(0, -(-(changes - known * updates_per_fact) // (updates_per_fact + 1)))


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


_BORN = (date(1980, 1, 1), date(2006, 12, 31))
_DEGREE_WEIGHTS = (20, 20, 38, 17, 5)
_STATUSES = ("employed", "unemployed", "entrepreneur")
_STATUS_WEIGHTS = (75, 15, 10)
_HEALTH = ("good", "fair", "poor")


def draft_fixed(rng: random.Random, name: str, gender: str, today: date) -> FixedPart:
    """Draw what does not change: birth date from 1980 to 2006, degree and family by age, a life goal."""
    born = _BORN[0] + timedelta(days=rng.randrange((_BORN[1] - _BORN[0]).days + 1))
    years = age(born, today)
    pool = pools()
    weights = [w * (years >= pool.youngest[i]) for i, w in enumerate(_DEGREE_WEIGHTS)]
    level = rng.choices(range(len(pool.degrees)), weights)[0]
    mbti = "".join(rng.choices((pair.first, pair.second), (pair.share, 1 - pair.share))[0] for pair in pool.letters)
    goal = rng.choice(pool.goals)
    return FixedPart(
        name=name,
        gender=gender,
        birth_date=born,
        location=rng.choice(pool.cities),
        degree=pool.degrees[level],
        major=rng.choice(rng.choice(pool.industries).majors) if level else "general studies",
        mbti=mbti,
        traits=tuple(rng.choice(pool.traits[letter]) for letter in rng.sample(mbti, rng.choice((3, 4)))),
        family=_family(rng, years),
        life_goal=LifeGoal(
            kind=goal.kind,
            statement=rng.choice(goal.statements),
            motivation=rng.choice(goal.motivations),
            target=goal.target.format(number=rng.choice(goal.numbers)),
        ),
    )


def draft_dynamic(rng: random.Random, fixed: FixedPart, names: Sequence[str], today: date) -> DynamicPart:
    """Draw what events may change: a job that the degree allows, health, and a relationship for each name."""
    years = age(fixed.birth_date, today)
    career = _career(rng, fixed, years)
    kinds = [kind for kind in pools().relationships if kind != "colleague" or career.status != "unemployed"]
    relationships = []
    for name in names:
        kind = rng.choices(kinds, [3 if kind in ("friend", "colleague") else 1 for kind in kinds])[0]
        text = rng.choice(pools().relationships[kind]).format(name=fixed.name)
        relationships.append(Relationship(name=name, kind=kind, description=f"{name} {text}."))
    return DynamicPart(career=career, health=_health(rng, years), relationships=tuple(relationships))


def draft_categories(rng: random.Random, limits: ProfileLimits) -> tuple[str, ...]:
    """Choose the kinds of preferences, as many as the limits say. Raises `DeltaMemError` if there are not so many kinds."""
    if limits.categories.max > len(pools().categories):
        raise DeltaMemError(f"profile.categories: there are {len(pools().categories)} kinds, not {limits.categories.max}")
    return tuple(rng.sample(pools().categories, rng.randint(limits.categories.min, limits.categories.max)))


def age(born: date, today: date) -> int:
    """Full years from a birth date to a day."""
    return today.year - born.year - ((today.month, today.day) < (born.month, born.day))


def _by_age(years: int, young: float, old: float) -> float:
    """A probability that goes from its value at 20 to its value at 46."""
    return young + (old - young) * min(max((years - 20) / 26, 0), 1)


def _family(rng: random.Random, years: int) -> Family:
    mother, father = years + rng.randint(20, 36), years + rng.randint(21, 40)
    alive = [rng.random() < _by_age(years, 0.98, chance) for chance in (0.85, 0.75)]
    parents = {
        (True, True): f"Both parents are alive; the mother is {mother}, the father {father}.",
        (True, False): f"The mother is {mother}; the father has died.",
        (False, True): f"The father is {father}; the mother has died.",
        (False, False): "Both parents have died.",
    }[alive[0], alive[1]]
    state = rng.choices(
        ("single", "in a relationship", "married", "divorced"),
        (_by_age(years, 60, 18), _by_age(years, 38, 17), _by_age(years, 2, 50), _by_age(years, 0, 15)),
    )[0]
    partner = {
        "single": "No partner.",
        "in a relationship": f"In a relationship for {_count(rng.randint(1, max(1, min(8, years - 18))), 'year')}.",
        "married": f"Married for {_count(rng.randint(1, max(1, min(18, years - 20))), 'year')}.",
        "divorced": "Divorced.",
    }[state]
    chance = {"single": 0.03, "in a relationship": 0.15, "married": 0.7, "divorced": 0.6}[state]
    oldest = min(years - 21, 18)
    ages: list[int] = []
    if oldest > 0 and rng.random() < chance:
        ages = sorted(rng.sample(range(1, oldest + 1), min(oldest, rng.choices((1, 2, 3), (45, 42, 13))[0])), reverse=True)
    children = ", ".join(f"a {rng.choice(('daughter', 'son'))} of {number}" for number in ages) or "no children"
    return Family(parents=parents, partner=partner, children=f"{children[0].upper()}{children[1:]}.")


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def _career(rng: random.Random, fixed: FixedPart, years: int) -> Career:
    pool = pools()
    # A writer may have put a degree of its own words; such a person gets a job that takes none.
    level = pool.degrees.index(fixed.degree) if fixed.degree in pool.degrees else 0
    studied = [industry for industry in pool.industries if fixed.major in industry.majors]
    in_field = bool(studied) and rng.random() < 0.75
    industry = rng.choice(studied if in_field else pool.industries)
    # Outside their field, people do what takes no degree of it.
    open_to = [job for job in industry.jobs if job.level <= (level if in_field else min(level, 1))]
    job = rng.choices(open_to, [1 + 2 * job.level for job in open_to])[0]
    status = rng.choices(_STATUSES, _STATUS_WEIGHTS)[0]
    worked = max(0, years - pool.youngest[job.level])
    experience = min(1.0, worked / 18)
    usual = (job.least + (job.most - job.least) * experience * rng.uniform(0.5, 1)) * rng.uniform(0.92, 1.08)
    income = 0 if status == "unemployed" else max(100, round(usual / 100) * 100)
    savings = int(float(f"{usual * (1 + worked) * rng.lognormvariate(0, 0.7):.2e}"))  # three digits
    employer = "" if status == "unemployed" else f"{rng.choice(pools().employer_names)} {rng.choice(industry.employers)}"
    since = _count(max(1, round(worked * rng.uniform(0.1, 0.7))), "year")
    description = {
        "employed": f"Has worked as a {job.title} at {employer} for {since}.",
        "entrepreneur": f"Has run {employer} for {since}, doing the work of a {job.title} and the books alike.",
        "unemployed": f"Is looking for work as a {job.title} in {industry.name} {rng.choice(_BETWEEN_JOBS)}.",
    }[status]
    return Career(
        status=status,
        industry=industry.name,
        employer=employer,
        job="" if status == "unemployed" else job.title,
        monthly_income=income,
        savings=savings,
        description=description,
    )


_BETWEEN_JOBS = (
    "after the last contract ran out",
    "after a move",
    "after a long break",
    "since the last employer closed down",
)


def _health(rng: random.Random, years: int) -> Health:
    physical, physical_conditions = _condition(rng, _by_age(years, 0.75, 0.5), pools().physical_conditions)
    mental, mental_conditions = _condition(rng, 0.65, pools().mental_conditions)
    named = [condition for condition in (physical_conditions, mental_conditions) if condition]
    causes = f" Lives with {' and '.join(named)}." if named else ""
    return Health(
        physical=physical,
        physical_conditions=physical_conditions,
        mental=mental,
        mental_conditions=mental_conditions,
        reason=f"Is in {physical} physical and {mental} mental health.{causes} {rng.choice(_HABITS)}",
    )


_HABITS = (
    "Sleeps seven hours and walks a lot.",
    "Sits too long at work and moves too little.",
    "Eats well but sleeps badly in busy weeks.",
    "Exercises twice a week and sees a doctor once a year.",
)


def _condition(rng: random.Random, good: float, pool: Sequence[str]) -> tuple[str, str]:
    status = rng.choices(_HEALTH, (good, (1 - good) * 0.75, (1 - good) * 0.25))[0]
    has_condition = status == "poor" or (status == "fair" and rng.random() < 0.6)
    return status, rng.choice(pool) if has_condition else ""


FIRST_DAY = date(2026, 1, 2)
"""No event is earlier: the paper's events are strictly after 2026-01-01."""

_WINDOW_DAYS = 3
"""Days by which the last possible date of a planned event is later than the first."""

_DOMAIN_WEIGHTS = {Domain.WORK: 4, Domain.SOCIAL: 5, Domain.HEALTH: 3, Domain.LEISURE: 5, Domain.ADMIN: 2, Domain.FINANCE: 2}


def plan_events(
    rng: random.Random, shape: Shape, start: datetime, count: int, initial: Sequence[TrackedFact]
) -> tuple[EventSlot, ...]:
    """Plan the events of a life.

    Returns the slots, in order. Whatever days of their windows the writer chooses, the days between events and the length of
    the life are those of the shape. An update is planned only where a fact of its track is left to update, whichever facts
    the writer chooses for the earlier ones. Raises `DeltaMemError` if no plan fits the shape.
    """
    plan = shape.plan
    windows = _windows(rng, shape, start, count)
    if isinstance(plan, Demands):
        return _demanding(rng, plan, count, windows)
    domains = _domains(rng, plan, count)
    changes = plan_changes(rng, plan, domains, Counter(fact.track for fact in initial), shape.events.updates_per_fact)
    least = scaled_minimum(plan.life_goal_events, count)
    if least > count:
        raise DeltaMemError(f"{least} of {count} events cannot serve the life goal (shape: plan.life_goal_events)")
    goals = set(rng.sample(range(count), min(count, least + rng.randint(0, max(least, 1)))))
    reused = _repeats(rng, plan.reused, changes, len(initial), shape.filling.min)
    return tuple(
        EventSlot(
            index=index,
            not_before=windows[index][0],
            not_after=windows[index][1],
            domain=domains[index],
            life_goal=index in goals,
            changes=changes[index],
            reused=reused[index],
            days_after=_days_after(rng, plan, windows, index),
        )
        for index in range(count)
    )


def rounded(rng: random.Random, number: float) -> int:
    """A whole number next to `number`, which it is on average: so small counts keep a share over many people."""
    return int(number) + (rng.random() < number % 1)


def _demanding(rng: random.Random, plan: Demands, count: int, windows: Sequence[tuple[date, date]]) -> tuple[EventSlot, ...]:
    """Slots of which some are idle, some are talked about days later, and some bring a new fact of a track."""
    idle = set(rng.sample(range(count), min(rounded(rng, plan.idle * count), count)))
    domains = [_any_domain(rng) for _ in range(count)]
    busy = [index for index in range(count) if index not in idle]
    wanted = scaled(plan.changes, count)
    changing = rng.sample(busy, min(rng.randint(wanted.min, wanted.max), len(busy)))
    changes: dict[int, tuple[PlannedChange, ...]] = {}
    for index in changing:
        weights = [_FITTING[track].get(domains[index], 0) for track in Track]
        track = rng.choices(list(Track), weights if any(weights) else None)[0]
        changes[index] = (PlannedChange(track=track, change=FactChange.NEW),)
    return tuple(
        EventSlot(
            index=index,
            not_before=first,
            not_after=last,
            domain=domains[index],
            life_goal=False,
            changes=changes.get(index, ()),
            reused=0,
            days_after=_days_after(rng, plan, windows, index),
            idle=index in idle,
        )
        for index, (first, last) in enumerate(windows)
    )


def _days_after(rng: random.Random, plan: Lateness, windows: Sequence[tuple[date, date]], index: int) -> int:
    """Days from an event to the session about it, which comes before the next event."""
    if rng.random() >= plan.late:
        return 0
    days = rng.randint(plan.days_after.min, plan.days_after.max)
    return days if index + 1 == len(windows) else min(days, (windows[index + 1][0] - windows[index][1]).days - 1)


def _windows(rng: random.Random, shape: Shape, start: datetime, count: int) -> list[tuple[date, date]]:
    """First and last day of each event: windows of `_WINDOW_DAYS` further days, or fewer where there is no room."""
    each, total, width = shape.days_between, span_days(shape.years, count), _WINDOW_DAYS
    if count > 1:
        width = min(width, (each.max - each.min) // 2, (total.max - total.min) // 2)
    # Whatever day is chosen on either side, a step stays within its bounds; it always is a day at least.
    least, most = max(each.min, 1) + width, each.max - width
    lowest, highest = max(total.min + width, least * (count - 1)), min(total.max - width, most * (count - 1))
    if least > most or (count > 1 and lowest > highest):
        raise DeltaMemError(
            f"{count} events that are {each} days apart cannot span {total} days (shape: days_between, years)"
        )
    steps = _steps(rng, count - 1, Range(min=least, max=most), Range(min=lowest, max=highest)) if count > 1 else []
    first = start.date() + timedelta(days=rng.randint(least, most))
    days = [max(first, FIRST_DAY)]
    for step in steps:
        days.append(days[-1] + timedelta(days=step))
    return [(day, day + timedelta(days=width)) for day in days]


def _steps(rng: random.Random, count: int, each: Range, total: Range) -> list[int]:
    mean = rng.randint(total.min, total.max) / count
    steps = [min(max(round(mean * rng.uniform(0.3, 1.7)), each.min), each.max) for _ in range(count)]
    while not total.min <= sum(steps) <= total.max:
        change = 1 if sum(steps) < total.min else -1
        index = rng.choice([index for index, step in enumerate(steps) if step + change in each])
        steps[index] += change
    return steps


def _any_domain(rng: random.Random) -> Domain:
    return rng.choices(list(_DOMAIN_WEIGHTS), list(_DOMAIN_WEIGHTS.values()))[0]


def _domains(rng: random.Random, plan: Quotas, count: int) -> list[Domain]:
    domains = [domain for domain, minimum in plan.domains.items() for _ in range(scaled_minimum(minimum, count))]
    if len(domains) > count:
        raise DeltaMemError(f"the domains of {count} events add up to {len(domains)} (shape: plan.domains)")
    domains += [_any_domain(rng) for _ in range(count - len(domains))]
    rng.shuffle(domains)
    return domains


def _repeats(
    rng: random.Random, wanted: Range, changes: Sequence[tuple[PlannedChange, ...]], known: int, filled: int
) -> list[int]:
    """Repeated memories of each event: none of the first, and never more than are known and not updated by the event."""
    reused = []
    for index, planned in enumerate(changes):
        new = sum(change.change is FactChange.NEW for change in planned)
        free = known - (len(planned) - new)
        reused.append(min(rng.randint(wanted.min, wanted.max), max(free, 0)) if index else 0)
        known += new + filled
    return reused
