"""How likely is it that mere chance did this? One-sided p-values, without a statistics library.

came last in k of n steps   P(X >= k) of the binomial distribution
is late on average          P(T >= t) of Student's t, by its finite sum for integer degrees of freedom:
                            Abramowitz & Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4
"""

from __future__ import annotations

from collections.abc import Sequence
from math import atan, cos, exp, lgamma, log, pi, sin, sqrt
from statistics import fmean, variance


def binomial_tail(successes: int, trials: int, chance: float) -> float:
    """Return P(X >= successes) for that many trials; the chance must be strictly between 0 and 1."""
    if successes <= 0:
        return 1.0
    logs = (
        lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1) + k * log(chance) + (trials - k) * log(1 - chance)
        for k in range(successes, trials + 1)
    )
    return min(1.0, sum(map(exp, logs)))


def student_tail(t: float, degrees: int) -> float:
    """Return P(T >= t) for at least one degree of freedom; values below 1e-16 count as 0."""
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
    """Return the p-value of a mean that is at most 0, for two or more values."""
    return _tail(fmean(values), variance(values) / len(values), len(values) - 1)


def mean_above(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the p-value of a mean that is not above the others', for two or more of each, of equal variance."""
    degrees = len(values) + len(others) - 2
    pooled = (variance(values) * (len(values) - 1) + variance(others) * (len(others) - 1)) / degrees
    return _tail(fmean(values) - fmean(others), pooled * (1 / len(values) + 1 / len(others)), degrees)


def _tail(mean: float, squared_error: float, degrees: int) -> float:
    if squared_error <= 0:
        return 0.0 if mean > 0 else 1.0
    return student_tail(mean / sqrt(squared_error), degrees)
