r"""Measure how much communication is hidden behind computation.

overlap = |comm AND compute|      exposed = |comm \ compute|      hidden fraction = overlap / |comm|
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ddpprof.engine.numbers import Number
from ddpprof.intervals import Spans, intersect, union, union_of
from ddpprof.model import Collectives, Mark, Phase, Trace, Work


@dataclass(frozen=True, slots=True)
class Overlap:
    """Device work of one step or the whole trace. Times are lengths of unions, in ns."""

    compute_ns: Annotated[int, Number("computation")]
    comm_ns: Annotated[int, Number("communication")]
    overlap_ns: Annotated[int, Number("computation and communication at the same time")]
    exposed_ns: Annotated[int, Number("communication without computation")]
    copy_ns: int
    num_comm_kernels: int

    @property
    def hidden_fraction(self) -> float | None:
        return self.overlap_ns / self.comm_ns if self.comm_ns else None


def spans_of(table: Work | Collectives, step: int | None) -> Spans:
    """Return the union of a table's rows, of one step (an index) or of the whole trace (``None``)."""
    return union_of(table) if step is None else union_of(table, np.flatnonzero(table.step == step))


def marked_spans(trace: Trace, mark: Mark, step: int | None = None) -> Spans:
    """Return the union of host spans with this mark, in one step (an index) or in the whole trace (``None``)."""
    host = trace.host_spans
    return union_of(host, np.flatnonzero((host.mark == mark) & (step is None or host.step == step)))


def measure_overlap(trace: Trace, step: int | None) -> Overlap:
    """Measure one step (an index into ``trace.steps``) or the whole trace (``None``)."""
    compute = spans_of(trace.compute, step)
    comm = spans_of(trace.collectives, step)
    overlap_ns = intersect(comm, compute).total_ns
    return Overlap(
        compute_ns=compute.total_ns,
        comm_ns=comm.total_ns,
        overlap_ns=overlap_ns,
        exposed_ns=comm.total_ns - overlap_ns,
        copy_ns=spans_of(trace.copies, step).total_ns,
        num_comm_kernels=len(trace.collectives) if step is None else int((trace.collectives.step == step).sum()),
    )


def measure_trailing(trace: Trace, step: int) -> int | None:
    """Return the step's trailing communication, in ns; ``None`` if the step has no backward compute."""
    spans = trailing_spans(trace, step)
    return None if spans is None else spans.total_ns


def trailing_spans(trace: Trace, step: int) -> Spans | None:
    """Return gradient communication after each backward pass; ``None`` if the step has no backward compute."""
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


@dataclass(frozen=True, slots=True)
class BackwardCompute:
    """The computation of one backward pass."""

    start_ns: int
    end_ns: int
    next_start_ns: int | None
    """start of the first forward or optimizer op after the backward pass; ``None`` if the step has none"""


def backward_passes(trace: Trace, step: int) -> tuple[BackwardCompute, ...]:
    """Return the backward passes of the step with index `step`, in time order."""
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
