"""The columns of a trace file, with properties of each row derived from the identity of its event."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ddpprof.load.classify import IdentityColumns, Role
from ddpprof.load.kineto.columns import Columns, IntColumn, LaunchRows
from ddpprof.load.kineto.events import CollectiveDetails
from ddpprof.model import UNKNOWN, Int32Column, Int64Column, Kernel, Mark, ProcessGroup

Rows = NDArray[np.int64]

_MOST_VALUES = 1 << 22
"""maximum size of a table that holds one number per value"""
_MOST_POSITIONS = 20_000
"""maximum number of distinct positions in a step, for ops of one name"""


class TraceRows:
    """The columns, with properties of each row derived from its identity."""

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
        """names in order; columns with indices of names count from 0"""
        self.kernels: dict[Kernel, int] = {}
        self.groups: dict[ProcessGroup, int] = {}
        self.launch_shape, self.input_shape, self.shapes = columns.launch_shape, columns.input_shape, columns.shapes
        index = [self.name_index(identity.name) for identity in identities]
        self.name = np.array(index, np.int32)[columns.identity]
        facts = IdentityColumns(identities)
        self.role, self.is_op = facts.role[columns.identity], facts.is_op[columns.identity]
        self.mark, self.kind = facts.mark[columns.identity], facts.kind[columns.identity]

    def forget_launches(self) -> None:
        """Free the launches, once the launch of each kernel is known."""
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

        On CPU, `position` is its position among the step's ops of that name.
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
    """Return the distinct combinations in order, and the index of each row's combination."""
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
    """Return the distinct values in order, and the index of each row's value, without sorting all rows."""
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
