"""How many times as long one variant's step takes as another's."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpprof.statistics.paired_ratio import (
    binomial_tail,
    joint_ratios,
    mean_above,
    mean_above_zero,
    paired_ratio,
    student_quantile,
    student_tail,
)


def test_of_equal_steps_the_interval_is_the_ratio() -> None:
    ratio = paired_ratio([[([12.0, 12.0], [10.0])], [([12.0], [10.0, 10.0])], [([12.0], [10.0])]])
    assert ratio is not None
    assert (ratio.ratio, ratio.low, ratio.high, ratio.num_pairs) == (1.2, 1.2, 1.2, 3)
    assert ratio.is_beyond_noise


def test_the_ratio_is_the_median_over_pairs_of_the_ratio_of_medians() -> None:
    ratio = paired_ratio([[([10, 20, 90], [10]), ([30], [10])], [([70], [10])]])
    assert ratio is not None
    assert ratio.ratio == 3.0  # of 2, 3 and 7


def test_a_machine_that_slows_down_for_a_while_drops_out() -> None:
    rounds = [[([11 * slow], [10 * slow])] for slow in (1, 1, 3, 8, 1)]
    ratio = paired_ratio(rounds)
    assert ratio is not None
    assert ratio.ratio == pytest.approx(1.1)
    assert ratio.high == pytest.approx(1.1)


def test_of_one_pair_a_round_the_interval_is_student_s() -> None:
    """Logarithms 0, 0.1 and 0.2: 0.1 and 4.303 times 0.1 by the root of 3."""
    ratio = paired_ratio([[([np.exp(log)], [1.0])] for log in (0, 0.1, 0.2)])
    assert ratio is not None
    assert (np.log(ratio.ratio), np.log(ratio.low), np.log(ratio.high)) == pytest.approx(
        (0.1, 0.1 - 0.24842, 0.1 + 0.24842), abs=1e-4
    )


def test_two_rounds_do_not_show_how_much_they_differ() -> None:
    ratio = paired_ratio([[([2.0], [1.0])] * 5, [([4.0], [1.0])] * 5])
    assert ratio is not None
    assert (ratio.ratio, ratio.low, ratio.is_beyond_noise, ratio.num_pairs) == (3.0, None, None, 10)


@pytest.mark.parametrize(("degrees", "expected"), [(1, 12.706), (2, 4.303), (4, 2.776), (30, 2.042)])
def test_students_quantile_is_that_of_the_tables(degrees: int, expected: float) -> None:
    assert student_quantile(0.025, degrees) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("rounds", [[], [[]], [[([], [1.0])], [([1.0], [])]]], ids=["none", "empty", "one-sided"])
def test_without_a_pair_there_is_no_ratio(rounds: list[list[tuple[list[float], list[float]]]]) -> None:
    assert paired_ratio(rounds) is None


@pytest.mark.parametrize("num_pairs", [1, 4])
@pytest.mark.parametrize("num_rounds", [3, 5])
@pytest.mark.parametrize("between_starts", [0.0, 0.04], ids=["alike", "each-start-differs"])
def test_the_interval_holds_the_truth_as_often_as_it_says(
    between_starts: float, num_rounds: int, num_pairs: int
) -> None:
    """Steps spread by 5 %, and every start of a process by what is given. Truth: 1.2."""
    random = np.random.default_rng(1)
    hits, tries = 0, 60
    for _ in range(tries):
        rounds = []
        for _ in range(num_rounds):
            start_a, start_b = np.exp(random.normal(0, between_starts, 2))
            pairs = [
                (
                    (120 * start_a * np.exp(random.normal(0, 0.05, 5))).tolist(),
                    (100 * start_b * np.exp(random.normal(0, 0.05, 5))).tolist(),
                )
                for _ in range(num_pairs)
            ]
            rounds.append(pairs)
        ratio = paired_ratio(rounds)
        assert ratio is not None
        assert ratio.low is not None
        assert ratio.high is not None
        hits += ratio.low <= 1.2 <= ratio.high
    assert hits >= 0.88 * tries  # 95 % of 60 is 57; 53 or fewer would come about once in 200 times


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


def test_of_one_variant_it_is_what_pairs_say() -> None:
    one, other = [100.0, 104.0, 99.0, 107.0], [93.0, 99.0, 90.0, 104.0]
    (ratio,) = joint_ratios(one, [other])
    pairs = paired_ratio([[([a], [b])] for a, b in zip(other, one, strict=True)])
    assert pairs is not None
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((pairs.ratio, pairs.low, pairs.high))


def test_the_interval_is_that_of_a_two_way_table() -> None:
    """By hand: logarithms of three rounds (0, 0, 0), (0.1, 0.2, 0.3), (0.3, 0.2, 0.1).

    All rounds and all residuals of the first have the mean 0; of the others they are -0.1, 0, 0.1 and 0.1, 0, -0.1:
    a mean square of 0.04 / 4. Student's t of 4 degrees at 1.25 % is 3.4954.
    """
    one, *others = (np.exp(logs).tolist() for logs in ((0, 0, 0), (0.1, 0.2, 0.3), (0.3, 0.2, 0.1)))
    half = 3.4954 * np.sqrt(2 * 0.01 / 3)
    for ratio in joint_ratios(one, others):
        assert ratio.low is not None
        assert ratio.high is not None
        assert np.log([ratio.ratio, ratio.low, ratio.high]) == pytest.approx([0.2, 0.2 - half, 0.2 + half], abs=1e-4)


def test_of_several_variants_a_machine_that_slows_down_drops_out() -> None:
    slow = np.array([1, 1, 3, 8, 1.0])
    for ratio, truth in zip(joint_ratios(10 * slow, [11 * slow, 9 * slow]), (1.1, 0.9), strict=True):
        assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((truth,) * 3)
        assert ratio.is_beyond_noise


def test_two_rounds_do_not_show_how_much_several_differ() -> None:
    (ratio,) = joint_ratios([1.0, 1.0], [[2.0, 4.0]])
    assert (ratio.ratio, ratio.low, ratio.high, ratio.num_pairs) == (3.0, None, None, 2)


def test_all_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Four variants that differ by nothing: pairs alone would call one of them faster or slower in one of six cases."""
    random = np.random.default_rng(1)
    tries, false_alarms, of_pairs = 400, 0, 0
    for _ in range(tries):
        one, *others = np.exp(random.normal(0, 0.05, (5, 5)) + random.normal(0, 0.1, 5))
        false_alarms += any(ratio.is_beyond_noise for ratio in joint_ratios(one, others))
        pairs = [paired_ratio([[([a], [b])] for a, b in zip(steps, one, strict=True)]) for steps in others]
        of_pairs += any(ratio is not None and ratio.is_beyond_noise for ratio in pairs)
    assert false_alarms <= 0.08 * tries  # 5 % of 400 is 20; more than 32 would come about once in 200 times
    assert of_pairs > 0.1 * tries


@pytest.mark.parametrize(("num_rounds", "critical"), [(10, 8), (12, 13), (15, 25), (20, 52)])
def test_with_ten_rounds_the_interval_is_that_of_signed_ranks(num_rounds: int, critical: int) -> None:
    """Critical values of two-sided tests at 5 % as in tables of Wilcoxon's signed-rank test."""
    logs = np.random.default_rng(num_rounds).normal(0.1, 1, num_rounds)
    ratio = paired_ratio([[([np.exp(one)], [1.0])] for one in logs])
    averages = sorted((one + other) / 2 for index, one in enumerate(logs) for other in logs[index:])
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    assert np.log([ratio.low, ratio.high]) == pytest.approx([averages[critical], averages[-1 - critical]])


def test_two_exceptional_starts_do_not_hide_a_gain_of_all_others() -> None:
    logs = [0.1 + 0.01 * (number % 5) for number in range(18)]
    exceptional = [-1.0, -1.5]
    ratio = paired_ratio([[([np.exp(one)], [1.0])] for one in [*logs, *exceptional]])
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.low > 1.05
    assert np.mean([*logs, *exceptional]) < 0  # the mean, and therefore Student's t, says the opposite
