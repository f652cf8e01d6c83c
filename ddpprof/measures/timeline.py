"""What happened when, in one step of one rank?

All times are moved by one number of nanoseconds per step, so that lengths stay what the other measures say: parts of
the step bar, overlap, exposed and trailing communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import TypeVar

import numpy as np

from ddpprof.events import UNKNOWN, Collectives, Trace, Work
from ddpprof.intervals import Spans, intersect, merge, shift, subtract
from ddpprof.measures.breakdown import split_step
from ddpprof.measures.buckets import BucketStep
from ddpprof.measures.overlap import spans_of
from ddpprof.measures.trailing import trailing_spans

_Table = TypeVar("_Table", Work, Collectives)
_TIMES = ("start_ns", "end_ns", "launched_ns")


@dataclass(frozen=True, slots=True)
class BucketSpan:
    """One gradient bucket; ``None`` is what was not observed."""

    module: int
    index: int
    num_bytes: int | None
    ready_ns: int | None
    launched_ns: int | None
    started_ns: int | None
    finished_ns: int | None


@dataclass(frozen=True, slots=True, eq=False)
class StepTimeline:
    step: int
    start_ns: int
    end_ns: int
    """the step as its bar draws it: on an accelerator from its first kernel on, see `breakdown.py`"""
    parts: tuple[Spans, ...] | None
    """of each field of `Breakdown`, in order; no instant is in two. ``None``: the step has no work of the device"""
    compute: Work
    copies: Work
    collectives: Collectives
    overlap: Spans
    exposed: Spans
    trailing: Spans | None
    """``None`` without a backward pass"""
    buckets: tuple[BucketSpan, ...]


def step_timeline(
    trace: Trace, step: int, moved_ns: int, buckets: Sequence[BucketStep], bucket_bytes: Sequence[int | None]
) -> StepTimeline:
    """`step`: index into ``trace.steps``. `moved_ns`: to add to the trace's times. `buckets`: those of the step."""
    compute, comm = spans_of(trace.compute, step), spans_of(trace.collectives, step)
    split, trailing, whole = split_step(trace, step), trailing_spans(trace, step), trace.steps[step]
    parts = None if split is None else tuple(shift(reduce(merge, part), moved_ns) for part in split.parts)
    begun = [int(spans.start_ns[0]) for spans in parts or () if len(spans)]
    ended = [int(spans.end_ns[-1]) for spans in parts or () if len(spans)]
    return StepTimeline(
        step=whole.number,
        start_ns=min(begun, default=whole.start_ns + moved_ns),
        end_ns=max(ended, default=whole.end_ns + moved_ns),
        parts=parts,
        compute=_rows(trace.compute, step, moved_ns),
        copies=_rows(trace.copies, step, moved_ns),
        collectives=_rows(trace.collectives, step, moved_ns),
        overlap=shift(intersect(comm, compute), moved_ns),
        exposed=shift(subtract(comm, compute), moved_ns),
        trailing=None if trailing is None else shift(trailing, moved_ns),
        buckets=tuple(
            _bucket(one, num_bytes, moved_ns - (trace.epoch_ns or 0))
            for one, num_bytes in zip(buckets, bucket_bytes, strict=True)
        ),
    )


def _rows(table: _Table, step: int, moved_ns: int) -> _Table:
    rows = np.flatnonzero(table.step == step)
    columns = {column.name: getattr(table, column.name)[rows] for column in fields(table)}
    for name in _TIMES:
        columns[name] = np.where(columns[name] == UNKNOWN, UNKNOWN, columns[name] + moved_ns)
    return type(table)(**columns)


def _bucket(one: BucketStep, num_bytes: int | None, moved_ns: int) -> BucketSpan:
    def common(since_origin_ns: int | None) -> int | None:
        return None if since_origin_ns is None else one.origin_ns + since_origin_ns + moved_ns

    return BucketSpan(
        module=one.module,
        index=one.index,
        num_bytes=num_bytes,
        ready_ns=common(one.ready_ns),
        launched_ns=common(one.launched_ns),
        started_ns=common(one.started_ns),
        finished_ns=common(one.finished_ns),
    )
