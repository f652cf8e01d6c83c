"""How much of a step is a rank's own work, if only the light recorder saw it? For traces, see `own_time`.

    own time = the step, without buffer synchronisation in the forward, and without the time from
               each backward pass's last gradient to the next forward, optimizer or end of the step

The recorder does not know when the gradients' communication ended, so that last time counts as waiting for it.
"""

from __future__ import annotations

import numpy as np

from ddpprof.intervals import Spans, clip, union
from ddpprof.measures.ranks.own_time import StepProgress, measure_progress
from ddpprof.model import Rank, RecordedStep


def progress_of_rank(rank: Rank) -> tuple[StepProgress, ...]:
    """Return every step of a rank that a trace or, on CPU, the light recorder saw, ascending.

    On an accelerator the host's times only say when work was queued, and queueing may wait for other ranks' work.
    """
    traced = measure_progress(rank.trace) if rank.trace is not None else ()
    numbers = {row.step for row in traced}
    record = rank.record
    recorded = [
        row
        for step in (record.steps if record is not None and record.device == "cpu" else ())
        if step.number not in numbers and (row := measure_recorded_progress(step)) is not None
    ]
    return tuple(sorted([*traced, *recorded], key=lambda row: row.step))


def measure_recorded_progress(step: RecordedStep) -> StepProgress | None:
    """Measure the step; ``None`` if no gradients became ready, or the inside of the step was not recorded."""
    last_ready = [ns for one in step.passes if (ns := one.last_ready_ns) is not None]
    if not last_ready or not step.forwards:
        return None
    forward = _spans([(f.start_ns, f.end_ns) for f in step.forwards], step)
    optimizer = _spans(list(step.optimizers), step)
    sync = sum(f.buffer_sync_ns for f in step.forwards)
    forward_ns = max(0, forward.total_ns - sync)
    own = step.end_ns - step.start_ns - sync - _waiting(step, last_ready)
    data = step.data_ns or 0
    last_end = int(optimizer.end_ns[-1]) if len(optimizer) else step.end_ns
    after = max(0, step.end_ns - max(last_end, *last_ready))
    other = max(0, min(f.start_ns for f in step.forwards) - step.start_ns + after - data)
    return StepProgress(
        step=step.number,
        is_traced=False,
        step_ns=step.end_ns - step.start_ns,
        arrival_ns=max(last_ready),
        data_ns=data,
        forward_ns=forward_ns,
        backward_ns=max(0, own - data - forward_ns - optimizer.total_ns - other),
        optimizer_ns=optimizer.total_ns,
        other_ns=other,
    )


def _spans(spans: list[tuple[int, int]], step: RecordedStep) -> Spans:
    times = np.array(spans, np.int64).reshape(-1, 2)
    return clip(union(times[:, 0], times[:, 1]), step.start_ns, step.end_ns)


def _waiting(step: RecordedStep, last_ready: list[int]) -> int:
    begins = sorted([*(f.start_ns for f in step.forwards), *(start for start, _ in step.optimizers), step.end_ns])
    waits: dict[int, int] = {}
    for ready in sorted(last_ready):
        # For modules that share one backward pass, the last one's gradients count.
        waits[next((begin for begin in begins if begin >= ready), ready)] = ready
    return sum(begin - ready for begin, ready in waits.items())
