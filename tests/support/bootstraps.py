"""Confidence intervals of medians."""

from collections.abc import Sequence

import numpy as np


def bootstrap_interval(compare: np.ufunc, values: Sequence[int], others: Sequence[int]) -> tuple[float, float]:
    """Return a 99 % bootstrap interval for the ratio or the difference of the two medians."""
    draw = np.random.default_rng(0)
    first, second = (np.median(draw.choice(np.asarray(one), (2000, len(one))), axis=1) for one in (values, others))
    low, high = np.quantile(compare(first, second), [0.005, 0.995])
    return float(low), float(high)
