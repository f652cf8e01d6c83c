"""Links from an accelerator's kernels to their launches, to the ops around them, and to the work before them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddpprof.model import UNKNOWN, Int64Column

Index = NDArray[np.int64]


def launch_of(correlation: Int64Column, launch_correlation: Int64Column, launch_start_ns: Int64Column) -> Index:
    """Return for each kernel the index of the first launch with its correlation, or `UNKNOWN`.

    The launch of a graph has many kernels.
    """
    if not len(launch_correlation):
        return np.full(len(correlation), UNKNOWN, np.int64)
    order = np.lexsort((launch_start_ns, launch_correlation))
    position = np.searchsorted(launch_correlation[order], correlation)
    launch = order[np.minimum(position, len(order) - 1)]
    return np.where((launch_correlation[launch] == correlation) & (correlation != 0), launch, UNKNOWN)


def holder_of(
    time_ns: Int64Column, thread: Int64Column, start_ns: Int64Column, end_ns: Int64Column, span_thread: Int64Column
) -> Index:
    """Return for each instant of a thread the thread's span that began last, if it holds the instant, or `UNKNOWN`."""
    found = np.full(len(time_ns), UNKNOWN, np.int64)
    for number in np.unique(thread).tolist():
        rows, spans = np.flatnonzero(thread == number), np.flatnonzero(span_thread == number)
        spans = spans[np.argsort(start_ns[spans], kind="stable")]
        last = np.searchsorted(start_ns[spans], time_ns[rows], side="right") - 1
        rows, last = rows[last >= 0], last[last >= 0]
        holds = time_ns[rows] < end_ns[spans[last]]
        found[rows[holds]] = spans[last[holds]]
    return found


def last_begun(time_ns: Int64Column, start_ns: Int64Column) -> Index:
    """Return for each instant the index of the last span that began before it, or `UNKNOWN`."""
    order = np.argsort(start_ns, kind="stable")
    before = np.searchsorted(start_ns[order], time_ns)
    return np.where(before > 0, np.append(order, UNKNOWN)[before - 1], UNKNOWN)
