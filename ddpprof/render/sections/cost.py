"""The cost of DDP itself, and of ddpprof."""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import attrgetter

from ddpprof.layout import ABSENT, Line, Section, Table, clean, mean_of, median_of, ms, percent, table_of
from ddpprof.model import Kernel
from ddpprof.render.sections.steps import mean_of_steps, rank_table
from ddpprof.report import Report
from ddpprof.topics.overlap_slowdown import ENOUGH_KNOWN, OverlapSlowdownReport
from ddpprof.topics.recording_cost import RecordingCost

_UNUSUAL = 1.5
"""factor above which steps are unusually long"""
_LEAST_STEPS = 20
"""minimum number of ordinary steps for a typical step time"""

WRAPPER_PARTS = {
    "pre_forward_ns": "pre-forward",
    "unused_search_ns": "unused search",
    "copy_in_ns": "copy in",
    "launch_ns": "launch",
    "copy_out_ns": "copy out",
    "finalise_ns": "finalise",
}
"""names of the fields of `WrapperCost` and `WrapperParts`"""


def wrapper_table(report: Report) -> Iterable[Section]:
    rows = []
    for rank in report.ranks:
        steps = report.averaged(rank)
        if not steps or not report.job.modules:
            continue
        values = [mean_of([step.wrapper for step in steps], attrgetter(part)) for part in (*WRAPPER_PARTS, "total_ns")]
        length_ns = mean_of(steps, lambda s: s.duration_ns)
        rows.append((str(rank.rank), *map(ms, values), percent((values[-1] or 0) / length_ns if length_ns else None)))
    if rows:
        yield rank_table(
            report,
            f"DDP's own work on the training thread, ms per step ({mean_of_steps(report)})",
            ("rank", *WRAPPER_PARTS.values(), "total", "of step"),
            rows,
            "pre-forward: buffer sync and bookkeeping; copy in: gradients to buckets; copy out: buckets to .grad; "
            "waits for communication are excluded",
        )


def unusual_steps_line(report: Report) -> Iterable[Section]:
    """Warn if the profiled steps, which all tables describe, are unlike the others."""
    costs = [rank.recording_cost for rank in report.ranks if rank.recording_cost is not None]
    ratios = [(cost.profiled_ratio, cost.spread) for cost in costs if cost.profiled_ratio and cost.spread is not None]
    ratio, spread = max(ratios, default=(0.0, 0.0))
    others = "those before them"
    why = "The machine was busy, or the step is so short that profiler overhead dominates it."
    if ratio < max(_UNUSUAL, 1 + spread):
        ratio, usual_ns = _against_the_whole_run(report)
        others = f"most steps of the whole run, {ms(usual_ns)} ms"
        why = "The machine was busy, the profiler slowed these steps, or they did more work."
    if ratio >= _UNUSUAL:
        yield Line(f"Note: the profiled steps took {ratio:.1f} × as long as {others}. {why}", is_warning=True)


def _against_the_whole_run(report: Report) -> tuple[float, int]:
    """Return by what factor profiled steps were longer than most, and the length of most (ns); 0 with too few steps."""
    shown = report.whole_run.shown if report.whole_run is not None else None
    steps = shown.whole if shown is not None else None
    profiled = [step for one in report.ranks if shown and one.rank == shown.rank for step in report.averaged(one)]
    profiled_ns = median_of(profiled, lambda step: step.duration_ns)
    if steps is None or not steps.median_ns or steps.num_steps - steps.num_flagged < _LEAST_STEPS:
        return 0.0, 0
    return (profiled_ns or 0) / steps.median_ns, steps.median_ns


def recording_cost_line(report: Report) -> Iterable[Section]:
    """Say how much longer steps take while ddpprof records them."""
    cost = _of_slowest_rank(report)
    if cost is None:
        return
    light, profiled = cost.light_ratio, cost.profiled_ratio
    by_chance = [ratio for ratio in (light, profiled) if ratio is not None and cost.is_noise(ratio)]
    measured = [
        f"{name} took {ratio:.2f} × as long ({ms(took_ns)} against {ms(cost.off_ns)} ms)"
        for name, ratio, took_ns in (
            ("profiled steps", profiled, cost.profiled_ns),
            ("lightly recorded steps", light, cost.light_ns),
        )
        if ratio is not None and not cost.is_noise(ratio)
    ]
    if by_chance:
        within = max([cost.spread or 0.0, *(abs(ratio - 1) for ratio in by_chance)])
        whose = "light recording had " if measured and profiled not in by_chance else ""
        whose = "profiling had " if measured and light not in by_chance else whose
        measured.append(f"{whose}no measurable cost (± {within:.0%})")
    if cost.profiler_pause_ns is not None:
        measured.append(f"starting and stopping the profiler paused training once, for {ms(cost.profiler_pause_ns)} ms")
    if measured:
        yield Line(f"Recording overhead: {'; '.join(measured)}.", is_aside=True)


def _of_slowest_rank(report: Report) -> RecordingCost | None:
    costs = [rank.recording_cost for rank in report.ranks if rank.recording_cost is not None]
    return max(costs, key=lambda cost: cost.off_ns or 0, default=None)


_MAX_KERNELS = 5
_WORTH_A_TABLE = 0.01
"""minimum share of the step for a table"""
_OF_NO_INTEREST = re.compile(r"^void |at::native::|\(anonymous namespace\)::")
_TELLS_NOTHING = 0.02
"""minimum share of the computation under communication; with a smaller share, the ratio is not meaningful"""


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
            "It is unknown how much communication slows computation: almost none of the computation under "
            f"communication also ran alone.{more}",
            is_aside=True,
        )
        return
    if (slowdown.known_share or 0) < ENOUGH_KNOWN:
        yield Line(
            f"Only {percent(slowdown.known_share)} of the computation ran both with and without communication; with "
            f"communication, it took {slowdown.ratio:.2f} × as long.{more}",
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
        return f"Communication does not slow concurrent computation: it takes {ratio:.2f} × as long ({known})"
    return (
        f"Communication makes concurrent computation take {ratio:.2f} × as long: {ms(lost_ns)} ms lost per step "
        f"({known})"
    )


def _control(control: float | None) -> str:
    if control is None:
        return ""
    return (
        f"; corrected for the speed of work without communication, which took {control:.2f} × as long as in the "
        "baseline steps"
    )


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
        "known: share of kernels that also ran alone; lost: ms per step, compared with the same work alone"
        + ("" if slowdown.knows_input_shapes else ", matched by its place in the step")
        + _control(slowdown.control),
    )


def kernel_name(kernel: Kernel) -> str:
    """Return the name without torch's usual prefixes; with its position if several ops of a step share the name."""
    place = f" (no. {kernel.position + 1})" if kernel.position else ""
    return clean(_OF_NO_INTEREST.sub("", kernel.name), most=50) + place
