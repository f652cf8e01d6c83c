"""What is usual of a number that some steps or ranks may lack, and of one that is only ever disturbed upwards?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean, median, quantiles, stdev

_OVER_THAT_OF_A_MEAN = 1.25


def median_known(values: Iterable[int | None]) -> int | None:
    """``None`` where all are."""
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None


def mean_known(values: Iterable[int | None]) -> int | None:
    """Return the rounded mean of the values that are known; ``None`` where none is."""
    known = [value for value in values if value is not None]
    return round(fmean(known)) if known else None


def first_quartile(values: Sequence[int]) -> float:
    """Of one or more."""
    return quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else float(values[0])


def error_of_median(values: Sequence[float]) -> float:
    """Standard error of the median of two or more."""
    return _OVER_THAT_OF_A_MEAN * stdev(values) / sqrt(len(values))
