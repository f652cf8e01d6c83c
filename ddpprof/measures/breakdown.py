"""Where does a step's time go? Seven parts that add up to the step.

Compute counts first, by its phase; then communication that no compute hides; then copies; then waiting for data, on an
accelerator the time in which it has nothing to do while the host waits; what is left is idle. Copying buckets into
``.grad`` after the last backward node counts as backward.

On CPU the step is the host's ``ProfilerStep#k``. On an accelerator, where kernels run after their launch, it reaches
from its first kernel to the next step's first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddpprof.events import Mark, Phase, Trace, Work
from ddpprof.intervals import Spans, clip, merge, subtract, union
from ddpprof.measures.overlap import spans_of


@dataclass(frozen=True, slots=True)
class Breakdown:
    forward_ns: int
    backward_ns: int
    exposed_comm_ns: int
    optimizer_ns: int
    data_ns: int
    other_ns: int
    idle_ns: int

    @property
    def step_ns(self) -> int:
        return (
            self.forward_ns
            + self.backward_ns
            + self.exposed_comm_ns
            + self.optimizer_ns
            + self.data_ns
            + self.other_ns
            + self.idle_ns
        )


def measure_breakdown(trace: Trace, step: int) -> Breakdown | None:
    """``None`` where the step has no work at all."""
    window = _window(trace, step)
    if window is None:
        return None
    start, end = window
    left = Spans(np.array([start]), np.array([end]))

    def take(spans: Spans) -> int:
        nonlocal left
        before = left.total_ns
        left = subtract(left, spans)
        return before - left.total_ns

    compute = _rows_in_window(trace.compute, start, end)
    backward = take(_phase(compute, Phase.BACKWARD)) + take(_phase(compute, Phase.FINALIZE))
    forward = take(_phase(compute, Phase.FORWARD))
    optimizer = take(_phase(compute, Phase.OPTIMIZER))
    other = take(_phase(compute, Phase.OTHER))
    exposed = take(clip(spans_of(trace.collectives, step), start, end))
    other += take(clip(spans_of(trace.copies, step), start, end))
    waits = trace.host_spans.mark == Mark.DATA
    data = take(union(trace.host_spans.start_ns[waits], trace.host_spans.end_ns[waits]))
    return Breakdown(forward, backward, exposed, optimizer, data, other, left.total_ns)


def _rows_in_window(work: Work, start: int, end: int) -> tuple[Work, np.ndarray]:
    return work, np.flatnonzero((work.end_ns > start) & (work.start_ns < end))


def _phase(rows: tuple[Work, np.ndarray], phase: Phase) -> Spans:
    work, index = rows
    chosen = index[work.phase[index] == phase]
    return union(work.start_ns[chosen], work.end_ns[chosen])


def _window(trace: Trace, step: int) -> tuple[int, int] | None:
    if trace.device == "cpu":
        return trace.steps[step].start_ns, trace.steps[step].end_ns
    here = _device_work(trace, step)
    if not len(here):
        return None
    after = _device_work(trace, step + 1) if step + 1 < len(trace.steps) else None
    end = int(after.start_ns[0]) if after is not None and len(after) else int(here.end_ns[-1])
    return int(here.start_ns[0]), max(end, int(here.start_ns[0]) + 1)


def _device_work(trace: Trace, step: int) -> Spans:
    work = merge(spans_of(trace.compute, step), spans_of(trace.collectives, step))
    return merge(work, spans_of(trace.copies, step))
