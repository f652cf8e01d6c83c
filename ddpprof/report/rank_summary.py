"""The contribution of ranks to a report: kilobytes each, derived from traces and records that are then not needed.

A summary is first of a single rank, independent of all others, so that processes and machines can share the work.
Summaries merge in any order and grouping, with bit-identical results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from ddpprof.model import DdpModule, Rank, Record, RecordedStep
from ddpprof.report.topics import measure_topics
from ddpprof.statistics.medians import median_known
from ddpprof.topics.accumulation import count_micro_steps
from ddpprof.topics.buckets.steps import BucketStep, bucket_steps
from ddpprof.topics.buckets.traced import TracedPasses, find_passes
from ddpprof.topics.kernels import MOST_KERNELS, KernelSummary, summarise_kernels
from ddpprof.topics.overlap_slowdown.measure import OverlapSlowdown, measure_slowdown, merge_slowdowns, thinned
from ddpprof.topics.ranks.across import TracedCollectives, traced_collectives
from ddpprof.topics.ranks.own_time import StepProgress, progress_of_rank
from ddpprof.topics.replicas import is_always_reduced
from ddpprof.topics.steps.measure import RankReport, rank_report


@dataclass(frozen=True, slots=True)
class RecordSummary:
    """Summary of a rank's record. Times are medians, ns per step."""

    facts: Record
    """the record, with its steps and other large fields emptied"""
    data_ns: int | None
    buffer_sync_ns: int | None
    num_micro_steps: int
    """number of batches that a step accumulates"""
    evaluated_steps: tuple[int, ...]
    """numbers of the steps in which the DDP module was also called without gradients"""


@dataclass(frozen=True, slots=True)
class TraceSummary:
    host: str | None
    device: str
    backend: str | None
    notes: tuple[str, ...]
    collectives: TracedCollectives
    passes: TracedPasses
    num_baseline_steps: int
    has_cuda: bool = True
    """False if the rank's accelerator runs neither CUDA nor HIP"""


@dataclass(frozen=True, slots=True)
class RankSummary:
    rank: int
    world_size: int | None
    report: RankReport
    buckets: tuple[BucketStep, ...]
    progress: tuple[StepProgress, ...]
    measured: Mapping[str, bytes]
    """name of a topic → what it measured; see `measure_topics`"""
    record: RecordSummary | None
    trace: TraceSummary | None

    @property
    def host(self) -> str | None:
        return self.record.facts.host if self.record else self.trace.host if self.trace else None


@dataclass(frozen=True, slots=True)
class RunSummary:
    ranks: tuple[RankSummary, ...] = ()
    """ranks in ascending order"""
    overlap_slowdown: OverlapSlowdown | None = None
    """``None`` if none of them has a trace"""
    kernels: tuple[KernelSummary, ...] = ()
    """kernels that take the most time on rank `kernels_of`"""
    kernels_of: int | None = None
    """lowest rank with steps; ``None`` if no rank has any"""
    missing: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """rank → description of its data that could not be read"""


def summarise_rank(rank: Rank, modules: Sequence[DdpModule]) -> RunSummary:
    """Summarise one rank. `modules`: those of the job, which are the same on all ranks."""
    trace, steps = rank.trace, rank.measured_step_indices
    slowdown = measure_slowdown(trace, steps, rank.baseline_step_indices) if trace is not None else None
    return RunSummary(
        ranks=(_rank_summary(rank, modules),),
        overlap_slowdown=thinned(slowdown) if slowdown is not None else None,
        kernels=summarise_kernels(trace, steps)[:MOST_KERNELS] if trace is not None and steps else (),
        kernels_of=rank.rank if steps else None,
    )


def merge_summaries(summaries: Sequence[RunSummary]) -> RunSummary:
    """Merge summaries of disjoint ranks."""
    slowdowns = [one.overlap_slowdown for one in summaries if one.overlap_slowdown is not None]
    with_steps = [one for one in summaries if one.kernels_of is not None]
    first = min(with_steps, key=lambda one: one.kernels_of or 0, default=None)
    return RunSummary(
        ranks=tuple(sorted((rank for one in summaries for rank in one.ranks), key=lambda rank: rank.rank)),
        overlap_slowdown=merge_slowdowns(slowdowns) if slowdowns else None,
        kernels=first.kernels if first is not None else (),
        kernels_of=first.kernels_of if first is not None else None,
        missing=dict(sorted(pair for one in summaries for pair in one.missing.items())),
    )


def _rank_summary(rank: Rank, modules: Sequence[DdpModule]) -> RankSummary:
    return RankSummary(
        rank=rank.rank,
        world_size=rank.world_size,
        report=rank_report(rank, modules),
        buckets=tuple(bucket_steps(rank, modules)),
        progress=progress_of_rank(rank),
        measured=measure_topics(rank, rank.measured_step_indices, modules),
        record=_record_summary(rank.record) if rank.record is not None else None,
        trace=_trace_summary(rank, modules),
    )


def _record_summary(record: Record) -> RecordSummary:
    steps = record.training_steps

    def usual(value: Callable[[RecordedStep], int | None]) -> int | None:
        return median_known(value(step) for step in steps if step.forwards)

    return RecordSummary(
        facts=_facts(record),
        data_ns=usual(lambda step: step.data_ns),
        buffer_sync_ns=usual(lambda step: sum(forward.buffer_sync_ns for forward in step.forwards)),
        num_micro_steps=count_micro_steps(steps),
        evaluated_steps=tuple(step.number for step in steps if step.has_evaluation),
    )


def _facts(record: Record) -> Record:
    steps = record.training_steps
    return structs.replace(
        record,
        steps=(),
        modules=tuple(structs.replace(one, parameters=(), buckets=(), settings={}) for one in record.modules),
        loaders=tuple(one if one.feeds_training else structs.replace(one, batches=()) for one in record.loaders),
        replicas=tuple(one for one in record.replicas if is_always_reduced(one.module, steps)),
    )


def _trace_summary(rank: Rank, modules: Sequence[DdpModule]) -> TraceSummary | None:
    trace, collectives = rank.trace, traced_collectives(rank, modules)
    if trace is None or collectives is None:
        return None
    return TraceSummary(
        host=trace.host,
        device=trace.device,
        backend=trace.backend,
        has_cuda=trace.has_cuda,
        notes=trace.notes,
        collectives=collectives,
        passes=find_passes(trace),
        num_baseline_steps=len(rank.baseline_step_indices),
    )
