"""Declarations of the tables of ranks and findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpprof.findings import Finding
from ddpprof.measures.ranks.arrivals import RankWaiting
from ddpprof.measures.ranks.memory import DeviceUse, RankMemory
from ddpprof.report.tables.schema import Column, Kind, TableSchema
from ddpprof.report.tree import RankReport, Report


@dataclass(frozen=True, slots=True)
class _Rank:
    about: RankReport
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


def _ranks(report: Report) -> Iterator[_Rank]:
    waiting = {one.rank: one for one in report.across.waiting} if report.across is not None else {}
    memory = {one.rank: one for one in report.memory}
    return (_Rank(one, waiting.get(one.rank), memory.get(one.rank)) for one in report.ranks)


def _findings(report: Report) -> Iterator[_NumberedFinding]:
    return (_NumberedFinding(number, finding) for number, finding in enumerate(report.findings, 1))


RANKS: TableSchema[_Rank] = TableSchema(
    "ranks",
    "One row per rank.",
    _ranks,
    (
        Column("rank", Kind.INTEGER, "rank in the job", lambda r: r.about.rank),
        Column("host", Kind.TEXT, "name of its host", lambda r: r.about.host),
        Column("ended", Kind.TEXT, "how its training ended", lambda r: r.about.ended),
        Column("num_steps", Kind.INTEGER, "number of profiled steps", lambda r: len(r.about.steps)),
        Column(
            "num_light_steps", Kind.INTEGER, "number of steps without the profiler", lambda r: len(r.about.light_steps)
        ),
        Column(
            "whole_compute_ns",
            Kind.INTEGER,
            "computation in the whole trace, including the time between steps",
            lambda r: r.about.whole and r.about.whole.compute_ns,
        ),
        Column(
            "whole_comm_ns",
            Kind.INTEGER,
            "communication in the whole trace",
            lambda r: r.about.whole and r.about.whole.comm_ns,
        ),
        Column("whole_overlap_ns", Kind.INTEGER, "both at once", lambda r: r.about.whole and r.about.whole.overlap_ns),
        Column(
            "whole_exposed_ns",
            Kind.INTEGER,
            "communication without computation",
            lambda r: r.about.whole and r.about.whole.exposed_ns,
        ),
        Column(
            "step_off_ns",
            Kind.INTEGER,
            "median step with recording off",
            lambda r: r.about.recording_cost and r.about.recording_cost.off_ns,
        ),
        Column(
            "step_light_ns",
            Kind.INTEGER,
            "median step with light recording",
            lambda r: r.about.recording_cost and r.about.recording_cost.light_ns,
        ),
        Column(
            "step_profiled_ns",
            Kind.INTEGER,
            "median step under the profiler",
            lambda r: r.about.recording_cost and r.about.recording_cost.profiled_ns,
        ),
        Column(
            "light_ratio",
            Kind.FLOAT,
            "light step over the step with recording off just before it, median",
            lambda r: r.about.recording_cost and r.about.recording_cost.light_ratio,
        ),
        Column(
            "num_collectives",
            Kind.INTEGER,
            "number of collectives matched with other ranks",
            lambda r: r.waiting and r.waiting.num_collectives,
        ),
        Column(
            "num_last", Kind.INTEGER, "number of them to which it came last", lambda r: r.waiting and r.waiting.num_last
        ),
        Column(
            "waiting_per_step_ns",
            Kind.INTEGER,
            "waiting for other ranks in a step, median",
            lambda r: r.waiting and r.waiting.waiting_per_step_ns,
        ),
        Column(
            "exposed_waiting_ns",
            Kind.INTEGER,
            "waiting in a step while it computes nothing, mean",
            lambda r: r.waiting and r.waiting.exposed_waiting_ns,
        ),
        Column(
            "steady_rss_bytes",
            Kind.INTEGER,
            "host memory at the ends of steps, median",
            lambda r: r.memory and r.memory.steady_rss_bytes,
        ),
        Column("peak_rss_bytes", Kind.INTEGER, "most host memory", lambda r: r.memory and r.memory.peak_rss_bytes),
        Column(
            "device_steady_bytes",
            Kind.INTEGER,
            "tensors on its accelerator at the ends of steps, median",
            lambda r: r.device and r.device.steady_bytes,
        ),
        Column("device_peak_bytes", Kind.INTEGER, "most tensors on it", lambda r: r.device and r.device.peak_bytes),
        Column(
            "device_reserved_bytes",
            Kind.INTEGER,
            "most memory reserved on it",
            lambda r: r.device and r.device.reserved_bytes,
        ),
        Column("device_total_bytes", Kind.INTEGER, "memory that it has", lambda r: r.device and r.device.total_bytes),
    ),
)

FINDINGS: TableSchema[_NumberedFinding] = TableSchema(
    "findings",
    "One row per finding, in the order of the report: largest gain first, then those that may be noise.",
    _findings,
    (
        Column("number", Kind.INTEGER, "number of the finding in the report", lambda r: r.number),
        Column("rule", Kind.TEXT, "name of the rule that made it", lambda r: r.about.rule),
        Column("title", Kind.TEXT, "what was found", lambda r: r.about.title),
        Column("evidence", Kind.TEXT, "numbers that show it", lambda r: r.about.evidence),
        Column("advice", Kind.TEXT, "what to change", lambda r: r.about.advice),
        Column("gain_ns", Kind.INTEGER, "most time to gain per step", lambda r: r.about.gain_ns),
        Column(
            "predicted_ns",
            Kind.INTEGER,
            "predicted gain per step",
            lambda r: r.about.predicted and r.about.predicted.gain_ns,
        ),
        Column(
            "predicted_low_ns",
            Kind.INTEGER,
            "lower end of its 95 % interval",
            lambda r: r.about.predicted and r.about.predicted.low_ns,
        ),
        Column(
            "predicted_high_ns",
            Kind.INTEGER,
            "upper end of its 95 % interval",
            lambda r: r.about.predicted and r.about.predicted.high_ns,
        ),
        Column(
            "is_correctness",
            Kind.BOOL,
            "whether training does something other than it seems to",
            lambda r: r.about.is_correctness,
        ),
        Column("is_noise", Kind.BOOL, "whether it may be chance, so that it is no advice", lambda r: r.about.is_noise),
    ),
)
