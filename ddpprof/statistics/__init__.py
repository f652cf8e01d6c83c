"""Means and medians that skip missing values, the first quartile, and the standard error of the median."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean, median, quantiles, stdev

_OVER_THAT_OF_A_MEAN = 1.25


def median_known(values: Iterable[int | None]) -> int | None:
    """Return the rounded median of the values that are not ``None``, or ``None`` if there are none."""
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None


def mean_known(values: Iterable[int | None]) -> int | None:
    """Return the rounded mean of the values that are not ``None``, or ``None`` if there are none."""
    known = [value for value in values if value is not None]
    return round(fmean(known)) if known else None


def first_quartile(values: Sequence[int]) -> float:
    """Return the first quartile of one or more values, which is robust if disturbances only increase values."""
    return quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else float(values[0])


def error_of_median(values: Sequence[float]) -> float:
    """Return the standard error of the median of two or more values."""
    return _OVER_THAT_OF_A_MEAN * stdev(values) / sqrt(len(values))
