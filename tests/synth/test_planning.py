"""What the program draws before a writer is asked: drafts of profiles, and plans of events that keep every quota."""

import random
from collections import Counter
from datetime import date, datetime, timedelta
from itertools import pairwise

import pytest
from handmade import edit, span
from hypothesis import given, settings
from hypothesis import strategies as st
from offline_people import shape

from deltamem.errors import DeltaMemError
from synth.planning import (
    UPDATES,
    age,
    draft_dynamic,
    draft_fixed,
    plan_events,
    scaled,
    scaled_maximum,
    scaled_minimum,
    span_days,
)
from synth.pools import pools
from synth.records import Domain, FactChange, Track, TrackedFact

START = datetime(2026, 1, 20, 9)
COUNTS = (1, 2, 3, 5, 25, 60)
PAPER, DEMANDING, SHORT = shape("paper"), shape("demanding"), shape("demanding_tiny")


def facts(numbers):
    """So many facts of each track."""
    return [
        TrackedFact(text=f"{track} {number}", keywords=(), track=track, subject="")
        for track, count in numbers.items()
        for number in range(count)
    ]


FEWEST = facts({track: PAPER.initial.of(track).min for track in (*Track, None)})


def plan(sizes, seed, count, initial, start=START):
    slots = list(plan_events(random.Random(seed), sizes, start, count, initial))
    assert [slot.index for slot in slots] == list(range(count))
    return slots


def assert_windows(sizes, slots, start):
    """Whatever days are chosen."""
    assert slots[0].not_before > max(start.date(), date(2026, 1, 1))
    assert all(slot.not_before <= slot.not_after for slot in slots)
    for before, after in pairwise(slots):
        assert after.not_before > before.not_after
        assert (after.not_before - before.not_after).days >= sizes.days_between.min
        assert (after.not_after - before.not_before).days <= sizes.days_between.max
    years = span_days(sizes.years, len(slots))
    if len(slots) > 1:
        assert (slots[-1].not_before - slots[0].not_after).days >= years.min
        assert (slots[-1].not_after - slots[0].not_before).days <= years.max


def assert_updatable(slots, initial, limit):
    """Each update finds a fact of its track that holds before the event and may still be updated."""
    held, updates = Counter(fact.track for fact in initial), Counter()
    for slot in slots:
        for change in slot.changes:
            if change.change is not FactChange.NEW:
                updates[change.track] += 1
                assert held[change.track] > 0
                assert limit is None or updates[change.track] <= held[change.track] * limit
        held.update(change.track for change in slot.changes if change.change is FactChange.NEW)


@given(seed=st.integers(0, 10**6), count=st.sampled_from(COUNTS), days=st.integers(0, 89))
@settings(max_examples=40, deadline=None)
def test_a_plan_by_quota_keeps_every_quota(seed, count, days):
    quotas, start = PAPER.plan, datetime(2026, 1, 1, 9) + timedelta(days=days)
    slots = plan(PAPER, seed, count, FEWEST, start)
    assert_windows(PAPER, slots, start)
    assert_updatable(slots, FEWEST, 1)
    changes = [change for slot in slots for change in slot.changes]
    tracks = Counter(change.track for change in changes)
    assert all(tracks[track] in scaled(numbers, count) for track, numbers in quotas.changes.items())
    operators = Counter(change.change for change in changes)
    numbers = [operators[change] for change in (FactChange.NEW, *UPDATES)]
    assert max(numbers) - min(numbers) <= scaled_maximum(quotas.balance, count)
    domains = Counter(slot.domain for slot in slots)
    assert all(domains[domain] >= scaled_minimum(minimum, count) for domain, minimum in quotas.domains.items())
    assert sum(slot.life_goal for slot in slots) >= scaled_minimum(quotas.life_goal_events, count)
    assert all(len({change.track for change in slot.changes}) == len(slot.changes) <= 2 for slot in slots)
    assert slots[0].reused == 0
    assert all(slot.reused in quotas.reused for slot in slots)


@given(seed=st.integers(0, 10**6), between=st.sampled_from([span(1, 60), span(5, 60), span(15, 60)]))
@settings(max_examples=30, deadline=None)
def test_sessions_come_days_after_their_event_and_before_the_next(seed, between):
    sizes = edit(PAPER, {"days_between": between})
    slots = plan(sizes, seed, 25, FEWEST)
    assert_windows(sizes, slots, START)
    for slot, after in pairwise(slots):
        assert slot.not_after + timedelta(days=slot.days_after) < after.not_before
    days = [slot.days_after for slot in slots]
    assert 0 < sum(map(bool, days)) < 25 and all(day <= sizes.plan.days_after.max for day in days)
    assert max(days) > 4 or between.min < 15, "a week, as in the paper's figure 6, where there is room"


@given(seed=st.integers(0, 10**6), initial=st.integers(0, 2), limit=st.sampled_from([1, 2, None]))
@settings(max_examples=30, deadline=None)
def test_few_initial_facts_leave_every_update_a_fact_or_there_is_no_plan(seed, initial, limit):
    known = facts(dict.fromkeys(Track, initial))
    try:
        slots = plan(edit(PAPER, {"events.updates_per_fact": limit}), seed, 25, known)
    except DeltaMemError as error:
        assert "no plan of changes for 25 events fits" in str(error)
        assert (initial, limit) in {(0, 1), (1, 1), (0, 2)}
        return
    assert_updatable(slots, known, limit)


@pytest.mark.parametrize(
    ("changes", "count", "message"),
    [
        ({}, 200, "no plan of changes for 200 events fits"),
        ({"days_between": span(1, 5)}, 25, "25 events that are 1 to 5 days apart cannot span 365 to 1098 days"),
        ({"plan.domains": {Domain.WORK: 20, Domain.SOCIAL: 6}}, 25, "the domains of 25 events add up to 26"),
    ],
)
def test_sizes_that_no_plan_fits_are_refused_in_one_sentence(changes, count, message):
    with pytest.raises(DeltaMemError, match=message):
        plan(edit(PAPER, changes), 1, count, FEWEST)


@given(seed=st.integers(0, 10**6), count=st.sampled_from(COUNTS), sizes=st.sampled_from([DEMANDING, SHORT]))
@settings(max_examples=30, deadline=None)
def test_a_demanding_plan_has_idle_and_late_slots_and_news_of_a_track_at_most_once_a_slot(seed, count, sizes):
    slots = plan(sizes, seed, count, FEWEST)
    assert_windows(sizes, slots, START)
    idle = [slot for slot in slots if slot.idle]
    assert abs(len(idle) - sizes.plan.idle * count) < 1 and not any(slot.changes for slot in idle)
    changes = [change for slot in slots for change in slot.changes]
    wanted = scaled(sizes.plan.changes, count)
    assert min(wanted.min, count - len(idle)) <= len(changes) <= wanted.max
    assert all(change.change is FactChange.NEW for change in changes) and all(len(slot.changes) <= 1 for slot in slots)
    assert all(slot.days_after == 0 or slot.days_after in sizes.plan.days_after for slot in slots)
    assert not any(slot.life_goal or slot.reused for slot in slots)


TODAY = date(2026, 2, 1)
NAMES = ("Kofi Mensah", "Yuki Tanaka", "Lucia Vega", "Omar Haddad")


def drafts(count):
    for seed in range(count):
        rng = random.Random(seed)
        fixed = draft_fixed(rng, "Petra Horvat", "female", TODAY)
        yield fixed, draft_dynamic(rng, fixed, NAMES, TODAY)


@pytest.fixture(scope="module")
def drawn():
    """Drafts of so many people that all shares can be counted."""
    return list(drafts(400))


POOLS = pools()
MAJORS = {major: industry.name for industry in POOLS.industries for major in industry.majors}


def test_the_fixed_part_fits_the_age_and_the_personality_type(drawn):
    for fixed, _ in drawn:
        assert date(1980, 1, 1) <= fixed.birth_date <= date(2006, 12, 31)
        assert (fixed.name, fixed.gender) == ("Petra Horvat", "female")
        years = age(fixed.birth_date, TODAY)
        assert years >= POOLS.youngest[POOLS.degrees.index(fixed.degree)]
        assert (fixed.major in MAJORS) == (fixed.degree != POOLS.degrees[0])
        assert len(set(fixed.traits)) == len(fixed.traits) in (3, 4)
        assert all(any(trait in POOLS.traits[letter] for letter in fixed.mbti) for trait in fixed.traits)
        assert any(letter.isdigit() for letter in fixed.life_goal.target)
        parents = [int(word.strip(".;,")) for word in fixed.family.parents.split() if word.strip(".;,").isdigit()]
        children = [int(word.strip(".,")) for word in fixed.family.children.split() if word.strip(".,").isdigit()]
        assert all(20 <= parent - years <= 40 for parent in parents)
        assert all(years - child >= 21 for child in children)
        assert len(set(children)) == len(children)
    fixed_parts = [fixed for fixed, _ in drawn]
    assert {fixed.degree for fixed in fixed_parts} == set(POOLS.degrees)
    assert len({fixed.mbti for fixed in fixed_parts}) == 16
    assert {fixed.life_goal.kind for fixed in fixed_parts} == {goal.kind for goal in POOLS.goals}
    assert len(POOLS.goals) == 7
