from __future__ import annotations

import random
from collections import Counter
from datetime import date

import pytest
from offline_people import shape

from deltamem.errors import DeltaMemError
from synth.config import ProfileLimits, Range
from synth.planning import age, draft_categories, draft_dynamic, draft_fixed
from synth.pools import pools
from synth.records import DynamicPart, FixedPart

TODAY = date(2026, 2, 1)
NAMES = ("Kofi Mensah", "Yuki Tanaka", "Lucia Vega", "Omar Haddad")


def drafts(count: int) -> list[tuple[FixedPart, DynamicPart]]:
    drawn = []
    for seed in range(count):
        rng = random.Random(seed)
        fixed = draft_fixed(rng, "Petra Horvat", "female", TODAY)
        drawn.append((fixed, draft_dynamic(rng, fixed, NAMES, TODAY)))
    return drawn


DRAFTS = drafts(3_000)
POOLS = pools()
JOBS = {(industry.name, job.title): job for industry in POOLS.industries for job in industry.jobs}
MAJORS = {major: industry.name for industry in POOLS.industries for major in industry.majors}


def test_birth_dates_are_from_1980_to_2006_and_the_name_stays() -> None:
    for fixed, _ in DRAFTS:
        assert date(1980, 1, 1) <= fixed.birth_date <= date(2006, 12, 31)
        assert (fixed.name, fixed.gender) == ("Petra Horvat", "female")
    assert len({fixed.birth_date.year for fixed, _ in DRAFTS}) == 27


def test_age_counts_full_years() -> None:
    assert age(date(2000, 2, 1), TODAY) == 26
    assert age(date(2000, 2, 2), TODAY) == 25
    assert age(date(2000, 2, 29), date(2026, 2, 28)) == 25


def test_nobody_has_a_degree_too_early() -> None:
    for fixed, _ in DRAFTS:
        assert age(fixed.birth_date, TODAY) >= POOLS.youngest[POOLS.degrees.index(fixed.degree)]
        assert (fixed.major in MAJORS) == (fixed.degree != POOLS.degrees[0])
    assert {fixed.degree for fixed, _ in DRAFTS} == set(POOLS.degrees)


def test_traits_fit_the_personality_type() -> None:
    for fixed, _ in DRAFTS:
        assert len(set(fixed.traits)) == len(fixed.traits) in (3, 4)
        assert all(any(trait in POOLS.traits[letter] for letter in fixed.mbti) for trait in fixed.traits)
    assert len({fixed.mbti for fixed, _ in DRAFTS}) == 16


def test_parents_and_children_are_of_possible_ages() -> None:
    for fixed, _ in DRAFTS:
        years = age(fixed.birth_date, TODAY)
        parents = [int(word.strip(".;,")) for word in fixed.family.parents.split() if word.strip(".;,").isdigit()]
        children = [int(word.strip(".,")) for word in fixed.family.children.split() if word.strip(".,").isdigit()]
        assert all(20 <= parent - years <= 40 for parent in parents)
        assert all(years - child >= 21 for child in children)
        assert len(set(children)) == len(children)


def test_most_partners_and_children_are_those_of_older_people() -> None:
    by_age: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for fixed, _ in DRAFTS:
        counts = by_age[age(fixed.birth_date, TODAY) >= 35]
        counts["people"] += 1
        counts["married"] += fixed.family.partner.startswith("Married")
        counts["children"] += fixed.family.children != "No children."
    for what in ("married", "children"):
        old, young = (by_age[side][what] / by_age[side]["people"] for side in (True, False))
        assert old > 1.5 * young > 0


def test_all_seven_kinds_of_life_goals_come_with_a_number_to_reach() -> None:
    assert Counter(fixed.life_goal.kind for fixed, _ in DRAFTS).keys() == {goal.kind for goal in POOLS.goals}
    assert len(POOLS.goals) == 7
    assert all(any(letter.isdigit() for letter in fixed.life_goal.target) for fixed, _ in DRAFTS)


def test_three_quarters_are_employed_and_a_tenth_are_entrepreneurs() -> None:
    shares = Counter(dynamic.career.status for _, dynamic in DRAFTS)
    assert abs(shares["employed"] / len(DRAFTS) - 0.75) < 0.03
    assert abs(shares["unemployed"] / len(DRAFTS) - 0.15) < 0.03
    assert abs(shares["entrepreneur"] / len(DRAFTS) - 0.10) < 0.03


def test_jobs_are_open_to_the_degree_and_the_field_and_paid_within_their_range() -> None:
    for fixed, dynamic in DRAFTS:
        career = dynamic.career
        if career.status == "unemployed":
            assert (career.employer, career.job, career.monthly_income) == ("", "", 0)
            continue
        job = JOBS[career.industry, career.job]
        assert job.level <= POOLS.degrees.index(fixed.degree)
        assert job.level <= 1 or MAJORS[fixed.major] == career.industry
        assert 0.9 * job.least <= career.monthly_income <= 1.1 * job.most
        assert career.employer in career.description


def test_savings_have_three_significant_digits() -> None:
    savings = [dynamic.career.savings for _, dynamic in DRAFTS]
    assert all(len(str(amount).rstrip("0")) <= 3 for amount in savings)
    assert len(set(savings)) > 800


def test_conditions_go_with_health_that_is_not_good() -> None:
    for _, dynamic in DRAFTS:
        health = dynamic.health
        for status, conditions in (
            (health.physical, health.physical_conditions),
            (health.mental, health.mental_conditions),
        ):
            assert not (status == "good" and conditions)
            assert conditions or status != "poor"
            assert conditions in health.reason
    assert {dynamic.health.physical for _, dynamic in DRAFTS} == {"good", "fair", "poor"}


def test_there_is_a_relationship_for_each_name_and_no_colleague_without_work() -> None:
    kinds = set()
    for _, dynamic in DRAFTS:
        assert tuple(other.name for other in dynamic.relationships) == NAMES
        assert all(other.description.startswith(other.name) for other in dynamic.relationships)
        kinds |= {(dynamic.career.status, other.kind) for other in dynamic.relationships}
    assert ("unemployed", "colleague") not in kinds
    assert len({kind for _, kind in kinds}) == 5


def test_no_names_make_no_relationships() -> None:
    fixed, _ = DRAFTS[0]
    assert draft_dynamic(random.Random(1), fixed, (), TODAY).relationships == ()


def test_a_degree_in_words_of_the_writer_gets_a_job_all_the_same() -> None:
    fixed = DRAFTS[0][0].model_copy(update={"degree": "two years at a conservatory", "major": "oboe"})
    career = draft_dynamic(random.Random(1), fixed, (), TODAY).career
    assert career.status == "unemployed" or JOBS[career.industry, career.job].level == 0


@pytest.mark.parametrize("name", ["paper", "tiny"])
def test_categories_are_as_many_as_the_limits_say(name: str) -> None:
    limits = shape(name).profile
    sizes = set()
    for seed in range(200):
        drawn = draft_categories(random.Random(seed), limits)
        assert set(drawn) <= set(POOLS.categories)
        assert len(set(drawn)) == len(drawn)
        sizes.add(len(drawn))
    assert sizes == set(range(limits.categories.min, limits.categories.max + 1))


def test_more_categories_than_there_are_is_refused() -> None:
    limits = ProfileLimits(relationships=Range(min=0, max=0), categories=Range(min=1, max=11), items=Range(min=1, max=2))
    with pytest.raises(DeltaMemError, match="there are 10 kinds, not 11"):
        draft_categories(random.Random(1), limits)


def test_the_same_draws_give_the_same_draft() -> None:
    assert drafts(20) == DRAFTS[:20]
