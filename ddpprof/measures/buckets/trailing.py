"""How long does gradient communication go on when the backward pass has no computation left to hide it?

    trailing = |gradient comm AND [end of the backward pass's compute, start of the next forward's or optimizer's op)|

It is summed over the step's backward passes; most steps have one, and the optimizer follows it.
On CPU, gradient communication is what DDP's reducer or a comm hook's threads requested in the backward pass. Of
kernels it is everything not launched inside a DDP forward, since the launching thread of a hook is unknown.
"""

from __future__ import annotations

import numpy as np

from ddpprof.intervals import Spans, intersect, union, union_of
from ddpprof.measures.buckets.backward_passes import backward_passes
from ddpprof.model import Phase, Trace


def measure_trailing(trace: Trace, step: int) -> int | None:
    """Return the step's trailing communication, ns; ``None`` if the step has no backward compute."""
    spans = trailing_spans(trace, step)
    return None if spans is None else spans.total_ns


def trailing_spans(trace: Trace, step: int) -> Spans | None:
    """Return the spans of trailing communication; ``None`` if the step has no backward compute."""
    passes = backward_passes(trace, step)
    if not passes:
        return None
    comm = trace.collectives
    is_gradient = comm.phase == Phase.BACKWARD if trace.device == "cpu" else comm.phase != Phase.FORWARD
    rows = np.flatnonzero((comm.step == step) & is_gradient)
    never = np.iinfo(np.int64).max
    between = union(
        np.array([one.end_ns for one in passes], np.int64),
        np.array([never if one.next_start_ns is None else one.next_start_ns for one in passes], np.int64),
    )
    return intersect(union_of(comm, rows), between)
