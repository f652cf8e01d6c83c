"""Is the job slower, or was it only a bad run? Each run is one observation: steps of one run do not predict the next
run.

    difference = median of all differences between runs of B and A   (Hodges and Lehmann; `shift_between`)
    interval   = the differences between which Mann and Whitney's U leaves 99.5 %, shared by questions asked together

The interval assumes no distribution, so neither a bad minute nor a small number of runs makes it too narrow. It is wide
enough to stay valid if it is computed again with more runs. It needs at least six runs on each side. With fewer, the
chance difference is unknown, and a limit is assumed: a factor of five in the step, and as many milliseconds in any part
of the step. This is more than the difference of any two equal runs in ``analyses/gate`` on a busy machine.

`shift_between` compares two samples of one run each. Differences between whole runs (another machine, another hour) are
in such a shift, but not in its interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, comb, sqrt
from statistics import NormalDist

import numpy as np

_OF_TWO_SAMPLES = 0.95
"""confidence of the shift between two samples"""

_EXACT_UP_TO = 400
"""number of pairs of values above which U is treated as normally distributed"""

_MOST_VALUES = 500
"""maximum number of values per sample; larger samples are reduced to an evenly spaced selection"""


@dataclass(frozen=True, slots=True)
class Shift:
    """b minus a, in the samples' unit."""

    shift: float
    low: float | None
    high: float | None
    """upper end of the interval; ``None`` with too few values: 4 and 4 are enough, or 3 and 5, or 2 and 8"""

    @property
    def is_beyond_noise(self) -> bool | None:
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


def shift_between(a: Sequence[float], b: Sequence[float], confidence: float = _OF_TWO_SAMPLES) -> Shift | None:
    """Return by how much `b` is above `a`; ``None`` if either sample is empty."""
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
    """Return how many of the ordered differences are below the interval: the largest u with P(U < u + 1) <= `tail`."""
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
    """Return the number of orderings of the two samples in which U is `value`."""
    if value < 0:
        return 0
    if not num_a or not num_b:
        return int(value == 0)
    return _ways(num_a - 1, num_b, value - num_b) + _ways(num_a, num_b - 1, value)


CONFIDENCE = 0.995
PLAUSIBLE_FACTOR = 5.0
"""largest plausible factor between the steps of two runs of one job, whatever else the machine does"""
MOST_RUNS = 600
"""maximum number of runs on each side that a user is asked to record"""
_SPARE = 1.59
"""how much narrower than the difference the interval should be. An interval as wide as the difference detects it half
of the time; this factor, (2.81 + 1.645) / 2.81, raises that to 95 %
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """B minus A, ns per step."""

    shift_ns: float
    low_ns: float
    high_ns: float
    """upper end of the interval"""
    is_measured: bool
    """``False`` if there are too few runs to know how much runs differ; the interval then is the plausible range"""

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether the difference is beyond noise; ``None`` if there are too few runs to decide."""
        if self.low_ns > 0 or self.high_ns < 0:
            return True
        return False if self.is_measured else None

    def may_exceed(self, limit_ns: float) -> bool | None:
        """Return whether B takes longer than A by more than the limit; ``None`` if both answers are possible."""
        if self.high_ns <= limit_ns:
            return False
        return True if self.low_ns > 0 else None


def plausible_noise_ns(steps_ns: Sequence[float]) -> float:
    """Return by how much equal runs, or any part of their steps, may differ, ns. `steps_ns`: the step of every run."""
    return max(steps_ns) * (1 - 1 / PLAUSIBLE_FACTOR)


def difference_between(a_ns: Sequence[float], b_ns: Sequence[float], noise_ns: float, questions: int = 1) -> Difference:
    """Compare a measurement from each run of A and of B.

    `noise_ns`: assumed noise, used if the runs do not show how much they differ. `questions`: number of intervals that
    must hold together, including this one.
    """
    shift = shift_between(a_ns, b_ns, _confidence(questions))
    assert shift is not None
    if shift.low is not None and shift.high is not None:
        return Difference(shift.shift, shift.low, shift.high, is_measured=True)
    low_ns, high_ns = min(b_ns) - max(a_ns) - noise_ns, max(b_ns) - min(a_ns) + noise_ns
    return Difference(shift.shift, low_ns, high_ns, is_measured=False)


def runs_needed(difference: Difference, num_runs: int, limit_ns: float, questions: int = 1) -> int:
    """Return how many runs each side needs to distinguish a difference of `limit_ns` from no difference.

    `num_runs`: number of runs on the smaller side. A result above `MOST_RUNS` means that the runs are too noisy.
    """
    if not difference.is_measured:
        return max(fewest_runs(questions), num_runs + 1)
    half_ns = (difference.high_ns - difference.low_ns) / 2
    wanted = num_runs * (_SPARE * half_ns / limit_ns) ** 2 if limit_ns > 0 else float(MOST_RUNS + 1)
    return max(num_runs + 1, ceil(min(wanted, MOST_RUNS + 1)))


@cache
def fewest_runs(questions: int = 1) -> int:
    """Return the minimum number of runs per side for an interval."""
    number = 1
    while (shift := shift_between([0.0] * number, [0.0] * number, _confidence(questions))) and shift.low is None:
        number += 1
    return number


def _confidence(questions: int) -> float:
    """Return the confidence of each of several intervals that must hold together."""
    return 1 - (1 - CONFIDENCE) / questions
