"""When does each backward pass of a step compute, and what begins after it?

    a pass ends with the last backward op before the next forward or optimizer op of the step

Several backward passes without a forward or an optimizer between them, such as those of two losses, count as one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddpprof.model import Phase, Trace


@dataclass(frozen=True, slots=True)
class BackwardCompute:
    """The computation of one backward pass."""

    start_ns: int
    end_ns: int
    next_start_ns: int | None
    """start of the first forward or optimizer op after it; ``None`` if the step has none"""


def backward_passes(trace: Trace, step: int) -> tuple[BackwardCompute, ...]:
    """Return the backward passes of the step with index `step`, in order of time."""
    compute = trace.compute
    in_step = compute.step == step
    backward = np.flatnonzero(in_step & (compute.phase == Phase.BACKWARD))
    follows = in_step & ((compute.phase == Phase.FORWARD) | (compute.phase == Phase.OPTIMIZER))
    others_ns = np.sort(compute.start_ns[follows])
    num_before = np.searchsorted(others_ns, compute.start_ns[backward], side="right")
    passes = []
    for number in np.unique(num_before).tolist():
        rows = backward[num_before == number]
        end_ns = int(compute.end_ns[rows].max())
        after = others_ns[number:]
        after = after[after >= end_ns]
        passes.append(BackwardCompute(int(compute.start_ns[rows].min()), end_ns, int(after[0]) if len(after) else None))
    return tuple(passes)
