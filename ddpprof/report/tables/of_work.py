"""Declarations of the tables of buckets, collectives and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpprof.measures.buckets.bucket_summary import BucketRow
from ddpprof.measures.collectives.collective_table import CollectiveSummary
from ddpprof.measures.kernels.kernels import KernelSummary
from ddpprof.report.tables.schema import TableSchema, integer, real, text
from ddpprof.report.tree import Report, SlowedKernel


@dataclass(frozen=True, slots=True)
class _Kernel:
    summary: KernelSummary
    slowed: SlowedKernel | None


def _kernels(report: Report) -> Iterator[_Kernel]:
    slowed = {one.kernel: one for one in report.overlap_slowdown.kernels} if report.overlap_slowdown is not None else {}
    return (_Kernel(summary, slowed.get(summary.kernel)) for summary in report.kernels)


BUCKETS: TableSchema[BucketRow] = TableSchema(
    "buckets",
    "One row per gradient bucket of each DDP module. Times are medians over ranks and steps since the end of the "
    "forward, unless they are lengths. On an accelerator, times up to `launched_ns` are of the host.",
    lambda report: report.buckets,
    (
        integer("module", "index of the DDP module", lambda r: r.module),
        integer("bucket", "index of the bucket, in the order of launch", lambda r: r.index),
        integer("size_bytes", "size of the bucket", lambda r: r.num_bytes),
        integer("num_parameters", "number of parameter tensors in it", lambda r: r.num_parameters),
        text("first_parameter", "its first parameter", lambda r: r.first_parameter),
        text("last_parameter", "its last parameter", lambda r: r.last_parameter),
        integer("num_passes", "number of times that a step sends it", lambda r: r.num_passes),
        integer("first_ready_ns", "when its first gradient was there", lambda r: r.first_ready_ns),
        integer("ready_ns", "when its last gradient was there", lambda r: r.ready_ns),
        integer("launched_ns", "when DDP launched its all-reduce", lambda r: r.launched_ns),
        integer("started_ns", "when the all-reduce started", lambda r: r.started_ns),
        integer("finished_ns", "when the all-reduce finished", lambda r: r.finished_ns),
        integer("transfer_ns", "length of the all-reduce without waiting", lambda r: r.transfer_ns),
        text("slowest_parameter", "parameter that came last in most steps", lambda r: r.slowest_parameter),
        integer(
            "slowest_parameter_delay_ns",
            "how long it came after the last but one",
            lambda r: r.slowest_parameter_delay_ns,
        ),
        integer("late_rank", "rank that launched last in most steps", lambda r: r.late_rank),
        integer("late_by_ns", "how long it launched after the first rank", lambda r: r.late_by_ns),
    ),
)

COLLECTIVES: TableSchema[CollectiveSummary] = TableSchema(
    "collectives",
    "One row per kind of collective, process group and class of size, over all profiled steps. A class reaches from "
    "one power of two to the next.",
    lambda report: report.across.collectives if report.across is not None else (),
    (
        text("kind", "kind of collective, such as `all_reduce`", lambda r: r.kind),
        text("group", "name of the process group", lambda r: r.group),
        integer("num_ranks", "number of ranks in the group", lambda r: r.num_ranks),
        integer("at_least_bytes", "least size in the class", lambda r: r.at_least_bytes),
        integer("below_bytes", "size at which the next class begins", lambda r: r.below_bytes),
        integer("num_calls", "number of calls of the rank with most of them", lambda r: r.num_calls),
        integer("total_bytes", "bytes of all these calls", lambda r: r.num_bytes),
        integer(
            "num_ranks_read",
            "number of ranks that were compared; if 1, transfers include waiting",
            lambda r: r.num_ranks_read,
        ),
        integer("transfer_ns", "shortest duration over the ranks, median", lambda r: r.transfer_ns),
        integer(
            "shared_transfer_ns",
            "likewise, without the time taken by concurrent collectives",
            lambda r: r.shared_transfer_ns,
        ),
        integer("waiting_ns", "waiting of the rank that waits longest, median", lambda r: r.waiting_ns),
        real("algbw_bytes_per_s", "size over transfer, as nccl-tests", lambda r: r.algbw_bytes_per_s),
        real("busbw_bytes_per_s", "rate of the links, as nccl-tests", lambda r: r.busbw_bytes_per_s),
    ),
)

KERNELS: TableSchema[_Kernel] = TableSchema(
    "kernels",
    "One row for each of the kernels (on CPU: ops) that take most of the time of the first rank with a trace.",
    _kernels,
    (
        text("name", "name of the kernel or op", lambda r: r.summary.kernel.name),
        text("launch_shape", "grid and block; null on CPU", lambda r: r.summary.kernel.launch_shape),
        text("input_shapes", "shapes of its op's inputs", lambda r: r.summary.kernel.input_shapes),
        integer("position", "on CPU: place among the ops of that name", lambda r: r.summary.kernel.position),
        text("phase", "phase of the step in which it spends most time", lambda r: r.summary.phase),
        integer("num_steps", "number of steps that were examined", lambda r: r.summary.num_steps),
        integer("num_runs", "number of its runs in them", lambda r: r.summary.num_runs),
        integer("total_ns", "length of all its runs", lambda r: r.summary.total_ns),
        integer("median_ns", "length of its median run", lambda r: r.summary.median_ns),
        real("spread_ratio", "distance of the quartiles over the median", lambda r: r.summary.spread),
        real(
            "slowdown_ratio",
            "its length during communication over that without; null if unknown",
            lambda r: r.slowed and r.slowed.ratio,
        ),
        integer(
            "slowdown_lost_ns",
            "time lost by it to communication, per step and rank",
            lambda r: r.slowed and r.slowed.lost_ns,
        ),
    ),
)
