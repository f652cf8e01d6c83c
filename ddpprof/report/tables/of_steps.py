"""Declarations of the tables of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpprof.report.tables.schema import Column, Kind, TableSchema
from ddpprof.report.tree import LightStepReport, RankReport, Report, StepReport


@dataclass(frozen=True, slots=True)
class _Step:
    rank: RankReport
    step: StepReport
    is_usual: bool


@dataclass(frozen=True, slots=True)
class _LightStep:
    rank: RankReport
    step: LightStepReport


def _steps(report: Report) -> Iterator[_Step]:
    for rank in report.ranks:
        averaged = {step.step for step in report.averaged(rank)}
        for step in rank.steps:
            yield _Step(rank, step, step.step in averaged)


def _light_steps(report: Report) -> Iterator[_LightStep]:
    return (_LightStep(rank, step) for rank in report.ranks for step in rank.light_steps)


STEPS: TableSchema[_Step] = TableSchema(
    "steps",
    "One row per rank and profiled step. On an accelerator `duration_ns` and the `wrapper_` columns are times of the "
    "host, which launches the work; all other times are of the device, which does it.",
    _steps,
    (
        Column("rank", Kind.INTEGER, "rank in the job", lambda r: r.rank.rank),
        Column("host", Kind.TEXT, "name of the rank's host", lambda r: r.rank.host),
        Column("step", Kind.INTEGER, "number of the step since training began", lambda r: r.step.step),
        Column("is_usual", Kind.BOOL, "whether the report's means include the step", lambda r: r.is_usual),
        Column("duration_ns", Kind.INTEGER, "length of the step", lambda r: r.step.duration_ns),
        Column("compute_ns", Kind.INTEGER, "time with computation", lambda r: r.step.compute_ns),
        Column("comm_ns", Kind.INTEGER, "time with communication", lambda r: r.step.comm_ns),
        Column("overlap_ns", Kind.INTEGER, "time with both at once", lambda r: r.step.overlap_ns),
        Column("exposed_ns", Kind.INTEGER, "time with communication but no computation", lambda r: r.step.exposed_ns),
        Column(
            "trailing_ns", Kind.INTEGER, "gradient communication after the backward pass", lambda r: r.step.trailing_ns
        ),
        Column("copy_ns", Kind.INTEGER, "time with copies between host and device", lambda r: r.step.copy_ns),
        Column("num_comm_kernels", Kind.INTEGER, "number of collectives", lambda r: r.step.num_comm_kernels),
        Column(
            "part_forward_ns",
            Kind.INTEGER,
            "computation of the forward; the seven `part_` columns add up to the step",
            lambda r: r.step.parts and r.step.parts.forward_ns,
        ),
        Column(
            "part_backward_ns",
            Kind.INTEGER,
            "computation of the backward pass",
            lambda r: r.step.parts and r.step.parts.backward_ns,
        ),
        Column(
            "part_exposed_comm_ns",
            Kind.INTEGER,
            "communication while nothing is computed",
            lambda r: r.step.parts and r.step.parts.exposed_comm_ns,
        ),
        Column(
            "part_optimizer_ns",
            Kind.INTEGER,
            "computation of the optimizer",
            lambda r: r.step.parts and r.step.parts.optimizer_ns,
        ),
        Column("part_data_ns", Kind.INTEGER, "waiting for data", lambda r: r.step.parts and r.step.parts.data_ns),
        Column(
            "part_other_ns",
            Kind.INTEGER,
            "copies and computation of no phase",
            lambda r: r.step.parts and r.step.parts.other_ns,
        ),
        Column(
            "part_idle_ns",
            Kind.INTEGER,
            "time in which the device has nothing to do",
            lambda r: r.step.parts and r.step.parts.idle_ns,
        ),
        Column(
            "idle_launch_bound_ns",
            Kind.INTEGER,
            "idle time because the host launched the next work too late; null on CPU",
            lambda r: r.step.idle and r.step.idle.launch_bound_ns,
        ),
        Column(
            "idle_comm_wait_ns",
            Kind.INTEGER,
            "idle time around communication; null on CPU",
            lambda r: r.step.idle and r.step.idle.comm_wait_ns,
        ),
        Column(
            "idle_other_ns",
            Kind.INTEGER,
            "idle time of another or unknown cause; null on CPU",
            lambda r: r.step.idle and r.step.idle.other_ns,
        ),
        Column(
            "wrapper_pre_forward_ns",
            Kind.INTEGER,
            "DDP's own work before the forward",
            lambda r: r.step.wrapper.pre_forward_ns,
        ),
        Column(
            "wrapper_unused_search_ns",
            Kind.INTEGER,
            "DDP's search for unused parameters",
            lambda r: r.step.wrapper.unused_search_ns,
        ),
        Column(
            "wrapper_copy_in_ns", Kind.INTEGER, "copying gradients into buckets", lambda r: r.step.wrapper.copy_in_ns
        ),
        Column("wrapper_launch_ns", Kind.INTEGER, "passing buckets to the backend", lambda r: r.step.wrapper.launch_ns),
        Column(
            "wrapper_copy_out_ns",
            Kind.INTEGER,
            "copying buckets back into gradients",
            lambda r: r.step.wrapper.copy_out_ns,
        ),
        Column(
            "wrapper_finalise_ns",
            Kind.INTEGER,
            "DDP's own work after the backward pass",
            lambda r: r.step.wrapper.finalise_ns,
        ),
    ),
)

LIGHT_STEPS: TableSchema[_LightStep] = TableSchema(
    "light_steps",
    "One row per rank and step that ran without the profiler. All times are of the host. Compare the modes `off` and "
    "`light` to see what recording costs.",
    _light_steps,
    (
        Column("rank", Kind.INTEGER, "rank in the job", lambda r: r.rank.rank),
        Column("host", Kind.TEXT, "name of the rank's host", lambda r: r.rank.host),
        Column("step", Kind.INTEGER, "number of the step since training began", lambda r: r.step.step),
        Column("mode", Kind.TEXT, "`off`, `light`, or `timeline` for a file of Horovod", lambda r: r.step.mode),
        Column("duration_ns", Kind.INTEGER, "length of the step", lambda r: r.step.duration_ns),
        Column(
            "part_forward_ns",
            Kind.INTEGER,
            "the forward; the five `part_` columns add up to the step, and are null if only its length is known",
            lambda r: r.step.parts and r.step.parts.forward_ns,
        ),
        Column(
            "part_backward_and_comm_ns",
            Kind.INTEGER,
            "from the end of the forward to the start of the optimizer, with exposed communication",
            lambda r: r.step.parts and r.step.parts.backward_and_comm_ns,
        ),
        Column(
            "part_optimizer_ns", Kind.INTEGER, "the optimizer", lambda r: r.step.parts and r.step.parts.optimizer_ns
        ),
        Column("part_data_ns", Kind.INTEGER, "waiting for data", lambda r: r.step.parts and r.step.parts.data_ns),
        Column("part_other_ns", Kind.INTEGER, "the rest of the step", lambda r: r.step.parts and r.step.parts.other_ns),
    ),
)
