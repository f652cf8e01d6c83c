"""The events of one trace that the tables need, as columns as wide as their numbers need."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpprof.load.arguments import CollectiveDetails, as_int
from ddpprof.load.classify import Identity
from ddpprof.model import Int64Column

IntColumn = NDArray[np.signedinteger[Any]]
Chunk = list[IntColumn]
"""columns of some of the rows"""

_NARROW = [(dtype, np.iinfo(dtype)) for dtype in (np.int8, np.int16, np.int32)]


@dataclass(frozen=True, slots=True)
class Launches:
    """The host's calls that queued the device work among the rows."""

    start_ns: Int64Column
    lane: IntColumn
    correlation: IntColumn
    num_all: int
    """with those that queued other work, or none"""


@dataclass(frozen=True, slots=True)
class Columns:
    """One row per event that the tables need, launches apart. Events of the host, and of the device, are in order."""

    identities: tuple[Identity, ...]
    start_ns: Int64Column
    end_ns: Int64Column
    identity: IntColumn
    lane: IntColumn
    """stream of a device, thread of the host"""
    device: IntColumn
    """accelerator that did it, or `UNKNOWN`"""
    correlation: IntColumn
    """what device work and its launch have in common, 0 where they have nothing"""
    detail: IntColumn
    """index into ``details``, or `UNKNOWN`"""
    details: tuple[CollectiveDetails, ...]
    launch_shape: IntColumn
    """grid and block of a kernel: index into ``shapes``, or `UNKNOWN`"""
    input_shape: IntColumn
    """shapes of the inputs of the op that launched a kernel: index into ``shapes``, or `UNKNOWN`"""
    shapes: tuple[str, ...]
    launches: Launches
    last_ns: int
    """end of the last of these events"""
    window_end_ns: int | None
    """when the profiler stopped"""
    num_devices: int
    """accelerators that ran kernels, as far as these say"""
    num_events: int


def narrow(column: IntColumn) -> IntColumn:
    """The same numbers in as few bytes as they need: most columns of most batches need one or two."""
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    return next((column.astype(dtype) for dtype, of in _NARROW if of.min <= low and high <= of.max), column)


def concatenated(chunks: Sequence[Chunk], num_columns: int) -> Chunk:
    """The chunks as one. They are empty then, column by column, so that memory never holds all of them twice."""
    empty: IntColumn = np.empty(0, np.int8)
    return [np.concatenate([empty, *[chunk.pop(0) for chunk in chunks]]) for _ in range(num_columns)]


class Chunks(list[Chunk]):
    """Those of batches are made larger ones as they come: many small arrays leave the heap full of holes."""

    _MANY = 64

    def __init__(self, chunks: Sequence[Chunk] = ()) -> None:
        super().__init__(chunks)
        self._num_small = 0

    def add(self, chunk: Chunk) -> None:
        self.append(chunk)
        self._num_small += 1
        if self._num_small == self._MANY:
            self[-self._MANY :] = [concatenated(self[-self._MANY :], len(chunk))]
            self._num_small = 0


def of_interest(chunks: Sequence[Chunk], key: int, wanted: IntColumn) -> list[Chunk]:
    """The rows of which the column with index `key` has a wanted number. The chunks are empty then."""
    distinct = np.unique(wanted)
    kept = []
    for chunk in chunks:
        found = np.searchsorted(distinct, chunk[key])
        rows = np.append(distinct, 0)[found] == chunk[key]
        kept.append([column[rows] for column in chunk])
        chunk.clear()
    return kept


def integers(values: Sequence[object]) -> Int64Column:
    """All are integers, save in odd files; 0 for what is none."""
    if set(map(type, values)) == {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return np.array([as_int(value) or 0 for value in values], np.int64)


class Remembered(dict[Any, int]):
    """The number that a function finds for each key."""

    def __init__(self, find: Callable[[Any], int], shared: Container[int] = ()) -> None:
        """`shared`: numbers that many keys have; these and negative ones are found anew when too many are known."""
        super().__init__()
        self._find = find
        self._shared = shared

    def __missing__(self, key: Any) -> int:
        number = self._find(key)
        if len(self) < _MOST_KEYS or not (number < 0 or number in self._shared):
            self[key] = number
        return number


_MOST_KEYS = 400_000
"""In a trace that nobody recorded every event may have a name of its own."""
