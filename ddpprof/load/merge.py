"""What each process kept of a file, and the file's columns made of it.

Which process decoded which events leaves no mark: rows are in the file's order, and names, shapes and details are
numbered in the order in which rows use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ddpprof.load.arguments import CollectiveDetails
from ddpprof.load.classify import DEVICE_ROLES, Identity, Role
from ddpprof.load.columns import Chunk, Columns, IntColumn, Launches, concatenated, narrow, of_interest
from ddpprof.load.hostwork import outermost
from ddpprof.model import UNKNOWN

NUM_COLUMNS, _LAUNCH_COLUMNS, _OP_COLUMNS = 10, 4, 3
_IDENTITY, _LANE, _DETAIL, _LAUNCH_SHAPE = 2, 3, 6, 7

NAMED_LANE = -(1 << 62)
"""A lane that is no number counts down from here, until it is known which of them rows use."""

_T = TypeVar("_T")


@dataclass(slots=True)
class Collected:
    """What one process kept of the groups of batches that it decoded. The last column of each chunk is the group."""

    identities: Sequence[Identity]
    lane_names: Sequence[str]
    """those of `NAMED_LANE` and below"""
    shapes: Sequence[bytes]
    details: Sequence[CollectiveDetails]
    rows: list[Chunk]
    """start, duration, identity, lane, device, correlation, detail, launch shape, launching op, group"""
    launches: list[Chunk]
    """start, lane, correlation, group"""
    ops_with_shapes: list[Chunk]
    """ids of ops, indices of the shapes of their inputs, group"""
    num_events: dict[int, int]
    """by group; every group is in it"""
    num_launches: dict[int, int]
    devices: set[int]
    """that ran kernels"""
    last_ns: int
    """of the ends of all but ops that only stand for compute"""
    last_op_ns: int
    """of theirs, until a device is seen"""
    window_end: tuple[int, int] | None
    """group, and the time"""


def columns_of(parts: Sequence[Collected]) -> Columns:
    """They are empty then."""
    tables = _Tables()
    for number, part in enumerate(parts):
        _drop_groups(part, {group for earlier in parts[:number] for group in earlier.num_events})
        tables.take_in(part)
    identities = list(tables.identities)
    rows = _in_order((chunk for part in parts for chunk in part.rows), NUM_COLUMNS)
    last_ns = max(part.last_ns for part in parts)
    if not any(identity.role in DEVICE_ROLES for identity in identities):
        last_ns = max(last_ns, *(part.last_op_ns for part in parts))
    else:
        rows = _taken(rows, ~is_only_op(identities)[rows[_IDENTITY]])
    start, duration, identity, lane, device, correlation, detail, launch_shape, op = map(
        narrow, outermost_only(rows, identities)[:-1]
    )
    start = start.astype(np.int64, copy=False)
    end = start + duration
    del rows, duration
    launches = _in_order(
        of_interest([chunk for part in parts for chunk in part.launches], 2, correlation), _LAUNCH_COLUMNS
    )
    ops = _in_order(of_interest([chunk for part in parts for chunk in part.ops_with_shapes], 0, op), _OP_COLUMNS)
    used_identities, identity = _by_first_use(identity)
    used_details, detail = _by_first_use(detail)
    used_shapes, shape = _by_first_use(np.concatenate((launch_shape, _input_shapes(ops, op))))
    lane, launch_lane = np.split(_numbered_lanes(np.concatenate((lane, launches[1]))), [len(lane)])
    shapes = list(tables.shapes)
    return Columns(
        tuple(identities[number] for number in used_identities), start, end, identity, narrow(lane), device,
        correlation, detail, tuple(tables.details[number] for number in used_details),
        shape[: len(start)], shape[len(start) :],
        tuple(shapes[number].decode("utf-8", "replace") for number in used_shapes),
        Launches(
            launches[0].astype(np.int64, copy=False), narrow(launch_lane), narrow(launches[2]),
            sum(sum(part.num_launches.values()) for part in parts),
        ),
        last_ns,
        max((part.window_end for part in parts if part.window_end is not None), default=(0, None))[1],
        len(set[int]().union(*(part.devices for part in parts)) - {UNKNOWN}),
        sum(sum(part.num_events.values()) for part in parts),
    )  # fmt: skip


def is_only_op(identities: Iterable[Identity]) -> NDArray[np.bool_]:
    return np.array([identity.role is Role.OP for identity in identities], np.bool_)


def outermost_only(columns: Chunk, identities: Sequence[Identity]) -> Chunk:
    """Rows without the ops inside other ops: only the outermost stand for compute."""
    start, duration, identity, lane = columns[:4]
    needed = ~is_only_op(identities)[identity]
    if needed.all():
        return columns
    ops = np.flatnonzero(np.array([identity.is_op for identity in identities], np.bool_)[identity])
    needed[ops[outermost(start[ops], start[ops] + duration[ops], lane[ops])]] = True
    return _taken(columns, needed)


class _Tables:
    """What rows have numbers of, with one number for each."""

    def __init__(self) -> None:
        self.identities: dict[Identity, int] = {}
        self.shapes: dict[bytes, int] = {}
        self.details: list[CollectiveDetails] = []
        self._lanes: dict[str, int] = {}

    def take_in(self, part: Collected) -> None:
        """Number its rows as all others are."""
        identity = _numbers_in(self.identities, part.identities)
        shape = np.append(_numbers_in(self.shapes, part.shapes), UNKNOWN)  # which `UNKNOWN` finds
        lane = NAMED_LANE - _numbers_in(self._lanes, part.lane_names)
        first_detail = len(self.details)
        self.details += part.details
        for chunk in part.rows:
            chunk[_IDENTITY] = narrow(identity[chunk[_IDENTITY]])
            detail = chunk[_DETAIL].astype(np.int64)
            chunk[_DETAIL] = narrow(np.where(detail == UNKNOWN, UNKNOWN, first_detail + detail))
            chunk[_LAUNCH_SHAPE] = narrow(shape[chunk[_LAUNCH_SHAPE]])
            chunk[_LANE] = _translated(chunk[_LANE], lane)
        for chunk in part.launches:
            chunk[1] = _translated(chunk[1], lane)
        for chunk in part.ops_with_shapes:
            chunk[1] = narrow(shape[chunk[1]])


def _numbers_in(known: dict[_T, int], found: Iterable[_T]) -> NDArray[np.int64]:
    return np.array([known.setdefault(one, len(known)) for one in found], np.int64)


def _translated(lane: IntColumn, named: NDArray[np.int64]) -> IntColumn:
    rows = np.flatnonzero(lane <= NAMED_LANE)
    if len(rows):
        lane[rows] = named[NAMED_LANE - lane[rows]]
    return lane


def _numbered_lanes(lane: IntColumn) -> IntColumn:
    """Those with a name count down from -1."""
    is_named = lane <= NAMED_LANE
    if is_named.any():
        number = _by_first_use(np.where(is_named, NAMED_LANE - lane.astype(np.int64), UNKNOWN))[1]
        lane = np.where(is_named, -1 - number.astype(np.int64), lane)
    return lane


def _by_first_use(column: IntColumn) -> tuple[list[int], IntColumn]:
    """The numbers in the order in which they first stand in the column, and for each row its place among them."""
    size = int(column.max(initial=UNKNOWN)) + 1
    first = np.full(size, len(column))
    rows = np.flatnonzero(column != UNKNOWN)[::-1]
    first[column[rows]] = rows  # of several the last one stays
    used = np.flatnonzero(first < len(column))
    used = used[np.argsort(first[used])]
    place = np.full(size + 1, UNKNOWN)
    place[used] = np.arange(len(used))
    return used.tolist(), narrow(place[column])


def _drop_groups(part: Collected, groups: set[int]) -> None:
    """Nothing keeps two processes from taking the same group, should they look at the same instant."""
    twice = np.array(sorted(groups & part.num_events.keys()), np.int64)
    if len(twice):
        for chunks in (part.rows, part.launches, part.ops_with_shapes):
            chunks[:] = [_taken(chunk, ~np.isin(chunk[-1], twice)) for chunk in chunks]
        for group in twice.tolist():
            del part.num_events[group], part.num_launches[group]


def _in_order(chunks: Iterable[Chunk], num_columns: int) -> Chunk:
    """One chunk, in the file's order."""
    columns = concatenated(list(chunks), num_columns)
    group = columns[-1]
    if (group[1:] < group[:-1]).any():
        order = np.argsort(group, kind="stable")
        for index in range(num_columns):
            columns[index] = columns[index][order]
    return columns


def _taken(chunk: Chunk, rows: NDArray[np.bool_]) -> Chunk:
    return [column[rows] for column in chunk]


def _input_shapes(ops_with_shapes: Chunk, op: IntColumn) -> IntColumn:
    """For each row, the shapes of the inputs of the op with that id."""
    ids, shapes = ops_with_shapes[:2]
    if not len(ids):
        return np.full(len(op), UNKNOWN, np.int8)
    order = np.argsort(ids, kind="stable")
    found = order[np.minimum(np.searchsorted(ids, op, sorter=order), len(ids) - 1)]
    return narrow(np.where((ids[found] == op) & (op != 0), shapes[found], UNKNOWN))
