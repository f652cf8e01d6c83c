"""The contribution of each rank to a report: a few kilobytes, derived from traces and records, which are then not
needed.

A summary is first made for a single rank, independently of all others, so that processes and machines can share the
work. Summaries merge in any order and grouping, with bit-identical results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from msgspec import structs

from ddpprof.intervals import Spans, subtract
from ddpprof.model import DdpModule, Rank, Record, RecordedStep, StepMode, Trace
from ddpprof.model.light_step import measure_recorded_breakdown
from ddpprof.model.tables import rows_of
from ddpprof.report.topics import measure_topics
from ddpprof.report.tree import LightStepReport, RankReport, StepReport
from ddpprof.statistics.medians import median_known
from ddpprof.topics.accumulation import count_micro_steps
from ddpprof.topics.buckets.steps import BucketStep, bucket_rows, measure_buckets
from ddpprof.topics.buckets.traced import TracedPasses, find_passes
from ddpprof.topics.collectives.matching import RankCollectives, rank_collectives
from ddpprof.topics.devices import DeviceLoad, measure_devices, median_load
from ddpprof.topics.idle import Gaps, find_gaps, measure_idle
from ddpprof.topics.kernels import MOST_KERNELS, KernelSummary, summarise_kernels
from ddpprof.topics.overlap_slowdown import OverlapSlowdown, measure_slowdown, merge_slowdowns, thinned
from ddpprof.topics.ranks.own_time import StepProgress, progress_of_rank
from ddpprof.topics.recording_cost import measure_recording_cost
from ddpprof.topics.replicas import is_always_reduced
from ddpprof.topics.steps.breakdown import split_step
from ddpprof.topics.steps.overlap import measure_overlap, measure_trailing, spans_of
from ddpprof.topics.steps.torch_times import TorchTimes, compare_with_torch
from ddpprof.topics.steps.wrapper_cost import measure_wrapper_cost


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
    collectives: RankCollectives
    """collectives of training steps"""
    message_bytes: Mapping[int, int]
    """row of ``collectives`` → bytes, for gradient all-reduces whose sizes the recorder knows"""
    exposed: Spans
    """communication without concurrent computation"""
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
    """topic name → its measures; see `measure_topics`"""
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
        report=_rank_report(rank, modules),
        buckets=tuple(bucket_steps(rank, modules)),
        progress=progress_of_rank(rank),
        measured=measure_topics(rank, rank.measured_step_indices, modules),
        record=_record_summary(rank.record) if rank.record is not None else None,
        trace=_trace_summary(rank, modules),
    )


def _rank_report(rank: Rank, modules: Sequence[DdpModule]) -> RankReport:
    trace, record = rank.trace, rank.record
    steps = _step_reports(rank, modules)
    traced = {step.step for step in steps}
    return RankReport(
        rank=rank.rank,
        host=record.host if record else trace.host if trace else None,
        ended=record.ended if record else None,
        whole=measure_overlap(trace, None) if trace else None,
        steps=steps,
        light_steps=tuple(
            LightStepReport(s.number, s.mode, s.end_ns - s.start_ns, measure_recorded_breakdown(s))
            for s in rank.training_steps
            if s.number not in traced
        ),
        recording_cost=measure_recording_cost(record.training_steps, record.profiler_pause_ns) if record else None,
        devices=_devices(rank),
    )


def _step_reports(rank: Rank, modules: Sequence[DdpModule]) -> tuple[StepReport, ...]:
    trace = rank.trace
    if trace is None:
        return ()
    by_number, gaps = {step.number: step for step in rank.training_steps}, find_gaps(trace)
    return tuple(_step_report(trace, index, by_number, modules, gaps) for index in rank.measured_step_indices)


def _step_report(
    trace: Trace, index: int, recorded: dict[int, RecordedStep], modules: Sequence[DdpModule], gaps: Gaps | None
) -> StepReport:
    step = trace.steps[index]
    split = split_step(trace, index)
    return StepReport(
        step=step.number,
        duration_ns=step.duration_ns if split is None or trace.device == "cpu" else split.breakdown.step_ns,
        is_whole=split is None or split.is_whole,
        **asdict(measure_overlap(trace, index)),
        trailing_ns=measure_trailing(trace, index),
        parts=split.breakdown if split is not None else None,
        wrapper=measure_wrapper_cost(trace, index, recorded.get(step.number)),
        torch_times=_torch_times(trace, recorded, step.number, modules),
        idle=measure_idle(split.idle, gaps) if split is not None and gaps is not None else None,
    )


def _torch_times(
    trace: Trace, recorded: dict[int, RecordedStep], number: int, modules: Sequence[DdpModule]
) -> TorchTimes | None:
    """Compare with DDP's own times. DDP publishes them in the next iteration, so they are in the next step's record."""
    step, following = recorded.get(number), recorded.get(number + 1)
    if step is None or following is None or len(modules) != 1:
        return None
    logged = following.torch_stats.get(0)
    return compare_with_torch(0, step, measure_buckets(modules, step, trace), trace, logged) if logged else None


def _devices(rank: Rank) -> tuple[DeviceLoad, ...]:
    """Return medians over the rank's steps; empty if it has only one device."""
    if rank.trace is None:
        return ()
    return median_load([measure_devices(rank.trace, step) for step in rank.measured_step_indices])


def bucket_steps(rank: Rank, modules: Sequence[DdpModule]) -> list[BucketStep]:
    """Return buckets from profiled steps if the rank has them, or else from light recording."""
    if rank.record is None:
        return []
    wanted = StepMode.PROFILED if rank.trace is not None and rank.trace.steps else StepMode.LIGHT
    steps = [step for step in rank.record.steps if step.mode is wanted]
    trace = rank.trace if wanted is StepMode.PROFILED else None
    return [row for step in steps for row in measure_buckets(modules, step, trace)]


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
    trace, collectives = rank.trace, _of_training_steps(rank)
    if trace is None or collectives is None:
        return None
    return TraceSummary(
        host=trace.host,
        device=trace.device,
        backend=trace.backend,
        has_cuda=trace.has_cuda,
        notes=trace.notes,
        collectives=collectives,
        message_bytes=message_bytes(rank, modules),
        exposed=subtract(spans_of(trace.collectives, None), spans_of(trace.compute, None)),
        passes=find_passes(trace),
        num_baseline_steps=len(rank.baseline_step_indices),
    )


def _of_training_steps(rank: Rank) -> RankCollectives | None:
    """Return the rank's collectives without baseline steps, which do not represent the training."""
    one = rank_collectives(rank)
    if one is None or not (left_out := rank.baseline_step_indices):
        return one
    return replace(one, collectives=rows_of(one.collectives, ~np.isin(one.collectives.step, left_out)))


def message_bytes(rank: Rank, modules: Sequence[DdpModule]) -> dict[int, int]:
    """Return row → bytes of gradient all-reduces, if known; gloo's spans only have a size if shapes are recorded."""
    if rank.trace is None or rank.record is None:
        return {}
    kept = ~np.isin(rank.trace.collectives.step, rank.baseline_step_indices)
    row_of = np.cumsum(kept) - 1  # in the table of `_of_training_steps`
    sizes = {}
    modules = rank.record.modules or modules  # in another process group they may be other ones
    for step in rank.record.steps:
        for (place, bucket), row in bucket_rows(modules, step, rank.trace).items():
            num_bytes = modules[step.passes[place].module].message_bytes(bucket)
            if num_bytes is not None:
                sizes[int(row_of[row])] = num_bytes
    return sizes
