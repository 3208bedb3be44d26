from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from offline_people import shape

from deltamem.errors import DeltaMemError
from synth.config import InitialCounts, Quotas, Range, Shape, Shares
from synth.planning import plan_events, scaled, scaled_maximum, scaled_minimum, span_days
from synth.records import Change, Domain, EventSlot, Track, TrackedFact

START = datetime(2026, 1, 20, 9)
COUNTS = (1, 2, 3, 5, 25, 60)
PAPER, TINY = shape("paper"), shape("tiny")


def facts(numbers: dict[Track | None, int]) -> list[TrackedFact]:
    return [
        TrackedFact(text=f"{track} {number}", keywords=(), track=track, subject="")
        for track, count in numbers.items()
        for number in range(count)
    ]


def fewest(counts: InitialCounts) -> list[TrackedFact]:
    return facts({track: counts.of(track).min for track in (*Track, None)})


def plan(sizes: Shape, seed: int, count: int, initial: Sequence[TrackedFact], start: datetime = START) -> list[EventSlot]:
    slots = list(plan_events(random.Random(seed), sizes, start, count, initial))
    assert [slot.index for slot in slots] == list(range(count))
    return slots


def assert_windows(sizes: Shape, slots: Sequence[EventSlot], start: datetime) -> None:
    """Whatever days are chosen."""
    assert slots[0].not_before > max(start.date(), date(2026, 1, 1))
    assert all(slot.not_before <= slot.not_after for slot in slots)
    for before, after in pairwise(slots):
        assert after.not_before > before.not_after
        assert (after.not_before - before.not_after).days >= sizes.days_between.min
        assert (after.not_after - before.not_before).days <= sizes.days_between.max
    span = span_days(sizes.years, len(slots))
    if len(slots) > 1:
        assert (slots[-1].not_before - slots[0].not_after).days >= span.min
        assert (slots[-1].not_after - slots[0].not_before).days <= span.max


def assert_updatable(slots: Sequence[EventSlot], initial: Sequence[TrackedFact]) -> None:
    """Each update finds a fact of its track that holds before the event and was not updated yet."""
    fresh = Counter(fact.track for fact in initial)
    for slot in slots:
        for change in slot.changes:
            if change.change is not Change.NEW:
                fresh[change.track] -= 1
                assert fresh[change.track] >= 0
        fresh.update(change.track for change in slot.changes if change.change is Change.NEW)


@given(seed=st.integers(0, 10**6), count=st.sampled_from(COUNTS), days=st.integers(0, 89))
@settings(max_examples=300, deadline=None)
def test_a_plan_by_quota_keeps_every_quota(seed: int, count: int, days: int) -> None:
    initial, quotas = fewest(PAPER.initial), PAPER.plan
    assert isinstance(quotas, Quotas)
    start = datetime.combine(date.fromordinal(date(2026, 1, 1).toordinal() + days), START.time())
    slots = plan(PAPER, seed, count, initial, start)
    assert_windows(PAPER, slots, start)
    assert_updatable(slots, initial)
    changes = [change for slot in slots for change in slot.changes]
    tracks = Counter(change.track for change in changes)
    assert all(tracks[track] in scaled(numbers, count) for track, numbers in quotas.changes.items())
    operators = Counter(change.change for change in changes)
    numbers = [operators[change] for change in Change]
    assert max(numbers) - min(numbers) <= scaled_maximum(quotas.balance, count)
    domains = Counter(slot.domain for slot in slots)
    assert all(domains[domain] >= scaled_minimum(minimum, count) for domain, minimum in quotas.domains.items())
    assert sum(slot.life_goal for slot in slots) >= scaled_minimum(quotas.life_goal_events, count)
    assert all(len(slot.changes) <= 2 for slot in slots)
    assert all(len({change.track for change in slot.changes}) == len(slot.changes) for slot in slots)
    assert slots[0].reused == 0
    assert all(slot.reused in quotas.reused for slot in slots)


def test_the_paper_s_own_length_has_the_paper_s_numbers() -> None:
    quotas = PAPER.plan
    assert isinstance(quotas, Quotas)
    assert all(scaled(numbers, 25) == numbers for numbers in quotas.changes.values())
    assert (scaled_maximum(quotas.balance, 25), scaled_minimum(quotas.life_goal_events, 25)) == (2, 2)
    assert span_days(PAPER.years, 25) == Range(min=365, max=3 * 366)
    assert span_days(PAPER.years, 1) == Range(min=0, max=0)
    assert scaled(Range(min=6, max=7), 5) == Range(min=1, max=2)


def test_plans_differ_from_person_to_person() -> None:
    initial = fewest(PAPER.initial)
    plans = [plan(PAPER, seed, 25, initial) for seed in range(300)]
    totals = {tuple(sorted(Counter(c.track for slot in slots for c in slot.changes).items())) for slots in plans}
    assert len(totals) == 16
    spans = [(slots[-1].not_before - slots[0].not_before).days for slots in plans]
    assert min(spans) < 450
    assert max(spans) > 1_000
    assert {slot.reused for slots in plans for slot in slots} == {0, 1, 2}
    assert {slot.domain for slots in plans for slot in slots} == set(Domain)
    operators = {(c.track, c.change) for slots in plans for slot in slots for c in slot.changes}
    assert len(operators) == 20


def test_new_people_are_met_at_work_among_friends_or_at_leisure() -> None:
    met = Counter(
        slot.domain
        for seed in range(200)
        for slot in plan(PAPER, seed, 25, fewest(PAPER.initial))
        for change in slot.changes
        if change.track is Track.RELATIONSHIP and change.change is Change.NEW
    )
    assert set(met) == {Domain.SOCIAL, Domain.WORK, Domain.LEISURE}


def test_health_mostly_changes_in_events_about_health() -> None:
    domains = Counter(
        slot.domain
        for seed in range(200)
        for slot in plan(PAPER, seed, 25, fewest(PAPER.initial))
        if any(change.track is Track.HEALTH for change in slot.changes)
    )
    assert domains[Domain.HEALTH] > 0.6 * domains.total()


@given(seed=st.integers(0, 10**6), initial=st.integers(0, 2), limit=st.sampled_from([1, 2, None]))
@settings(max_examples=200, deadline=None)
def test_few_initial_facts_leave_every_update_a_fact_or_there_is_no_plan(seed: int, initial: int, limit: int | None) -> None:
    sizes = PAPER.model_copy(update={"events": PAPER.events.model_copy(update={"updates_per_fact": limit})})
    known = facts(dict.fromkeys(Track, initial))
    try:
        slots = plan(sizes, seed, 25, known)
    except DeltaMemError as error:
        assert "no plan of changes for 25 events fits" in str(error)
        assert (initial, limit) in {(0, 1), (1, 1), (0, 2)}
        return
    held, updates = Counter(fact.track for fact in known), Counter[Track | None]()
    for slot in slots:
        for change in slot.changes:
            if change.change is not Change.NEW:
                updates[change.track] += 1
                most = float("inf") if limit is None else limit
                assert held[change.track] > 0
                assert updates[change.track] <= held[change.track] * most
        held.update(change.track for change in slot.changes if change.change is Change.NEW)


def test_a_life_too_long_for_its_initial_facts_is_refused_in_one_sentence() -> None:
    with pytest.raises(DeltaMemError, match="no plan of changes for 200 events fits"):
        plan(PAPER, 1, 200, fewest(PAPER.initial))


def test_dates_that_cannot_be_kept_are_refused() -> None:
    sizes = PAPER.model_copy(update={"days_between": Range(min=1, max=5)})
    with pytest.raises(DeltaMemError, match="25 events that are 1 to 5 days apart cannot span 365 to 1098 days"):
        plan(sizes, 1, 25, fewest(PAPER.initial))


def test_more_domains_than_events_are_refused() -> None:
    quotas = PAPER.plan
    assert isinstance(quotas, Quotas)
    sizes = PAPER.model_copy(update={"plan": quotas.model_copy(update={"domains": {Domain.WORK: 20, Domain.SOCIAL: 6}})})
    with pytest.raises(DeltaMemError, match="the domains of 25 events add up to 26"):
        plan(sizes, 1, 25, fewest(PAPER.initial))


@given(seed=st.integers(0, 10**6), count=st.sampled_from(COUNTS), known=st.integers(0, 4), untracked=st.integers(0, 2))
@settings(max_examples=300, deadline=None)
def test_a_plan_by_chance_uses_only_what_is_known(seed: int, count: int, known: int, untracked: int) -> None:
    initial = facts({Track.CAREER: known, None: untracked})
    shares = TINY.plan
    assert isinstance(shares, Shares)
    slots = plan(TINY, seed, count, initial)
    assert_windows(TINY, slots, START)
    held, tracked = known + untracked, known
    for slot in slots:
        kinds = Counter(change.change for change in slot.changes)
        assert set(kinds) <= {Change.NEW, Change.ADJUST}
        assert all(change.track is None for change in slot.changes)
        assert len(slot.changes) + slot.reused in shares.facts
        assert kinds[Change.ADJUST] <= tracked
        assert kinds[Change.ADJUST] + slot.reused <= held
        assert slot.not_before == slot.not_after
        held, tracked = held + kinds[Change.NEW], tracked + kinds[Change.NEW]


def test_the_first_session_of_a_newcomer_has_only_new_facts() -> None:
    for seed in range(100):
        first = plan(TINY, seed, 3, ())[0]
        assert {change.change for change in first.changes} == {Change.NEW}
        assert first.reused == 0


def test_chances_are_those_of_the_shape_and_every_gap_is_as_likely() -> None:
    plans = [plan(TINY, seed, 25, facts({Track.CAREER: 4})) for seed in range(200)]
    kinds = Counter(change.change for slots in plans for slot in slots[3:] for change in slot.changes)
    repeated = sum(slot.reused for slots in plans for slot in slots[3:])
    total = kinds.total() + repeated
    assert abs(kinds[Change.ADJUST] / total - 0.4) < 0.02
    assert abs(repeated / total - 0.1) < 0.01
    gaps = Counter((b.not_before - a.not_before).days for slots in plans for a, b in pairwise(slots))
    assert set(gaps) == set(range(3, 40))
    assert max(gaps.values()) < 2 * min(gaps.values())


def test_a_fact_that_may_be_changed_once_is_not_planned_to_be_changed_twice_by_chance() -> None:
    sizes = TINY.model_copy(update={"events": TINY.events.model_copy(update={"updates_per_fact": 1})})
    for seed in range(50):
        assert_updatable(plan(sizes, seed, 25, facts({None: 4})), ())


def test_the_same_draws_give_the_same_plan() -> None:
    for sizes in (PAPER, TINY):
        assert plan(sizes, 5, 25, fewest(PAPER.initial)) == plan(sizes, 5, 25, fewest(PAPER.initial))
