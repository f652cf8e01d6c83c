"""Compute and calls of collectives on host threads, for traces without an accelerator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddpprof.intervals import Spans, by_thread, outermost, union
from ddpprof.model import UNKNOWN, Int32Column, Int64Column


def cut_out(
    start_ns: Int64Column, end_ns: Int64Column, holes: Spans
) -> tuple[Int64Column, Int64Column, NDArray[np.int64]]:
    """Cut holes out of spans, which may overlap. Return starts and ends of the pieces, and the index of their span."""
    first = np.searchsorted(holes.end_ns, start_ns, side="right")
    num_holes = np.searchsorted(holes.start_ns, end_ns, side="left") - first
    whole, cut = np.flatnonzero((num_holes <= 0) & (end_ns > start_ns)), np.flatnonzero(num_holes > 0)
    if not len(cut):
        return start_ns[whole], end_ns[whole], whole
    start, end, owner = _pieces(start_ns[cut], end_ns[cut], first[cut], num_holes[cut], holes)
    of_all = np.concatenate((whole, cut[owner]))
    order = np.argsort(of_all, kind="stable")
    return (np.concatenate((start_ns[whole], start))[order], np.concatenate((end_ns[whole], end))[order], of_all[order])


def _pieces(
    start_ns: Int64Column, end_ns: Int64Column, first: NDArray[np.int64], num_holes: NDArray[np.int64], holes: Spans
) -> tuple[Int64Column, Int64Column, NDArray[np.int64]]:
    """Return the pieces of spans that each have `num_holes` holes, starting with the hole at index `first`."""
    num_pieces = num_holes + 1
    owner = np.repeat(np.arange(len(start_ns)), num_pieces)
    piece = np.arange(len(owner)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
    # Piece i stands between hole i-1 and hole i of its owner; the outer edges are the owner's own.
    after_hole = holes.end_ns[np.maximum(first[owner] + piece - 1, 0)]
    before_hole = holes.start_ns[np.minimum(first[owner] + piece, len(holes) - 1)]
    start = np.where(piece == 0, start_ns[owner], after_hole)
    end = np.where(piece == num_holes[owner], end_ns[owner], before_hole)
    filled = end > start
    return start[filled], end[filled], owner[filled]


def compute_pieces(
    start_ns: Int64Column,
    end_ns: Int64Column,
    thread: Int64Column,
    is_call: NDArray[np.bool_],
    awaited_ns: Int64Column,
) -> tuple[Int64Column, Int64Column, NDArray[np.int64]]:
    """Return compute on host threads: the outermost ops minus the ``c10d::`` calls in them, up to `awaited_ns`.

    The result is the starts and ends of the pieces, disjoint within a thread, and the row of each piece's op.
    """
    starts, ends, rows = [], [], []
    for ops in by_thread(outermost(start_ns, end_ns, thread), thread):
        calls = is_call & (thread == thread[ops[0]])
        # Ops of one thread are nested or disjoint. If two overlap, the later counts from where the earlier ends.
        begun = np.concatenate((start_ns[ops][:1], np.maximum(start_ns[ops][1:], end_ns[ops][:-1])))
        start, end, owner = cut_out(begun, end_ns[ops], union(start_ns[calls], awaited_ns[calls]))
        starts.append(start)
        ends.append(end)
        rows.append(ops[owner])
    empty = np.empty(0, np.int64)
    return np.concatenate([empty, *starts]), np.concatenate([empty, *ends]), np.concatenate([empty, *rows])


def awaited_until(
    end_ns: Int64Column, start_ns: Int64Column, thread: Int64Column, is_call: NDArray[np.bool_], over_ns: Int64Column
) -> Int64Column:
    """Return how long a thread waits for each of its calls: until the collective ends, or its next op begins.

    An op that is no call, or whose collective is over earlier (`over_ns`), is not waited for after its end.
    """
    awaited = end_ns.copy()
    for number in np.unique(thread[is_call]).tolist():
        begins = np.append(np.sort(start_ns[thread == number]), np.iinfo(np.int64).max)
        calls = np.flatnonzero(is_call & (thread == number))
        following = begins[np.searchsorted(begins, end_ns[calls])]
        awaited[calls] = np.maximum(end_ns[calls], np.minimum(following, over_ns[calls]))
    return awaited


def positions(op: NDArray[np.int64], name: Int32Column, step: Int32Column) -> Int32Column:
    """Return, for each piece of an op in time order, the number of ops of that name before it in its step."""
    order = np.lexsort((step, name)).astype(np.int32)  # stable, and time is the order already
    name, step, op = name[order], step[order], op[order]
    begins = np.ones(len(op), np.bool_)
    begins[1:] = (name[1:] != name[:-1]) | (step[1:] != step[:-1])
    is_new = begins.copy()
    is_new[1:] |= op[1:] != op[:-1]
    count = np.cumsum(is_new, dtype=np.int32)
    place = np.empty(len(op), np.int32)
    place[order] = count - np.maximum.accumulate(np.where(begins, count, 0))
    return place


def match_calls(
    call_start_ns: Int64Column, call_kind: NDArray[np.int8], span_start_ns: Int64Column, span_kind: NDArray[np.int8]
) -> NDArray[np.int64]:
    """Return, for each collective of the host, the index of the call that started it, or `UNKNOWN`.

    Collectives of one kind are matched to calls first in, first out; several threads work, so they may begin slightly
    out of order. A collective that began before the next call was started before the profiler.
    """
    matched = np.full(len(span_start_ns), UNKNOWN, np.int64)
    for kind in np.unique(span_kind):
        calls = np.flatnonzero(call_kind == kind)
        calls = calls[np.argsort(call_start_ns[calls], kind="stable")].tolist()
        spans = np.flatnonzero(span_kind == kind)
        next_call = 0
        for span in spans[np.argsort(span_start_ns[spans], kind="stable")].tolist():
            if next_call < len(calls) and call_start_ns[calls[next_call]] <= span_start_ns[span]:
                matched[span] = calls[next_call]
                next_call += 1
    return matched


Index = NDArray[np.int64]


def launch_of(correlation: Int64Column, launch_correlation: Int64Column, launch_start_ns: Int64Column) -> Index:
    """Return, for each kernel, the index of the first launch with its correlation, or `UNKNOWN`.

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
    """Return, for each time on a thread, the index of the last span begun if it contains that time, or `UNKNOWN`."""
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
    """Return, for each time, the index of the last span that began before it, or `UNKNOWN`."""
    order = np.argsort(start_ns, kind="stable")
    before = np.searchsorted(start_ns[order], time_ns)
    return np.where(before > 0, np.append(order, UNKNOWN)[before - 1], UNKNOWN)
