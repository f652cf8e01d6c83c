"""Why has an accelerator nothing to do? The idle time of a step by cause; a gap has the cause of what ends it.

    launch-bound         what ends the gap was launched too late to begin when the gap did: the host is behind
    communication wait   it was launched in time, and is communication, or follows at once on communication
    other                it was launched in time and follows on other work, or its launch is unknown

Too late is: less than the accelerator's latency before the gap. The latency is the shortest time from any launch to its
start. Time in which the host waits for its DataLoader is not idle but a part of its own, ``Breakdown.data_ns``.

On CPU the question has no answer: the host is the device, so what it does between two ops is what it does instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ddpprof.events import UNKNOWN, Int64Column, Trace
from ddpprof.intervals import Spans, union

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Idle:
    """Of one step, ns."""

    launch_bound_ns: int
    comm_wait_ns: int
    other_ns: int

    @property
    def idle_ns(self) -> int:
        """``Breakdown.idle_ns`` of the same step."""
        return self.launch_bound_ns + self.comm_wait_ns + self.other_ns


class Cause(IntEnum):
    OTHER = 0
    LAUNCH_BOUND = 1
    COMM_WAIT = 2


@dataclass(frozen=True, slots=True)
class Gaps:
    """The busy spans of an accelerator, and why it idled after each."""

    busy: Spans
    cause: NDArray[np.int8]
    """[number of busy spans]: `Cause`"""


def find_gaps(trace: Trace) -> Gaps | None:
    """Of the whole trace. ``None`` on CPU."""
    if trace.device == "cpu":
        return None
    work = _all_work(trace)
    busy = union(work.start_ns, work.end_ns)
    gap_start, gap_end = busy.end_ns, np.append(busy.start_ns[1:], _NEVER)
    ender = np.searchsorted(work.start_ns, gap_end)  # of several that start at once, the one launched first
    launched = np.append(work.launched_ns, _NEVER)[ender]
    is_known = launched != _NEVER
    launched[~is_known] = 0
    is_late = is_known & (launched + _latency(trace) > gap_start)
    del launched
    follows_comm = np.isin(gap_start, work.end_ns[work.is_comm])
    waits = is_known & ~is_late & (follows_comm | np.append(work.is_comm, False)[ender])
    return Gaps(
        busy, np.where(is_late, Cause.LAUNCH_BOUND, np.where(waits, Cause.COMM_WAIT, Cause.OTHER)).astype(np.int8)
    )


def measure_idle(idle: Spans, gaps: Gaps) -> Idle:
    """`idle`: of one step, from `split_step` of the same trace."""
    length = idle.end_ns - idle.start_ns
    before = np.searchsorted(gaps.busy.start_ns, idle.start_ns, side="right") - 1  # a step begins with work
    cause = gaps.cause[before]
    launch_bound, comm_wait = (int(length[cause == which].sum()) for which in (Cause.LAUNCH_BOUND, Cause.COMM_WAIT))
    return Idle(launch_bound, comm_wait, int(length.sum()) - launch_bound - comm_wait)


@dataclass(frozen=True, slots=True)
class _AllWork:
    """By start, then by launch; an unknown launch counts as the last. Work of no length ends no gap."""

    start_ns: Int64Column
    end_ns: Int64Column
    launched_ns: Int64Column
    is_comm: NDArray[np.bool_]


def _all_work(trace: Trace) -> _AllWork:
    tables = (trace.compute, trace.copies, trace.collectives)
    start = np.concatenate([table.start_ns for table in tables])
    end = np.concatenate([table.end_ns for table in tables])
    launched = np.concatenate([table.launched_ns for table in tables])
    launched = np.where(launched == UNKNOWN, _NEVER, launched)
    is_comm = np.repeat([False, False, True], [len(table) for table in tables])
    order = np.lexsort((is_comm, launched, start))
    order = order[end[order] > start[order]]
    start, end = start[order], end[order]  # column by column: those of a long trace are a tenth of its memory
    launched = launched[order]
    return _AllWork(start, end, launched, is_comm[order])


def _latency(trace: Trace) -> int:
    """Communication is left out: threads of the host may do it."""
    delays = [
        int((table.start_ns - table.launched_ns)[table.launched_ns != UNKNOWN].min(initial=_NEVER))
        for table in (trace.compute, trace.copies)
    ]
    return max(0, min(delays)) if min(delays) != _NEVER else 0
