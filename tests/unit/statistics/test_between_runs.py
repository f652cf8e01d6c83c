"""What differs between runs, and how many runs it takes to tell."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpprof.statistics.between_runs import (
    MOST_RUNS,
    Difference,
    Shift,
    _outside,
    difference_between,
    fewest_runs,
    plausible_noise_ns,
    runs_needed,
    shift_between,
)

TIGHT = [100.0, 101, 99, 100, 102, 98]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param(TIGHT, TIGHT, Difference(0, -3, 3, is_measured=True), id="equal"),
        pytest.param(TIGHT, [ns + 10 for ns in TIGHT], Difference(10, 7, 13, is_measured=True), id="slower"),
        pytest.param([100], [150], Difference(50, -50, 150, is_measured=False), id="one-each"),
        pytest.param(TIGHT[:5], TIGHT[:5], Difference(0, -103, 103, is_measured=False), id="five-are-too-few"),
        pytest.param([100], [400], Difference(300, 200, 400, is_measured=False), id="more-than-plausible"),
    ],
)
def test_the_difference_of_runs(a: list[float], b: list[float], expected: Difference) -> None:
    assert difference_between(a, b, noise_ns=100) == expected


def test_runs_plausibly_differ_by_a_factor_of_five() -> None:
    assert plausible_noise_ns([100, 500]) == pytest.approx(400)


@pytest.mark.parametrize(("questions", "fewest"), [(1, 6), (2, 6), (3, 7), (12, 8)])
def test_the_fewest_runs_with_an_interval(questions: int, fewest: int) -> None:
    """Of the 924 orders of six and six two are the most extreme, 0.2 %; of the 252 of five and five two, 0.8 %."""
    assert fewest_runs(questions) == fewest


@pytest.mark.parametrize(
    ("low", "high", "beyond", "exceeds"),
    [
        pytest.param(-1.0, 4.0, False, False, id="growth-to-the-limit-is-excluded"),
        pytest.param(1.0, 4.0, True, False, id="grown-but-less"),
        pytest.param(1.0, 6.0, True, True, id="grown-and-perhaps-beyond"),
        pytest.param(-1.0, 6.0, False, None, id="neither-is-excluded"),
        pytest.param(-6.0, -1.0, True, False, id="faster"),
    ],
)
def test_a_limit_of_5(low: float, high: float, beyond: bool, exceeds: bool | None) -> None:
    difference = Difference((low + high) / 2, low, high, is_measured=True)
    assert difference.is_beyond_noise is beyond
    assert difference.may_exceed(5) is exceeds


def test_few_runs_are_never_noise_for_sure() -> None:
    assert Difference(1, -5, 7, is_measured=False).is_beyond_noise is None


@pytest.mark.parametrize(
    ("difference", "num_runs", "needed"),
    [
        pytest.param(Difference(0, -100, 100, is_measured=False), 1, 6, id="as-many-as-an-interval-needs"),
        pytest.param(Difference(0, -5, 5, is_measured=True), 10, 26, id="as-the-square-of-the-interval"),
        pytest.param(Difference(0, -1, 6, is_measured=True), 10, 13, id="some"),
        pytest.param(Difference(0, -1, 4.9, is_measured=True), 10, 11, id="one-at-least"),
        pytest.param(Difference(0, -90, 90, is_measured=True), 10, MOST_RUNS + 1, id="too-noisy"),
    ],
)
def test_how_many_runs_tell_a_growth_of_5(difference: Difference, num_runs: int, needed: int) -> None:
    assert runs_needed(difference, num_runs, limit_ns=5) == needed


def judged(true_ns: float, draw: random.Random) -> tuple[bool | None, int]:
    """As a user records: as many runs as the comparison asks for, until it can tell."""
    a, b = ([draw.gauss(mean, 20) for _ in range(MOST_RUNS)] for mean in (1000, true_ns))
    number = fewest_runs()
    while number <= MOST_RUNS:
        difference = difference_between(a[:number], b[:number], noise_ns=700)
        if difference.may_exceed(50) is not None:
            return difference.may_exceed(50), number
        number = runs_needed(difference, number, limit_ns=50)
    return None, number


def test_with_as_many_runs_as_it_asks_for_a_gate_is_right() -> None:
    """Noise of 2 %, a limit of 5 %: the same draws every time."""
    draw = random.Random(0)
    equal = [judged(1000, draw)[0] for _ in range(200)]
    slower = [judged(1050, draw)[0] for _ in range(200)]
    assert equal.count(False) >= 198
    assert slower.count(True) >= 190


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
