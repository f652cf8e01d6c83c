r"""How long does ``nn.DataParallel`` move data between the devices of its process? Per step, by part.

    replicate   parameters copied to every device, in each forward
    scatter     the batch divided among the devices; in the backward pass, the gradients of the output
    gather      the output brought to one device
    reduce      gradients of all devices added up on the first one

Each part is the length of the union, over all devices, of the communication and copies that it launched.

    exposed = |all of them \ compute on any device|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median

import numpy as np

from ddpprof.intervals import Spans, merge, subtract, union_of
from ddpprof.measures.buckets.overlap import spans_of
from ddpprof.model import UNKNOWN, DataParallelModule, Mark, Rank, Trace


@dataclass(frozen=True, slots=True)
class DataParallelStep:
    """One step of one process, or the medians over steps."""

    num_forwards: int
    num_scattered_again: int
    """forwards whose input the previous one had just gathered"""
    replicate_ns: int
    scatter_ns: int
    gather_ns: int
    reduce_ns: int
    exposed_ns: int


@dataclass(frozen=True, slots=True)
class DataParallelReport:
    """Work of ``nn.DataParallel`` in one process; times are medians over steps, in ns per step."""

    rank: int
    modules: tuple[DataParallelModule, ...]
    """empty where ddpprof did not record"""
    step: DataParallelStep | None


def data_parallel_of_rank(rank: Rank, steps: Sequence[int]) -> DataParallelReport | None:
    """Measure the rank in the steps with these indices; ``None`` if it has no such module and calls none in them."""
    modules = rank.record.data_parallel if rank.record is not None else ()
    trace = rank.trace
    measured = None if trace is None else median_data_parallel([measure_data_parallel(trace, step) for step in steps])
    return DataParallelReport(rank.rank, modules, measured) if modules or measured is not None else None


_PARTS = (Mark.REPLICATE, Mark.SCATTER, Mark.GATHER, Mark.REDUCE_GRADIENTS)


def measure_data_parallel(trace: Trace, step: int) -> DataParallelStep | None:
    """Measure one step; ``None`` if it has no ``DataParallel.forward``."""
    host = trace.host_spans
    forwards = np.flatnonzero((host.mark == Mark.DATA_PARALLEL) & (host.step == step))
    if not len(forwards):
        return None
    parts = [_launched_in(trace, step, mark) for mark in _PARTS]
    transfers = parts[0]
    for part in parts[1:]:
        transfers = merge(transfers, part)
    replicate, scatter, gather, reduce = parts
    return DataParallelStep(
        num_forwards=len(forwards),
        num_scattered_again=_num_scattered_again(trace, step),
        replicate_ns=replicate.total_ns,
        scatter_ns=scatter.total_ns,
        gather_ns=gather.total_ns,
        reduce_ns=reduce.total_ns,
        exposed_ns=subtract(transfers, spans_of(trace.compute, step)).total_ns,
    )


def _launched_in(trace: Trace, step: int, mark: Mark) -> Spans:
    """Return the communication and copies that were launched while the host was in one of the marks."""
    host = trace.host_spans
    rows = np.flatnonzero((host.mark == mark) & (host.step == step))
    inside = union_of(host, rows)
    spans = []
    for table in (trace.collectives, trace.copies):
        known = (table.step == step) & (table.launched_ns != UNKNOWN)
        chosen = np.flatnonzero(known & inside.contains(table.launched_ns))
        spans.append(union_of(table, chosen))
    return merge(*spans)


def _num_scattered_again(trace: Trace, step: int) -> int:
    """Count forwards that scatter after another has gathered, with no backward pass between them."""
    host = trace.host_spans
    rows = np.flatnonzero((host.step == step) & np.isin(host.mark, _STORY))
    again, gathered = 0, False
    forward_end = 0
    for row in rows.tolist():
        mark, start = Mark(host.mark[row]), int(host.start_ns[row])
        if mark in (Mark.BACKWARD, Mark.OPTIMIZER):
            gathered = False
        elif mark is Mark.DATA_PARALLEL:
            forward_end, scattered = int(host.end_ns[row]), gathered
            gathered = False
        elif start < forward_end and mark is Mark.GATHER:
            gathered = True
        elif start < forward_end and mark is Mark.SCATTER and scattered:
            again, scattered = again + 1, False
    return again


_STORY = (Mark.DATA_PARALLEL, Mark.SCATTER, Mark.GATHER, Mark.BACKWARD, Mark.OPTIMIZER)


def median_data_parallel(steps: Sequence[DataParallelStep | None]) -> DataParallelStep | None:
    """Return the median of each column; ``None`` if no step has a ``DataParallel.forward``."""
    known = [step for step in steps if step is not None]
    if not known:
        return None
    return DataParallelStep(
        *(round(median(getattr(step, column.name) for step in known)) for column in fields(DataParallelStep))
    )
