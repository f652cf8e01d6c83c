"""What happened when, in one step of one rank?

All times of a step are shifted by the same amount, so that lengths agree with the other measures: parts of the step
bar, overlap, exposed and trailing communication.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce

from ddpprof.intervals import Spans, intersect, merge, shift, subtract
from ddpprof.model import Collectives, Trace, Work
from ddpprof.model.tables import moved, rows_of
from ddpprof.topics.buckets.steps import BucketStep
from ddpprof.topics.steps.breakdown import Breakdown, split_step
from ddpprof.topics.steps.overlap import spans_of, trailing_spans


@dataclass(frozen=True, slots=True)
class BucketSpan:
    """One gradient bucket; unobserved values are ``None``."""

    module: int
    index: int
    num_bytes: int | None
    ready_ns: int | None
    launched_ns: int | None
    started_ns: int | None
    finished_ns: int | None
    pass_index: int = 0
    """index among the step's synchronised backward passes through the module"""


@dataclass(frozen=True, slots=True, eq=False)
class StepTimeline:
    step: int
    start_ns: int
    end_ns: int
    """end of the step as its bar shows it; on an accelerator it starts with its first kernel, see `breakdown.py`"""
    parts: tuple[Spans, ...] | None
    """disjoint spans of each field of `Breakdown`, in order; ``None`` if the step has no work of the device"""
    compute: Work
    copies: Work
    collectives: Collectives
    overlap: Spans
    exposed: Spans
    trailing: Spans | None
    """``None`` without a backward pass"""
    buckets: tuple[BucketSpan, ...]

    def named_parts(self) -> Mapping[str, Spans]:
        """Return `parts` by field name of `Breakdown`, without the suffix ``_ns``; empty if there are none."""
        names = [field.name.removesuffix("_ns") for field in fields(Breakdown)]
        return {} if self.parts is None else dict(zip(names, self.parts, strict=True))


def step_timeline(trace: Trace, step: int) -> StepTimeline:
    """Return the timeline by the trace's own times, without buckets. `step`: index into ``trace.steps``."""
    compute, comm = spans_of(trace.compute, step), spans_of(trace.collectives, step)
    split, whole = split_step(trace, step), trace.steps[step]
    parts = None if split is None else tuple(reduce(merge, part) for part in split.parts)
    begun = [int(spans.start_ns[0]) for spans in parts or () if len(spans)]
    ended = [int(spans.end_ns[-1]) for spans in parts or () if len(spans)]
    return StepTimeline(
        step=whole.number,
        start_ns=min(begun, default=whole.start_ns),
        end_ns=max(ended, default=whole.end_ns),
        parts=parts,
        compute=rows_of(trace.compute, trace.compute.step == step),
        copies=rows_of(trace.copies, trace.copies.step == step),
        collectives=rows_of(trace.collectives, trace.collectives.step == step),
        overlap=intersect(comm, compute),
        exposed=subtract(comm, compute),
        trailing=trailing_spans(trace, step),
        buckets=(),
    )


def move_timeline(step: StepTimeline, moved_ns: int, buckets: tuple[BucketSpan, ...]) -> StepTimeline:
    """Return the timeline, `moved_ns` later, with its buckets."""
    return replace(
        step,
        start_ns=step.start_ns + moved_ns,
        end_ns=step.end_ns + moved_ns,
        parts=None if step.parts is None else tuple(shift(part, moved_ns) for part in step.parts),
        compute=moved(step.compute, moved_ns),
        copies=moved(step.copies, moved_ns),
        collectives=moved(step.collectives, moved_ns),
        overlap=shift(step.overlap, moved_ns),
        exposed=shift(step.exposed, moved_ns),
        trailing=None if step.trailing is None else shift(step.trailing, moved_ns),
        buckets=buckets,
    )


def bucket_span(one: BucketStep, num_bytes: int | None, moved_ns: int) -> BucketSpan:
    """Return the bucket, shifted by `moved_ns`; its times are since 1970 if the trace has its epoch."""

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
        pass_index=one.pass_index,
    )
