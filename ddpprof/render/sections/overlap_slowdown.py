"""How much communication slows concurrent computation, kernel by kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddpprof.layout import ABSENT, Line, Section, Table, clean, median_of, ms, percent, table_of
from ddpprof.model import Kernel
from ddpprof.report import Report
from ddpprof.topics.overlap_slowdown import ENOUGH_KNOWN, OverlapSlowdownReport

_MAX_KERNELS = 5
_WORTH_A_TABLE = 0.01
"""least share of the step worth a table"""
_OF_NO_INTEREST = re.compile(r"^void |at::native::|\(anonymous namespace\)::")
_TELLS_NOTHING = 0.02
"""least share of the computation under communication; the ratio of less is an accident"""


def slowdown_section(report: Report) -> Iterable[Section]:
    slowdown = report.overlap_slowdown
    if slowdown is None or not any(step.num_comm_kernels for rank in report.ranks for step in rank.measured_steps):
        return
    again = clean(report.job.trace_command("--baseline-steps 5"))
    more = "" if slowdown.num_baseline_steps else f" Record steps without communication to compare with: {again}"
    if slowdown.ratio is None or slowdown.lost_ns is None:
        yield Line(
            f"It is unknown how much communication slows computation: {clean(slowdown.reason or '')}.{more}",
            is_aside=True,
        )
        return
    if (slowdown.known_share or 0) < _TELLS_NOTHING:
        yield Line(
            "It is unknown how much communication slows computation: hardly any of the computation under it also ran "
            f"alone.{more}",
            is_aside=True,
        )
        return
    if (slowdown.known_share or 0) < ENOUGH_KNOWN:
        yield Line(
            f"Only {percent(slowdown.known_share)} of the computation ran both with and without communication; with "
            f"it, it took {slowdown.ratio:.2f} × as long.{more}",
            is_aside=True,
        )
        return
    summary = _summary(slowdown.ratio, slowdown.lost_ns, slowdown)
    typical = median_of([step for rank in report.ranks for step in rank.measured_steps], lambda step: step.duration_ns)
    if slowdown.lost_ns < _WORTH_A_TABLE * (typical or 0):
        yield Line(f"{summary}.", is_aside=True)
    else:
        yield _kernels(summary, slowdown)


def _summary(ratio: float, lost_ns: int, slowdown: OverlapSlowdownReport) -> str:
    known = f"known for {percent(slowdown.known_share)} of its {ms(slowdown.covered_ns)} ms per step"
    if lost_ns <= 0:
        return f"Communication does not slow concurrent computation: {ratio:.2f} × as long ({known})"
    return (
        f"Communication makes concurrent computation take {ratio:.2f} × as long: {ms(lost_ns)} ms lost per step "
        f"({known})"
    )


def _control(control: float | None) -> str:
    if control is None:
        return ""
    return f"; corrected for work without communication, which took {control:.2f} × as long as in the baseline steps"


def _kernels(summary: str, slowdown: OverlapSlowdownReport) -> Table:
    return table_of(
        summary,
        slowdown.kernels[:_MAX_KERNELS],
        {
            "kernel": lambda row: kernel_name(row.kernel),
            "grid and block": lambda row: clean(row.kernel.launch_shape or ABSENT, most=40),
            "runs under comm": lambda row: str(row.num_covered),
            "alone": lambda row: str(row.num_alone),
            "slower": lambda row: ABSENT if row.ratio is None else f"{row.ratio:.2f} ×",
            "lost": lambda row: ms(row.lost_ns),
        },
        ("kernel", "grid and block"),
        "known: kernels that also ran alone; lost: ms per step, compared with the same work alone"
        + ("" if slowdown.knows_input_shapes else ", matched by its place in the step")
        + _control(slowdown.control),
    )


def kernel_name(kernel: Kernel) -> str:
    """Return the name without torch's usual prefixes; with its position if several ops of a step share the name."""
    place = f" (no. {kernel.position + 1})" if kernel.position else ""
    return clean(_OF_NO_INTEREST.sub("", kernel.name), most=50) + place
