"""Which buckets does a trace show without ddpprof's record? One gradient all-reduce each, in the order of launch.

DDP's reducer launches a bucket from the hook of the gradient that completed it, inside autograd's ``AccumulateGrad``
node, which tells its all-reduces from those of SyncBatchNorm and of tensor parallelism. Where a trace names no such
node, every all-reduce of the backward pass counts. One of 32-bit integers, by its kernel's name, is no bucket but DDP's
map of used parameters; where the name does not tell, the map passes for a last bucket.

The layout is the one that most steps share, over all ranks: sizes in the order of launch, an unknown size fits any.
Steps with another layout are left out; DDP rebuilds its buckets after the first iteration. Modules cannot be told
apart: all buckets are those of module 0. Times count from the end of the last DDP forward before the first bucket.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpprof.events import UNKNOWN, CollectiveKind, Mark, Phase, Trace
from ddpprof.intervals import union
from ddpprof.measures.bucket_table import BucketRow, summarise_times
from ddpprof.measures.buckets import BucketStep

_Sizes = tuple[int, ...]

_HOOK = "AccumulateGrad"
_OF_32_BIT_INTEGERS = re.compile(r"_(?:u?int|[iu])32(?:_t)?(?![a-z0-9])", re.IGNORECASE)
"""ncclKernel_AllReduce_RING_LL_Sum_int32_t(…), ncclDevKernel_AllReduce_Sum_u32_RING_LL(…)"""


@dataclass(frozen=True, slots=True)
class TracedBuckets:
    buckets: tuple[BucketRow, ...]
    notes: tuple[str, ...]
    """which steps were left out and what could not be told, in words for the report"""


NO_BUCKETS = TracedBuckets((), ())


@dataclass(frozen=True, slots=True)
class _Pass:
    """The gradient all-reduces of one step of one rank."""

    rank: int
    step: int
    """index into the steps of the rank's trace"""
    rows: NDArray[np.int64]
    """in the order of launch"""
    sizes: _Sizes
    """or `UNKNOWN`"""
    origin_ns: int
    spans_forwards: bool
    """a DDP forward ended between its first launch and its last"""


def trace_buckets(traces: Mapping[int, Trace], one_clock: bool) -> TracedBuckets:
    """`traces`: by rank. `one_clock`: all ranks run on one host."""
    passes = [one for rank, trace in traces.items() for one in _passes(rank, trace)]
    if not passes:
        return NO_BUCKETS
    layout = _layout(passes)
    chosen = [one for one in passes if _fits(one.sizes, layout)]
    known = [next((s[i] for one in chosen if (s := one.sizes)[i] != UNKNOWN), None) for i in range(len(layout))]
    ranks = {rank: [row for one in chosen if one.rank == rank for row in _steps(one, trace)]
             for rank, trace in traces.items()}  # fmt: skip
    one_clock = one_clock and len({trace.epoch_ns is None for trace in traces.values()}) == 1
    buckets = tuple(
        BucketRow(
            **summarise_times((0, index), ranks, one_clock),
            num_bytes=num_bytes,
            num_parameters=None,
            first_parameter=None,
            last_parameter=None,
        )
        for index, num_bytes in enumerate(known)
    )
    return TracedBuckets(buckets, tuple(_notes(passes, chosen, traces)))


def _passes(rank: int, trace: Trace) -> list[_Pass]:
    """Those of the steps that reduced gradients after a DDP forward."""
    comm, marks = trace.collectives, trace.host_spans
    forward_ends = np.sort(marks.end_ns[marks.mark == Mark.FORWARD])
    gradients = _gradient_all_reduces(trace)
    found = []
    for step in range(len(trace.steps)):
        rows = gradients[comm.step[gradients] == step]
        ended = np.searchsorted(forward_ends, comm.launched_ns[rows], side="right")
        if not len(rows) or not ended[0]:
            continue
        origin = int(forward_ends[ended[0] - 1])
        sizes = tuple(comm.num_bytes[rows].tolist())
        found.append(_Pass(rank, step, rows, sizes, origin, bool(ended[-1] > ended[0])))
    return found


def _gradient_all_reduces(trace: Trace) -> NDArray[np.int64]:
    """Rows of the collectives that carried buckets, in the order of launch."""
    comm, marks = trace.collectives, trace.host_spans
    is_integer = np.array([bool(_OF_32_BIT_INTEGERS.search(name)) for name in trace.names], np.bool_)
    is_hook = np.array([name.endswith(_HOOK) for name in trace.names], np.bool_)
    hooks = np.flatnonzero((marks.mark == Mark.BACKWARD) & is_hook[marks.name]) if len(marks) else np.empty(0, np.int64)
    chosen = (
        (comm.kind == CollectiveKind.ALL_REDUCE)
        & (comm.phase == Phase.BACKWARD)
        & (comm.launched_ns != UNKNOWN)
    )  # fmt: skip
    if len(comm):
        chosen &= ~is_integer[comm.name]
    if len(hooks):
        chosen &= union(marks.start_ns[hooks], marks.end_ns[hooks]).contains(comm.launched_ns)
    rows = np.flatnonzero(chosen)
    return rows[np.argsort(comm.launched_ns[rows], kind="stable")]


def _layout(passes: list[_Pass]) -> _Sizes:
    """What most passes fit; of several, the one seen last: the first steps may still have DDP's first layout."""
    counts = Counter(one.sizes for one in passes)
    votes = {sizes: sum(n for other, n in counts.items() if _fits(other, sizes)) for sizes in counts}
    last = {one.sizes: one.step for one in sorted(passes, key=lambda one: one.step)}
    return max(counts, key=lambda sizes: (votes[sizes], last[sizes], sizes))


def _fits(sizes: _Sizes, layout: _Sizes) -> bool:
    return len(sizes) == len(layout) and all(
        UNKNOWN in (a, b) or a == b for a, b in zip(sizes, layout, strict=True)
    )  # fmt: skip


def _steps(one: _Pass, trace: Trace) -> list[BucketStep]:
    comm = trace.collectives
    times = (comm.launched_ns[one.rows], comm.start_ns[one.rows], comm.end_ns[one.rows])
    return [
        BucketStep(
            step=trace.steps[one.step].number,
            module=0,
            index=index,
            origin_ns=one.origin_ns + (trace.epoch_ns or 0),
            first_ready_ns=None,
            ready_ns=None,
            launched_ns=launched - one.origin_ns,
            started_ns=started - one.origin_ns,
            finished_ns=finished - one.origin_ns,
            last_parameter=None,
            previous_ready_ns=None,
        )
        for index, (launched, started, finished) in enumerate(zip(*(t.tolist() for t in times), strict=True))
    ]


def _notes(passes: list[_Pass], chosen: list[_Pass], traces: Mapping[int, Trace]) -> list[str]:
    notes = []
    left_out: dict[int, list[int]] = {}
    for one in passes:
        if one not in chosen:
            left_out.setdefault(traces[one.rank].steps[one.step].number, []).append(one.rank)
    for number, ranks in sorted(left_out.items()):
        where = "" if len(ranks) == len(traces) else f" of rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        notes.append(
            f"the bucket table leaves out step {number}{where}: its gradient all-reduces differ from most steps' in "
            "number or size (DDP rebuilds its buckets after the first iteration)"
        )
    if any(one.spans_forwards for one in chosen):
        notes.append("the bucket table counts the buckets of all backward passes of a step as one module's")
    return notes
