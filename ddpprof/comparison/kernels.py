"""Which kernels became slower?

    noise of a median = 1.57 × (3rd quartile - 1st quartile) / sqrt(runs)      (McGill, Tukey, Larsen 1978)

Two medians differ beyond noise if they are further apart than the sum of both noises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from ddpprof.model import Kernel
from ddpprof.topics.kernels import MOST_KERNELS, KernelSummary

_FEWEST_RUNS = 4


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel with the same name, launch shape and input shapes in both runs."""

    a: KernelSummary
    b: KernelSummary

    @property
    def kernel(self) -> Kernel:
        return self.a.kernel

    @property
    def ratio(self) -> float | None:
        """Ratio of the medians, B over A."""
        return self.b.median_ns / self.a.median_ns if self.a.median_ns else None

    @property
    def lost_ns_per_step(self) -> int:
        """Time that a step of B loses, ns: the extra time of a usual run of the kernel, times the number of runs."""
        return round((self.b.median_ns - self.a.median_ns) * self.b.runs_per_step)

    @property
    def is_beyond_noise(self) -> bool:
        noises = [_noise_ns(summary) for summary in (self.a, self.b)]
        known = [noise for noise in noises if noise is not None]
        return len(known) == len(noises) and abs(self.b.median_ns - self.a.median_ns) > sum(known)


def _noise_ns(summary: KernelSummary) -> float | None:
    if summary.num_runs < _FEWEST_RUNS or summary.spread is None:
        return None
    return 1.57 * summary.spread * summary.median_ns / sqrt(summary.num_runs)


def compare_kernels(
    a: Sequence[KernelSummary], b: Sequence[KernelSummary]
) -> tuple[tuple[KernelChange, ...], str | None]:
    """Return the kernels whose median changed beyond noise, most time lost first, and why others are not compared."""
    in_b = {summary.kernel: summary for summary in b}
    changes = [KernelChange(summary, in_b[summary.kernel]) for summary in a if summary.kernel in in_b]
    changed = sorted((c for c in changes if c.is_beyond_noise), key=lambda c: -c.lost_ns_per_step)
    return tuple(changed), _unmatched(a, b, {change.kernel for change in changes})


def _unmatched(a: Sequence[KernelSummary], b: Sequence[KernelSummary], matched: set[Kernel]) -> str | None:
    only = [[summary for summary in summaries if summary.kernel not in matched] for summaries in (a, b)]
    if not a or not b or not any(only) or MOST_KERNELS in (len(a), len(b)):
        return None  # a kernel missing from a truncated list may still be in the run
    words = [
        f"{len(rows)} only in {run} ({_ms(rows)} ms per step)" for run, rows in zip("AB", only, strict=True) if rows
    ]
    return f"kernels of one run only, by name, launch shape and input shapes: {', '.join(words)}"


def _ms(summaries: Sequence[KernelSummary]) -> str:
    return f"{sum(summary.total_ns_per_step for summary in summaries) / 1e6:.2f}"
