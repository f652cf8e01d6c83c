"""Measure DDP's own work on the training thread, per step, without waiting for communication.

    pre-forward       buffer sync (host side), join bookkeeping, `prepare_for_backward`, without its communication
    unused search     search of the autograd graph for unused parameters
    copy in           scaling gradients and copying them into buckets
    launch            passing all-reduces to the backend
    copy out          copying buckets back into `.grad`
    finalise          the rest between the last backward node and the last copy out of each pass, without the time in
                      which a launched collective has not ended, because it may wait in the backend's queue

The pre-forward part comes from ddpprof's record, so it is unknown for traces not recorded by ddpprof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np

from ddpprof.engine.numbers import Number
from ddpprof.intervals import NO_SPANS, Spans, merge, subtract, union, union_of
from ddpprof.model import UNKNOWN, Int64Column, Mark, RecordedStep, Trace
from ddpprof.topics.steps.overlap import BackwardCompute, backward_passes, marked_spans, spans_of


@dataclass(frozen=True, slots=True)
class WrapperCost:
    """Time of the training thread in one step, in ns; ``None`` if unknown."""

    pre_forward_ns: Annotated[int | None, Number("DDP's own work before the forward")]
    unused_search_ns: Annotated[int, Number("DDP's search for unused parameters")]
    copy_in_ns: Annotated[int, Number("copying gradients into buckets")]
    launch_ns: Annotated[int, Number("passing buckets to the backend")]
    copy_out_ns: Annotated[int, Number("copying buckets back into gradients")]
    finalise_ns: Annotated[int | None, Number("DDP's own work after the backward pass")]

    @property
    def total_ns(self) -> int:
        return sum(getattr(self, part.name) or 0 for part in fields(self))


def measure_wrapper_cost(trace: Trace, step: int, recorded: RecordedStep | None) -> WrapperCost:
    """Measure the step with index `step`; `recorded` is the same step in ddpprof's record, if there is one."""
    comm = spans_of(trace.collectives, None) if trace.device == "cpu" else NO_SPANS
    copy_in, copy_out = (marked_spans(trace, mark, step) for mark in (Mark.BUCKET_COPY_IN, Mark.BUCKET_COPY_OUT))
    return WrapperCost(
        pre_forward_ns=_pre_forward(trace, recorded, comm),
        unused_search_ns=marked_spans(trace, Mark.UNUSED_SEARCH, step).total_ns,
        copy_in_ns=copy_in.total_ns,
        launch_ns=subtract(_reducer_calls(trace, step), copy_in).total_ns,
        copy_out_ns=copy_out.total_ns,
        finalise_ns=_finalise(trace, step, copy_out),
    )


def _reducer_calls(trace: Trace, step: int) -> Spans:
    """Return the host spans of collective calls inside the backward pass."""
    calls, backward = (marked_spans(trace, mark, step) for mark in (Mark.COLLECTIVE_CALL, Mark.BACKWARD))
    inside = backward.contains(calls.start_ns)
    return union_of(calls, inside)


def _pre_forward(trace: Trace, recorded: RecordedStep | None, comm: Spans) -> int | None:
    if recorded is None or not recorded.forwards or trace.epoch_ns is None:
        return None
    before = [(f.start_ns - trace.epoch_ns, f.inner_start_ns - trace.epoch_ns) for f in recorded.forwards]
    after = [(f.inner_end_ns - trace.epoch_ns, f.end_ns - trace.epoch_ns) for f in recorded.forwards]
    times = np.array(before + after, dtype=np.int64)
    host = union(times[:, 0], times[:, 1])
    host = subtract(host, marked_spans(trace, Mark.UNUSED_SEARCH))
    return subtract(host, comm).total_ns


def _finalise(trace: Trace, step: int, copy_out: Spans) -> int | None:
    if not len(copy_out) or trace.device != "cpu":
        return None
    passes = backward_passes(trace, step)
    if not passes:
        return None
    windows = [
        (one.end_ns, max(one.end_ns, int(ends.max())))
        for one, ends in zip(passes, _copies_by_pass(passes, copy_out), strict=True)
        if len(ends)
    ]
    between = np.array(windows, np.int64).reshape(-1, 2)
    comm = trace.collectives
    handed_over = np.where(comm.launched_ns == UNKNOWN, comm.start_ns, np.minimum(comm.launched_ns, comm.start_ns))
    under_way = union(handed_over, comm.end_ns)
    return subtract(union(between[:, 0], between[:, 1]), merge(copy_out, under_way)).total_ns


def _copies_by_pass(passes: Sequence[BackwardCompute], copy_out: Spans) -> list[Int64Column]:
    """Return, for each backward pass, the ends of the bucket copies that follow it."""
    after = np.searchsorted([one.start_ns for one in passes], copy_out.end_ns)
    return [copy_out.end_ns[after == place] for place in range(1, len(passes) + 1)]
