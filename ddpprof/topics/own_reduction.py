r"""Measure gradient all-reduces that a script launches from its own hooks, without torch's DDP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.finding import Finding, only_known, size
from ddpprof.engine.topic import ReportView, Topic, View
from ddpprof.intervals import Spans, subtract, union_of
from ddpprof.layout import Line, Section, count, in_ms, megabytes
from ddpprof.model import UNKNOWN, Mark, Trace
from ddpprof.statistics import median_known
from ddpprof.topics.buckets.steps import gradient_all_reduces, reduces_without_ddp
from ddpprof.topics.steps.overlap import spans_of


@dataclass(frozen=True, slots=True)
class OwnReduction:
    """Gradient all-reduces in one step, or medians over steps."""

    num_all_reduces: int
    num_bytes: int | None
    """number of bytes that are reduced; ``None`` if the trace does not show it"""
    comm_ns: int
    exposed_ns: int
    flatten_ns: int | None
    """time in which the training thread flattens and unflattens tensors; ``None`` if the trace does not show it, and on
    accelerators, whose work may continue meanwhile
    """


def measure_own_reduction(trace: Trace, steps: Sequence[int]) -> OwnReduction | None:
    """Return medians over the steps with these indices; ``None`` if no hooks of the script reduce gradients."""
    if not reduces_without_ddp(trace):
        return None
    gradients, computing = gradient_all_reduces(trace), spans_of(trace.compute, None)
    rows = [one for step in steps if (one := _of_step(trace, step, gradients, computing)) is not None]
    if not rows:
        return None
    sizes = [row.num_bytes for row in rows if row.num_bytes is not None]
    return OwnReduction(
        num_all_reduces=round(median(row.num_all_reduces for row in rows)),
        num_bytes=round(median(sizes)) if len(sizes) == len(rows) else None,
        comm_ns=round(median(row.comm_ns for row in rows)),
        exposed_ns=round(median(row.exposed_ns for row in rows)),
        flatten_ns=median_known(row.flatten_ns for row in rows),
    )


def _of_step(trace: Trace, step: int, gradients: NDArray[np.int64], computing: Spans) -> OwnReduction | None:
    """Measure one step. `gradients`: rows of the all-reduces of all steps. `computing`: computation of all steps."""
    comm, host = trace.collectives, trace.host_spans
    rows = gradients[comm.step[gradients] == step]
    if not len(rows):
        return None
    sizes = comm.num_bytes[rows]
    spans = union_of(comm, rows)
    flat = np.flatnonzero((host.step == step) & (host.mark == Mark.FLATTEN) & (trace.device == "cpu"))
    return OwnReduction(
        num_all_reduces=len(rows),
        num_bytes=None if (sizes == UNKNOWN).any() else int(sizes.sum()),
        comm_ns=spans.total_ns,
        exposed_ns=subtract(spans, computing).total_ns,
        flatten_ns=union_of(host, flat).total_ns if len(flat) else None,
    )


def own_reduction(own: OwnReduction, _view: View) -> Iterator[Finding]:
    """Report gradient hooks, such as Apex's, that are used instead of torch's DDP."""
    volume = "" if own.num_bytes is None else f" of {size(own.num_bytes)} in all"
    flat = (
        "" if own.flatten_ns is None else f"; the training thread spends {in_ms(own.flatten_ns)} flattening gradients"
    )
    yield Finding(
        "own-reduction",
        "Gradients are all-reduced without torch's DDP, by the script's own hooks (as in Apex)",
        f"{own.num_all_reduces} all-reduces per step{volume}, launched inside the backward pass; "
        f"{in_ms(own.exposed_ns)} of {in_ms(own.comm_ns)} is exposed{flat}",
        "Use torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True): its buckets follow the "
        "order in which gradients become ready, and gradients are not copied back. ddpprof trace then also shows the "
        "parameters of each bucket, late gradients and DDP's own work.",
        None,
        numbers=only_known(
            num_all_reduces=own.num_all_reduces,
            gradient_bytes=own.num_bytes,
            comm_ns=own.comm_ns,
            exposed_ns=own.exposed_ns,
        ),
    )


def own_reduction_line(own: OwnReduction, _report: ReportView) -> Iterable[Section]:
    size = "" if own.num_bytes is None else f" of {megabytes(own.num_bytes)} MB in all"
    yield Line(
        "Gradients are all-reduced without torch's DDP (as in Apex), in backward hooks: "
        f"{count(own.num_all_reduces, 'all-reduce')} per step{size}, {in_ms(own.comm_ns)}, {in_ms(own.exposed_ns)} of "
        "it exposed."
    )


OWN_REDUCTION: Topic[OwnReduction, OwnReduction] = Topic(
    name="own_reduction",
    sections={"job": own_reduction_line},
    rules=(own_reduction,),
    # A recorded job uses DDP.
    of_rank=lambda rank, steps, _modules: (
        measure_own_reduction(rank.trace, steps) if rank.trace is not None and rank.record is None else None
    ),
    rank_type=OwnReduction,
    # Use the rank with the least exposed time: other ranks also wait for slower ranks.
    of_ranks=lambda ranks: min(ranks, key=lambda one: one.exposed_ns),
)
