"""Exact nanoseconds from microseconds as found in JSON: float64, decimal numbers, or text."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddpprof.model import Int64Column

EXACT_FLOAT_US = 2.0**43
"""102 days: below this, float64 microseconds determine the nanosecond, because half their spacing is 0.49 ns"""

LARGEST_US = 4.6e15
"""146 years, half of what int64 nanoseconds can hold, so that the sum of a start and a duration fits"""

_MOST_DIGITS = 16
"""number of digits of whole microseconds; with more, nanoseconds do not fit into int64"""
_DOT = ord(".") - ord("0")


class NeedsExactTimesError(Exception):
    """Error for times that must be decoded again as text."""


class TimeOutOfRangeError(Exception):
    """Error for a time that no clock shows."""


def nanoseconds(times_us: Sequence[float | Decimal] | NDArray[np.float64], *, exact: bool = False) -> Int64Column:
    """Convert microseconds to nanoseconds.

    Raises `NeedsExactTimesError` if they are not exact and float64 cannot hold them, and `TimeOutOfRangeError`.
    """
    if exact:
        return np.array([_exact_nanoseconds(Decimal(time)) for time in times_us], np.int64)
    times = np.array(times_us, np.float64)
    if len(times) and max(times.max(), -times.min()) >= EXACT_FLOAT_US:
        raise NeedsExactTimesError
    whole = np.floor(times)
    return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)


def nanoseconds_of_texts(times_us: Sequence[msgspec.Raw]) -> Int64Column:
    """Convert microseconds of any size to nanoseconds exactly.

    Raises `TimeOutOfRangeError`, and ``msgspec.ValidationError`` for a text that is not a number.
    """
    texts = list(map(bytes, times_us))
    alike = _of_equal_layout(texts)
    if alike is not None:
        return alike
    times = msgspec.json.decode(b"[" + b",".join(texts) + b"]", type=list[Decimal | None])
    return nanoseconds([time or Decimal(0) for time in times], exact=True)


def _of_equal_layout(texts: Sequence[bytes]) -> Int64Column | None:
    """Convert texts with digits in the same places, up to three after the dot, as in one batch; ``None`` for others."""
    lengths = set(map(len, texts))
    if len(lengths) != 1:
        return None
    digits = (np.frombuffer(b"".join(texts), np.uint8) - np.uint8(ord("0"))).reshape(len(texts), *lengths)
    places = np.arange(digits.shape[1])
    dot = texts[0].find(b".")
    if dot >= 0:
        if not (digits[:, dot] == _DOT % 256).all():
            return None
        places = np.delete(places, dot)
    num_whole = dot if dot >= 0 else len(places)
    if (digits[:, places] > 9).any() or num_whole > _MOST_DIGITS or len(places) > num_whole + 3:
        return None
    weights = np.array([10 ** (num_whole + 2 - index) for index in range(len(places))], np.int64)
    times: Int64Column = digits[:, places].astype(np.int64) @ weights
    return times if times.min() > -1 and times.max() < LARGEST_US * 1000 else None  # overflow makes them negative


def _exact_nanoseconds(time_us: Decimal) -> int:
    if not abs(time_us) < LARGEST_US:
        raise TimeOutOfRangeError
    return round(time_us * 1000)
