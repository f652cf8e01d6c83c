r"""How much communication hides behind computation?

overlap = |comm AND compute|      exposed = |comm \ compute|      hidden fraction = overlap / |comm|
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ddpprof.engine.numbers import Number
from ddpprof.intervals import Spans, intersect, union_of
from ddpprof.model import Collectives, Mark, Trace, Work


@dataclass(frozen=True, slots=True)
class Overlap:
    """Device work of one step or a whole trace. Times are lengths of unions, ns."""

    compute_ns: Annotated[int, Number("computation")]
    comm_ns: Annotated[int, Number("communication")]
    overlap_ns: Annotated[int, Number("both at once")]
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
    """Return when the host was in a span with this mark, in one step (an index) or in the whole trace (``None``)."""
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
