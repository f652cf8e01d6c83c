"""What is measured of a rank as bytes, and back: compressed msgpack, in which equal objects give equal bytes.

Columns of times grow slowly, so their differences compress well. Only the code that wrote them reads them, since the
cache knows its version.
"""

from __future__ import annotations

import zlib
from array import array
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

_T = TypeVar("_T")
_LEVEL = 1
"""compression level; higher ones take longer than reading the trace"""


def encode(value: object) -> bytes:
    return zlib.compress(_ENCODER.encode(value), _LEVEL)


def decode(content: bytes, kind: type[_T]) -> _T:
    """Decode a value. Raises ``zlib.error`` and ``msgspec.MsgspecError``."""
    return msgspec.msgpack.decode(zlib.decompress(content), type=kind, dec_hook=_decoded)


class _Column(msgspec.Struct, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    is_differences: bool
    content: bytes


def _encoded(value: Any) -> Any:
    if isinstance(value, array):
        return value.tobytes()
    if isinstance(value, np.ndarray):
        as_differences = value.dtype == np.int64 and value.ndim == 1
        content = np.diff(value, prepend=np.int64(0)) if as_differences else np.ascontiguousarray(value)
        return _Column(value.dtype.str, value.shape, as_differences, content.tobytes())
    raise NotImplementedError(type(value))


def _decoded(kind: Any, value: Any) -> Any:
    if kind is array:
        return array("d", value)
    assert get_origin(kind) is np.ndarray, kind
    column = msgspec.convert(value, _Column)
    values: NDArray[Any] = np.frombuffer(column.content, np.dtype(column.dtype)).reshape(column.shape)
    return np.cumsum(values, dtype=np.int64) if column.is_differences else values


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encoded)
