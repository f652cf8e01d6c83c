"""Where the steps of a trace begin and end, and which step and phase an instant of the host belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ddpprof.intervals import Spans, union
from ddpprof.model import NO_STEP, Int32Column, Int64Column, Mark, Phase, Step


class StepFinder:
    """The step that an instant belongs to, whatever the thread."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._starts = np.array([step.start_ns for step in steps], np.int64)
        self._ends = np.array([step.end_ns for step in steps], np.int64)

    def at(self, times_ns: Int64Column) -> Int32Column:
        """Return the index of the step that holds each time, or `NO_STEP`."""
        if not len(self._starts):
            return np.full(len(times_ns), NO_STEP, np.int32)
        step = np.searchsorted(self._starts, times_ns, side="right") - 1
        inside = (step >= 0) & (times_ns < self._ends[step])
        return np.where(inside, step, NO_STEP).astype(np.int32)


class PhaseFinder:
    """The phase that an instant of a thread belongs to, by the host's marks on that thread."""

    # For nested marks the earlier line wins: the reducer copies gradients inside autograd's functions, too.
    _MARKS = (
        (Phase.FORWARD, (Mark.FORWARD, Mark.DATA_PARALLEL)),
        (Phase.BACKWARD, (Mark.BACKWARD,)),
        (Phase.OPTIMIZER, (Mark.OPTIMIZER,)),
        (Phase.FINALIZE, (Mark.BUCKET_COPY_IN, Mark.BUCKET_COPY_OUT, Mark.UNUSED_SEARCH)),
    )

    def __init__(self, start_ns: Int64Column, end_ns: Int64Column, mark: NDArray[np.int8], thread: Int64Column) -> None:
        self._spans: list[tuple[int, Phase, Spans]] = []
        for number in np.unique(thread).tolist():
            for phase, marks in self._MARKS:
                rows = (thread == number) & np.isin(mark, marks)
                if rows.any():
                    self._spans.append((number, phase, union(start_ns[rows], end_ns[rows])))
        self._marked_threads = np.unique(thread)
        of_replicas = mark == Mark.DATA_PARALLEL
        self._replicas = union(start_ns[of_replicas], end_ns[of_replicas])

    def at(self, times_ns: Int64Column, threads: Int64Column) -> NDArray[np.int8]:
        """Return the `Phase` of each instant of its thread."""
        phases = np.full(len(times_ns), Phase.OTHER, np.int8)
        for thread, phase, spans in self._spans:
            rows = np.flatnonzero((threads == thread) & (phases == Phase.OTHER))
            phases[rows[spans.contains(times_ns[rows])]] = phase
        if len(self._replicas):
            # DataParallel runs each replica in a thread of its own, which the profiler does not follow.
            rows = np.flatnonzero(~np.isin(threads, self._marked_threads))
            phases[rows[self._replicas.contains(times_ns[rows])]] = Phase.FORWARD
        return phases


def steps_from_forwards(forward_starts_ns: Int64Column, optimizer_starts_ns: Int64Column, last_ns: int) -> list[Step]:
    """Return the steps of a trace without ``ProfilerStep#``: from one DDP forward to the next that begins a step.

    Where the optimizer is in the trace, a forward begins a step only if an optimizer step began since the forward
    before it: several forwards may belong to one update. The last step ends with the trace.
    """
    starts = np.sort(forward_starts_ns)
    if len(optimizer_starts_ns):
        updates_before = np.searchsorted(np.sort(optimizer_starts_ns), starts)
        begins = np.concatenate(([True], updates_before[1:] > updates_before[:-1]))
        starts = starts[begins]
    ends = [*starts[1:].tolist(), last_ns]
    return [Step(number, start, end) for number, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True))]
