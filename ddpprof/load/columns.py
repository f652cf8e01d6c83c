"""The events of one trace that the tables need, as columns. `Collector` picks them out of decoded events."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddpprof.events import UNKNOWN, CollectiveKind, Int32Column, Int64Column
from ddpprof.load.classify import DEVICE_ROLES, Identity, Role, classify, collective_kind, element_bytes

EXACT_FLOAT_US = 2.0**43
"""Below it, float64 microseconds determine the nanosecond: half their spacing is 0.49 ns. It is 102 days."""

_LARGEST_US = 4.6e15
"""Half of what int64 nanoseconds can hold, 146 years: a start and a duration still add up."""

_NO_ARGUMENTS = msgspec.Raw(b"{}")


class Event(msgspec.Struct, gc=False):
    """One entry of ``traceEvents``; times in microseconds."""

    ph: str = ""
    cat: str | None = ""
    name: str = ""
    ts: float | None = 0.0
    dur: float | None = 0.0
    tid: int | str | float | None = 0
    args: msgspec.Raw = _NO_ARGUMENTS


class ExactEvent(msgspec.Struct, gc=False):
    """The same where float64 cannot hold the time: absolute timestamps."""

    ph: str = ""
    cat: str | None = ""
    name: str = ""
    ts: Decimal | None = Decimal(0)
    dur: float | None = 0.0
    tid: int | str | float | None = 0
    args: msgspec.Raw = _NO_ARGUMENTS


class _DeviceArguments(msgspec.Struct, gc=False):
    correlation: int | str | None = 0
    stream: int | str | None = None
    collective: str | None = msgspec.field(default=None, name="Collective name")


class _CollectiveArguments(msgspec.Struct, gc=False):
    """Lenient: a size that is missing or odd is unknown, and no reason to refuse a trace."""

    collective: Any = msgspec.field(default=None, name="Collective name")
    num_elements: Any = msgspec.field(default=None, name="In msg nelems")
    dtype: Any = None
    group: Any = msgspec.field(default=None, name="Process Group Name")
    sequence: Any = msgspec.field(default=None, name="Seq")
    input_dims: Any = msgspec.field(default=None, name="Input Dims")
    input_type: Any = msgspec.field(default=None, name="Input type")


_decode_device = msgspec.json.Decoder(_DeviceArguments).decode
_decode_collective = msgspec.json.Decoder(_CollectiveArguments).decode


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
        self._lanes: dict[object, int] = {}
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
            arguments = (np.array(column) for column in zip(*map(self._arguments, kept, ids), strict=True))
            self._chunks.append([starts, starts + np.maximum(durations, 0), np.array(ids, np.int32), *arguments])

    def columns(self) -> Columns:
        """Everything that was kept. The collector is spent."""
        types = (np.int64, np.int64, np.int32, np.int64, np.int64, np.int32)
        if self._on_device:
            self._forget_ops()  # those of the batch in which the first device work stood
        if not self._chunks:
            self._chunks.append([np.empty(0, dtype) for dtype in types])
        start, end, identity, lane, correlation, detail = (
            np.concatenate(parts).astype(dtype, copy=False)
            for parts, dtype in zip(zip(*self._chunks, strict=True), types, strict=True)
        )
        self._chunks.clear()
        return Columns(
            tuple(self._identities), start, end, identity, lane, correlation, detail,
            tuple(self._details), self._window_end_ns, self.num_events,
        )  # fmt: skip

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

    def _arguments(self, event: Event | ExactEvent, identity: int) -> tuple[int, int, int]:
        """Lane, correlation and index of the details of one event."""
        what = self._identities[identity]
        if what.role in _HAS_CORRELATION:
            arguments = _decode_device(event.args)
            is_launch = what.role is Role.LAUNCH
            lane = event.tid if is_launch or arguments.stream is None else arguments.stream
            communicates = what.role is Role.KERNEL and (what.kind is not None or arguments.collective is not None)
            detail = self._add_details(event.args) if communicates else UNKNOWN
            return self._lane(lane), _as_int(arguments.correlation) or 0, detail
        communicates = what.kind is not None
        return self._lane(event.tid), 0, self._add_details(event.args) if communicates else UNKNOWN

    def _add_details(self, raw: msgspec.Raw) -> int:
        self._details.append(_collective_details(_decode_collective(raw)))
        return len(self._details) - 1

    def _lane(self, name: object) -> int:
        """A stream or thread as a number; names that are not numbers count down from -1."""
        if type(name) is int and -(1 << 63) <= name < 1 << 63:
            return name
        number = _as_int(name)
        return number if number is not None else self._lanes.setdefault(name, -1 - len(self._lanes))


_HAS_CORRELATION = (Role.KERNEL, Role.COPY, Role.LAUNCH)


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


def _collective_details(arguments: _CollectiveArguments) -> CollectiveDetails:
    collective, group = arguments.collective, arguments.group
    sequence = _as_int(arguments.sequence)
    return CollectiveDetails(
        kind=collective_kind(collective) if isinstance(collective, str) else None,
        num_bytes=_message_bytes(arguments),
        group=group if isinstance(group, str) and group else None,
        sequence=sequence if sequence is not None and sequence >= 0 else UNKNOWN,
    )


def _message_bytes(arguments: _CollectiveArguments) -> int:
    """What NCCL's arguments say, or else the sizes of the tensors that gloo was given."""
    elements = _as_int(arguments.num_elements)
    if elements is not None and isinstance(arguments.dtype, str):
        size = element_bytes(arguments.dtype)
        return elements * size if size != UNKNOWN and elements >= 0 else UNKNOWN
    dims, types = arguments.input_dims, arguments.input_type
    if not isinstance(dims, list) or not isinstance(types, list):
        return UNKNOWN
    tensors = [
        prod(shape) * element_bytes(dtype)
        for shape, dtype in zip(dims, types, strict=False)
        if isinstance(dtype, str) and element_bytes(dtype) != UNKNOWN and _is_shape(shape)
    ]
    return sum(tensors) if tensors else UNKNOWN


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape)


def _as_int(value: object) -> int | None:
    """An integer, also one written as text; ``None`` for anything else and for what int64 cannot hold."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    return None
