"""Drafts of profiles, drawn by program and consistent within themselves; the writer corrects them against the persona seed.

After HaluMem's profile generation, on which the paper's first step is based (appendix A); the words and numbers are ours.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date, timedelta

from deltamem.errors import DeltaMemError
from synth.planning.pools import (
    CATEGORIES,
    CITIES,
    DEGREES,
    EMPLOYER_NAMES,
    GOALS,
    INDUSTRIES,
    MBTI_SHARES,
    MENTAL_CONDITIONS,
    PHYSICAL_CONDITIONS,
    RELATIONSHIPS,
    TRAITS,
    YOUNGEST,
    Industry,
)
from synth.records import Career, DynamicPart, Family, FixedPart, Health, LifeGoal, Relationship
from synth.shape import ProfileLimits

_BORN = (date(1980, 1, 1), date(2006, 12, 31))
_DEGREE_WEIGHTS = (20, 20, 38, 17, 5)
_STATUSES = ("employed", "unemployed", "entrepreneur")
_STATUS_WEIGHTS = (75, 15, 10)
_HEALTH = ("good", "fair", "poor")


def draft_fixed(rng: random.Random, name: str, gender: str, today: date) -> FixedPart:
    """Draw what does not change: birth date from 1980 to 2006, degree and family by age, a life goal of one of seven kinds.

    Args:
        rng: What is drawn depends on this alone.
        name: The person's.
        gender: The person's.
        today: Ages are those of this day.
    """
    born = _BORN[0] + timedelta(days=rng.randrange((_BORN[1] - _BORN[0]).days + 1))
    years = age(born, today)
    level = rng.choices(range(len(DEGREES)), [w * (years >= YOUNGEST[i]) for i, w in enumerate(_DEGREE_WEIGHTS)])[0]
    mbti = "".join(rng.choices((first, second), (share, 1 - share))[0] for first, second, share in MBTI_SHARES)
    goal = rng.choice(GOALS)
    return FixedPart(
        name=name,
        gender=gender,
        birth_date=born,
        location=rng.choice(CITIES),
        degree=DEGREES[level],
        major=rng.choice(rng.choice(INDUSTRIES).majors) if level else "general studies",
        mbti=mbti,
        traits=tuple(rng.choice(TRAITS[letter]) for letter in rng.sample(mbti, rng.choice((3, 4)))),
        family=_family(rng, years),
        life_goal=LifeGoal(
            kind=goal.kind,
            statement=rng.choice(goal.statements),
            motivation=rng.choice(goal.motivations),
            target=goal.target.format(number=rng.choice(goal.numbers)),
        ),
    )


def draft_dynamic(rng: random.Random, fixed: FixedPart, names: Sequence[str], today: date) -> DynamicPart:
    """Draw what events may change: a job that the degree allows, health, and a relationship for each name.

    Args:
        rng: What is drawn depends on this alone.
        fixed: The fixed part; the writer may have changed it.
        names: Full names of the people that the person knows.
        today: Ages are those of this day.
    """
    years = age(fixed.birth_date, today)
    career = _career(rng, fixed, years)
    kinds = [kind for kind in RELATIONSHIPS if kind != "colleague" or career.status != "unemployed"]
    relationships = []
    for name in names:
        kind = rng.choices(kinds, [3 if kind in ("friend", "colleague") else 1 for kind in kinds])[0]
        text = rng.choice(RELATIONSHIPS[kind]).format(name=fixed.name)
        relationships.append(Relationship(name=name, kind=kind, description=f"{name} {text}."))
    return DynamicPart(career=career, health=_health(rng, years), relationships=tuple(relationships))


def draft_categories(rng: random.Random, limits: ProfileLimits) -> tuple[str, ...]:
    """Choose the kinds of preferences, as many as the limits say.

    Raises:
        DeltaMemError: If there are not so many kinds.
    """
    if limits.categories.max > len(CATEGORIES):
        raise DeltaMemError(f"profile.categories: there are {len(CATEGORIES)} kinds, not {limits.categories.max}")
    return tuple(rng.sample(CATEGORIES, rng.randint(limits.categories.min, limits.categories.max)))


def age(born: date, today: date) -> int:
    """Full years from a birth date to a day."""
    return today.year - born.year - ((today.month, today.day) < (born.month, born.day))


# --- family ----------------------------------------------------------------------------------------------------------------


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


# --- career and health -----------------------------------------------------------------------------------------------------


def _career(rng: random.Random, fixed: FixedPart, years: int) -> Career:
    # A writer may have put a degree of its own words; such a person gets a job that takes none.
    level = DEGREES.index(fixed.degree) if fixed.degree in DEGREES else 0
    studied = [industry for industry in INDUSTRIES if fixed.major in industry.majors]
    in_field = bool(studied) and rng.random() < 0.75
    industry = rng.choice(studied if in_field else INDUSTRIES)
    # Outside their field, people do what takes no degree of it.
    open_to = [job for job in industry.jobs if job.level <= (level if in_field else min(level, 1))]
    job = rng.choices(open_to, [1 + 2 * job.level for job in open_to])[0]
    status = rng.choices(_STATUSES, _STATUS_WEIGHTS)[0]
    worked = max(0, years - YOUNGEST[job.level])
    experience = min(1.0, worked / 18)
    usual = (job.least + (job.most - job.least) * experience * rng.uniform(0.5, 1)) * rng.uniform(0.92, 1.08)
    income = 0 if status == "unemployed" else max(100, round(usual / 100) * 100)
    savings = _three_digits(usual * (1 + worked) * rng.lognormvariate(0, 0.7))
    employer = _employer(rng, industry, status)
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


def _employer(rng: random.Random, industry: Industry, status: str) -> str:
    """The name of a firm, or nothing for somebody without one."""
    return "" if status == "unemployed" else f"{rng.choice(EMPLOYER_NAMES)} {rng.choice(industry.employers)}"


def _three_digits(amount: float) -> int:
    """Round to three significant digits."""
    return int(float(f"{amount:.2e}"))


def _health(rng: random.Random, years: int) -> Health:
    physical, physical_conditions = _condition(rng, _by_age(years, 0.75, 0.5), PHYSICAL_CONDITIONS)
    mental, mental_conditions = _condition(rng, 0.65, MENTAL_CONDITIONS)
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
    """A status and, unless it is good, mostly a condition."""
    status = rng.choices(_HEALTH, (good, (1 - good) * 0.75, (1 - good) * 0.25))[0]
    has_condition = status == "poor" or (status == "fair" and rng.random() < 0.6)
    return status, rng.choice(pool) if has_condition else ""
