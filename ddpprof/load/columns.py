"""The events of one trace that the tables need, as columns. `Collector` picks them out of decoded events."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddpprof.events import UNKNOWN, CollectiveKind, Int32Column, Int64Column
from ddpprof.load.classify import DEVICE_ROLES, Identity, Role, classify, collective_kind, element_bytes
from ddpprof.load.hostwork import outermost

EXACT_FLOAT_US = 2.0**43
"""Below it, float64 microseconds determine the nanosecond: half their spacing is 0.49 ns. It is 102 days."""

_MERGE_CHUNKS = 256
"""After so many batches ops inside other ops are dropped: a few GB of a CPU trace would not fit in memory with them."""

_LARGEST_US = 4.6e15
"""Half of what int64 nanoseconds can hold, 146 years: a start and a duration still add up."""

_NULL = msgspec.Raw(b"null")


class Arguments(msgspec.Struct, gc=False):
    """What the tables need of an event's ``args``.

    Typed as anything: where an argument is odd, what it would tell is unknown, and the trace is still good.
    """

    correlation: Any = 0
    stream: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    num_elements: Any = msgspec.field(default=None, name="In msg nelems")
    dtype: Any = None
    group: Any = msgspec.field(default=None, name="Process Group Name")
    sequence: Any = msgspec.field(default=None, name="Seq")
    # Every op has these two where shapes are recorded; they are decoded for communication alone.
    input_dims: msgspec.Raw = msgspec.field(default=_NULL, name="Input Dims")
    input_type: msgspec.Raw = msgspec.field(default=_NULL, name="Input type")


_NO_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False):
    """One entry of ``traceEvents``; times in microseconds."""

    ph: str = ""
    cat: str | None = ""
    name: str = ""
    ts: float | None = 0.0
    dur: float | None = 0.0
    tid: int | str | float | None = 0
    args: Arguments | None = None


class ExactEvent(msgspec.Struct, gc=False):
    """The same where float64 cannot hold the time: absolute timestamps."""

    ph: str = ""
    cat: str | None = ""
    name: str = ""
    ts: Decimal | None = Decimal(0)
    dur: float | None = 0.0
    tid: int | str | float | None = 0
    args: Arguments | None = None


class NeedsExactTimesError(Exception):
    """These events must be decoded again, as `ExactEvent`."""


class TimeOutOfRangeError(Exception):
    """A time that no clock shows."""


@dataclass(frozen=True, slots=True)
class CollectiveDetails:
    """What the arguments of one collective say. The class's defaults mean that they do not say."""

    kind: CollectiveKind | None = None
    num_bytes: int = UNKNOWN
    group: str | None = None
    sequence: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Columns:
    """One row per event that the tables need, in the file's order."""

    identities: tuple[Identity, ...]
    start_ns: Int64Column
    end_ns: Int64Column
    identity: Int32Column
    lane: Int64Column
    """stream of a device, thread of the host"""
    correlation: Int64Column
    """what device work and its launch have in common, 0 where they have nothing"""
    detail: Int32Column
    """index into ``details``, or `UNKNOWN`"""
    details: tuple[CollectiveDetails, ...]
    window_end_ns: int | None
    """when the profiler stopped"""
    num_events: int


class Collector:
    """Takes events in batches and keeps those that the tables need."""

    def __init__(self) -> None:
        self.num_events = 0
        self._ids: dict[tuple[str | None, str], int] = {}
        """by category and name: index into the identities, or -1 where nobody needs the event"""
        self._identities: list[Identity] = []
        self._lanes: dict[str, int] = {}
        self._details: list[CollectiveDetails] = []
        self._chunks: list[list[NDArray[Any]]] = []
        self._on_device = False
        self._window_end_ns: int | None = None

    def add(self, events: Sequence[Event] | Sequence[ExactEvent]) -> None:
        """Keep what the tables need. Raises `NeedsExactTimesError` before it keeps anything, `TimeOutOfRangeError`."""
        kept: list[Event | ExactEvent] = []
        ids: list[int] = []
        window_end = None
        known = self._ids.get
        for event in events:
            if event.ph != "X":
                if event.name == "Record Window End":
                    window_end = event.ts
                continue
            identity = known((event.cat, event.name))
            if identity is None:
                identity = self._identify(event.cat, event.name)
            if identity >= 0:
                kept.append(event)
                ids.append(identity)
        exact = isinstance(next(iter(events), None), ExactEvent)
        starts = _nanoseconds([event.ts or 0 for event in kept], exact=exact)
        durations = _nanoseconds([event.dur or 0 for event in kept], exact=exact)
        if window_end is not None:
            self._window_end_ns = int(_nanoseconds([window_end], exact=exact)[0])
        self.num_events += len(events)
        if kept:
            ends = starts + np.maximum(durations, 0)
            self._chunks.append([starts, ends, np.array(ids, np.int32), *self._arguments(kept, ids)])
        if len(self._chunks) >= _MERGE_CHUNKS:
            self._merge()

    def columns(self) -> Columns:
        """Everything that was kept."""
        if self._on_device:
            self._forget_ops()  # those of the batch in which the first device work stood
        self._merge()
        start, end, identity, lane, correlation, detail = self._chunks[0]
        return Columns(
            tuple(self._identities), start, end, identity, lane, correlation, detail,
            tuple(self._details), self._window_end_ns, self.num_events,
        )  # fmt: skip

    def _merge(self) -> None:
        """Make one chunk of all, without the ops inside other ops: only the outermost stand for compute."""
        empty = [np.empty(0, dtype) for dtype in (np.int64, np.int64, np.int32, np.int64, np.int64, np.int32)]
        columns = [np.concatenate(parts) for parts in zip(empty, *self._chunks, strict=True)]
        start, end, identity, lane = columns[:4]
        needed = ~np.array([what.role is Role.OP for what in self._identities], np.bool_)[identity]
        ops = np.flatnonzero(np.array([what.is_op for what in self._identities], np.bool_)[identity])
        needed[ops[outermost(start[ops], end[ops], lane[ops])]] = True
        self._chunks = [[column[needed] for column in columns]]

    def _identify(self, category: str | None, name: str) -> int:
        """Look at a category and name for the first time."""
        identity = classify(category or "", name)
        if identity.role in DEVICE_ROLES and not self._on_device:
            self._on_device = True
            self._forget_ops()
        if identity.role is Role.UNUSED or (self._on_device and identity.role is Role.OP):
            self._ids[category, name] = -1
            return -1
        self._ids[category, name] = len(self._identities)
        self._identities.append(identity)
        return len(self._identities) - 1

    def _forget_ops(self) -> None:
        """Host ops stand for compute only where no device works, and they are most of the events of a trace."""
        is_op = np.array([identity.role is Role.OP for identity in self._identities], dtype=np.bool_)
        for key, identity in self._ids.items():
            if identity >= 0 and is_op[identity]:
                self._ids[key] = -1
        for chunk in self._chunks:
            needed = ~is_op[chunk[2]]
            chunk[:] = [column[needed] for column in chunk]

    def _arguments(
        self, kept: list[Event | ExactEvent], ids: list[int]
    ) -> tuple[Int64Column, NDArray[np.int64], Int32Column]:
        """Lane, correlation and index of the details of each event."""
        lanes: list[object] = [event.tid for event in kept]
        correlations: list[object] = [0] * len(kept)
        details = np.full(len(kept), UNKNOWN, np.int32)
        for row, identity in enumerate(ids):
            what = self._identities[identity]
            if what.role not in _HAS_ARGUMENTS:
                continue
            arguments = kept[row].args or _NO_ARGUMENTS
            correlations[row] = arguments.correlation
            if what.role in DEVICE_ROLES and arguments.stream is not None:
                lanes[row] = arguments.stream
            if what.kind is not None or (what.role is Role.KERNEL and isinstance(arguments.collective, str)):
                details[row] = len(self._details)
                self._details.append(_collective_details(arguments))
        return _as_column(lanes, self._lane), _as_column(correlations, lambda value: _as_int(value) or 0), details

    def _lane(self, name: object) -> int:
        """A stream or thread as a number; names that are not numbers count down from -1."""
        number = _as_int(name)
        return number if number is not None else self._lanes.setdefault(str(name), -1 - len(self._lanes))


_HAS_ARGUMENTS = (Role.KERNEL, Role.COPY, Role.LAUNCH, Role.HOST_COLLECTIVE, Role.MARK)


def _as_column(values: list[object], convert: Callable[[object], int]) -> Int64Column:
    """All are integers, save in odd files."""
    if set(map(type, values)) == {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return np.array([convert(value) for value in values], np.int64)


def _nanoseconds(times_us: Sequence[float | Decimal], *, exact: bool) -> Int64Column:
    """Microseconds as whole nanoseconds, to the nearest one."""
    if exact:
        return np.array([_exact_nanoseconds(Decimal(time)) for time in times_us], np.int64)
    times = np.array(times_us, np.float64)
    if len(times) and np.abs(times).max() >= EXACT_FLOAT_US:
        raise NeedsExactTimesError
    whole = np.floor(times)
    return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)


def _exact_nanoseconds(time_us: Decimal) -> int:
    if not abs(time_us) < _LARGEST_US:
        raise TimeOutOfRangeError
    return round(time_us * 1000)


def _collective_details(arguments: Arguments) -> CollectiveDetails:
    collective, group = arguments.collective, arguments.group
    sequence = _as_int(arguments.sequence)
    return CollectiveDetails(
        kind=collective_kind(collective) if isinstance(collective, str) else None,
        num_bytes=_message_bytes(arguments),
        group=group if isinstance(group, str) and group else None,
        sequence=sequence if sequence is not None and sequence >= 0 else UNKNOWN,
    )


def _message_bytes(arguments: Arguments) -> int:
    """What NCCL's arguments say, or else the sizes of the tensors that gloo was given."""
    elements = _as_int(arguments.num_elements)
    if elements is not None and isinstance(arguments.dtype, str):
        size = element_bytes(arguments.dtype)
        return elements * size if size != UNKNOWN and elements >= 0 else UNKNOWN
    dims, types = decode_or_none(arguments.input_dims), decode_or_none(arguments.input_type)
    if not isinstance(dims, list) or not isinstance(types, list):
        return UNKNOWN
    tensors = [
        prod(shape) * element_bytes(dtype)
        for shape, dtype in zip(dims, types, strict=False)
        if isinstance(dtype, str) and element_bytes(dtype) != UNKNOWN and _is_shape(shape)
    ]
    return sum(tensors) if tensors else UNKNOWN


def decode_or_none(text: msgspec.Raw) -> Any:
    """The value that the text stands for, or ``None`` where it stands for none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape)


def _as_int(value: object) -> int | None:
    """An integer, also one written as text; ``None`` for anything else and for what int64 cannot hold."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    return None
