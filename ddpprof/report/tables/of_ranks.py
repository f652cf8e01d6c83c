"""Declarations of the tables of ranks and findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpprof.findings import Finding
from ddpprof.findings.predictions import Predicted
from ddpprof.measures.buckets.overlap import Overlap
from ddpprof.measures.ranks.arrivals import RankWaiting
from ddpprof.measures.ranks.memory import DeviceUse, RankMemory
from ddpprof.measures.step.recording_cost import RecordingCost
from ddpprof.report.tables.schema import TableSchema, flag, integer, real, text
from ddpprof.report.tree import RankReport, Report


@dataclass(frozen=True, slots=True)
class _RankRow:
    about: RankReport
    whole: Overlap | None
    cost: RecordingCost | None
    waiting: RankWaiting | None
    memory: RankMemory | None

    @property
    def device(self) -> DeviceUse | None:
        """The device on which the rank trains; ``None`` if it is not known to be exactly one."""
        own = [one for one in self.memory.devices if one.is_own] if self.memory is not None else []
        return own[0] if len(own) == 1 else None


@dataclass(frozen=True, slots=True)
class _NumberedFinding:
    number: int
    about: Finding
    predicted: Predicted | None


def _ranks(report: Report) -> Iterator[_RankRow]:
    waiting = {one.rank: one for one in report.across.waiting} if report.across is not None else {}
    memory = {one.rank: one for one in report.memory}
    return (
        _RankRow(one, one.whole, one.recording_cost, waiting.get(one.rank), memory.get(one.rank))
        for one in report.ranks
    )


def _findings(report: Report) -> Iterator[_NumberedFinding]:
    return (_NumberedFinding(number, finding, finding.predicted) for number, finding in enumerate(report.findings, 1))


RANKS: TableSchema[_RankRow] = TableSchema(
    "ranks",
    "One row per rank.",
    _ranks,
    (
        integer("rank", "rank in the job", lambda r: r.about.rank),
        text("host", "name of its host", lambda r: r.about.host),
        text("ended", "how its training ended", lambda r: r.about.ended),
        integer("num_steps", "number of profiled steps", lambda r: len(r.about.steps)),
        integer("num_light_steps", "number of steps without the profiler", lambda r: len(r.about.light_steps)),
        integer(
            "whole_compute_ns",
            "computation in the whole trace, including the time between steps",
            lambda r: r.whole and r.whole.compute_ns,
        ),
        integer("whole_comm_ns", "communication in the whole trace", lambda r: r.whole and r.whole.comm_ns),
        integer("whole_overlap_ns", "both at once", lambda r: r.whole and r.whole.overlap_ns),
        integer("whole_exposed_ns", "communication without computation", lambda r: r.whole and r.whole.exposed_ns),
        integer("step_off_ns", "median step with recording off", lambda r: r.cost and r.cost.off_ns),
        integer("step_light_ns", "median step with light recording", lambda r: r.cost and r.cost.light_ns),
        integer("step_profiled_ns", "median step under the profiler", lambda r: r.cost and r.cost.profiled_ns),
        real(
            "light_ratio",
            "light step over the step with recording off beside it, median of such pairs",
            lambda r: r.cost and r.cost.light_ratio,
        ),
        integer(
            "num_collectives",
            "number of collectives matched with other ranks",
            lambda r: r.waiting and r.waiting.num_collectives,
        ),
        integer("num_last", "number of them to which it came last", lambda r: r.waiting and r.waiting.num_last),
        integer(
            "waiting_per_step_ns",
            "waiting for other ranks in a step, median",
            lambda r: r.waiting and r.waiting.waiting_per_step_ns,
        ),
        integer(
            "exposed_waiting_ns",
            "waiting in a step while it computes nothing, mean",
            lambda r: r.waiting and r.waiting.exposed_waiting_ns,
        ),
        integer(
            "steady_rss_bytes",
            "host memory at the ends of steps, median",
            lambda r: r.memory and r.memory.steady_rss_bytes,
        ),
        integer("peak_rss_bytes", "most host memory", lambda r: r.memory and r.memory.peak_rss_bytes),
        integer(
            "device_steady_bytes",
            "tensors on its accelerator at the ends of steps, median",
            lambda r: r.device and r.device.steady_bytes,
        ),
        integer("device_peak_bytes", "most tensors on it", lambda r: r.device and r.device.peak_bytes),
        integer("device_reserved_bytes", "most memory reserved on it", lambda r: r.device and r.device.reserved_bytes),
        integer("device_total_bytes", "memory that it has", lambda r: r.device and r.device.total_bytes),
    ),
)

FINDINGS: TableSchema[_NumberedFinding] = TableSchema(
    "findings",
    "One row per finding, in the order of the report: a broken training, gains, others, and last what may be noise.",
    _findings,
    (
        integer("number", "number of the finding in the report", lambda r: r.number),
        text("rule", "name of the rule that made it", lambda r: r.about.rule),
        text("title", "what was found", lambda r: r.about.title),
        text("evidence", "numbers that show it", lambda r: r.about.evidence),
        text("advice", "what to change", lambda r: r.about.advice),
        integer("gain_ns", "most time to gain per step", lambda r: r.about.gain_ns),
        integer("predicted_ns", "predicted gain per step", lambda r: r.predicted and r.predicted.gain_ns),
        integer("predicted_low_ns", "lower end of its 95 % interval", lambda r: r.predicted and r.predicted.low_ns),
        integer("predicted_high_ns", "upper end of its 95 % interval", lambda r: r.predicted and r.predicted.high_ns),
        flag(
            "is_correctness", "whether training does something other than it seems to", lambda r: r.about.is_correctness
        ),
        flag("is_noise", "whether it may be chance, so that it is no advice", lambda r: r.about.is_noise),
    ),
)
