"""Which all-reduces carry gradients, and does torch's DDP launch them?

Code that reduces gradients during the backward pass launches from the hook of the gradient that completed a bucket,
inside autograd's ``AccumulateGrad`` node: DDP's reducer, Apex's DistributedDataParallel, or hooks of a script. This
distinguishes these all-reduces from those of SyncBatchNorm and tensor parallelism. If a trace has no such node, every
all-reduce of the backward pass counts. An all-reduce whose kernel's name shows 32-bit integers is not a bucket but
DDP's map of used parameters; if the name does not tell, the map is taken for a last bucket.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ddpprof.intervals import union_of
from ddpprof.model import UNKNOWN, CollectiveKind, Mark, Phase, Trace

SMALL_BYTES = 64 * 1024
"""most bytes for which latency dominates the cost of a collective, and which are likely a metric"""

_HOOK = "AccumulateGrad"
_OF_32_BIT_INTEGERS = re.compile(r"_(?:u?int|[iu])32(?:_t)?(?![a-z0-9])", re.IGNORECASE)
"""ncclKernel_AllReduce_RING_LL_Sum_int32_t(…), ncclDevKernel_AllReduce_Sum_u32_RING_LL(…)"""
_OF_TORCH = (Mark.FORWARD, Mark.BUCKET_COPY_IN, Mark.BUCKET_COPY_OUT, Mark.DATA_PARALLEL, Mark.SHARDED)
_OF_SHARDS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)


def gradient_all_reduces(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of the collectives that carried buckets, in the order of launch."""
    rows = all_reduces_of_backward(trace)
    if len(rows):
        is_integer = np.array([bool(_OF_32_BIT_INTEGERS.search(name)) for name in trace.names], np.bool_)
        rows = rows[~is_integer[trace.collectives.name[rows]]]
    return launched_by_hooks(trace, rows)


def all_reduces_of_backward(trace: Trace, step: int | None = None) -> NDArray[np.int64]:
    """Return the rows of all-reduces launched by backward passes, in that order; with `step`, only of that step."""
    comm = trace.collectives
    is_known = comm.launched_ns != UNKNOWN
    chosen = (comm.kind == CollectiveKind.ALL_REDUCE) & (comm.phase == Phase.BACKWARD)
    if is_known.any():
        chosen &= is_known
    rows = np.flatnonzero(chosen if step is None else chosen & (comm.step == step))
    return rows[np.argsort(comm.asked_ns[rows], kind="stable")]


def launched_by_hooks(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of `rows` that a gradient's hook launched; all if the trace has no hooks, or no launches."""
    marks, hooks, launched_ns = trace.host_spans, _hooks(trace), trace.collectives.launched_ns[rows]
    if not len(hooks) or (launched_ns == UNKNOWN).all():
        return rows
    spans = union_of(marks, hooks)
    return rows[spans.contains(launched_ns)]


def reduces_without_ddp(trace: Trace) -> bool:
    """Return whether the script's own hooks reduce gradients, as Apex's do.

    Returns False if the trace has marks of DDP or FSDP, if the backward pass also moves shards, or if hooks only reduce
    a few numbers. A library that launches from a separate thread does so outside the backward pass.
    """
    comm = trace.collectives
    if np.isin(trace.host_spans.mark, _OF_TORCH).any() or not len(_hooks(trace)):
        return False
    if (np.isin(comm.kind, _OF_SHARDS) & (comm.phase == Phase.BACKWARD)).any():
        return False
    sizes = comm.num_bytes[gradient_all_reduces(trace)]
    return bool(((sizes == UNKNOWN) | (sizes > SMALL_BYTES)).any())


def _hooks(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of hooks among the host's spans."""
    marks = trace.host_spans
    is_hook = np.array([name.endswith(_HOOK) for name in trace.names], np.bool_)
    return np.flatnonzero((marks.mark == Mark.BACKWARD) & is_hook[marks.name])
