"""The cost of DDP itself, and of ddpprof."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from ddpprof.layout import Line, Section, mean_of, median_of, ms, percent
from ddpprof.render.sections.steps import mean_of_steps, rank_table
from ddpprof.report import Report
from ddpprof.topics.recording_cost import RecordingCost

_UNUSUAL = 1.5
"""factor from which steps are unusually long"""
_LEAST_STEPS = 20
"""number of steps without a special event that tell how long most steps are"""

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
            "pre-forward: buffer sync and bookkeeping; copy in: gradients into buckets; copy out: buckets into .grad; "
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
        why = "The machine was busy then, the profiler slowed them, or they did more work."
    if ratio >= _UNUSUAL:
        yield Line(f"Note: the profiled steps took {ratio:.1f} × as long as {others}. {why}", is_warning=True)


def _against_the_whole_run(report: Report) -> tuple[float, int]:
    """Return how much longer profiled steps were than most, and how long these were; 0 if too few tell."""
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
