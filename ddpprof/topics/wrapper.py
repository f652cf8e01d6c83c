"""Measure DDP's own work on the training thread, and report broadcasts of buffers and copies of gradients.

The work is measured per step and excludes waiting for communication:

    pre-forward       buffer sync (host side), join bookkeeping, `prepare_for_backward`, without its communication
    unused search     search of the autograd graph for unused parameters
    copy in           scaling gradients and copying them into buckets
    launch            passing all-reduces to the backend
    copy out          copying buckets back into `.grad`
    finalise          the rest between the last backward node and the last copy out of each pass, except time in
                      which a launched collective has not ended, because it may wait in the backend's queue

The pre-forward part comes from ddpprof's record, so it is unknown for traces not recorded by ddpprof.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np

from ddpprof.engine.finding import Finding, at_most, ddp_change, only_known, size
from ddpprof.engine.frameworks import ddp_argument
from ddpprof.engine.numbers import Number
from ddpprof.engine.topic import Topic, View
from ddpprof.intervals import NO_SPANS, Spans, merge, subtract, union, union_of
from ddpprof.layout import in_ms
from ddpprof.model import UNKNOWN, DdpModule, Int64Column, Mark, RecordedStep, Trace
from ddpprof.statistics import median_known
from ddpprof.topics.steps.overlap import BackwardCompute, backward_passes, marked_spans, spans_of


@dataclass(frozen=True, slots=True)
class WrapperCost:
    """Time that the training thread spends in DDP's own code in one step, in ns; ``None`` if unknown."""

    pre_forward_ns: Annotated[int | None, Number("DDP's own work before the forward pass")]
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


@dataclass(frozen=True, slots=True)
class BufferSyncs:
    """Buffer broadcasts in a typical step of one rank."""

    num_forwards: int
    """number of forward passes with gradients"""
    num_buffer_syncs: int
    """number of forward passes before which DDP broadcasts buffers"""
    modules_with_buffer_syncs: tuple[int, ...] | None
    """indices of the DDP modules whose buffers DDP broadcasts; ``None`` if unknown"""


def measure_buffer_syncs(steps: Sequence[RecordedStep]) -> BufferSyncs:
    """Return the numbers of forward passes and buffer broadcasts, as medians over training steps."""
    forwards = [[one for one in step.forwards if one.has_gradients] for step in steps if step.forwards]
    synchronized = [[one for one in of_step if one.buffer_sync_ns > 0] for of_step in forwards]
    return BufferSyncs(
        num_forwards=median_known(map(len, forwards)) or 0,
        num_buffer_syncs=median_known(map(len, synchronized)) or 0,
        modules_with_buffer_syncs=tuple(sorted({one.module for of_step in synchronized for one in of_step})),
    )


def buffers_broadcast(syncs: BufferSyncs, view: View) -> Iterator[Finding]:
    """Report buffers, such as BatchNorm's running statistics, that rank 0 sends before synchronized forward passes."""
    known = syncs.modules_with_buffer_syncs
    synchronized = [m for index, m in enumerate(view.modules) if known is None or index in known]
    modules = [m for m in synchronized if m.settings.get("broadcast_buffers") and m.num_buffers]
    if view.world_size == 1 or not modules or not view.worth(view.buffer_sync_ns):
        return
    batch_norms = sum(m.num_batch_norms for m in modules)
    number = sum(m.num_buffers for m in modules)
    others = number - sum(map(_num_of_batch_norms, modules))
    what = (
        f"{batch_norms} BatchNorm layer{'s' if batch_norms > 1 else ''}"
        if not others
        else ", ".join(m.name for m in modules)
    )
    buffers = f"1 buffer of {what} is" if number == 1 else f"{number} buffers of {what} are"
    yield Finding(
        "buffers-broadcast",
        f"{buffers} broadcast before {_forwards(syncs)}",
        f"broadcasting {size(sum(m.buffer_bytes for m in modules))} takes {in_ms(view.buffer_sync_ns or 0)} per "
        f"step, and every rank waits for rank 0{_largest(modules)}",
        f"{_without_broadcast(view)}. " + _if_they_may_differ(others, number),
        view.buffer_sync_ns,
        change=ddp_change(view.framework, **{_argument(view) or "broadcast_buffers": False}),
        numbers=only_known(
            num_buffers=number, buffer_bytes=sum(m.buffer_bytes for m in modules), buffer_sync_ns=view.buffer_sync_ns
        ),
    )


def _largest(modules: Sequence[DdpModule]) -> str:
    """Return a clause that names the largest buffer, if its name is known."""
    one = max(modules, key=lambda module: module.largest_buffer_bytes)
    if one.largest_buffer is None:
        return ""
    return f"; the largest buffer is {one.largest_buffer} ({size(one.largest_buffer_bytes)})"


def _num_of_batch_norms(module: DdpModule) -> int:
    known = module.num_buffers_of_batch_norms
    if known is not None:
        return known
    return module.num_buffers if module.num_batch_norms else 0


def _if_they_may_differ(others: int, number: int) -> str:
    """Return the condition for disabling the broadcast. `others`: number of buffers outside BatchNorm layers."""
    statistics = (
        "Running statistics are not used in training mode. Without the broadcast, they differ between ranks: "
        "evaluate and save on rank 0 only."
    )
    if not others:
        return statistics
    them = "them" if others == number else f"the {others} buffer{'s' if others > 1 else ''} outside BatchNorm"
    limit = (
        f"Do this only if the forward pass does not change {them}, or changes {them} in the same way on all ranks, or "
        "if it does not matter that they differ between ranks."
    )
    return limit if others == number else f"{limit} {statistics}"


def _forwards(syncs: BufferSyncs) -> str:
    if syncs.num_buffer_syncs >= syncs.num_forwards:
        return "every forward pass"
    return f"{syncs.num_buffer_syncs} of {syncs.num_forwards} forward passes in a step"


def _without_broadcast(view: View) -> str:
    """Return how to disable the broadcast before forward passes.

    ``broadcast_buffers=False``, the only option before torch 2.13, also disables the broadcast at construction.
    """
    argument, alike = _argument(view), "if all ranks start with the same buffers"
    if argument == "broadcast_buffers":
        return f"{ddp_argument(view.framework, 'broadcast_buffers=False')}, {alike}"
    said = ddp_argument(view.framework, "forward_sync_buffers=False")
    return said if argument else f"{said} (before torch 2.13: broadcast_buffers=False, {alike})"


def _argument(view: View) -> str | None:
    """Return the DDP argument that disables the broadcast; ``None`` if the version of torch is unknown."""
    if view.framework in ("accelerate", "transformers"):
        return "broadcast_buffers"
    found = [_VERSION.match(one.torch) for one in view.records.values()]
    version = next(((int(one[1]), int(one[2])) for one in found if one is not None), None)
    if version is None:
        return None
    return "forward_sync_buffers" if version >= (2, 13) else "broadcast_buffers"


_VERSION = re.compile(r"(\d+)\.(\d+)")


def gradient_copies(modules: Sequence[DdpModule], view: View) -> Iterator[Finding]:
    """Report gradients that are copied from buckets into ``.grad`` instead of being views of the buckets."""
    modules = [m for m in modules if not m.settings.get("gradient_as_bucket_view")]
    predicted = view.predictions.bucket_views
    if not modules or not view.copy_out_ns or not view.worth(view.copy_out_ns, predicted):
        return
    memory = sum(p.num_bytes for m in modules for p in m.parameters)
    yield Finding(
        "gradient-copies",
        "Reduced gradients are copied out of their buckets",
        f"{in_ms(view.copy_out_ns)} per step, and {size(memory)} of memory",
        f"{ddp_argument(view.framework, 'gradient_as_bucket_view=True')}. Do not use it if the code calls "
        "grad.detach_().",
        at_most(view.copy_out_ns, predicted),
        predicted=predicted,
        cause_ns=view.copy_out_ns,
        change=ddp_change(view.framework, gradient_as_bucket_view=True),
        numbers=only_known(copy_out_ns=view.copy_out_ns, gradient_bytes=memory),
    )


BUFFER_SYNCS: Topic[BufferSyncs, BufferSyncs] = Topic(
    "buffer_syncs",
    rules=(buffers_broadcast,),
    of_rank=lambda rank, _steps, _modules: measure_buffer_syncs(rank.training_steps) if rank.record else None,
    rank_type=BufferSyncs,
    of_ranks=lambda ranks: ranks[0],
)
"""broadcasts of buffers on the first rank; they are the same on all ranks"""

GRADIENT_COPIES: Topic[None, tuple[DdpModule, ...]] = Topic(
    "gradient_copies", rules=(gradient_copies,), of_run=lambda view: view.modules
)
