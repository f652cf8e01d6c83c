"""Measures of each rank on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ddpprof.measures.buckets.bucket_steps import BucketStep, measure_buckets
from ddpprof.measures.buckets.overlap import measure_overlap
from ddpprof.measures.buckets.trailing import measure_trailing
from ddpprof.measures.step.breakdown import split_step
from ddpprof.measures.step.idle import Gaps, find_gaps, measure_idle
from ddpprof.measures.step.recording_cost import measure_recording_cost
from ddpprof.measures.step.torch_times import TorchTimes, compare_with_torch
from ddpprof.measures.step.wrapper import measure_wrapper_cost
from ddpprof.model import DdpModule, Rank, Record, RecordedStep, StepMode, Trace
from ddpprof.model.light_step import measure_recorded_breakdown
from ddpprof.report.tree import LightStepReport, RankReport, StepReport


def modules_of(ranks: Sequence[Rank]) -> tuple[DdpModule, ...]:
    """Return the modules of the first rank that has them; DDP builds the same ones on every rank."""
    return next((rank.record.modules for rank in ranks if rank.record and rank.record.modules), ())


def rank_report(rank: Rank, modules: Sequence[DdpModule]) -> RankReport:
    trace, record = rank.trace, rank.record
    recorded = training_steps(record)
    steps = _step_reports(trace, recorded, modules) if trace else ()
    traced = {step.step for step in steps}
    return RankReport(
        rank=rank.rank,
        host=record.host if record else trace.host if trace else None,
        ended=record.ended if record else None,
        whole=measure_overlap(trace, None) if trace else None,
        steps=steps,
        light_steps=tuple(
            LightStepReport(s.number, s.mode, s.end_ns - s.start_ns, measure_recorded_breakdown(s))
            for s in recorded
            if s.number not in traced
        ),
        recording_cost=measure_recording_cost(recorded, record.profiler_pause_ns) if record else None,
    )


def training_steps(record: Record | None) -> tuple[RecordedStep, ...]:
    """Return the recorded steps without those that only serve for comparison."""
    return tuple(step for step in steps_to_replay(record) if step.mode is not StepMode.ALONE)


def steps_to_replay(record: Record | None) -> tuple[RecordedStep, ...]:
    """Return the training steps, and those that show how long computation takes alone."""
    return tuple(step for step in record.steps if step.mode not in (StepMode.BASELINE, StepMode.CUT)) if record else ()


def baseline_steps(rank: Rank) -> list[int]:
    """Return indices of the trace's steps that were recorded without communication."""
    if rank.trace is None or rank.record is None:
        return []
    numbers = {step.number for step in rank.record.steps if step.mode is StepMode.BASELINE}
    return [index for index, step in enumerate(rank.trace.steps) if step.number in numbers]


def whole_steps(trace: Trace, recorded: Sequence[RecordedStep]) -> list[int]:
    """Return indices of completed steps; one that the record lacks was interrupted by the job's end."""
    known = {step.number for step in recorded}
    return [index for index, step in enumerate(trace.steps) if not recorded or step.number in known]


def measured_steps(rank: Rank) -> list[int]:
    """Return indices of the steps of its trace that count; none without a trace."""
    return whole_steps(rank.trace, training_steps(rank.record)) if rank.trace is not None else []


def _step_reports(
    trace: Trace, recorded: Sequence[RecordedStep], modules: Sequence[DdpModule]
) -> tuple[StepReport, ...]:
    by_number, gaps = {step.number: step for step in recorded}, find_gaps(trace)
    return tuple(_step_report(trace, index, by_number, modules, gaps) for index in whole_steps(trace, recorded))


def _step_report(
    trace: Trace, index: int, recorded: dict[int, RecordedStep], modules: Sequence[DdpModule], gaps: Gaps | None
) -> StepReport:
    step = trace.steps[index]
    split = split_step(trace, index)
    return StepReport(
        step=step.number,
        duration_ns=step.duration_ns,
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
    """Compare with DDP's times, which DDP publishes in the next iteration, and so are in the next step's record."""
    step, following = recorded.get(number), recorded.get(number + 1)
    if step is None or following is None or len(modules) != 1:
        return None
    logged = following.torch_stats.get(0)
    return compare_with_torch(0, step, measure_buckets(modules, step, trace), trace, logged) if logged else None


def bucket_steps(rank: Rank, modules: Sequence[DdpModule]) -> list[BucketStep]:
    """Return buckets from profiled steps if the rank has them, or else from light recording."""
    if rank.record is None:
        return []
    wanted = StepMode.PROFILED if rank.trace is not None and rank.trace.steps else StepMode.LIGHT
    steps = [step for step in rank.record.steps if step.mode is wanted]
    trace = rank.trace if wanted is StepMode.PROFILED else None
    return [row for step in steps for row in measure_buckets(modules, step, trace)]
