"""How long does gradient communication go on when the backward pass has nothing left to hide it behind?

    trailing = |gradient comm AND [end of the last backward compute, start of the optimizer's first op)|

Gradient communication on CPU is what was asked for in the backward pass, by DDP's reducer or by threads of a comm hook.
Of kernels it is what was not launched inside a DDP forward: which thread a hook launches from is not known there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddpprof.events import Phase, Trace
from ddpprof.intervals import Spans, clip, union


@dataclass(frozen=True, slots=True)
class Trailing:
    trailing_ns: int
    backward_end_ns: int
    """end of the step's last backward compute"""
    optimizer_start_ns: int | None
    """start of the first optimizer op after it"""


def measure_trailing(trace: Trace, step: int) -> Trailing | None:
    """``None`` where the step has no backward compute."""
    between = _between(trace, step)
    return None if between is None else Trailing(_gradients(trace, step, *between).total_ns, *between)


def trailing_spans(trace: Trace, step: int) -> Spans | None:
    """When it was; ``None`` likewise."""
    between = _between(trace, step)
    return None if between is None else _gradients(trace, step, *between)


def _between(trace: Trace, step: int) -> tuple[int, int | None] | None:
    """End of the last backward compute, and start of the optimizer's first op after it."""
    compute = trace.compute
    in_step = compute.step == step
    backward = in_step & (compute.phase == Phase.BACKWARD)
    if not backward.any():
        return None
    backward_end = int(compute.end_ns[backward].max())
    optimizer = compute.start_ns[in_step & (compute.phase == Phase.OPTIMIZER) & (compute.start_ns >= backward_end)]
    return backward_end, int(optimizer.min()) if len(optimizer) else None


def _gradients(trace: Trace, step: int, backward_end_ns: int, optimizer_start_ns: int | None) -> Spans:
    comm = trace.collectives
    gradients = comm.phase == Phase.BACKWARD if trace.device == "cpu" else comm.phase != Phase.FORWARD
    rows = np.flatnonzero((comm.step == step) & gradients)
    until = optimizer_start_ns if optimizer_start_ns is not None else np.iinfo(np.int64).max
    return clip(union(comm.start_ns[rows], comm.end_ns[rows]), backward_end_ns, until)
