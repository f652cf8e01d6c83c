"""Kernels over the ranks: which take the time, and how much communication slows them."""

from __future__ import annotations

from collections.abc import Sequence

from ddpprof.events import Rank
from ddpprof.measures.kernels import KernelSummary, summarise_kernels
from ddpprof.measures.slowdown import KernelSlowdown, Slowdown, measure_slowdown, merge_slowdowns
from ddpprof.report.ranks import baseline_steps, training_steps, whole_steps
from ddpprof.report.tree import SlowdownReport, SlowedKernel

MOST_KERNELS = 500
"""in a report; the others take next to no time"""


def kernels_of_first_rank(ranks: Sequence[Rank]) -> tuple[KernelSummary, ...]:
    """Those that take most of its time."""
    for rank in ranks:
        if rank.trace is not None and (steps := whole_steps(rank.trace, training_steps(rank.record))):
            return summarise_kernels(rank.trace, steps)[:MOST_KERNELS]
    return ()


def slowdown_report(ranks: Sequence[Rank]) -> SlowdownReport | None:
    """``None`` where no rank has a trace."""
    measured = [_of_rank(rank) for rank in ranks if rank.trace is not None]
    if not measured:
        return None
    slowdown = merge_slowdowns(measured)
    kernels = tuple(_slowed(row, slowdown.num_steps) for row in slowdown.kernels if row.ratio is not None)
    return SlowdownReport(
        reason=slowdown.reason,
        ratio=slowdown.ratio,
        lost_ns=slowdown.lost_ns_per_step,
        covered_ns=round(slowdown.covered_ns / slowdown.num_steps) if slowdown.num_steps else 0,
        known_share=slowdown.known_share,
        knows_input_shapes=slowdown.knows_input_shapes,
        num_steps=slowdown.num_steps,
        kernels=kernels[:MOST_KERNELS],
        num_baseline_steps=sum(len(baseline_steps(rank)) for rank in ranks),
        control=slowdown.control,
    )


def _of_rank(rank: Rank) -> Slowdown:
    assert rank.trace is not None
    return measure_slowdown(rank.trace, whole_steps(rank.trace, training_steps(rank.record)), baseline_steps(rank))


def _slowed(row: KernelSlowdown, num_steps: int) -> SlowedKernel:
    return SlowedKernel(
        kernel=row.kernel,
        ratio=row.ratio,
        num_covered=len(row.ratios),
        num_alone=row.num_alone,
        covered_ns=round(row.compared_ns / num_steps),
        lost_ns=round(row.lost_ns / num_steps),
    )
