"""P-values against tables that others have printed, and against exact fractions."""

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpprof.measures.statistics.p_values import binomial_tail, mean_above, mean_above_zero, student_tail


@pytest.mark.parametrize(
    ("degrees", "quantile", "tail"),
    [
        # Abramowitz & Stegun, table 26.10
        (1, 6.314, 0.05), (1, 63.657, 0.005), (2, 2.920, 0.05), (2, 9.925, 0.005), (3, 2.353, 0.05), (3, 5.841, 0.005),
        (4, 2.132, 0.05), (5, 4.032, 0.005), (10, 1.812, 0.05), (30, 2.750, 0.005), (120, 1.658, 0.05),
    ],
)  # fmt: skip
def test_students_t(degrees: int, quantile: float, tail: float) -> None:
    assert student_tail(quantile, degrees) == pytest.approx(tail, rel=2e-3)


@given(st.floats(-50, 50), st.integers(1, 200))
def test_students_t_is_symmetric_and_falls(t: float, degrees: int) -> None:
    assert student_tail(t, degrees) + student_tail(-t, degrees) == pytest.approx(1)
    assert student_tail(t, degrees) <= student_tail(t - 0.5, degrees) + 1e-15


@pytest.mark.parametrize(("degrees", "t"), [(1, 1.0), (1, 0.0), (2, 0.0), (7, 0.0)])
def test_students_t_at_points_that_are_known_exactly(degrees: int, t: float) -> None:
    assert student_tail(t, degrees) == pytest.approx(0.25 if t else 0.5)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 9))
def test_the_binomial_tail_is_its_exact_sum(successes: int, trials: int, ranks: int) -> None:
    chance = Fraction(1, ranks)
    terms = (comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(successes, trials + 1))
    assert binomial_tail(successes, trials, 1 / ranks) == pytest.approx(float(sum(terms)), rel=1e-9)


def test_a_thousand_trials_do_not_overflow() -> None:
    assert binomial_tail(1000, 1000, 0.5) == pytest.approx(2.0**-1000, rel=1e-9)
    assert binomial_tail(500, 1000, 0.5) == pytest.approx(0.5126, abs=1e-4)


def test_a_mean_above_zero() -> None:
    # mean 2, variance 1, three values: t = 2·√3 = 3.464 with two degrees of freedom
    assert mean_above_zero([1, 2, 3]) == pytest.approx(0.0371, abs=1e-4)
    assert mean_above_zero([-1, -2, -3]) == pytest.approx(1 - 0.0371, abs=1e-4)


def test_a_mean_above_others() -> None:
    # the example of Student's 1908 paper as R gives it: sleep data, equal variances, t = 1.8608, df = 18, p = 0.03959
    longer = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    shorter = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    assert mean_above(longer, shorter) == pytest.approx(0.03959, abs=1e-5)


@pytest.mark.parametrize(("values", "p_value"), [([5, 5], 0.0), ([0, 0], 1.0), ([-5, -5], 1.0)])
def test_values_that_never_vary_are_certain(values: list[float], p_value: float) -> None:
    assert mean_above_zero(values) == p_value
    assert mean_above(values, [0, 0]) == p_value
