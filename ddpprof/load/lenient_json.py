"""Read slightly invalid JSON, and convert times from microseconds to nanoseconds.

Kineto may write invalid JSON. Tools that rewrite traces change types, so times may be floats, decimal numbers or text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddpprof.model import Int64Column

Text = bytes | bytearray | msgspec.Raw

_T = TypeVar("_T")

_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)
_BACKSLASH = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_CONTROL_TO_BLANK = bytes(32 if byte < 32 else byte for byte in range(256))


def repair_json(text: bytes) -> bytes:
    """Replace ``nan`` and ``inf`` with ``null``; escape lone backslashes; replace control characters and bad UTF-8."""
    repaired = _NOT_A_NUMBER.sub(rb"\1null", text)
    repaired = _BACKSLASH.sub(lambda match: match[0] if len(match[0]) > 1 else rb"\\", repaired)
    # Control characters between tokens are whitespace anyway, so this only changes the content of strings.
    return repaired.translate(_CONTROL_TO_BLANK).decode("utf-8", "replace").encode()


def decode_repaired(decode: Callable[[Text], _T], text: Text) -> _T:
    """Decode JSON, after repair if it is not valid. Raises ``msgspec.MsgspecError``."""
    try:
        return decode(text)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decode(repair_json(bytes(text)))


def decode_or_none(text: msgspec.Raw) -> Any:
    """Return the value of a JSON text, or ``None`` if it is not valid."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def as_int(value: object) -> int | None:
    """Return the value as an integer, or ``None`` if it is not an integer or does not fit into int64.

    Text and floats such as ``7.0`` are accepted, because tools that rewrite traces with pandas produce them.
    """
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    if isinstance(value, float) and abs(value) < 1 << 53 and value.is_integer():
        return int(value)
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    return None


def integers(values: Sequence[object]) -> Int64Column:
    """Return the values as integers. Values that are not integers become 0. Nearly all files have only integers."""
    if set(map(type, values)) == {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return np.array([as_int(value) or 0 for value in values], np.int64)


EXACT_FLOAT_US = 2.0**43
"""102 days in µs; up to this time, times in float64 microseconds are exact to the nanosecond, because half the distance
between adjacent float64 numbers is 0.49 ns
"""

LARGEST_US = 4.6e15
"""146 years in µs, which is half of what int64 nanoseconds can hold, so that a start time plus a duration fits"""

_MOST_DIGITS = 16
"""numbers of microseconds with at most this many digits before the decimal point fit into int64 as nanoseconds"""
_DOT = ord(".") - ord("0")


class NeedsExactTimesError(Exception):
    """The times must be decoded again, as text."""


class TimeOutOfRangeError(Exception):
    """A time is too large to be valid."""


def nanoseconds(times_us: Sequence[float | Decimal] | NDArray[np.float64], *, exact: bool = False) -> Int64Column:
    """Convert microseconds to nanoseconds. `exact`: use decimal arithmetic instead of float64.

    Raises `NeedsExactTimesError` if float64 is not precise enough, and `TimeOutOfRangeError`.
    """
    if exact:
        return np.array([_exact_nanoseconds(Decimal(time)) for time in times_us], np.int64)
    times = np.array(times_us, np.float64)
    if len(times) and max(times.max(), -times.min()) >= EXACT_FLOAT_US:
        raise NeedsExactTimesError
    whole = np.floor(times)
    return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)


def nanoseconds_of_texts(times_us: Sequence[msgspec.Raw]) -> Int64Column:
    """Convert strings with microseconds, of any magnitude, to nanoseconds exactly.

    Raises `TimeOutOfRangeError`, and ``msgspec.ValidationError`` for a text that is not a number.
    """
    texts = list(map(bytes, times_us))
    alike = _of_equal_layout(texts)
    if alike is not None:
        return alike
    times = msgspec.json.decode(b"[" + b",".join(texts) + b"]", type=list[Decimal | None])
    return nanoseconds([time or Decimal(0) for time in times], exact=True)


def _of_equal_layout(texts: Sequence[bytes]) -> Int64Column | None:
    """Convert texts that have the same length and the decimal point at the same position.

    Returns ``None`` for other texts.

    At most three decimals are supported. In nearly all batches, the texts are of this kind, and converting them
    together is much faster.
    """
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
