"""The contribution of ranks to a report: kilobytes each, derived from traces and records that are then not needed.

A summary is first of a single rank, independent of all others, so that processes and machines can share the work.
Summaries merge in any order and grouping, with bit-identical results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs

from ddpprof.intervals import Spans, subtract
from ddpprof.measures.buckets.bucket_steps import BucketStep, bucket_rows
from ddpprof.measures.buckets.overlap import spans_of
from ddpprof.measures.buckets.traced_buckets import TracedPasses, find_passes
from ddpprof.measures.collectives.match_candidates import RankCollectives, rank_collectives
from ddpprof.measures.collectives.script_collectives import OutsideCalls, measure_outside
from ddpprof.measures.kernels.devices import DeviceLoad, measure_devices, median_load
from ddpprof.measures.kernels.kernels import KernelSummary, summarise_kernels
from ddpprof.measures.kernels.overlap_slowdown import Slowdown, measure_slowdown, merge_slowdowns, thinned
from ddpprof.measures.ranks.memory import RankMemory, measure_memory
from ddpprof.measures.ranks.own_time import StepProgress
from ddpprof.measures.ranks.own_time_light import progress_of_rank
from ddpprof.measures.ranks.random_numbers import GeneratorStates, states_of_generators
from ddpprof.measures.ranks.replicas import is_always_reduced
from ddpprof.measures.statistics.medians import median_known
from ddpprof.measures.step.accumulation import Accumulation, count_micro_steps, measure_accumulation
from ddpprof.model import DdpModule, Rank, Record, RecordedStep
from ddpprof.model.tables import rows_of
from ddpprof.report.ranks import baseline_steps, bucket_steps, measured_steps, rank_report, training_steps
from ddpprof.report.side_streets import BesideDdp, measure_beside
from ddpprof.report.tree import RankReport

MOST_KERNELS = 500
"""most kernels in a report; the others take hardly any time"""


@dataclass(frozen=True, slots=True)
class RecordSummary:
    """Summary of a rank's record. Times are medians, ns per step."""

    facts: Record
    """record without its steps and other large data that no other rank needs"""
    data_ns: int | None
    buffer_sync_ns: int | None
    memory: RankMemory | None
    accumulation: tuple[Accumulation, ...]
    num_micro_steps: int
    """number of batches that a step accumulates"""
    num_forwards: int
    """number of forwards with gradients in a step"""
    num_buffer_syncs: int
    """number of these before which buffers were broadcast"""
    random_states: GeneratorStates


@dataclass(frozen=True, slots=True)
class TraceSummary:
    host: str | None
    device: str
    backend: str | None
    notes: tuple[str, ...]
    collectives: RankCollectives
    """collectives of training steps"""
    bucket_bytes: Mapping[int, int]
    """row of ``collectives`` → bytes, for gradient all-reduces whose sizes the recorder knows"""
    exposed: Spans
    """communication during which nothing is computed"""
    passes: TracedPasses
    num_baseline_steps: int
    outside: tuple[tuple[OutsideCalls, ...] | None, ...]
    """calls per step"""


@dataclass(frozen=True, slots=True)
class RankSummary:
    rank: int
    world_size: int | None
    report: RankReport
    buckets: tuple[BucketStep, ...]
    progress: tuple[StepProgress, ...]
    beside: BesideDdp
    record: RecordSummary | None
    trace: TraceSummary | None

    @property
    def host(self) -> str | None:
        return self.record.facts.host if self.record else self.trace.host if self.trace else None


@dataclass(frozen=True, slots=True)
class RunSummary:
    ranks: tuple[RankSummary, ...] = ()
    """ranks in ascending order"""
    slowdown: Slowdown | None = None
    """``None`` if none of them has a trace"""
    kernels: tuple[KernelSummary, ...] = ()
    """kernels that take most of the time of `kernels_of`"""
    kernels_of: int | None = None
    """lowest rank with steps; ``None`` if no rank has any"""
    missing: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """rank → what could not be read of it, in words"""


def summarise_rank(rank: Rank, modules: Sequence[DdpModule]) -> RunSummary:
    """Summarise one rank. `modules`: those of the job, which are the same on all ranks."""
    trace, baseline = rank.trace, baseline_steps(rank)
    steps = measured_steps(rank)
    return RunSummary(
        ranks=(_rank_summary(rank, modules),),
        slowdown=thinned(measure_slowdown(trace, steps, baseline)) if trace is not None else None,
        kernels=summarise_kernels(trace, steps)[:MOST_KERNELS] if trace is not None and steps else (),
        kernels_of=rank.rank if steps else None,
    )


def merge_summaries(summaries: Sequence[RunSummary]) -> RunSummary:
    """Merge summaries of disjoint ranks."""
    slowdowns = [one.slowdown for one in summaries if one.slowdown is not None]
    with_steps = [one for one in summaries if one.kernels_of is not None]
    first = min(with_steps, key=lambda one: one.kernels_of or 0, default=None)
    return RunSummary(
        ranks=tuple(sorted((rank for one in summaries for rank in one.ranks), key=lambda rank: rank.rank)),
        slowdown=merge_slowdowns(slowdowns) if slowdowns else None,
        kernels=first.kernels if first is not None else (),
        kernels_of=first.kernels_of if first is not None else None,
        missing=dict(sorted(pair for one in summaries for pair in one.missing.items())),
    )


def _rank_summary(rank: Rank, modules: Sequence[DdpModule]) -> RankSummary:
    return RankSummary(
        rank=rank.rank,
        world_size=rank.world_size,
        report=replace(rank_report(rank, modules), devices=_devices(rank)),
        buckets=tuple(bucket_steps(rank, modules)),
        progress=progress_of_rank(rank),
        beside=measure_beside(rank, measured_steps(rank)),
        record=_record_summary(rank.record) if rank.record is not None else None,
        trace=_trace_summary(rank, modules),
    )


def _record_summary(record: Record) -> RecordSummary:
    steps = training_steps(record)

    def usual(value: Callable[[RecordedStep], int | None]) -> int | None:
        return median_known(value(step) for step in steps if step.forwards)

    return RecordSummary(
        facts=_facts(record),
        data_ns=usual(lambda step: step.data_ns),
        buffer_sync_ns=usual(lambda step: sum(forward.buffer_sync_ns for forward in step.forwards)),
        memory=measure_memory(record),
        accumulation=measure_accumulation(steps),
        num_micro_steps=count_micro_steps(steps),
        num_forwards=usual(lambda step: sum(forward.has_gradients for forward in step.forwards)) or 0,
        num_buffer_syncs=usual(
            lambda step: sum(forward.has_gradients and forward.buffer_sync_ns > 0 for forward in step.forwards)
        )
        or 0,
        random_states=states_of_generators(record.steps),
    )


def _facts(record: Record) -> Record:
    steps = training_steps(record)
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
    recorded = training_steps(rank.record)
    steps, by_number = measured_steps(rank), {step.number: step for step in recorded}
    parameters = [[parameter.num_bytes for parameter in module.parameters] for module in modules]
    return TraceSummary(
        host=trace.host,
        device=trace.device,
        backend=trace.backend,
        notes=trace.notes,
        collectives=collectives,
        bucket_bytes=bucket_bytes(rank, modules),
        exposed=subtract(spans_of(trace.collectives, None), spans_of(trace.compute, None)),
        passes=find_passes(trace),
        num_baseline_steps=len(baseline_steps(rank)),
        outside=tuple(
            measure_outside(trace, step, parameters, by_number.get(trace.steps[step].number)) for step in steps
        ),
    )


def _of_training_steps(rank: Rank) -> RankCollectives | None:
    """Return the rank's collectives without baseline steps, which tell nothing about the training."""
    one = rank_collectives(rank)
    if one is None or not (left_out := baseline_steps(rank)):
        return one
    return replace(one, collectives=rows_of(one.collectives, ~np.isin(one.collectives.step, left_out)))


def bucket_bytes(rank: Rank, modules: Sequence[DdpModule]) -> dict[int, int]:
    """Return row → bytes of gradient all-reduces; gloo's spans have sizes only if shapes were recorded."""
    if rank.trace is None or rank.record is None:
        return {}
    kept = ~np.isin(rank.trace.collectives.step, baseline_steps(rank))
    row_of = np.cumsum(kept) - 1  # in the table of `_of_training_steps`
    sizes = {}
    for step in rank.record.steps:
        for (place, bucket), row in bucket_rows(modules, step, rank.trace).items():
            module = modules[step.passes[place].module]
            sizes[int(row_of[row])] = sum(module.parameters[index].num_bytes for index in module.buckets[bucket])
    return sizes


def _devices(rank: Rank) -> tuple[DeviceLoad, ...]:
    """Return medians over the rank's steps; empty if it has only one device."""
    if rank.trace is None:
        return ()
    return median_load([measure_devices(rank.trace, step) for step in measured_steps(rank)])
