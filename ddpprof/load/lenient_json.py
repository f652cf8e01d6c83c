"""Reading of JSON that is not quite valid: Kineto writes invalid JSON, and tools that rewrite traces change types."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from ddpprof.model import Int64Column

Text = bytes | bytearray | msgspec.Raw

_T = TypeVar("_T")

_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)
_BACKSLASH = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_CONTROL_TO_BLANK = bytes(32 if byte < 32 else byte for byte in range(256))


def repair_json(text: bytes) -> bytes:
    """Replace ``nan`` and ``inf`` by ``null``; escape lone backslashes; replace control characters and bad UTF-8."""
    repaired = _NOT_A_NUMBER.sub(rb"\1null", text)
    repaired = _BACKSLASH.sub(lambda match: match[0] if len(match[0]) > 1 else rb"\\", repaired)
    # Between tokens a control character is a blank already, so only the insides of strings change.
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
    """Return an integer, including one written as text or, by tools that rewrite traces with pandas, as ``7.0``.

    Returns ``None`` for anything else and for numbers that do not fit into int64.
    """
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    if isinstance(value, float) and abs(value) < 1 << 53 and value.is_integer():
        return int(value)
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    return None


def integers(values: Sequence[object]) -> Int64Column:
    """Return the values as integers, with 0 for any other value. In nearly all files, all values are integers."""
    if set(map(type, values)) == {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return np.array([as_int(value) or 0 for value in values], np.int64)
