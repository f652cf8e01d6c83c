"""Compare repeated runs of two jobs. Each run is one observation, because steps of one run do not predict other runs.

    difference = median of all differences between runs of B and A (Hodges–Lehmann estimator; `shift_between`)
    interval   = confidence interval of the difference from the Mann–Whitney U distribution; 99.5 %; the error
                 probability of 0.5 % is divided among the differences that are tested together (Bonferroni)

The interval does not assume a distribution, so it is valid with few runs and with outliers. The confidence is high
enough that the comparison may be repeated with more runs. The interval needs at least six runs on each side. With fewer
runs, the variation between runs is unknown, and a plausible limit is assumed: step times may differ by a factor of
five, and any part of the step by the same amount of time. This is more than the difference between any two runs of the
same job in ``analyses/gate`` on a busy machine.

`shift_between` can also compare two samples of steps from one run each. In that case, the interval does not include
differences between runs, for example due to another machine or time of day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, comb, sqrt
from statistics import NormalDist

import numpy as np

_OF_TWO_SAMPLES = 0.95
"""confidence level of the interval for the shift between two samples"""

_EXACT_UP_TO = 400
"""maximum number of pairs of values for which the exact distribution of U is computed; for more pairs, a normal
approximation is used
"""

_MOST_VALUES = 500
"""maximum number of values that are used per sample; from larger samples, evenly spaced values are selected"""


@dataclass(frozen=True, slots=True)
class Shift:
    """Difference b minus a, in the unit of the samples."""

    shift: float
    low: float | None
    high: float | None
    """upper end of the interval; ``None`` with too few values (4 and 4 values, 3 and 5, or 2 and 8 are enough)"""

    @property
    def is_beyond_noise(self) -> bool | None:
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


def shift_between(a: Sequence[float], b: Sequence[float], confidence: float = _OF_TWO_SAMPLES) -> Shift | None:
    """Return the shift from `a` to `b`, or ``None`` if either sample is empty."""
    if not a or not b:
        return None
    a, b = _selection(a), _selection(b)
    differences = np.sort(np.subtract.outer(np.asarray(b, np.float64), np.asarray(a, np.float64)), axis=None)
    shift = float(np.median(differences))
    outside = _outside(len(a), len(b), (1 - confidence) / 2)
    if outside is None:
        return Shift(shift, None, None)
    return Shift(shift, float(differences[outside]), float(differences[-1 - outside]))


def _selection(values: Sequence[float]) -> Sequence[float]:
    if len(values) <= _MOST_VALUES:
        return values
    ordered = sorted(values)
    return [ordered[index] for index in np.linspace(0, len(ordered) - 1, _MOST_VALUES).round().astype(int)]


def _outside(num_a: int, num_b: int, tail: float) -> int | None:
    """Return the number of ordered differences below the interval: the largest u with P(U < u + 1) <= `tail`."""
    if num_a * num_b > _EXACT_UP_TO:
        deviation = sqrt(num_a * num_b * (num_a + num_b + 1) / 12)
        return int(max(0, num_a * num_b / 2 + NormalDist().inv_cdf(tail) * deviation - 0.5))
    below, total = 0, comb(num_a + num_b, num_a)
    for value in range(num_a * num_b + 1):
        below += _ways(num_a, num_b, value)
        if below > tail * total:
            return value - 1 if value else None
    return None


@cache
def _ways(num_a: int, num_b: int, value: int) -> int:
    """Return the number of orderings of the two samples for which U equals `value`."""
    if value < 0:
        return 0
    if not num_a or not num_b:
        return int(value == 0)
    return _ways(num_a - 1, num_b, value - num_b) + _ways(num_a, num_b - 1, value)


CONFIDENCE = 0.995
PLAUSIBLE_FACTOR = 5.0
"""largest plausible ratio between the step times of two runs of the same job, even on a busy machine"""
MOST_RUNS = 600
"""largest number of runs per side that ddpprof asks a user to record"""
_SPARE = 1.59
"""a difference is detected in 95 % of cases if it is this many times the half-width of the interval, (2.81 + 1.645) /
2.81, and in 50 % of cases if it equals the half-width
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference B minus A, in ns per step."""

    shift_ns: float
    low_ns: float
    high_ns: float
    """upper end of the interval of the difference"""
    is_measured: bool
    """``False`` if there are too few runs to measure how much runs vary; the interval is then the range of plausible
    differences
    """

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether the difference exceeds the noise; ``None`` if there are too few runs to decide."""
        if self.low_ns > 0 or self.high_ns < 0:
            return True
        return False if self.is_measured else None

    def may_exceed(self, limit_ns: float) -> bool | None:
        """Return True if B takes longer than A and the increase may exceed the limit; ``None`` if undecided."""
        if self.high_ns <= limit_ns:
            return False
        return True if self.low_ns > 0 else None


def plausible_noise_ns(steps_ns: Sequence[float]) -> float:
    """Return the largest plausible difference between runs of one job, in ns. `steps_ns`: step time of each run."""
    return max(steps_ns) * (1 - 1 / PLAUSIBLE_FACTOR)


def difference_between(a_ns: Sequence[float], b_ns: Sequence[float], noise_ns: float, questions: int = 1) -> Difference:
    """Compare a measurement from each run of A and of B.

    `noise_ns`: noise to assume if there are too few runs to measure it. `questions`: number of intervals that must hold
    simultaneously, including this one.
    """
    shift = shift_between(a_ns, b_ns, _confidence(questions))
    assert shift is not None
    if shift.low is not None and shift.high is not None:
        return Difference(shift.shift, shift.low, shift.high, is_measured=True)
    low_ns, high_ns = min(b_ns) - max(a_ns) - noise_ns, max(b_ns) - min(a_ns) + noise_ns
    return Difference(shift.shift, low_ns, high_ns, is_measured=False)


def runs_needed(difference: Difference, num_runs: int, limit_ns: float, questions: int = 1) -> int:
    """Return the number of runs per side that is needed to distinguish a difference of `limit_ns` from zero.

    `num_runs`: runs on the side with fewer runs. A result above `MOST_RUNS` means that the runs are too noisy.
    """
    if not difference.is_measured:
        return max(fewest_runs(questions), num_runs + 1)
    half_ns = (difference.high_ns - difference.low_ns) / 2
    wanted = num_runs * (_SPARE * half_ns / limit_ns) ** 2 if limit_ns > 0 else float(MOST_RUNS + 1)
    return max(num_runs + 1, ceil(min(wanted, MOST_RUNS + 1)))


@cache
def fewest_runs(questions: int = 1) -> int:
    """Return the minimum number of runs per side for which a confidence interval exists."""
    number = 1
    while (shift := shift_between([0.0] * number, [0.0] * number, _confidence(questions))) and shift.low is None:
        number += 1
    return number


def _confidence(questions: int) -> float:
    """Return the confidence level of each of several intervals that must hold simultaneously."""
    return 1 - (1 - CONFIDENCE) / questions
