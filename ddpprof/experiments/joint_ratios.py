"""How much longer do the steps of several variants take than that of one? All were run once in every round.

    log step = round + variant + noise
    ratio    = median over rounds of (the variant's step / the one's)
    interval = 95 % for all of them together: Student's t of the mean logarithm, with the noise that round and variant
               leave of all steps, at 5 % divided by the number of ratios (Bonferroni)

With few rounds a single variant's own spread may be small by accident, but not that of all. (Montgomery, Design and
Analysis of Experiments, 4.1.)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt
from statistics import median

import numpy as np

from ddpprof.statistics.paired_ratio import CONFIDENCE, ENOUGH_ROUNDS, Ratio, student_quantile


def joint_ratios(
    one: Sequence[float], others: Sequence[Sequence[float]], comparisons: int | None = None
) -> tuple[Ratio, ...]:
    """Return the ratio of each of `others` to `one`, all given by their steps in the same n rounds.

    `comparisons`: number of intervals that must hold together, these included.
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
