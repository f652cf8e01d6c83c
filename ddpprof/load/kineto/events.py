"""Entries of ``traceEvents`` as the decoder makes them: as little of each as the tables need.

``args`` stay text until it is known which events' are needed (see `arguments`). In traces with shapes most events' are
needed, and all are decoded at once, which takes less time than a second decoding. Events that no table needs are
decoded to next to nothing: flows and Python frames are most of a trace with stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any, Union, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddpprof.load.kineto.arguments import NULL, Arguments, decode_one
from ddpprof.load.kineto.classify import family
from ddpprof.model import Int64Column

_ZERO = msgspec.Raw(b"0")

EXACT_FLOAT_US = 2.0**43
"""102 days: below it, float64 microseconds determine the nanosecond, as half their spacing is 0.49 ns"""

_LARGEST_US = 4.6e15
"""146 years, half of what int64 nanoseconds can hold, so that the sum of a start and a duration fits"""

_MOST_DIGITS = 16
"""number of digits of whole microseconds: with more, nanoseconds do not fit into int64"""
_DOT = ord(".") - ord("0")


class Category(Enum):
    """``cat`` of an event: the decoder itself finds the frequent ones; others count as one of their family."""

    OP = "cpu_op"
    OP_OF_2021 = "Operator"
    ANNOTATION = "user_annotation"
    LAUNCH = "cuda_runtime"
    LAUNCH_OF_2021 = "Runtime"
    DRIVER = "cuda_driver"
    HIP_LAUNCH = "hip_runtime"
    KERNEL = "kernel"
    KERNEL_OF_2021 = "Kernel"
    COPY = "gpu_memcpy"
    FRAME = "python_function"
    OTHER = ""

    __hash__ = object.__hash__  # that of Enum is written in Python

    @classmethod
    def _missing_(cls, value: object) -> Category:
        return _OF_FAMILY[family(str(value))]


FAMILIES = {category: family(category.value) for category in Category}
_OF_FAMILY = {of: category for category, of in reversed(FAMILIES.items())}


class Span(msgspec.Struct, gc=False, tag="X", tag_field="ph"):
    """An event with a duration; times are in microseconds."""

    cat: Category = Category.OTHER
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str | float = 0
    args: msgspec.Raw = NULL


class ExactSpan(msgspec.Struct, gc=False, tag="X", tag_field="ph"):
    """A span whose time float64 cannot hold: an absolute timestamp."""

    cat: Category = Category.OTHER
    name: str = ""
    ts: msgspec.Raw = _ZERO
    dur: float = 0.0
    tid: int | str | float = 0
    args: msgspec.Raw = NULL


class Moment(msgspec.Struct, gc=False):
    """Any other event; one of them says when the profiler stopped."""

    name: str = ""
    ts: msgspec.Raw = _ZERO


class _Flow(msgspec.Struct, gc=False):
    """An arrow from one event to another."""


class AnyEvent(msgspec.Struct, gc=False):
    """An event whose phase is missing or unknown, or any event of a file that is decoded whole."""

    ph: str = ""
    cat: Category | None = Category.OTHER
    name: str = ""
    ts: float | None = 0.0
    dur: float | None = 0.0
    tid: int | str | float | None = 0
    args: msgspec.Raw = NULL


class AnyExactEvent(msgspec.Struct, gc=False):
    ph: str = ""
    cat: Category | None = Category.OTHER
    name: str = ""
    ts: msgspec.Raw = _ZERO
    dur: float | None = 0.0
    tid: int | str | float | None = 0
    args: msgspec.Raw = NULL


Entries = list[Any]
"""a list of `Span` or `ExactSpan`, `Moment`, and others, which are not used"""


def _of_phases(base: type[msgspec.Struct], phases: str) -> list[type[msgspec.Struct]]:
    return [msgspec.defstruct(base.__name__, [], bases=(base,), gc=False, tag=ph, tag_field="ph") for ph in phases]


MOMENT_TYPES = _of_phases(Moment, "iIRMBECbneNODPpScv")
_OTHERS = [*_of_phases(_Flow, "stf"), *MOMENT_TYPES]

SpanType = type[Span] | type[ExactSpan]


def _with_arguments(span: SpanType) -> SpanType:
    field = ("args", Arguments | None, None)
    made: Any = msgspec.defstruct(span.__name__, [field], bases=(span,), gc=False, tag="X", tag_field="ph")
    return cast("SpanType", made)


_RAW: tuple[SpanType, SpanType] = (Span, ExactSpan)
_DECODED = (_with_arguments(Span), _with_arguments(ExactSpan))
_TAGGED: dict[SpanType, Callable[[bytes | bytearray], Entries]] = {
    span: msgspec.json.Decoder(list[Union[(span, *_OTHERS)]]).decode  # type: ignore[valid-type]
    for span in (*_RAW, *_DECODED)
}
_ANY: tuple[Callable[[bytes | bytearray], Sequence[AnyEvent | AnyExactEvent]], ...] = (
    msgspec.json.Decoder(list[AnyEvent]).decode,
    msgspec.json.Decoder(list[AnyExactEvent]).decode,
)


def span_type(*, exact: bool, with_arguments: bool) -> SpanType:
    """Return the type of spans: with exact times or float64, with arguments as `Arguments` (or ``None``) or as text."""
    return (_DECODED if with_arguments else _RAW)[exact]


def is_exact(span: SpanType) -> bool:
    return issubclass(span, ExactSpan)


def decode_entries(text: bytes | bytearray, span: SpanType) -> Entries:
    """Return the events of an array. Raises ``msgspec.MsgspecError``."""
    try:
        return _TAGGED[span](text)
    except msgspec.ValidationError:
        return as_entries(_ANY[is_exact(span)](text), span)


def as_entries(events: Iterable[AnyEvent | AnyExactEvent], span: SpanType) -> Entries:
    return [_entry(event, span) for event in events]


def _entry(event: AnyEvent | AnyExactEvent, span: SpanType) -> msgspec.Struct:
    if event.ph == "X":
        category = event.cat or Category.OTHER
        args = decode_one(Arguments, event.args) if span in _DECODED else event.args
        ts, dur, tid = event.ts or 0.0, event.dur or 0.0, event.tid
        return span(cat=category, name=event.name, ts=ts, dur=dur, tid=tid, args=args)  # type: ignore[arg-type]
    ts = event.ts if isinstance(event.ts, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(event.ts))
    return MOMENT_TYPES[0](name=event.name, ts=ts)


class NeedsExactTimesError(Exception):
    """Error about times that must be decoded again, as text."""


class TimeOutOfRangeError(Exception):
    """Error about a time that no clock shows."""


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
    """Convert microseconds, exactly, whatever their size.

    Raises `TimeOutOfRangeError`, and ``msgspec.ValidationError`` for a text that is not a number.
    """
    texts = list(map(bytes, times_us))
    alike = _of_equal_layout(texts)
    if alike is not None:
        return alike
    times = msgspec.json.decode(b"[" + b",".join(texts) + b"]", type=list[Decimal | None])
    return nanoseconds([time or Decimal(0) for time in times], exact=True)


def _of_equal_layout(texts: Sequence[bytes]) -> Int64Column | None:
    """Convert texts with equally placed digits, up to three after a dot, as in one batch; ``None`` for others."""
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
    return times if times.min() > -1 and times.max() < _LARGEST_US * 1000 else None  # overflow makes them negative


def _exact_nanoseconds(time_us: Decimal) -> int:
    if not abs(time_us) < _LARGEST_US:
        raise TimeOutOfRangeError
    return round(time_us * 1000)
