"""Where the time of a step goes, how much communication is hidden, and which step and ranks are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median

import numpy as np

from ddpprof.layout import (
    MAX_RANKS,
    PARTS,
    Bar,
    Bars,
    Column,
    Section,
    Table,
    columns,
    count,
    cut_off,
    mean_of,
    ms,
    notes,
    percent,
)
from ddpprof.report import RankReport, Report
from ddpprof.topics.steps.breakdown import Breakdown

RECORDED_PARTS = ("forward", "backward and comm", "optimizer", "data, other")
"""parts of the bar for light recording"""

_LAUNCHES = (
    "time that the host took to launch each part; only profiled steps show when and for how long the accelerator worked"
)


def step_bars(report: Report) -> Iterable[Section]:
    bars = [bar for rank in report.ranks if (bar := _bar(report, rank)) is not None]
    if bars:
        title = f"A step by kind of work, ms{of_device(report)} ({mean_of_steps(report)})"
        yield from _drawn(report, title, PARTS, bars, _left_out(report))
        return
    bars = [bar for rank in report.ranks if (bar := _recorded_bar(rank)) is not None]
    if bars:
        title = "A step by kind of work, ms (mean of lightly recorded steps)"
        if report.times:
            title = "Host time per step, by phase, ms (mean of lightly recorded steps)"
        yield from _drawn(report, title, RECORDED_PARTS, bars, _LAUNCHES if report.times else "")


def of_device(report: Report) -> str:
    """Return words for a title that say that its times are the accelerator's, if there is one."""
    return " of the device" if report.times else ""


def mean_of_steps(report: Report) -> str:
    """Return words that say over which profiled steps a table's numbers are averaged."""
    number = max((len(report.averaged(rank)) for rank in report.ranks), default=0)
    return f"mean of {count(number, 'profiled step')}"


def left_out(report: Report) -> dict[int, float]:
    """Return the profiled steps left out of all means because they took far longer, with the factor of each."""
    lengths: dict[int, int] = {}
    measured = [step for rank in report.ranks for step in rank.measured_steps]
    cut_off = {step.step for step in measured if not step.is_whole}
    for step in (step for step in measured if step.step not in cut_off):
        lengths[step.step] = max(step.duration_ns, lengths.get(step.step, 0))
    usual_ns = median([lengths[number] for number in report.usual_steps if number in lengths] or [0])
    unusual = [number for number in sorted(lengths) if usual_ns and number not in report.usual_steps]
    return {number: lengths[number] / usual_ns for number in unusual}


def _left_out(report: Report) -> str:
    said = [f"step {number}, {ratio:.1f} × as long" for number, ratio in left_out(report).items()]
    if cut_off := _cut_off(report):
        steps = f"{'step' if len(cut_off) == 1 else 'steps'} {' and '.join(map(str, cut_off))}"
        said.append(f"{steps}, cut off at the start or end of the trace")
    return f"excluded from all means: {', '.join(said)}" if said else ""


def _cut_off(report: Report) -> list[int]:
    measured = [step for rank in report.ranks for step in rank.measured_steps if step.step not in report.usual_steps]
    return sorted({step.step for step in measured if not step.is_whole}) if report.usual_steps else []


def idle_table(report: Report) -> Iterable[Section]:
    rows = []
    for rank in report.ranks:
        steps = report.averaged(rank)
        idle = [step.idle for step in steps if step.idle is not None]
        if any(causes.idle_ns for causes in idle):
            means = (
                mean_of(idle, lambda i: i.launch_bound_ns),
                mean_of(idle, lambda i: i.comm_wait_ns),
                mean_of(idle, lambda i: i.other_ns),
                mean_of(steps, lambda s: s.parts.data_ns if s.parts else None),
            )
            rows.append((str(rank.rank), *map(ms, means)))
    if rows:
        yield rank_table(
            report,
            f"Why the accelerator is idle, ms{of_device(report)} per step ({mean_of_steps(report)})",
            ("rank", "host is late", "waits for comm", "other", "waits for data"),
            rows,
            "host is late: the kernel that ends the gap had not been launched; other: gaps between dependent kernels",
        )


def _drawn(
    report: Report, title: str, parts: tuple[str, ...], bars: Sequence[Bar], note: str = ""
) -> Iterable[Section]:
    rows = [(bar.label, *map(ms, bar.parts_ns), ms(bar.total_ns)) for bar in bars]
    table = rank_table(report, "", ("rank", *parts, "step"), rows, note)
    labels = {row[0] for row in table.rows}
    yield Bars(title, parts, tuple(bar for bar in bars if bar.label in labels))
    yield table


def _bar(report: Report, rank: RankReport) -> Bar | None:
    parts = [bar_parts_ns(step.parts) for step in report.averaged(rank) if step.parts is not None]
    return _mean_bar(rank, parts) if parts else None


def _mean_bar(rank: RankReport, parts_ns: Sequence[Sequence[int]]) -> Bar:
    return Bar(str(rank.rank), tuple(round(fmean(column)) for column in zip(*parts_ns, strict=True)))


def bar_parts_ns(parts: Breakdown) -> tuple[int, ...]:
    """Return the length of each of `PARTS`."""
    other = parts.data_ns + parts.other_ns
    return (parts.forward_ns, parts.backward_ns, parts.exposed_comm_ns, parts.optimizer_ns, other, parts.idle_ns)


def _recorded_bar(rank: RankReport) -> Bar | None:
    parts = [
        (p.forward_ns, p.backward_and_comm_ns, p.optimizer_ns, p.data_ns + p.other_ns)
        for step in rank.light_steps
        if (p := step.parts) is not None
    ]
    return _mean_bar(rank, parts) if parts else None


def overlap_table(report: Report) -> Iterable[Section]:
    rows = []
    for rank in report.ranks:
        steps = report.averaged(rank)
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


def typical_step(report: Report) -> int | None:
    """Return the profiled step of median length, judged by its slowest rank: one step for all ranks."""
    longest: dict[int, int] = {}
    for rank in report.ranks:
        for step in rank.measured_steps:
            longest[step.step] = max(longest.get(step.step, 0), step.duration_ns)
    in_order = sorted(longest, key=lambda number: longest[number])
    return in_order[(len(in_order) - 1) // 2] if in_order else None


def worth_seeing(report: Report, most: int = MAX_RANKS) -> tuple[int, ...]:
    """Return all ranks if they are few; otherwise stragglers, slowest, fastest, first, last and some in between."""
    numbers = [rank.rank for rank in report.ranks]
    if len(numbers) <= most:
        return tuple(numbers)
    late = report.across.stragglers if report.across is not None else None
    stragglers = [one.rank for one in late.stragglers] if late is not None else []
    by_length = _by_own_time(report, typical_step(report)) or numbers
    even = [by_length[round(at * (len(by_length) - 1) / (most - 1))] for at in range(most)]
    found = dict.fromkeys([*stragglers[: most // 4], by_length[-1], by_length[0], numbers[0], numbers[-1], *even])
    return tuple(sorted(list(found)[:most]))


def _by_own_time(report: Report, step: int | None) -> Sequence[int]:
    """Return ranks by computing time, longest last. Waiting is left out, because it makes all steps of a job alike."""
    busy = {
        rank.rank: one.parts.step_ns - one.parts.exposed_comm_ns - one.parts.idle_ns
        for rank in report.ranks
        for one in rank.measured_steps
        if one.step == step and one.parts is not None
    }
    return sorted(busy, key=lambda rank: busy[rank])


def rank_table(
    report: Report, title: str, names: Sequence[str], rows: Sequence[tuple[str, ...]], note: str = ""
) -> Table:
    """Return a table with one row per rank, or per rank worth showing. The first cell of each row is the rank."""
    shown, left_out = _rows_worth_seeing(report, rows)
    return Table(title, columns(*names), shown, notes(note, left_out))


def _rows_worth_seeing(report: Report, rows: Sequence[tuple[str, ...]]) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Return the rows worth showing, and a note about the others. The first cell of each row is the rank."""
    if len(rows) <= MAX_RANKS:
        return tuple(rows), ""
    worth = set(map(str, worth_seeing(report)))
    shown = tuple(row for row in rows if row[0] in worth)[:MAX_RANKS]
    return shown, cut_off(len(rows), len(shown))


def spread_table(report: Report) -> Iterable[Section]:
    ranks, values = parts_of_ranks(report)
    if len(ranks) <= MAX_RANKS:
        return
    columns = [*zip(PARTS, np.array(values, np.int64).T.tolist(), strict=True), ("step", [sum(row) for row in values])]
    yield Table(
        f"All {len(ranks)} ranks, ms: step {typical_step(report)}",
        (Column("", is_number=False), *map(Column, ("least", "median", "90% below", "most", "of rank"))),
        tuple(_row(name, column, ranks) for name, column in columns),
    )


def parts_of_ranks(report: Report) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the ranks that have the step of median length, and the `PARTS` of each."""
    number = typical_step(report)
    found = [
        (rank.rank, bar_parts_ns(step.parts))
        for rank in report.ranks
        for step in rank.measured_steps
        if step.step == number and step.parts is not None
    ]
    return [rank for rank, _ in found], [parts for _, parts in found]


def _row(name: str, values_ns: Sequence[int], ranks: Sequence[int]) -> tuple[str, ...]:
    quantiles = np.quantile(np.array(values_ns), (0, 0.5, 0.9, 1)).tolist()
    return (name, *map(ms, quantiles), str(ranks[int(np.argmax(values_ns))]))


def device_table(report: Report) -> Iterable[Section]:
    rows = [
        (str(rank.rank), str(load.device), *map(ms, (load.compute_ns, load.comm_ns, load.copy_ns, load.busy_ns)))
        for rank in report.ranks
        for load in rank.devices
    ]
    if rows:
        yield Table(
            "Devices of one process, ms per step (medians)",
            tuple(map(Column, ("rank", "device", "compute", "comm", "copies", "busy"))),
            tuple(rows[:MAX_RANKS]),
            cut_off(len(rows), what="devices"),
        )
