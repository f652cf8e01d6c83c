"""Gradients averaged without torch's DDP, from the trace to the words for it."""

from __future__ import annotations

from ddpprof.data_parallel.own_reduction import OwnReduction, measure_own_reduction
from ddpprof.data_parallel.rules import data_parallel, outputs_scattered_again, own_reduction
from ddpprof.data_parallel.sections import data_parallel_lines, data_parallel_table, own_reduction_line
from ddpprof.data_parallel.transfers import DataParallelReport, data_parallel_of_rank
from ddpprof.side_street import SideStreet

DATA_PARALLEL: SideStreet[DataParallelReport, DataParallelReport] = SideStreet(
    folder="data_parallel",
    report_field="data_parallel",
    sections={"job": data_parallel_lines, "step": data_parallel_table},
    rules=(data_parallel, outputs_scattered_again),
    advice={
        "device-imbalance": "It also computes the loss of the whole batch: let the wrapped module return its loss, so "
        "that every device computes its own.",
        "memory-imbalance": "DataParallel gathers outputs, and keeps the optimizer's state, on one device: use "
        "DistributedDataParallel.",
    },
    of_rank=data_parallel_of_rank,
    # There is one rank, except where each host runs a job of its own.
    of_ranks=lambda ranks: ranks[0],
)
OWN_REDUCTION: SideStreet[OwnReduction, OwnReduction] = SideStreet(
    folder="data_parallel",
    report_field="own_reduction",
    sections={"job": own_reduction_line},
    rules=(own_reduction,),
    # ddpprof only records DDP.
    of_rank=lambda rank, steps: (
        measure_own_reduction(rank.trace, steps) if rank.trace is not None and rank.record is None else None
    ),
    # The rank that exposes least counts: others also wait for a slower one.
    of_ranks=lambda ranks: min(ranks, key=lambda one: one.exposed_ns),
)
