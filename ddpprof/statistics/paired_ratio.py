"""Estimate the ratio of the step times of two or more variants.

For two variants that are measured in alternating blocks:

    ratio    = median over all pairs of (median of a's steps / median of b's steps)
    interval = 95 % confidence interval of the logarithm of the ratio. With one pair per round: Wilcoxon's signed-rank
               interval, in which a few exceptional rounds have little weight. With fewer than ten rounds: Student's t.
               With several pairs per round: a hierarchical bootstrap that draws rounds with replacement, then their
               pairs, then their steps. Its interval is widened by the ratio of Student's t to the normal quantile,
               because a bootstrap of few rounds underestimates the uncertainty

A temporary slowdown of the machine affects both blocks of a pair, and cancels out in its ratio. Differences between
launches of a process are included in the variation between rounds. If several variants run once in every round,
`joint_ratios` compares all variants with a reference variant.

Sources: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3.3; Davison and Hinkley, Bootstrap Methods
and their Application, 3.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, cos, exp, lgamma, log, pi, sin, sqrt
from statistics import NormalDist, fmean, median, stdev, variance

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
_DRAWS = 2000
ENOUGH_ROUNDS = 3
_ENOUGH_FOR_RANKS = 10
"""minimum number of rounds for a signed-rank interval; with fewer rounds, Student's interval is narrower"""
_VAGUE = 2.0
"""an interval is too wide to be useful if its upper end is more than this many times its lower end"""

Steps = Sequence[float]
Pair = tuple[Steps, Steps]
"""step times of ``a`` and of ``b`` in ns, measured one after the other"""


@dataclass(frozen=True, slots=True)
class Ratio:
    ratio: float
    low: float | None
    high: float | None
    """upper end of the interval; ``None`` with fewer than three rounds"""
    num_pairs: int

    @property
    def is_vague(self) -> bool:
        """Whether the interval is too wide for the ratio to be useful."""
        return self.low is not None and self.high is not None and self.high > _VAGUE * self.low

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether the interval excludes 1; ``None`` if there is no interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 1 or self.high < 1


def paired_ratio(rounds: Sequence[Sequence[Pair]], comparisons: int = 1) -> Ratio | None:
    """Return the ratio over the pairs of all rounds (launches of the job), or ``None`` if there are no pairs.

    `comparisons`: number of intervals that must hold simultaneously, including this one.
    """
    rounds = [known for pairs in rounds if (known := [(a, b) for a, b in pairs if a and b])]
    pairs = [pair for of_round in rounds for pair in of_round]
    if not pairs:
        return None
    ratio = median(median(a) / median(b) for a, b in pairs)
    if len(rounds) < ENOUGH_ROUNDS:
        return Ratio(ratio, None, None, len(pairs))
    tail = (1 - CONFIDENCE) / 2 / comparisons
    if len(pairs) == len(rounds):
        low, high = _by_signed_ranks(pairs, tail) or _by_student(pairs, tail)
    else:
        low, high = _by_bootstrap(rounds, ratio, tail)
    return Ratio(ratio, min(low, ratio), max(high, ratio), len(pairs))


def joint_ratios(
    one: Sequence[float], others: Sequence[Sequence[float]], comparisons: int | None = None
) -> tuple[Ratio, ...]:
    """Return the ratio of each of `others` to `one`.

    Each sequence has one step time per round.

    Every variant ran once in each round.

        log step = round + variant + noise
        ratio    = median over rounds of (step of the variant / step of the reference)
        interval = simultaneous 95 % intervals: Student's t of the mean logarithm, with the residual noise of all
                   variants, at 5 % divided by the number of ratios (Bonferroni)

    The noise is estimated from all variants, because with few rounds the spread of a single variant may be small by
    chance (Montgomery, Design and Analysis of Experiments, 4.1).

    `comparisons`: number of simultaneous intervals; the number of `others` by default.
    """
    ratios = [median(a / b for a, b in zip(steps, one, strict=True)) for steps in others]
    if len(one) < ENOUGH_ROUNDS:
        return tuple(Ratio(ratio, None, None, len(one)) for ratio in ratios)
    logs = np.log([one, *others])
    noise = logs - logs.mean(axis=1, keepdims=True) - logs.mean(axis=0) + logs.mean()
    degrees = len(others) * (len(one) - 1)
    error = sqrt(2 * float((noise**2).sum()) / degrees / len(one))
    half = student_quantile((1 - CONFIDENCE) / 2 / (comparisons or len(others)), degrees) * error
    means = (logs.mean(axis=1)[1:] - logs.mean(axis=1)[0]).tolist()
    return tuple(
        Ratio(ratio, min(ratio, exp(mean - half)), max(ratio, exp(mean + half)), len(one))
        for ratio, mean in zip(ratios, means, strict=True)
    )


def _by_signed_ranks(pairs: Sequence[Pair], tail: float) -> tuple[float, float] | None:
    """Return Wilcoxon's signed-rank interval; ``None`` if there are too few pairs for it.

    The interval lies between two order statistics of the means of all pairs of values (Walsh averages).
    """
    num_pairs = len(pairs)
    if num_pairs < _ENOUGH_FOR_RANKS or tail < 0.5**num_pairs:
        return None
    logs = _logs(pairs)
    averages = np.sort([(logs[i] + logs[j]) / 2 for i in range(num_pairs) for j in range(i, num_pairs)])
    left_out = int(np.searchsorted(_signed_rank_distribution(num_pairs), tail, side="right")) - 1
    return exp(averages[left_out]), exp(averages[-1 - left_out])


def _signed_rank_distribution(number: int) -> NDArray[np.float64]:
    """Return P(W <= w) for every value w of the signed-rank statistic of `number` values, shape (sum of ranks + 1,)."""
    chances = np.zeros(number * (number + 1) // 2 + 1)
    chances[0] = 1
    for rank in range(1, number + 1):
        chances[rank:] += chances[:-rank].copy()
        chances /= 2
    return np.asarray(np.cumsum(chances), np.float64)


def _logs(pairs: Sequence[Pair]) -> list[float]:
    return [log(median(a) / median(b)) for a, b in pairs]


def _by_student(pairs: Sequence[Pair], tail: float) -> tuple[float, float]:
    logs = _logs(pairs)
    half = student_quantile(tail, len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    return exp(fmean(logs) - half), exp(fmean(logs) + half)


def _by_bootstrap(rounds: Sequence[Sequence[Pair]], ratio: float, tail: float) -> tuple[float, float]:
    wider = student_quantile(tail, len(rounds) - 1) / NormalDist().inv_cdf(1 - tail)
    low, high = (ratio * (end / ratio) ** wider for end in np.quantile(_redrawn(rounds), [tail, 1 - tail]))
    return float(low), float(high)


def student_quantile(tail: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution with upper tail probability `tail`, found by bisection."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, degrees) > tail else (low, middle)
    return high


def _redrawn(rounds: Sequence[Sequence[Pair]]) -> NDArray[np.float64]:
    """Return bootstrapped ratios, shape (_DRAWS,)."""
    random = np.random.default_rng(0)
    most = max(map(len, rounds))
    sizes = np.array([len(pairs) for pairs in rounds])
    drawn = np.ones((_DRAWS, len(rounds), most))
    for index, pairs in enumerate(rounds):
        for place, (a, b) in enumerate(pairs):
            drawn[:, index, place] = _medians(a, random) / _medians(b, random)
    chosen = random.integers(0, len(rounds), (_DRAWS, len(rounds), 1))
    pair = (random.random((_DRAWS, len(rounds), most)) * sizes[chosen]).astype(np.int64)
    return np.asarray(np.median(drawn[np.arange(_DRAWS)[:, None, None], chosen, pair], axis=(1, 2)), np.float64)


def _medians(steps: Steps, random: np.random.Generator) -> NDArray[np.float64]:
    """Return medians of steps drawn with replacement, shape (_DRAWS,)."""
    values = np.asarray(steps, np.float64)
    return np.asarray(np.median(values[random.integers(0, len(values), (_DRAWS, len(values)))], axis=1), np.float64)


def binomial_tail(successes: int, trials: int, chance: float) -> float:
    """Return P(X >= successes) for a binomial distribution. `chance`: strictly between 0 and 1."""
    if successes <= 0:
        return 1.0
    logs = (
        lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1) + k * log(chance) + (trials - k) * log(1 - chance)
        for k in range(successes, trials + 1)
    )
    return min(1.0, sum(map(exp, logs)))


def student_tail(t: float, degrees: int) -> float:
    """Return P(T >= t) for Student's t distribution with at least one degree of freedom.

    Values below 1e-16 may be 0.
    """
    angle = atan(t / sqrt(degrees))
    odd = degrees % 2
    term = cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for factor in range(2 + odd, degrees - 1, 2):
        term *= (factor - 1) / factor * cos(angle) ** 2
        total += term
    within = 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
    return min(1.0, max(0.0, (1 - within) / 2))


def mean_above_zero(values: Sequence[float]) -> float:
    """Return the p-value of the null hypothesis that the mean is at most 0. Needs at least two values."""
    return _tail(fmean(values), variance(values) / len(values), len(values) - 1)


def mean_above(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the p-value of the null hypothesis that the mean is at most the mean of `others`.

    Needs at least two values in each sample; their variances are assumed to be equal.
    """
    degrees = len(values) + len(others) - 2
    pooled = (variance(values) * (len(values) - 1) + variance(others) * (len(others) - 1)) / degrees
    return _tail(fmean(values) - fmean(others), pooled * (1 / len(values) + 1 / len(others)), degrees)


def _tail(mean: float, squared_error: float, degrees: int) -> float:
    if squared_error <= 0:
        return 0.0 if mean > 0 else 1.0
    return student_tail(mean / sqrt(squared_error), degrees)
