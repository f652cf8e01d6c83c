"""Report on the parts of a step, on hidden communication, and on the overhead of DDP and ddpprof."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from statistics import fmean, median

import numpy as np

from ddpprof.engine.topic import ReportView, Topic
from ddpprof.layout import (
    MAX_RANKS,
    PARTS,
    Bar,
    Bars,
    Column,
    Line,
    Section,
    Table,
    columns,
    count,
    cut_off,
    in_ms,
    mean_of,
    median_of,
    ms,
    notes,
    percent,
)
from ddpprof.topics.ranks.across import ACROSS
from ddpprof.topics.steps.breakdown import Breakdown
from ddpprof.topics.steps.measure import STEP_TABLES, RankReport, RecordingCost, rank_report
from ddpprof.topics.whole_run import WHOLE_RUN

RECORDED_PARTS = ("forward", "backward and comm", "optimizer", "data, other")
"""parts of the step bar if a step was recorded without the profiler"""

_UNUSUAL = 1.5
"""a step counts as unusually long if it takes at least this many times as long as usual"""

WRAPPER_PARTS = {
    "pre_forward_ns": "pre-forward",
    "unused_search_ns": "unused search",
    "copy_in_ns": "copy in",
    "launch_ns": "launch",
    "copy_out_ns": "copy out",
    "finalise_ns": "finalise",
}
"""field of `WrapperCost` or `WrapperParts` → name in the report"""
_LAUNCHES = "time in which the host launched each phase; only profiled steps show the accelerator's own times"


def step_bars(report: ReportView) -> Iterable[Section]:
    bars = [bar for rank in steps_of(report) if (bar := _bar(report, rank)) is not None]
    if bars:
        title = f"Step time by kind of work, ms{of_device(report)} ({mean_of_steps(report)})"
        yield from _drawn(report, title, PARTS, bars, _left_out(report))
        return
    bars = [bar for rank in steps_of(report) if (bar := _recorded_bar(rank)) is not None]
    if bars:
        title = "Step time by kind of work, ms (mean of lightly recorded steps)"
        if report.on_accelerator:
            title = "Host time per step, by phase, ms (mean of lightly recorded steps)"
        yield from _drawn(report, title, RECORDED_PARTS, bars, _LAUNCHES if report.on_accelerator else "")


def mean_parts(report: ReportView) -> dict[str, int]:
    """Return the mean time of each part of a profiled step on the first rank, in ns; empty if there is none."""
    steps = (one for rank in steps_of(report) for one in [rank.averaged(report.usual_steps)])
    parts = next((known for of_rank in steps if (known := [one.parts for one in of_rank if one.parts])), [])
    return {part.name: round(fmean(getattr(one, part.name) for one in parts)) for part in fields(Breakdown) if parts}


def of_device(report: ReportView) -> str:
    """Return the title suffix for device times if there is an accelerator; otherwise, an empty string."""
    return " of device time" if report.on_accelerator else ""


def mean_of_steps(report: ReportView) -> str:
    """Return a phrase with the number of profiled steps over which a table averages."""
    number = max((len(rank.averaged(report.usual_steps)) for rank in steps_of(report)), default=0)
    return f"mean of {count(number, 'profiled step')}"


def left_out(report: ReportView) -> dict[int, float]:
    """Return the profiled steps excluded from all means: step number → duration relative to usual steps."""
    lengths: dict[int, int] = {}
    measured = [step for rank in steps_of(report) for step in rank.measured_steps]
    cut_off = {step.step for step in measured if not step.is_whole}
    for step in (step for step in measured if step.step not in cut_off):
        lengths[step.step] = max(step.duration_ns, lengths.get(step.step, 0))
    usual_ns = median([lengths[number] for number in report.usual_steps if number in lengths] or [0])
    unusual = [number for number in sorted(lengths) if usual_ns and number not in report.usual_steps]
    return {number: lengths[number] / usual_ns for number in unusual}


def _left_out(report: ReportView) -> str:
    said = [f"step {number}, {ratio:.1f} × as long" for number, ratio in left_out(report).items()]
    if cut_off := _cut_off(report):
        steps = f"{'step' if len(cut_off) == 1 else 'steps'} {' and '.join(map(str, cut_off))}"
        said.append(f"{steps}, cut off at the start or end of the trace")
    return f"excluded from all means: {', '.join(said)}" if said else ""


def _cut_off(report: ReportView) -> list[int]:
    measured = [
        step for rank in steps_of(report) for step in rank.measured_steps if step.step not in report.usual_steps
    ]
    return sorted({step.step for step in measured if not step.is_whole}) if report.usual_steps else []


def idle_table(report: ReportView) -> Iterable[Section]:
    rows = []
    for rank in steps_of(report):
        steps = rank.averaged(report.usual_steps)
        idle = [step.idle for step in steps if step.idle is not None]
        if any(causes.idle_ns for causes in idle):
            means = (
                mean_of(idle, lambda i: i.late_launch_ns),
                mean_of(idle, lambda i: i.host_read_ns),
                mean_of(idle, lambda i: i.comm_wait_ns),
                mean_of(idle, lambda i: i.other_ns),
                mean_of(steps, lambda s: s.parts.data_ns if s.parts else None),
            )
            rows.append((str(rank.rank), *map(ms, means)))
    if rows:
        yield rank_table(
            report,
            f"Why the accelerator is idle, ms{of_device(report)} per step ({mean_of_steps(report)})",
            ("rank", "host is late", "host reads", "waits for comm", "other", "waits for data"),
            rows,
            "host is late: the next kernel had not been launched; host reads: the host was waiting for a result from "
            "the accelerator; other: gaps between dependent kernels",
        )


def _drawn(
    report: ReportView, title: str, parts: tuple[str, ...], bars: Sequence[Bar], note: str = ""
) -> Iterable[Section]:
    rows = [(bar.label, *map(ms, bar.parts_ns), ms(bar.total_ns)) for bar in bars]
    table = rank_table(report, "", ("rank", *parts, "step"), rows, note)
    labels = {row[0] for row in table.rows}
    yield Bars(title, parts, tuple(bar for bar in bars if bar.label in labels))
    yield table


def _bar(report: ReportView, rank: RankReport) -> Bar | None:
    parts = [bar_parts_ns(step.parts) for step in rank.averaged(report.usual_steps) if step.parts is not None]
    return _mean_bar(rank, parts) if parts else None


def _mean_bar(rank: RankReport, parts_ns: Sequence[Sequence[int]]) -> Bar:
    return Bar(str(rank.rank), tuple(round(fmean(column)) for column in zip(*parts_ns, strict=True)))


def bar_parts_ns(parts: Breakdown) -> tuple[int, ...]:
    """Return the length of each of `PARTS`, in ns."""
    other = parts.data_ns + parts.other_ns + parts.copy_ns
    return (parts.forward_ns, parts.backward_ns, parts.exposed_comm_ns, parts.optimizer_ns, other, parts.idle_ns)


def _recorded_bar(rank: RankReport) -> Bar | None:
    parts = [
        (p.forward_ns, p.backward_and_comm_ns, p.optimizer_ns, p.data_ns + p.other_ns)
        for step in rank.light_steps
        if (p := step.parts) is not None
    ]
    return _mean_bar(rank, parts) if parts else None


def overlap_table(report: ReportView) -> Iterable[Section]:
    rows = []
    for rank in steps_of(report):
        steps = rank.averaged(report.usual_steps)
        if not steps:
            continue
        talks = any(s.num_comm_kernels for s in steps)
        comm_ns, overlap_ns = mean_of(steps, lambda s: s.comm_ns), mean_of(steps, lambda s: s.overlap_ns)
        rows.append(
            (
                str(rank.rank),
                ms(mean_of(steps, lambda s: s.compute_ns)),
                ms(comm_ns if talks else None),
                percent((overlap_ns or 0) / comm_ns if comm_ns else None),
                ms(mean_of(steps, lambda s: s.exposed_ns) if talks else None),
                ms(mean_of(steps, lambda s: s.trailing_ns) if talks else None),
            )
        )
    if rows:
        shown, left_out = _rows_worth_seeing(report, rows)
        yield Table(
            f"Communication and computation, ms{of_device(report)} per step ({mean_of_steps(report)})",
            columns("rank", "compute", "comm", "hidden", "exposed", "trailing"),
            shown,
            notes(
                left_out,
                "hidden: share of comm that overlaps with compute; exposed: the rest; trailing: gradients still in "
                "transit between the last backward op and the optimizer",
            ),
        )


def typical_step(report: ReportView) -> int | None:
    """Return the number of the profiled step with the median duration, as measured on the slowest rank of each step."""
    longest: dict[int, int] = {}
    for rank in steps_of(report):
        for step in rank.measured_steps:
            longest[step.step] = max(longest.get(step.step, 0), step.duration_ns)
    in_order = sorted(longest, key=lambda number: longest[number])
    return in_order[(len(in_order) - 1) // 2] if in_order else None


def worth_seeing(report: ReportView, most: int = MAX_RANKS) -> tuple[int, ...]:
    """Return up to `most` ranks: stragglers, the slowest, fastest, first and last rank, and some in between."""
    numbers = [rank.rank for rank in steps_of(report)]
    if len(numbers) <= most:
        return tuple(numbers)
    across = report[ACROSS]
    late = across.stragglers if across is not None else None
    stragglers = [one.rank for one in late.stragglers] if late is not None else []
    by_length = _by_own_time(report, typical_step(report)) or numbers
    even = [by_length[round(at * (len(by_length) - 1) / (most - 1))] for at in range(most)]
    found = dict.fromkeys([*stragglers[: most // 4], by_length[-1], by_length[0], numbers[0], numbers[-1], *even])
    return tuple(sorted(list(found)[:most]))


def _by_own_time(report: ReportView, step: int | None) -> Sequence[int]:
    """Return the ranks in ascending order of the step's time without exposed communication and idle time."""
    busy = {
        rank.rank: one.parts.step_ns - one.parts.exposed_comm_ns - one.parts.idle_ns
        for rank in steps_of(report)
        for one in rank.measured_steps
        if one.step == step and one.parts is not None
    }
    return sorted(busy, key=lambda rank: busy[rank])


def rank_table(
    report: ReportView, title: str, names: Sequence[str], rows: Sequence[tuple[str, ...]], note: str = ""
) -> Table:
    """Return a table with one row per rank, or only for selected ranks if there are many.

    The first cell of a row is the rank.
    """
    shown, left_out = _rows_worth_seeing(report, rows)
    return Table(title, columns(*names), shown, notes(note, left_out))


def _rows_worth_seeing(report: ReportView, rows: Sequence[tuple[str, ...]]) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Return the rows of selected ranks, and a note about the other ranks. The first cell of each row is the rank."""
    if len(rows) <= MAX_RANKS:
        return tuple(rows), ""
    worth = set(map(str, worth_seeing(report)))
    shown = tuple(row for row in rows if row[0] in worth)[:MAX_RANKS]
    return shown, cut_off(len(rows), len(shown))


def spread_table(report: ReportView) -> Iterable[Section]:
    ranks, values = parts_of_ranks(report)
    if len(ranks) <= MAX_RANKS:
        return
    columns = [*zip(PARTS, np.array(values, np.int64).T.tolist(), strict=True), ("step", [sum(row) for row in values])]
    yield Table(
        f"All {len(ranks)} ranks, ms: step {typical_step(report)}",
        (Column("", is_number=False), *map(Column, ("least", "median", "90% below", "most", "of rank"))),
        tuple(_row(name, column, ranks) for name, column in columns),
    )


def parts_of_ranks(report: ReportView) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the ranks that have the typical step, and the `PARTS` of each."""
    number = typical_step(report)
    found = [
        (rank.rank, bar_parts_ns(step.parts))
        for rank in steps_of(report)
        for step in rank.measured_steps
        if step.step == number and step.parts is not None
    ]
    return [rank for rank, _ in found], [parts for _, parts in found]


def _row(name: str, values_ns: Sequence[int], ranks: Sequence[int]) -> tuple[str, ...]:
    quantiles = np.quantile(np.array(values_ns), (0, 0.5, 0.9, 1)).tolist()
    return (name, *map(ms, quantiles), str(ranks[int(np.argmax(values_ns))]))


def device_table(report: ReportView) -> Iterable[Section]:
    rows = [
        (str(rank.rank), str(load.device), *map(ms, (load.compute_ns, load.comm_ns, load.copy_ns, load.busy_ns)))
        for rank in steps_of(report)
        for load in rank.devices
    ]
    if rows:
        yield Table(
            "Devices of one process, ms per step (medians)",
            tuple(map(Column, ("rank", "device", "compute", "comm", "copies", "busy"))),
            tuple(rows[:MAX_RANKS]),
            cut_off(len(rows), what="devices"),
        )


def wrapper_table(report: ReportView) -> Iterable[Section]:
    rows = []
    for rank in steps_of(report):
        steps = rank.averaged(report.usual_steps)
        if not steps or not report.modules:
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


def unusual_steps_line(report: ReportView) -> Iterable[Section]:
    """Yield a warning if the profiled steps, on which all tables are based, took much longer than other steps."""
    ratio, usual_ns = _against_the_whole_run(report)
    others, least = f"a typical step of the whole run, {in_ms(usual_ns)}", _UNUSUAL
    cost = _of_slowest_rank(report)
    if not usual_ns and cost is not None and cost.profiled_ratio and cost.spread is not None:
        ratio, others, least = cost.profiled_ratio, "the steps before them", max(_UNUSUAL, 1 + cost.spread)
    if ratio >= least:
        why = "The machine was busy, the profiler slowed these steps, or they did more work."
        yield Line(f"Note: the profiled steps took {ratio:.1f} × as long as {others}. {why}", is_warning=True)


def _against_the_whole_run(report: ReportView) -> tuple[float, int]:
    """Return the ratio of profiled steps to the whole run's usual step, and the usual step in ns; 0 if unknown."""
    run = report[WHOLE_RUN]
    usual_ns = run.usual_step_ns if run is not None else None
    if run is None or run.shown is None or usual_ns is None:
        return 0.0, 0
    of_rank = (one for one in steps_of(report) if one.rank == run.shown.rank)
    profiled = [step for one in of_rank for step in one.averaged(report.usual_steps)]
    return (median_of(profiled, lambda step: step.duration_ns) or 0) / usual_ns, usual_ns


_TELLS_COST = 0.3
"""the overhead is called unknown if step times vary by more than this fraction"""


def recording_cost_line(report: ReportView) -> Iterable[Section]:
    """Yield a line that says how much longer steps take while ddpprof records them."""
    cost = _of_slowest_rank(report)
    if cost is None:
        return
    light, profiled = cost.light_ratio, cost.profiled_ratio
    known = [ratio for ratio in (light, profiled) if ratio is not None]
    most = profiled or max(known, default=0)  # profiled steps are also recorded lightly
    by_chance = [ratio for ratio in known if cost.is_noise(ratio) or ratio > most]
    measured = [
        f"{name} took {ratio:.2f} × as long ({in_ms(took_ns)} instead of {in_ms(cost.off_ns)})"
        for name, ratio, took_ns in (
            ("profiled steps", profiled, cost.profiled_ns),
            ("lightly recorded steps", light, cost.light_ns),
        )
        if ratio is not None and ratio not in by_chance
    ]
    if by_chance:
        within = max([cost.spread or 0.0, *(abs(ratio - 1) for ratio in by_chance)])
        whose = "light recording" if measured and profiled not in by_chance else ""
        whose = "profiling" if measured and light not in by_chance else whose
        if within > _TELLS_COST:
            measured.append(
                f"{f'the overhead of {whose} is ' if whose else ''}unknown, because the duration of steps varies too "
                "much"
            )
        else:
            measured.append(f"{f'{whose} had ' if whose else ''}no measurable cost (± {within:.0%})")
    if cost.profiler_pause_ns is not None:
        measured.append(f"ddpprof paused training for {in_ms(cost.profiler_pause_ns)} in total")
    if measured:
        yield Line(f"Recording overhead: {'; '.join(measured)}.", is_aside=True)


def _of_slowest_rank(report: ReportView) -> RecordingCost | None:
    costs = [rank.recording_cost for rank in steps_of(report) if rank.recording_cost is not None]
    return max(costs, key=lambda cost: cost.off_ns or 0, default=None)


STEPS: Topic[RankReport, tuple[RankReport, ...]] = Topic(
    name="ranks",
    of_rank=rank_report,
    rank_type=RankReport,
    of_ranks=tuple,
    tables=STEP_TABLES,
    sections={
        "notes": lambda _, report: unusual_steps_line(report),
        "times": lambda _, report: (
            *step_bars(report),
            *spread_table(report),
            *overlap_table(report),
            *idle_table(report),
        ),
        "devices": lambda _, report: device_table(report),
        "cost": lambda _, report: wrapper_table(report),
        "recording": lambda _, report: recording_cost_line(report),
    },
)


def steps_of(report: ReportView) -> tuple[RankReport, ...]:
    """Return the step measures of each rank."""
    return report[STEPS] or ()
