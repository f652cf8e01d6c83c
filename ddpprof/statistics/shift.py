"""By how much do two samples differ, and how much of that is their own spread?

    shift    = median of all differences b - a                                 (Hodges and Lehmann 1963)
    interval = the differences between which Mann and Whitney's U leaves 95 %, or the requested confidence

Neither assumes a distribution, and a single outlier hardly changes them. Differences between whole runs (another
machine, another hour) are in the shift, but not in the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import comb, sqrt
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95

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


def shift_between(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> Shift | None:
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
