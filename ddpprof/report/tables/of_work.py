"""Declarations of the tables of buckets, collectives and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpprof.measures.buckets.bucket_summary import BucketRow
from ddpprof.measures.collectives.collective_table import CollectiveSummary
from ddpprof.measures.kernels.kernels import KernelSummary
from ddpprof.report.tables.schema import Column, Kind, TableSchema
from ddpprof.report.tree import Report, SlowedKernel


@dataclass(frozen=True, slots=True)
class _Kernel:
    summary: KernelSummary
    slowed: SlowedKernel | None


def _kernels(report: Report) -> Iterator[_Kernel]:
    slowed = {one.kernel: one for one in report.slowdown.kernels} if report.slowdown is not None else {}
    return (_Kernel(summary, slowed.get(summary.kernel)) for summary in report.kernels)


BUCKETS: TableSchema[BucketRow] = TableSchema(
    "buckets",
    "One row per gradient bucket of each DDP module. Times are medians over ranks and steps since the end of the "
    "forward, unless they are lengths. On an accelerator, times up to `launched_ns` are of the host.",
    lambda report: report.buckets,
    (
        Column("module", Kind.INTEGER, "index of the DDP module", lambda r: r.module),
        Column("bucket", Kind.INTEGER, "index of the bucket, in the order of launch", lambda r: r.index),
        Column("size_bytes", Kind.INTEGER, "size of the bucket", lambda r: r.num_bytes),
        Column("num_parameters", Kind.INTEGER, "number of parameters in it", lambda r: r.num_parameters),
        Column("first_parameter", Kind.TEXT, "its first parameter", lambda r: r.first_parameter),
        Column("last_parameter", Kind.TEXT, "its last parameter", lambda r: r.last_parameter),
        Column("num_passes", Kind.INTEGER, "number of times that a step sends it", lambda r: r.num_passes),
        Column("first_ready_ns", Kind.INTEGER, "when its first gradient was there", lambda r: r.first_ready_ns),
        Column("ready_ns", Kind.INTEGER, "when its last gradient was there", lambda r: r.ready_ns),
        Column("launched_ns", Kind.INTEGER, "when DDP launched its all-reduce", lambda r: r.launched_ns),
        Column("started_ns", Kind.INTEGER, "when the all-reduce started", lambda r: r.started_ns),
        Column("finished_ns", Kind.INTEGER, "when the all-reduce finished", lambda r: r.finished_ns),
        Column("transfer_ns", Kind.INTEGER, "length of the all-reduce without waiting", lambda r: r.transfer_ns),
        Column("slowest_parameter", Kind.TEXT, "parameter that came last in most steps", lambda r: r.slowest_parameter),
        Column(
            "slowest_parameter_delay_ns",
            Kind.INTEGER,
            "how long it came after the last but one",
            lambda r: r.slowest_parameter_delay_ns,
        ),
        Column("late_rank", Kind.INTEGER, "rank that launched last in most steps", lambda r: r.late_rank),
        Column("late_by_ns", Kind.INTEGER, "how long it launched after the first rank", lambda r: r.late_by_ns),
    ),
)

COLLECTIVES: TableSchema[CollectiveSummary] = TableSchema(
    "collectives",
    "One row per kind of collective, process group and class of size, over all profiled steps. A class reaches from "
    "one power of two to the next.",
    lambda report: report.across.collectives if report.across is not None else (),
    (
        Column("kind", Kind.TEXT, "kind of collective, such as `all_reduce`", lambda r: r.kind),
        Column("group", Kind.TEXT, "name of the process group", lambda r: r.group),
        Column("num_ranks", Kind.INTEGER, "number of ranks in the group", lambda r: r.num_ranks),
        Column("at_least_bytes", Kind.INTEGER, "least size in the class", lambda r: r.at_least_bytes),
        Column("below_bytes", Kind.INTEGER, "size at which the next class begins", lambda r: r.below_bytes),
        Column("num_calls", Kind.INTEGER, "number of calls of the rank with most of them", lambda r: r.num_calls),
        Column("total_bytes", Kind.INTEGER, "bytes of all these calls", lambda r: r.num_bytes),
        Column(
            "num_ranks_read",
            Kind.INTEGER,
            "number of ranks that were compared; if 1, transfers include waiting",
            lambda r: r.num_ranks_read,
        ),
        Column("transfer_ns", Kind.INTEGER, "shortest duration over the ranks, median", lambda r: r.transfer_ns),
        Column(
            "shared_transfer_ns",
            Kind.INTEGER,
            "likewise, without the time taken by concurrent collectives",
            lambda r: r.shared_transfer_ns,
        ),
        Column("waiting_ns", Kind.INTEGER, "waiting of the rank that waits longest, median", lambda r: r.waiting_ns),
        Column("algbw_bytes_per_s", Kind.FLOAT, "size over transfer, as nccl-tests", lambda r: r.algbw_bytes_per_s),
        Column("busbw_bytes_per_s", Kind.FLOAT, "rate of the links, as nccl-tests", lambda r: r.busbw_bytes_per_s),
    ),
)

KERNELS: TableSchema[_Kernel] = TableSchema(
    "kernels",
    "One row for each of the kernels (on CPU: ops) that take most of the time of the first rank with a trace.",
    _kernels,
    (
        Column("name", Kind.TEXT, "name of the kernel or op", lambda r: r.summary.kernel.name),
        Column("launch_shape", Kind.TEXT, "grid and block; null on CPU", lambda r: r.summary.kernel.launch_shape),
        Column("input_shapes", Kind.TEXT, "shapes of its op's inputs", lambda r: r.summary.kernel.input_shapes),
        Column(
            "position",
            Kind.INTEGER,
            "on CPU: place among the ops of that name",
            lambda r: r.summary.kernel.position,
        ),
        Column("phase", Kind.TEXT, "phase of the step in which it spends most time", lambda r: r.summary.phase),
        Column("num_steps", Kind.INTEGER, "number of steps that were examined", lambda r: r.summary.num_steps),
        Column("num_runs", Kind.INTEGER, "number of its runs in them", lambda r: r.summary.num_runs),
        Column("total_ns", Kind.INTEGER, "length of all its runs", lambda r: r.summary.total_ns),
        Column("median_ns", Kind.INTEGER, "length of its median run", lambda r: r.summary.median_ns),
        Column("spread_ratio", Kind.FLOAT, "distance of the quartiles over the median", lambda r: r.summary.spread),
        Column(
            "slowdown_ratio",
            Kind.FLOAT,
            "its length during communication over that without; null if unknown",
            lambda r: r.slowed and r.slowed.ratio,
        ),
        Column(
            "slowdown_lost_ns",
            Kind.INTEGER,
            "time lost by it to communication, per step and rank",
            lambda r: r.slowed and r.slowed.lost_ns,
        ),
    ),
)
