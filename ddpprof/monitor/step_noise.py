"""How much do windows of steady steps differ, and where does one level give way to another?

Values are logs of lengths.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_OF_NORMAL = 1.4826
"""standard deviation of a normal distribution over the median of deviations from its median"""
_OF_MEDIAN = 1.2533
"""standard error of a median over that of a mean"""
_THREE_OF_FOUR = 1.1503
"""deviations within which three of four normal values are"""
_FOLLOWED = 1.1
"""factor that makes up for the median around windows, which follows them and so hides part of how much they differ"""


def noise_of_windows(values: Floats, window: int, around: int, share_steps: bool, two_levels: float) -> float:
    """Return the standard deviation of windows of steady values.

    It is what windows show, and at least what single values promise. Values count from the median of the `around`
    values around them, so that a change that lasts is no noise. Windows whose halves are `two_levels` or more apart
    are left out. `share_steps`: two values in a row have a step in common.
    """
    values = values - _levels_around(values, around, window)
    alone = _OF_NORMAL * _OF_MEDIAN * _median_deviation(values) / sqrt(window / 2 if share_steps else window)
    few = 1 + window / len(values)
    seen = 0.0
    if len(values) >= window:
        windows = np.lib.stride_tricks.sliding_window_view(values, window)[:: max(1, window // 4)]
        half = window // 2
        apart = np.abs(np.median(windows[:, :half], axis=1) - np.median(windows[:, half:], axis=1))
        seen = _FOLLOWED * _spread(middle_half(windows[apart < two_levels]))
    return max(alone, seen) * few


def _levels_around(values: Floats, width: int, every: int) -> Floats:
    """Return the median of the values around each. It is found for one value of `every`."""
    half = width // 2
    medians = [np.median(values[max(0, at - half) : at + half]) for at in range(0, len(values), every)]
    return np.repeat(medians, every)[: len(values)]


def _spread(middles: Floats) -> float:
    if not len(middles):
        return 0.0
    deviations = np.abs(middles - np.median(middles))
    return max(_OF_NORMAL * float(np.median(deviations)), float(np.quantile(deviations, 0.75)) / _THREE_OF_FOUR)


def _median_deviation(values: Floats) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def middle_half(windows: Floats) -> Floats:
    """Return the mean of the middle half of each row."""
    width = windows.shape[1]
    means: Floats = np.sort(windows, axis=1)[:, width // 4 : width - width // 4].mean(axis=1)
    return means


def change_point(values: Floats, old: float, new: float) -> int:
    """Return the index of the first value that belongs to the new level rather than to the old one."""
    half = abs(new - old) / 2
    towards_new = np.clip((values - (old + new) / 2) * np.sign(new - old), -half, half)
    sums = np.concatenate(([0.0], np.cumsum(towards_new)))
    return min(int(np.argmin(sums)), len(values) - 1)
