"""Vectorized union, intersection and difference of time spans.

Every set of spans is a `Spans`: its spans are half-open, sorted, disjoint and not empty, and adjacent spans are merged.
The length of a union is therefore the sum of the lengths, and equal sets have equal arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Int64Column = NDArray[np.int64]

_MANY_TIMES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """A set of times, stored as spans ``start_ns[i] <= t < end_ns[i]``. Create it with `union`."""

    start_ns: Int64Column
    end_ns: Int64Column

    def __len__(self) -> int:
        return len(self.start_ns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spans):
            return NotImplemented
        return np.array_equal(self.start_ns, other.start_ns) and np.array_equal(self.end_ns, other.end_ns)

    __hash__ = None  # type: ignore[assignment]  # arrays are not hashable

    @property
    def total_ns(self) -> int:
        return int((self.end_ns - self.start_ns).sum())

    def contains(self, times_ns: Int64Column) -> NDArray[np.bool_]:
        """Return a boolean array of shape (times,): True where a span contains the time."""
        if not len(self):
            return np.zeros(len(times_ns), dtype=np.bool_)
        before = np.searchsorted(self.start_ns, times_ns, side="right") - 1
        return (before >= 0) & (times_ns < self.end_ns[before])

    def within(self, start_ns: Int64Column, end_ns: Int64Column) -> Int64Column:
        """Return, for each given span, the length (ns) of its overlap with this set. The given spans may overlap each
        other.
        """
        return self._before(np.maximum(start_ns, end_ns)) - self._before(start_ns)

    def _before(self, times_ns: Int64Column) -> Int64Column:
        """Return, for each time, the total length (ns) of the part of the set before this time."""
        if not len(self):
            return np.zeros(len(times_ns), dtype=np.int64)
        begun = np.searchsorted(self.start_ns, times_ns, side="left")
        total = np.concatenate(([0], np.cumsum(self.end_ns - self.start_ns)))[begun]
        still_open = np.where(begun > 0, np.maximum(self.end_ns[begun - 1] - times_ns, 0), 0)
        before: Int64Column = total - still_open
        return before


NO_SPANS = Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start_ns: Int64Column, end_ns: Int64Column) -> Spans:
    """Return the union of the given spans, which may overlap. Empty spans are dropped."""
    filled = end_ns > start_ns
    start, end = (start_ns, end_ns) if filled.all() else (start_ns[filled], end_ns[filled])
    if not len(start):
        return NO_SPANS
    if not (start[1:] >= start[:-1]).all():  # tables are sorted; sorting a long trace takes much memory
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        del order
    latest_end = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > latest_end[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Spans(start[opens], latest_end[closes])


class Timed(Protocol):
    """A table with one span per row."""

    @property
    def start_ns(self) -> Int64Column: ...

    @property
    def end_ns(self) -> Int64Column: ...


def union_of(table: Timed, rows: NDArray[Any] | slice = slice(None)) -> Spans:
    """Return the union of the rows selected by indices or by a mask; by default, of all rows."""
    return union(table.start_ns[rows], table.end_ns[rows])


def merge(a: Spans, b: Spans) -> Spans:
    """Return the union of ``a`` and ``b``."""
    return union(np.concatenate((a.start_ns, b.start_ns)), np.concatenate((a.end_ns, b.end_ns)))


def intersect(a: Spans, b: Spans) -> Spans:
    """Return the intersection of ``a`` and ``b``."""
    return _covered_by(_near(a, b), _near(b, a), depth_of_b=1, depth=2)


def subtract(a: Spans, b: Spans) -> Spans:
    """Return the difference of ``a`` and ``b``: the times in ``a`` but not in ``b``."""
    return _covered_by(a, _near(b, a), depth_of_b=2, depth=1)


def shift(spans: Spans, by_ns: int) -> Spans:
    """Return the spans, shifted ``by_ns`` later."""
    return Spans(spans.start_ns + by_ns, spans.end_ns + by_ns)


def clip(spans: Spans, start_ns: int, end_ns: int) -> Spans:
    """Return the part of ``spans`` within ``start_ns <= t < end_ns``."""
    return union(np.maximum(spans.start_ns, start_ns), np.minimum(spans.end_ns, end_ns))


def outermost(start_ns: Int64Column, end_ns: Int64Column, thread: Int64Column) -> NDArray[np.int64]:
    """Return the indices of spans that are not contained in another span of the same thread.

    The indices are sorted by thread and start. Empty spans are ignored.
    """
    order = np.lexsort((-end_ns, start_ns, thread))
    order = order[end_ns[order] > start_ns[order]]
    kept = []
    for rows in by_thread(order, thread):
        latest_end = np.maximum.accumulate(end_ns[rows])
        kept.append(rows[np.concatenate(([True], end_ns[rows][1:] > latest_end[:-1]))])
    return np.concatenate(kept) if kept else np.empty(0, np.int64)


def held_by_earlier(start_ns: Int64Column, end_ns: Int64Column, thread: Int64Column) -> NDArray[np.bool_]:
    """Return a boolean array: True for each span that is contained in an earlier row's span on the same thread.

    All contained spans are found if each of them comes after the span that contains it.
    """
    held = np.zeros(len(start_ns), np.bool_)
    for number in np.unique(thread).tolist():
        rows = np.flatnonzero(thread == number)
        start, end = start_ns[rows], end_ns[rows]
        ends_last = np.ones(len(rows), np.bool_)
        ends_last[1:] = end[1:] > np.maximum.accumulate(end)[:-1]
        holder = np.maximum.accumulate(np.where(ends_last, np.arange(len(rows)), 0))
        held[rows] = ~ends_last & (start >= start[holder])
    return held


def by_thread(rows: NDArray[np.int64], thread: Int64Column) -> list[NDArray[np.int64]]:
    """Split rows that are sorted by thread into one array per thread."""
    if not len(rows):
        return []
    return np.split(rows, np.flatnonzero(np.diff(thread[rows])) + 1)


def _near(spans: Spans, other: Spans) -> Spans:
    """Return a part of ``spans`` that includes all spans that overlap ``other``.

    If ``spans`` is much longer than ``other``, this avoids sorting all of it.
    """
    if len(spans) <= _MANY_TIMES * len(other):
        return spans
    first = np.searchsorted(spans.end_ns, other.start_ns, side="right")
    count = np.searchsorted(spans.start_ns, other.end_ns) - first
    rows = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
    rows = rows[np.diff(rows, prepend=-1) > 0]  # two spans of `other` may overlap the same span
    return Spans(spans.start_ns[rows], spans.end_ns[rows])


def _covered_by(a: Spans, b: Spans, *, depth_of_b: int, depth: int) -> Spans:
    """Return the times at which the depths of the covering spans add up to ``depth``.

    A span of ``a`` has depth 1, and a span of ``b`` has depth ``depth_of_b``.
    """
    num_a, num_b = len(a), len(b)
    times = np.concatenate((a.start_ns, a.end_ns, b.start_ns, b.end_ns))
    changes = np.repeat(np.array([1, -1, depth_of_b, -depth_of_b], np.int8), [num_a, num_a, num_b, num_b])
    order = np.argsort(times, kind="stable")
    times = times[order]
    # If several changes have the same time, all but the last one create empty spans, which `union` drops.
    at_depth = np.cumsum(changes[order], dtype=np.int8)[:-1] == depth
    del order, changes
    return union(times[:-1][at_depth], times[1:][at_depth])
