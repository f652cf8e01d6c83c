"""How much communication slows kernels, per step and rank."""

from __future__ import annotations

from ddpprof.measures.kernels.overlap_slowdown import KernelSlowdown, Slowdown
from ddpprof.report.rank_summary import MOST_KERNELS
from ddpprof.report.tree import SlowdownReport, SlowedKernel


def slowdown_report(slowdown: Slowdown, num_baseline_steps: int) -> SlowdownReport:
    """Report on the slowdown of all ranks together."""
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
        num_baseline_steps=num_baseline_steps,
        control=slowdown.control,
    )


def _slowed(row: KernelSlowdown, num_steps: int) -> SlowedKernel:
    return SlowedKernel(
        kernel=row.kernel,
        ratio=row.ratio,
        num_covered=row.num_compared,
        num_alone=row.num_alone,
        covered_ns=round(row.compared_ns / num_steps),
        lost_ns=round(row.lost_ns / num_steps),
    )
