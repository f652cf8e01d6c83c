"""Declarations of the tables of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpprof.measures.step.breakdown import Breakdown
from ddpprof.measures.step.idle import Idle
from ddpprof.measures.step.wrapper import WrapperCost
from ddpprof.model.light_step import RecordedBreakdown
from ddpprof.report.tables.schema import TableSchema, flag, integer, text
from ddpprof.report.tree import LightStepReport, RankReport, Report, StepReport


@dataclass(frozen=True, slots=True)
class _Step:
    rank: RankReport
    step: StepReport
    parts: Breakdown | None
    idle: Idle | None
    wrapper: WrapperCost
    is_usual: bool


@dataclass(frozen=True, slots=True)
class _LightStep:
    rank: RankReport
    step: LightStepReport
    parts: RecordedBreakdown | None


def _steps(report: Report) -> Iterator[_Step]:
    for rank in report.ranks:
        averaged = {step.step for step in report.averaged(rank)}
        for step in rank.steps:
            yield _Step(rank, step, step.parts, step.idle, step.wrapper, step.step in averaged)


def _light_steps(report: Report) -> Iterator[_LightStep]:
    return (_LightStep(rank, step, step.parts) for rank in report.ranks for step in rank.light_steps)


STEPS: TableSchema[_Step] = TableSchema(
    "steps",
    "One row per rank and profiled step. On an accelerator the `wrapper_` columns are times of the host, which "
    "launches the work; all other times are of the device, which does it.",
    _steps,
    (
        integer("rank", "rank in the job", lambda r: r.rank.rank),
        text("host", "name of the rank's host", lambda r: r.rank.host),
        integer("step", "number of the step since training began", lambda r: r.step.step),
        flag("is_usual", "whether the report's means include the step", lambda r: r.is_usual),
        integer("duration_ns", "length of the step", lambda r: r.step.duration_ns),
        integer("compute_ns", "time with computation", lambda r: r.step.compute_ns),
        integer("comm_ns", "time with communication", lambda r: r.step.comm_ns),
        integer("overlap_ns", "time with both at once", lambda r: r.step.overlap_ns),
        integer("exposed_ns", "time with communication but no computation", lambda r: r.step.exposed_ns),
        integer("trailing_ns", "gradient communication after the backward pass", lambda r: r.step.trailing_ns),
        integer("copy_ns", "time with copies between host and device", lambda r: r.step.copy_ns),
        integer("num_comm_kernels", "number of collectives", lambda r: r.step.num_comm_kernels),
        integer(
            "part_forward_ns",
            "computation of the forward; the seven `part_` columns add up to the step",
            lambda r: r.parts and r.parts.forward_ns,
        ),
        integer("part_backward_ns", "computation of the backward pass", lambda r: r.parts and r.parts.backward_ns),
        integer(
            "part_exposed_comm_ns",
            "communication while nothing is computed",
            lambda r: r.parts and r.parts.exposed_comm_ns,
        ),
        integer("part_optimizer_ns", "computation of the optimizer", lambda r: r.parts and r.parts.optimizer_ns),
        integer("part_data_ns", "waiting for data", lambda r: r.parts and r.parts.data_ns),
        integer("part_other_ns", "copies and computation of no phase", lambda r: r.parts and r.parts.other_ns),
        integer("part_idle_ns", "time in which the device has nothing to do", lambda r: r.parts and r.parts.idle_ns),
        integer(
            "idle_launch_bound_ns",
            "idle time because the host launched the next work too late; null on CPU",
            lambda r: r.idle and r.idle.launch_bound_ns,
        ),
        integer(
            "idle_comm_wait_ns",
            "idle time around communication; null on CPU",
            lambda r: r.idle and r.idle.comm_wait_ns,
        ),
        integer(
            "idle_other_ns",
            "idle time of another or unknown cause; null on CPU",
            lambda r: r.idle and r.idle.other_ns,
        ),
        integer("wrapper_pre_forward_ns", "DDP's own work before the forward", lambda r: r.wrapper.pre_forward_ns),
        integer("wrapper_unused_search_ns", "DDP's search for unused parameters", lambda r: r.wrapper.unused_search_ns),
        integer("wrapper_copy_in_ns", "copying gradients into buckets", lambda r: r.wrapper.copy_in_ns),
        integer("wrapper_launch_ns", "passing buckets to the backend", lambda r: r.wrapper.launch_ns),
        integer("wrapper_copy_out_ns", "copying buckets back into gradients", lambda r: r.wrapper.copy_out_ns),
        integer("wrapper_finalise_ns", "DDP's own work after the backward pass", lambda r: r.wrapper.finalise_ns),
    ),
)

LIGHT_STEPS: TableSchema[_LightStep] = TableSchema(
    "light_steps",
    "One row per rank and step that ran without the profiler. All times are of the host. Compare the modes `off` and "
    "`light` to see what recording costs.",
    _light_steps,
    (
        integer("rank", "rank in the job", lambda r: r.rank.rank),
        text("host", "name of the rank's host", lambda r: r.rank.host),
        integer("step", "number of the step since training began", lambda r: r.step.step),
        text("mode", "`off`, `light`, or `timeline` for a file of Horovod", lambda r: r.step.mode),
        integer("duration_ns", "length of the step", lambda r: r.step.duration_ns),
        integer(
            "part_forward_ns",
            "the forward; the five `part_` columns add up to the step, and are null if only its length is known",
            lambda r: r.parts and r.parts.forward_ns,
        ),
        integer(
            "part_backward_and_comm_ns",
            "from the end of the forward to the start of the optimizer, with exposed communication",
            lambda r: r.parts and r.parts.backward_and_comm_ns,
        ),
        integer("part_optimizer_ns", "the optimizer", lambda r: r.parts and r.parts.optimizer_ns),
        integer("part_data_ns", "waiting for data", lambda r: r.parts and r.parts.data_ns),
        integer("part_other_ns", "the rest of the step", lambda r: r.parts and r.parts.other_ns),
    ),
)
