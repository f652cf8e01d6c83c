"""The events of one trace file as columns.

`Collected` holds the events of one process, `Columns` all events of the file, and `TraceRows` adds properties of each
row that follow from the identity of its event. The result does not depend on which process decoded which events: rows
are in the file's order, and names, shapes and details are numbered in the order of their first use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddpprof.intervals import outermost
from ddpprof.load.classify import DEVICE_ROLES, Identity, IdentityColumns, Role
from ddpprof.load.kineto.events import CollectiveDetails
from ddpprof.model import UNKNOWN, Int32Column, Int64Column, Kernel, Mark, ProcessGroup
from ddpprof.model.tables import rows_of

IntColumn = NDArray[np.signedinteger[Any]]

NAMED_LANE = -(1 << 62)
"""temporary number of the first lane with a non-numeric name; each further lane of this kind gets the next
lower number
"""

_NARROW = [(dtype, np.iinfo(dtype)) for dtype in (np.int8, np.int16, np.int32)]
_NOTHING: IntColumn = np.empty(0, np.int8)

_T = TypeVar("_T")


@dataclass(slots=True)
class EventRows:
    """Events that the tables need, one per row. Each column has the smallest integer type that fits."""

    start_ns: IntColumn
    duration_ns: IntColumn
    identity: IntColumn
    lane: IntColumn
    device: IntColumn
    correlation: IntColumn
    detail: IntColumn
    launch_shape: IntColumn
    op: IntColumn
    """ID of the op that launched the kernel, or 0"""
    group: IntColumn
    """index of the group of batches from which the event was decoded"""


@dataclass(slots=True)
class LaunchRows:
    """Host calls that queued device work, one per row."""

    start_ns: IntColumn
    lane: IntColumn
    correlation: IntColumn
    group: IntColumn


@dataclass(slots=True)
class OpShapeRows:
    """Host ops with recorded input shapes, one per row."""

    op: IntColumn
    """ID of the op"""
    shape: IntColumn
    group: IntColumn


_RowsT = TypeVar("_RowsT", bound=EventRows | LaunchRows | OpShapeRows)


class Chunks(list[_RowsT], Generic[_RowsT]):
    """Chunks of rows in the order in which they were added.

    Small chunks are joined regularly, because many small arrays fragment the heap.
    """

    _MANY = 64

    def __init__(self, kind: type[_RowsT]) -> None:
        super().__init__()
        self.kind = kind
        self._num_small = 0

    def add(self, chunk: _RowsT) -> None:
        self.append(chunk)
        self._num_small += 1
        if self._num_small == self._MANY:
            self[-self._MANY :] = [concatenated(self.kind, self[-self._MANY :])]
            self._num_small = 0

    def become(self, rows: _RowsT) -> None:
        """Replace all chunks with one chunk."""
        self[:] = [rows]
        self._num_small = 0

    def keep(self, wanted: Callable[[_RowsT], NDArray[np.bool_]]) -> None:
        """Keep only the wanted rows. Chunks are processed one by one, so that memory never holds all rows twice."""
        for place, chunk in enumerate(self):
            self[place] = rows_of(chunk, wanted(chunk))


@dataclass(slots=True)
class Collected:
    """The events that one process kept from the groups of batches that it decoded."""

    identities: list[Identity] = field(default_factory=list)
    named_lanes: dict[str, int] = field(default_factory=dict)
    """name of a lane with a non-numeric name → its temporary number, counted down from `NAMED_LANE`"""
    shapes: dict[bytes, int] = field(default_factory=dict)
    """text of a shape, without spaces → index of the shape"""
    details: list[CollectiveDetails] = field(default_factory=list)
    events: Chunks[EventRows] = field(default_factory=lambda: Chunks(EventRows))
    launches: Chunks[LaunchRows] = field(default_factory=lambda: Chunks(LaunchRows))
    ops_with_shapes: Chunks[OpShapeRows] = field(default_factory=lambda: Chunks(OpShapeRows))
    num_events: Counter[int] = field(default_factory=Counter)
    """number of events in each group; contains every group that has been decoded"""
    num_launches: Counter[int] = field(default_factory=Counter)
    """number of launch calls in each group"""
    devices: set[int] = field(default_factory=set)
    """devices that ran kernels"""
    calls_of_cuda: set[bool] = field(default_factory=set)
    """contains True if there were CUDA or HIP calls that may queue work, and False if there were such calls of other
    accelerators
    """
    last_ns: int = -(1 << 63)
    """latest end of any event that is not merely an op, such as a kernel, a launch or a step"""
    last_op_ns: int = -(1 << 63)
    """latest end of the events that are merely ops and precede the first device work"""
    window_end: tuple[int, int] | None = None
    """event at which the profiler stopped: its group, and its time in ns"""


@dataclass(frozen=True, slots=True)
class Columns:
    """One row per event that the tables need, except launches. Host events and device events are each in file order."""

    identities: tuple[Identity, ...]
    start_ns: Int64Column
    end_ns: Int64Column
    identity: IntColumn
    """index into ``identities``"""
    lane: IntColumn
    """stream of a device, or thread of the host"""
    device: IntColumn
    """index of the accelerator that ran the work, or `UNKNOWN`"""
    correlation: IntColumn
    """correlation ID, which is the same in device work and in the call that launched it, or 0"""
    detail: IntColumn
    """index into ``details``, or `UNKNOWN`"""
    details: tuple[CollectiveDetails, ...]
    launch_shape: IntColumn
    """grid and block of the kernel: index into ``shapes``, or `UNKNOWN`"""
    input_shape: IntColumn
    """input shapes of the op that launched the kernel: index into ``shapes``, or `UNKNOWN`"""
    shapes: tuple[str, ...]
    launches: LaunchRows
    """host calls that queued the device work in this table"""
    num_launches: int
    """number of launch calls, including calls that queued no work, or queued work that is not in this table"""
    has_cuda: bool
    """False if the trace has launch calls, but none of CUDA or HIP"""
    last_ns: int
    """latest end of any event, in ns"""
    window_end_ns: int | None
    """time at which the profiler stopped, if the trace shows it"""
    num_devices: int
    """number of different accelerators on which kernels of the trace ran"""
    num_events: int


def columns_of(parts: Sequence[Collected]) -> Columns:
    """Join the events collected by several processes. The parts must not be used afterwards."""
    for index, part in enumerate(parts):
        _drop_groups(part, {group for earlier in parts[:index] for group in earlier.num_events})
    identities, shapes, details = _number_alike(parts)
    facts = IdentityColumns(identities)
    last_ns = max(part.last_ns for part in parts)
    rows = _in_order(EventRows, [chunk for part in parts for chunk in part.events])
    if any(identity.role in DEVICE_ROLES for identity in identities):
        rows = rows_of(rows, ~facts.is_only_op[rows.identity])
    else:
        last_ns = max(last_ns, *(part.last_op_ns for part in parts))
    rows = outermost_only(rows, facts)
    launches = _launches_of(parts, rows.correlation)
    input_shape = _input_shapes(parts, rows.op)
    start_ns = rows.start_ns.astype(np.int64, copy=False)
    end_ns = start_ns + rows.duration_ns
    device, correlation = narrow(rows.device), narrow(rows.correlation)
    used_identities, identity = _by_first_use(rows.identity)
    used_details, detail = _by_first_use(rows.detail)
    used_shapes, shape = _by_first_use(np.concatenate((rows.launch_shape, input_shape)))
    lane, launch_lane = np.split(_numbered_lanes(np.concatenate((rows.lane, launches.lane))), [len(start_ns)])
    return Columns(
        identities=tuple(identities[number] for number in used_identities),
        start_ns=start_ns,
        end_ns=end_ns,
        identity=identity,
        lane=narrow(lane),
        device=device,
        correlation=correlation,
        detail=detail,
        details=tuple(details[number] for number in used_details),
        launch_shape=shape[: len(start_ns)],
        input_shape=shape[len(start_ns) :],
        shapes=tuple(shapes[number].decode("utf-8", "replace") for number in used_shapes),
        launches=LaunchRows(
            launches.start_ns.astype(np.int64, copy=False), narrow(launch_lane), narrow(launches.correlation), _NOTHING
        ),
        num_launches=sum(part.num_launches.total() for part in parts),
        has_cuda=set[bool]().union(*(part.calls_of_cuda for part in parts)) != {False},
        last_ns=last_ns,
        window_end_ns=max((part.window_end for part in parts if part.window_end is not None), default=(0, None))[1],
        num_devices=len(set[int]().union(*(part.devices for part in parts)) - {UNKNOWN}),
        num_events=sum(part.num_events.total() for part in parts),
    )


def narrow(column: IntColumn) -> IntColumn:
    """Return the column in the smallest integer type that fits. Most columns need one or two bytes per row."""
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    return next((column.astype(dtype) for dtype, of in _NARROW if of.min <= low and high <= of.max), column)


def concatenated(kind: type[_RowsT], chunks: Sequence[_RowsT]) -> _RowsT:
    """Return all rows in one table. Chunks are freed column by column, so that memory never holds all rows twice."""
    columns = []
    for column in fields(kind):
        columns.append(np.concatenate([_NOTHING, *(getattr(chunk, column.name) for chunk in chunks)]))
        for chunk in chunks:
            setattr(chunk, column.name, _NOTHING)
    return kind(*columns)


def outermost_only(rows: EventRows, facts: IdentityColumns) -> EventRows:
    """Drop ops nested in other ops, because only the outermost ops count as compute."""
    needed = ~facts.is_only_op[rows.identity]
    if needed.all():
        return rows
    ops = np.flatnonzero(facts.is_op[rows.identity])
    start_ns = rows.start_ns[ops]
    needed[ops[outermost(start_ns, start_ns + rows.duration_ns[ops], rows.lane[ops])]] = True
    return rows_of(rows, needed)


def _number_alike(
    parts: Sequence[Collected],
) -> tuple[Sequence[Identity], Sequence[bytes], Sequence[CollectiveDetails]]:
    """Renumber identities, shapes and details consistently in all parts, and return the common lists."""
    identities: dict[Identity, int] = {}
    shapes: dict[bytes, int] = {}
    lanes: dict[str, int] = {}
    details: list[CollectiveDetails] = []
    for part in parts:
        identity = _numbers_in(identities, part.identities)
        shape = np.append(_numbers_in(shapes, part.shapes), UNKNOWN)  # `UNKNOWN` (-1) indexes the last entry
        lane = NAMED_LANE - _numbers_in(lanes, part.named_lanes)
        for rows in part.events:
            rows.identity = narrow(identity[rows.identity])
            detail = rows.detail.astype(np.int64)
            rows.detail = narrow(np.where(detail == UNKNOWN, UNKNOWN, len(details) + detail))
            rows.launch_shape = narrow(shape[rows.launch_shape])
            _rename_lanes(rows.lane, lane)
        for launches in part.launches:
            _rename_lanes(launches.lane, lane)
        for ops in part.ops_with_shapes:
            ops.shape = narrow(shape[ops.shape])
        details += part.details
    return list(identities), list(shapes), details


def _numbers_in(known: dict[_T, int], found: Iterable[_T]) -> NDArray[np.int64]:
    return np.array([known.setdefault(one, len(known)) for one in found], np.int64)


def _rename_lanes(lane: IntColumn, named: NDArray[np.int64]) -> None:
    rows = np.flatnonzero(lane <= NAMED_LANE)
    if len(rows):
        lane[rows] = named[NAMED_LANE - lane[rows]]


def _numbered_lanes(lane: IntColumn) -> IntColumn:
    """Return the column with temporary numbers of named lanes replaced with -1, -2, …, in order of first use."""
    is_named = lane <= NAMED_LANE
    if is_named.any():
        number = _by_first_use(np.where(is_named, NAMED_LANE - lane.astype(np.int64), UNKNOWN))[1]
        lane = np.where(is_named, -1 - number.astype(np.int64), lane)
    return lane


def _by_first_use(column: IntColumn) -> tuple[list[int], IntColumn]:
    """Return the distinct numbers in order of first occurrence, and each row's index into them (`UNKNOWN` is kept)."""
    size = int(column.max(initial=UNKNOWN)) + 1
    first = np.full(size, len(column))
    rows = np.flatnonzero(column != UNKNOWN)[::-1]
    first[column[rows]] = rows  # rows are reversed, so the first occurrence is written last
    used = np.flatnonzero(first < len(column))
    used = used[np.argsort(first[used])]
    place = np.full(size + 1, UNKNOWN)
    place[used] = np.arange(len(used))
    return used.tolist(), narrow(place[column])


def _drop_groups(part: Collected, groups: set[int]) -> None:
    """Drop groups that another process has also decoded. Two processes may take the same group at the same time."""
    twice = np.array(sorted(groups & part.num_events.keys()), np.int64)
    if not len(twice):
        return
    part.events.keep(lambda rows: ~np.isin(rows.group, twice))
    part.launches.keep(lambda rows: ~np.isin(rows.group, twice))
    part.ops_with_shapes.keep(lambda rows: ~np.isin(rows.group, twice))
    for group in twice.tolist():
        del part.num_events[group], part.num_launches[group]


def _in_order(kind: type[_RowsT], chunks: Sequence[_RowsT]) -> _RowsT:
    """Return all rows in one table, in the file's order."""
    rows = concatenated(kind, chunks)
    if (rows.group[1:] < rows.group[:-1]).any():
        order = np.argsort(rows.group, kind="stable")
        for column in fields(kind):
            setattr(rows, column.name, getattr(rows, column.name)[order])
    return rows


def _launches_of(parts: Sequence[Collected], correlation: IntColumn) -> LaunchRows:
    """Return the launches with a correlation ID in `correlation`."""
    wanted = np.unique(correlation)
    for part in parts:
        part.launches.keep(lambda launches: _is_in(wanted, launches.correlation))
    return _in_order(LaunchRows, [launches for part in parts for launches in part.launches])


def _input_shapes(parts: Sequence[Collected], op: IntColumn) -> IntColumn:
    """Return, for each op ID, the index of the op's input shapes, or `UNKNOWN`."""
    wanted = np.unique(op)
    for part in parts:
        part.ops_with_shapes.keep(lambda ops: _is_in(wanted, ops.op))
    ops = _in_order(OpShapeRows, [ops for part in parts for ops in part.ops_with_shapes])
    if not len(ops.op):
        return np.full(len(op), UNKNOWN, np.int8)
    order = np.argsort(ops.op, kind="stable")
    found = order[np.minimum(np.searchsorted(ops.op, op, sorter=order), len(ops.op) - 1)]
    return narrow(np.where((ops.op[found] == op) & (op != 0), ops.shape[found], UNKNOWN))


def _is_in(distinct: IntColumn, column: IntColumn) -> NDArray[np.bool_]:
    """Return a boolean array: True for each number in `column` that is in `distinct`, which must be sorted."""
    found: NDArray[np.bool_] = np.append(distinct, 0)[np.searchsorted(distinct, column)] == column
    return found


Rows = NDArray[np.int64]

_MOST_VALUES = 1 << 22
"""a lookup table is used only if the values of the column span at most this range"""
_MOST_POSITIONS = 20_000
"""positions in a step above this number are replaced by it, so that all later ops have the same position"""


class TraceRows:
    """The columns of a trace file, with properties of each row derived from its identity."""

    def __init__(self, columns: Columns) -> None:
        identities = columns.identities
        self.start_ns, self.end_ns = columns.start_ns, columns.end_ns
        self.lane, self.device = columns.lane, columns.device
        self.correlation: IntColumn = columns.correlation
        self.launches, self.last_ns = columns.launches, columns.last_ns
        self.detail, self.details = columns.detail, columns.details
        self.window_end_ns, self.num_devices = columns.window_end_ns, columns.num_devices
        self.num_launches, self.has_cuda = columns.num_launches, columns.has_cuda
        self.names: dict[str, int] = {}
        """name → index"""
        self.kernels: dict[Kernel, int] = {}
        self.groups: dict[ProcessGroup, int] = {}
        self.launch_shape, self.input_shape, self.shapes = columns.launch_shape, columns.input_shape, columns.shapes
        index = [self.name_index(identity.name) for identity in identities]
        self.name = np.array(index, np.int32)[columns.identity]
        facts = IdentityColumns(identities)
        self.role, self.is_op = facts.role[columns.identity], facts.is_op[columns.identity]
        self.mark, self.kind = facts.mark[columns.identity], facts.kind[columns.identity]

    def forget_launches(self) -> None:
        """Free the launches. Call this once the launch of each kernel is known."""
        nothing = np.empty(0, np.int64)
        self.correlation = nothing
        self.launches = LaunchRows(nothing, nothing, nothing, nothing)

    def rows(self, *roles: Role) -> Rows:
        return np.flatnonzero(np.isin(self.role, roles))

    def marked(self, mark: Mark) -> Rows:
        return np.flatnonzero(self.mark == mark)

    def name_index(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def kernel_of(self, rows: Rows, position: Int32Column | None = None) -> Int32Column:
        """Return each row's index into ``kernels``.

        `position`: on CPU, the position of the row among the ops of the same name in its step.
        """
        if position is None:
            position = np.full(len(rows), UNKNOWN, np.int32)
        position = np.where(position < _MOST_POSITIONS, position, np.int32(UNKNOWN))
        parts = (self.name[rows], self.launch_shape[rows], self.input_shape[rows], position)
        combinations, which = _distinct(parts)
        names = list(self.names)

        def kernel(name: int, launch: int, inputs: int, place: int) -> Kernel:
            shape, of_inputs = (None if index == UNKNOWN else self.shapes[index] for index in (launch, inputs))
            return Kernel(names[name], shape, of_inputs, None if place == UNKNOWN else place)

        index = [self.kernels.setdefault(kernel(*values), len(self.kernels)) for values in combinations]
        of_rows: Int32Column = np.array(index, np.int32)[which]
        return of_rows

    def details_of(self, row: int) -> CollectiveDetails:
        index = int(self.detail[row])
        return CollectiveDetails() if index == UNKNOWN else self.details[index]

    def num_bytes(self, rows: Rows) -> Int64Column:
        return np.array([self.details_of(row).num_bytes for row in rows.tolist()], np.int64)


def _distinct(columns: Sequence[IntColumn]) -> tuple[list[tuple[int, ...]], Int32Column]:
    """Return the distinct combinations of values in sorted order, and each row's index into them."""
    which = np.zeros(len(columns[0]), np.int32)
    combinations: list[tuple[int, ...]] = [()] if len(which) else []
    for column in columns:
        values, of_rows = _numbered(column)
        present, which = _numbered(which * np.int64(len(values)) + of_rows)
        earlier, value = divmod(present, len(values)) if len(values) else (present, present)
        combinations = [
            (*combinations[one], other) for one, other in zip(earlier.tolist(), values[value].tolist(), strict=True)
        ]
    return combinations, which


def _numbered(column: IntColumn) -> tuple[IntColumn, Int32Column]:
    """Return the distinct values in sorted order, and each row's index into them, usually without sorting all rows."""
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, -1)
    if high - low >= _MOST_VALUES:
        values, which = np.unique(column, return_inverse=True)
        return values, which.astype(np.int32)
    number = np.zeros(high - low + 1, np.int32)
    offset = np.subtract(column, low, dtype=np.int64)  # int8 cannot hold 128
    number[offset] = 1
    values = np.flatnonzero(number)
    number[values] = np.arange(len(values))
    return values + low, number[offset]
