"""The events of one trace that the tables need, as columns. `Collector` picks them out of decoded events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddpprof.events import UNKNOWN, Int32Column, Int64Column
from ddpprof.load.arguments import NO_ARGUMENTS, NULL, Arguments, CollectiveDetails, as_int, collective_details
from ddpprof.load.classify import DEVICE_ROLES, Identity, Role, classify
from ddpprof.load.hostwork import outermost

EXACT_FLOAT_US = 2.0**43
"""Below it, float64 microseconds determine the nanosecond: half their spacing is 0.49 ns. It is 102 days."""

_MERGE_CHUNKS = 256
"""After so many batches ops inside other ops are dropped: a few GB of a CPU trace would not fit in memory with them."""

_LARGEST_US = 4.6e15
"""Half of what int64 nanoseconds can hold, 146 years: a start and a duration still add up."""


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
class Columns:
    """One row per event that the tables need, in the file's order."""

    identities: tuple[Identity, ...]
    start_ns: Int64Column
    end_ns: Int64Column
    identity: Int32Column
    lane: Int64Column
    """stream of a device, thread of the host"""
    device: Int32Column
    """accelerator that did it, or `UNKNOWN`"""
    correlation: Int64Column
    """what device work and its launch have in common, 0 where they have nothing"""
    detail: Int32Column
    """index into ``details``, or `UNKNOWN`"""
    details: tuple[CollectiveDetails, ...]
    launch_shape: Int32Column
    """grid and block of a kernel: index into ``shapes``, or `UNKNOWN`"""
    input_shape: Int32Column
    """shapes of the inputs of the op that launched a kernel: index into ``shapes``, or `UNKNOWN`"""
    shapes: tuple[str, ...]
    window_end_ns: int | None
    """when the profiler stopped"""
    num_devices: int
    """accelerators that ran kernels, as far as these say"""
    num_events: int


class Collector:
    """Takes events in batches and keeps those that the tables need."""

    def __init__(self) -> None:
        self.num_events = 0
        self._ids: dict[tuple[str | None, str], int] = {}
        """by category and name: index into the identities, or why there is none"""
        self._identities: list[Identity] = []
        self._is_op: list[bool] = [True, False]
        """by identity; the last two stand for `_UNNEEDED_OP` and `_UNNEEDED`"""
        self._lanes: dict[str, int] = {}
        self._details: list[CollectiveDetails] = []
        self._shapes: dict[bytes, int] = {}
        """by their text as it stands in the file"""
        self._shape_texts: dict[bytes, int] = {}
        """without blanks: files are laid out differently"""
        self._ops_with_shapes: list[tuple[Int64Column, Int32Column]] = []
        """ids of ops, and indices of the shapes of their inputs"""
        self._chunks: list[list[NDArray[Any]]] = []
        self._devices: set[int | None] = set()
        self._on_device = False
        self._window_end_ns: int | None = None

    def add(self, events: Sequence[Event] | Sequence[ExactEvent]) -> None:
        """Keep what the tables need. Raises `NeedsExactTimesError` before it keeps anything, `TimeOutOfRangeError`."""
        kept: list[Event | ExactEvent] = []
        ids: list[int] = []
        ops: list[Arguments] = []
        window_end = None
        known, is_op = self._ids.get, self._is_op
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
            if is_op[identity] and event.args is not None and event.args.input_dims is not NULL:
                ops.append(event.args)
        exact = isinstance(next(iter(events), None), ExactEvent)
        starts = nanoseconds([event.ts or 0 for event in kept], exact=exact)
        durations = nanoseconds([event.dur or 0 for event in kept], exact=exact)
        if window_end is not None:
            self._window_end_ns = int(nanoseconds([window_end], exact=exact)[0])
        self.num_events += len(events)
        if ops:
            shapes = [self._shape(bytes(op.input_dims)) for op in ops]
            self._ops_with_shapes.append((_as_column([_op_id(op) for op in ops], _id), np.array(shapes, np.int32)))
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
        start, end, identity, lane, device, correlation, detail, launch_shape, op = self._chunks[0]
        return Columns(
            tuple(self._identities), start, end, identity, lane, device, correlation, detail, tuple(self._details),
            launch_shape, self._input_shapes(op), tuple(text.decode("utf-8", "replace") for text in self._shape_texts),
            self._window_end_ns, len(self._devices - {None}), self.num_events,
        )  # fmt: skip

    def _input_shapes(self, op: Int64Column) -> Int32Column:
        """For each row, the shapes of the inputs of the op with that id."""
        if not self._ops_with_shapes:
            return np.full(len(op), UNKNOWN, np.int32)
        ids, shapes = (np.concatenate(parts) for parts in zip(*self._ops_with_shapes, strict=True))
        order = np.argsort(ids, kind="stable")
        found = order[np.minimum(np.searchsorted(ids[order], op), len(ids) - 1)]
        return np.where((ids[found] == op) & (op != 0), shapes[found], UNKNOWN).astype(np.int32)

    def _shape(self, text: bytes) -> int:
        index = self._shapes.get(text)
        if index is None:
            index = self._shape_texts.setdefault(b"".join(text.split()), len(self._shape_texts))
            self._shapes[text] = index
        return index

    def _merge(self) -> None:
        """Make one chunk of all, without the ops inside other ops: only the outermost stand for compute."""
        empty = [np.empty(0, dtype) for dtype in _DTYPES]
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
            unneeded = _UNNEEDED_OP if identity.is_op else _UNNEEDED
            self._ids[category, name] = unneeded
            return unneeded
        self._ids[category, name] = len(self._identities)
        self._identities.append(identity)
        self._is_op.insert(-2, identity.is_op)
        return len(self._identities) - 1

    def _forget_ops(self) -> None:
        """Host ops stand for compute only where no device works, and they are most of the events of a trace."""
        is_op = np.array([identity.role is Role.OP for identity in self._identities], dtype=np.bool_)
        for key, identity in self._ids.items():
            if identity >= 0 and is_op[identity]:
                self._ids[key] = _UNNEEDED_OP
        for chunk in self._chunks:
            needed = ~is_op[chunk[2]]
            chunk[:] = [column[needed] for column in chunk]

    def _arguments(
        self, kept: list[Event | ExactEvent], ids: list[int]
    ) -> tuple[Int64Column, Int32Column, Int64Column, Int32Column, Int32Column, Int64Column]:
        """Lane, device, correlation, index of the details, launch shape and launching op of each event."""
        lanes: list[object] = [event.tid for event in kept]
        correlations: list[object] = [0] * len(kept)
        ops: list[object] = [0] * len(kept)
        details, launch_shapes, devices = np.full((3, len(kept)), UNKNOWN, np.int32)
        for row, identity in enumerate(ids):
            what = self._identities[identity]
            if what.role not in _HAS_ARGUMENTS:
                continue
            arguments = kept[row].args or NO_ARGUMENTS
            correlations[row] = arguments.correlation
            if what.role in DEVICE_ROLES:
                devices[row] = _device(arguments)
                if arguments.stream is not None:
                    lanes[row] = arguments.stream
            if what.kind is not None or (what.role is Role.KERNEL and isinstance(arguments.collective, str)):
                details[row] = len(self._details)
                self._details.append(collective_details(arguments))
            if what.role is Role.KERNEL:
                self._devices.add(as_int(arguments.device))
                ops[row] = _op_id(arguments)
                if arguments.grid is not NULL:
                    launch_shapes[row] = self._shape(b"%b %b" % (bytes(arguments.grid), bytes(arguments.block)))
        return (
            _as_column(lanes, self._lane),
            devices,
            _as_column(correlations, _id),
            details,
            launch_shapes,
            _as_column(ops, _id),
        )

    def _lane(self, name: object) -> int:
        """A stream or thread as a number; names that are not numbers count down from -1."""
        number = as_int(name)
        return number if number is not None else self._lanes.setdefault(str(name), -1 - len(self._lanes))


_UNNEEDED, _UNNEEDED_OP = -1, -2
"""Instead of an identity. Of an op the shapes of its inputs are kept, for the kernels that it launches."""

_DTYPES = (np.int64, np.int64, np.int32, np.int64, np.int32, np.int64, np.int32, np.int32, np.int64)
_MAX_DEVICE = 1 << 16
_HAS_ARGUMENTS = (Role.KERNEL, Role.COPY, Role.LAUNCH, Role.HOST_COLLECTIVE, Role.MARK, Role.PARAM_COMMS)


def _device(arguments: Arguments) -> int:
    number = as_int(arguments.device if arguments.device is not None else arguments.in_device)
    return number if number is not None and 0 <= number <= _MAX_DEVICE else UNKNOWN


def _op_id(arguments: Arguments) -> object:
    """Of an op its own id, of a kernel that of the op that launched it.

    A kernel that Kineto could not link to its op has its correlation there instead, which may be another op's id
    (pytorch/kineto issue 843): before 2023 every kernel.
    """
    op = arguments.op if arguments.op is not None else arguments.op_of_2021
    return None if op == arguments.correlation else op


def _id(value: object) -> int:
    return as_int(value) or 0


def _as_column(values: list[object], convert: Callable[[object], int]) -> Int64Column:
    """All are integers, save in odd files."""
    if set(map(type, values)) == {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return np.array([convert(value) for value in values], np.int64)


def nanoseconds(times_us: Sequence[float | Decimal], *, exact: bool) -> Int64Column:
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
