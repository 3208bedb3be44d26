"""Cumulative accuracy by session, by hand and against a plain count."""

import statistics
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.metrics import cumulative_accuracy

questions = st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=12)


def test_two_users_by_hand() -> None:
    ana = [(0, True), (0, False), (2, True), (2, True)]  # 1/2, 1/2, 3/4
    bo = [(1, False), (2, True)]  # nothing, 0, 1/2
    first, second, third = cumulative_accuracy([ana, bo])
    assert (first.session, first.mean, first.low, first.high, first.users) == (0, 0.5, 0.5, 0.5, 1)
    assert (second.session, second.mean, second.low, second.high, second.users) == (1, 0.25, 0.0, 0.5, 2)
    assert (third.session, third.users) == (2, 2)
    assert (third.mean, third.low, third.high) == pytest.approx((0.625, 0.5, 0.75))
    assert third.as_dict() == {"session": 2, "mean": third.mean, "low": third.low, "high": third.high, "users": 2}


def test_every_user_counts_once_however_much_they_were_asked() -> None:
    (point,) = cumulative_accuracy([[(0, False)] * 99, [(0, True)]])
    assert (point.mean, point.low, point.high) == (0.5, 0.0, 1.0)


def test_sessions_without_questions_keep_the_accuracy_and_early_ones_have_no_point() -> None:
    points = cumulative_accuracy([[(2, 1.0), (5, 0.0)]])
    assert [(point.session, point.mean) for point in points] == [(2, 1.0), (3, 1.0), (4, 1.0), (5, 0.5)]


def test_users_whose_sessions_end_early_stay_in_the_mean() -> None:
    points = cumulative_accuracy([[(0, True)], [(0, False), (1, False)]])
    assert [(point.mean, point.users) for point in points] == [(0.5, 2), (0.5, 2)]


def test_limit_of_sessions() -> None:
    user = [(session, session % 2 == 0) for session in range(40)]
    points = cumulative_accuracy([user], sessions=25)
    assert [point.session for point in points] == list(range(25))
    assert points == cumulative_accuracy([user])[:25]
    assert points[-1].mean == pytest.approx(13 / 25)
    assert len(cumulative_accuracy([user], sessions=100)) == 40
    assert cumulative_accuracy([[(30, True)]], sessions=25) == []


def test_nobody_was_asked() -> None:
    assert cumulative_accuracy([]) == cumulative_accuracy([[], []]) == []


def test_the_spread_stays_within_0_and_1() -> None:
    (point,) = cumulative_accuracy([[(0, 1.0)], [(0, 1.0)], [(0, 0.0)]])
    assert point.low == pytest.approx(2 / 3 - statistics.pstdev([1, 1, 0]))
    assert point.high == 1.0


@settings(max_examples=40)
@given(st.lists(questions, max_size=4), st.randoms())
def test_is_a_plain_count_in_any_order(users: list[list[tuple[int, bool]]], draw: Random) -> None:
    points = cumulative_accuracy(users)
    for point in points:
        shares = []
        for user in users:
            until = [value for session, value in user if session <= point.session]
            if until:
                shares.append(sum(until) / len(until))
        assert point.users == len(shares)
        assert point.mean == pytest.approx(statistics.fmean(shares))
        assert point.high - point.low <= 2 * statistics.pstdev(shares) + 1e-9
    mixed = [draw.sample(user, len(user)) for user in users]
    assert cumulative_accuracy(mixed) == points


@pytest.mark.parametrize("question", [(-1, 1.0), (0, 1.5), (0, -0.1), (0, float("nan"))])
def test_values_out_of_range_are_refused(question: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="expected a session from 0 and a value from 0 to 1"):
        cumulative_accuracy([[question]])
