"""The difference of two samples, and its noise."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpprof.statistics.between_runs import Shift, _outside, shift_between


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param([10, 10, 10, 10], [12, 12, 12, 12], Shift(2, 2, 2), id="no-spread"),
        pytest.param([1, 2, 3, 4], [11, 12, 13, 14], Shift(10, 7, 13), id="four-and-four-allow-all-differences"),
        pytest.param([1, 2, 3, 4], [1, 2, 3, 4], Shift(0, -3, 3), id="equal"),
        pytest.param([1, 2, 3], [11, 12, 13], Shift(10, None, None), id="too-few-for-an-interval"),
        pytest.param([5], [7], Shift(2, None, None), id="one-each"),
    ],
)
def test_shift(a: list[float], b: list[float], expected: Shift) -> None:
    assert shift_between(a, b) == expected


def test_without_values_there_is_no_shift() -> None:
    assert shift_between([], [1]) is None
    assert shift_between([1], []) is None


def test_one_odd_step_does_not_hide_the_difference() -> None:
    found = shift_between([10, 10, 11, 11, 10, 500], [20, 21, 20, 21, 20, 20])
    assert found is not None
    assert found.shift == pytest.approx(10, abs=1)
    assert found.low is not None
    assert found.high is not None
    assert -480 <= found.low <= 9
    assert found.high <= 11


@pytest.mark.parametrize(
    ("num_a", "num_b", "outside"), [(4, 4, 0), (5, 5, 2), (3, 5, 0), (8, 8, 13), (2, 8, 0), (3, 4, None), (10, 10, 23)]
)
def test_the_table_of_mann_and_whitney(num_a: int, num_b: int, outside: int | None) -> None:
    """Critical values of U, two-sided, 5 %."""
    assert _outside(num_a, num_b, 0.025) == outside


def test_the_count_of_orders_is_that_of_all_orders() -> None:
    """Brute force for 5 and 5: the interval leaves out at most 2.5 % on either side, and the next one more."""
    values = []
    for places in combinations(range(10), 5):
        others = [place for place in range(10) if place not in places]
        values.append(sum(a > b for a in places for b in others))
    assert (
        sum(value <= 2 for value in values) / len(values) <= 0.025 < sum(value <= 3 for value in values) / len(values)
    )


def test_large_samples_agree_with_the_exact_count() -> None:
    from ddpprof.statistics import between_runs

    exact = _outside(20, 20, 0.025)
    assert exact is not None
    before, between_runs._EXACT_UP_TO = between_runs._EXACT_UP_TO, 1
    try:
        normal = _outside(20, 20, 0.025)
    finally:
        between_runs._EXACT_UP_TO = before
    assert normal is not None
    assert abs(exact - normal) <= 1


samples = st.lists(st.integers(-1000, 1000), min_size=1, max_size=12)


@given(a=samples, b=samples, by=st.integers(-500, 500))
def test_moving_a_sample_moves_the_shift(a: list[int], b: list[int], by: int) -> None:
    one, moved = shift_between(a, b), shift_between(a, [value + by for value in b])
    assert one is not None
    assert moved is not None
    assert moved.shift == one.shift + by
    assert (moved.low is None) == (one.low is None)
    if one.low is not None:
        assert moved.low == one.low + by
        assert one.low <= one.shift <= (one.high or 0)


@given(a=samples, b=samples)
def test_the_order_of_comparison_only_turns_the_sign(a: list[int], b: list[int]) -> None:
    one, turned = shift_between(a, b), shift_between(b, a)
    assert one is not None
    assert turned is not None
    assert turned.shift == -one.shift
    assert (turned.low, turned.high) == (None if one.high is None else -one.high, None if one.low is None else -one.low)
