"""Which spans of a timeline can be told apart? Spans too narrow to be seen are merged with their neighbours.

A page has room for a limited number of spans. If there are more, spans narrower than a grain are merged with those of
the same kind that begin in the same grain. A merged span keeps the sum of their lengths, their number, and the name of
the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpprof.model.tables import rows_of

_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SpanColumns:
    """Spans, sorted by row and start. Times are ns; the caller gives `kind` and `name` their meaning."""

    start_ns: _Column
    end_ns: _Column
    busy_ns: _Column
    """sums of the lengths of the merged spans"""
    count: _Column
    kind: _Column
    name: _Column
    row: _Column

    def __len__(self) -> int:
        return len(self.start_ns)


def lane(start_ns: _Column, end_ns: _Column, kind: _Column, name: _Column, most_rows: int = 1) -> SpanColumns:
    """Return a lane whose overlapping spans are in different rows, at most `most_rows`."""
    order = np.lexsort((end_ns, start_ns))
    start, end = start_ns[order].astype(np.int64), end_ns[order].astype(np.int64)
    row = _rows(start, end, most_rows)
    by_row = np.argsort(row, kind="stable")
    order, start, end, row = order[by_row], start[by_row], end[by_row], row[by_row]
    ones = np.ones(len(start), np.int64)
    return SpanColumns(start, end, end - start, ones, kind[order].astype(np.int64), name[order].astype(np.int64), row)


def _rows(start: _Column, end: _Column, most: int) -> _Column:
    """Return for each span the first row that is free when it starts, or else the last row."""
    if most == 1:
        return np.zeros(len(start), np.int64)
    free = [np.iinfo(np.int64).min] * most
    rows = np.empty(len(start), np.int64)
    for index, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        row = next((number for number, at in enumerate(free) if at <= begin), most - 1)
        free[row] = max(free[row], finish)
        rows[index] = row
    return rows


def coarsen(fine: SpanColumns, grain_ns: int) -> SpanColumns:
    """Merge spans narrower than `grain_ns`, separately for each kind: spans of different kinds may then overlap."""
    if not len(fine) or grain_ns <= 0:
        return fine
    by_kind = rows_of(fine, np.lexsort((fine.start_ns, fine.kind, fine.row)))
    narrow = by_kind.end_ns - by_kind.start_ns < grain_ns
    place = np.stack((by_kind.start_ns // grain_ns, by_kind.kind, by_kind.row))
    opens = np.concatenate(([True], (np.diff(place, axis=1) != 0).any(axis=0) | ~narrow[1:] | ~narrow[:-1]))
    first, group = np.flatnonzero(opens), np.cumsum(opens) - 1
    longest = np.lexsort((by_kind.end_ns - by_kind.start_ns, group))[np.append(first[1:], len(fine)) - 1]
    merged = SpanColumns(
        by_kind.start_ns[first],
        np.maximum.reduceat(by_kind.end_ns, first),
        np.add.reduceat(by_kind.busy_ns, first),
        np.add.reduceat(by_kind.count, first),
        by_kind.kind[first],
        by_kind.name[longest],
        by_kind.row[first],
    )
    return rows_of(merged, np.lexsort((merged.start_ns, merged.row)))


def grain_for(lanes: Sequence[SpanColumns], most: int, length_ns: int) -> int:
    """Return the finest grain at which all lanes together have at most `most` spans; 0 merges none."""
    grain_ns, finest = 0, max(1, length_ns >> 14)
    while sum(len(coarsen(one, grain_ns)) for one in lanes) > most and grain_ns < length_ns:
        grain_ns = max(finest, 2 * grain_ns)
    return grain_ns
