"""How much time does a rank take for itself before it comes to the collective where the others wait for it?

    own time of step k = from the end of step k-1's gradient communication, where all ranks are together,
                         to the launch of step k's last gradient collective,
                         less what the rank waited for communication in between

It needs no common clock, and shows a late rank that the wall time of steps hides, because there all ranks wait for it.
Waiting inside is taken out because it is somebody else's lateness: in the forward all ranks wait for the buffers of
rank 0. A step after a gap in the trace counts from its own start, and so without the optimizer of the step before.

On CPU the training thread waits in collectives outside of the backward pass, from their call to their end, while it
computes nothing; and for gradients while it is in none of the parts below. On an accelerator the device waits while
nothing but communication runs; but if that is for gradients, which nobody waits for before the optimizer, only while
the next kernel has been launched and does not start. A gap because the host was late belongs to the work that ends it.

    data        waiting for the DataLoader; on an accelerator as far as that leaves it nothing to do
    forward     DistributedDataParallel.forward
    optimizer   Optimizer.step of the step before
    backward    the rest after the first forward: the loss too, and whatever else the script does there
    other       the rest before it
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpprof.events import UNKNOWN, CollectiveKind, Mark, Phase, Step, Trace
from ddpprof.intervals import Spans, clip, intersect, merge, subtract, union


@dataclass(frozen=True, slots=True)
class StepProgress:
    """One rank in one step, ns. The parts add up to its own time."""

    step: int
    is_traced: bool
    """from a trace; the light recorder's parts are cut a little differently, so the two do not compare"""
    step_ns: int
    arrival_ns: int
    """when all gradients of the step are there; since 1970 by the rank's clock, where the trace knows its epoch"""
    data_ns: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    other_ns: int

    @property
    def own_ns(self) -> int:
        return self.data_ns + self.forward_ns + self.backward_ns + self.optimizer_ns + self.other_ns


def measure_progress(trace: Trace) -> tuple[StepProgress, ...]:
    """Of every step of the trace that has gradient communication."""
    parts = _device_parts(trace) if trace.device == "gpu" else _host_parts(trace)
    arrivals = _Arrivals(trace)
    found = []
    before: tuple[Step, int] | None = None
    for index, step in enumerate(trace.steps):
        rows = _gradient_rows(trace, index)
        if not len(rows):
            before = None
            continue
        follows = before is not None and (before[0].number + 1, before[0].cycle) == (step.number, step.cycle)
        begin = before[1] if before is not None and follows else step.start_ns
        arrival = arrivals.of(index, rows)
        before = (step, int(trace.collectives.end_ns[rows].max()))
        if arrival > begin:
            own = parts.between(begin, arrival)
            found.append(StepProgress(step.number, True, step.duration_ns, arrival + (trace.epoch_ns or 0), *own))
    return tuple(found)


def _gradient_rows(trace: Trace, step: int) -> NDArray[np.int64]:
    """What the backward pass launched; where that is unknown, as under a comm hook, what the forward did not."""
    comm = trace.collectives
    here = (comm.step == step) & (comm.kind != CollectiveKind.SEND_RECV)
    rows = np.flatnonzero(here & (comm.phase == Phase.BACKWARD))
    if len(rows) or trace.device == "cpu":
        return rows
    return np.flatnonzero(here & (comm.phase != Phase.FORWARD))


class _Arrivals:
    """When a rank is ready for the last gradient collective of a step."""

    def __init__(self, trace: Trace) -> None:
        self._comm = trace.collectives
        backward = trace.host_spans.mark == Mark.BACKWARD
        self._backward_step, self._backward_end = trace.host_spans.step[backward], trace.host_spans.end_ns[backward]
        no_device = trace.device != "gpu"
        launched = trace.compute.launched_ns[:0] if no_device else trace.compute.launched_ns
        order = np.argsort(launched, kind="stable")
        self._launched = launched[order]
        self._computed = np.maximum.accumulate(trace.compute.end_ns[order])

    def of(self, step: int, rows: NDArray[np.int64]) -> int:
        """Launched by the host, and computed by the device.

        The collective's own start may be later: it may stand behind others of its stream or thread. Those that a comm
        hook goes on with after the backward pass wait for other ranks, and do not count.
        """
        launched = np.where(self._comm.launched_ns != UNKNOWN, self._comm.launched_ns, self._comm.start_ns)[rows]
        ends = self._backward_end[self._backward_step == step]
        in_backward = launched <= ends.max() if len(ends) else launched >= 0
        candidates = np.flatnonzero(in_backward) if in_backward.any() else np.arange(len(rows))
        last = candidates[np.argmax(launched[candidates])]
        arrival = int(launched[last])
        num_before = int(np.searchsorted(self._launched, arrival, side="right"))
        if num_before:
            arrival = max(arrival, int(self._computed[num_before - 1]))
        return min(arrival, max(int(self._comm.start_ns[rows[last]]), int(launched[last])))


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of the whole trace; where two overlap, the earlier counts."""

    waiting: Spans
    data: Spans
    forward: Spans
    optimizer: Spans

    def between(self, begin: int, end: int) -> tuple[int, int, int, int, int]:
        """Own time as data, forward, backward, optimizer and other."""
        forward = _within(self.forward, begin, end)
        left = subtract(Spans(np.array([begin]), np.array([end])), _within(self.waiting, begin, end))
        lengths = []
        for part in (_within(self.data, begin, end), forward, _within(self.optimizer, begin, end)):
            rest = subtract(left, part)
            lengths.append(left.total_ns - rest.total_ns)
            left = rest
        first_forward = int(forward.start_ns[0]) if len(forward) else end
        other = clip(left, begin, first_forward).total_ns
        return lengths[0], lengths[1], left.total_ns - other, lengths[2], other


def _within(spans: Spans, begin: int, end: int) -> Spans:
    """`clip` that looks only at the spans in question: a trace has many steps."""
    first = np.searchsorted(spans.end_ns, begin, side="right")
    last = np.searchsorted(spans.start_ns, end, side="left")
    return clip(Spans(spans.start_ns[first:last], spans.end_ns[first:last]), begin, end)


def _host_parts(trace: Trace) -> _Parts:
    comm = trace.collectives
    computes = union(trace.compute.start_ns, trace.compute.end_ns)
    data, forward, optimizer, backward = (
        _marked(trace, mark) for mark in (Mark.DATA, Mark.FORWARD, Mark.OPTIMIZER, Mark.BACKWARD)
    )
    gradients = comm.phase == Phase.BACKWARD
    waits_for_gradients = union(comm.start_ns[gradients], comm.end_ns[gradients])
    for busy in (computes, data, forward, optimizer, backward):
        waits_for_gradients = subtract(waits_for_gradients, busy)
    called = np.where(comm.launched_ns != UNKNOWN, comm.launched_ns, comm.start_ns)
    waits_in_calls = subtract(union(called[~gradients], comm.end_ns[~gradients]), computes)
    return _Parts(merge(waits_in_calls, waits_for_gradients), data, forward, optimizer)


def _device_parts(trace: Trace) -> _Parts:
    comm, tables = trace.collectives, (trace.compute, trace.copies)
    order = np.argsort(np.concatenate([table.start_ns for table in tables]), kind="stable")
    start, end, launched, phase = (
        np.concatenate([getattr(table, name) for table in tables])[order]
        for name in ("start_ns", "end_ns", "launched_ns", "phase")
    )
    del order  # columns of a long trace are a tenth of its memory
    busy = union(start, end)
    # Each row reaches back to the end of what came before it: there it was launched late, or waited.
    reached = np.maximum.accumulate(end)
    del end
    begin = np.concatenate((start[:1], reached[:-1]))
    unknown = launched == UNKNOWN
    np.maximum(begin, launched, out=launched)
    launched[unknown] = begin[unknown]
    held_up = union(launched, start)
    del launched, start
    gradients = comm.phase == Phase.BACKWARD
    waits_for_gradients = intersect(union(comm.start_ns[gradients], comm.end_ns[gradients]), held_up)
    waits_for_others = subtract(union(comm.start_ns[~gradients], comm.end_ns[~gradients]), busy)
    return _Parts(
        waiting=merge(waits_for_gradients, waits_for_others),
        data=subtract(_marked(trace, Mark.DATA), busy),
        forward=union(begin[phase == Phase.FORWARD], reached[phase == Phase.FORWARD]),
        optimizer=union(begin[phase == Phase.OPTIMIZER], reached[phase == Phase.OPTIMIZER]),
    )


def _marked(trace: Trace, mark: Mark) -> Spans:
    rows = trace.host_spans.mark == mark
    return union(trace.host_spans.start_ns[rows], trace.host_spans.end_ns[rows])
