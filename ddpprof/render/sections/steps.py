"""Where a step's time goes, and how much of the communication hides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from ddpprof.measures.breakdown import Breakdown
from ddpprof.render.sections.chosen import rows_worth_seeing, typical_step
from ddpprof.render.sections.layout import (
    Bar,
    Bars,
    Column,
    Section,
    Table,
    median_of,
    ms,
    notes,
    percent,
)
from ddpprof.report import RankReport, Report

PARTS = ("forward", "backward", "exposed comm", "optimizer", "data, other", "idle")
"""Parts of the step bar, in order."""

RECORDED_PARTS = ("forward", "backward and comm", "optimizer", "data, other")
"""Parts where only light recording tells."""


def step_bars(report: Report) -> Iterable[Section]:
    number = typical_step(report)
    bars = [bar for rank in report.ranks if (bar := _bar(rank, number)) is not None]
    if bars:
        yield from _drawn(
            report,
            f"One step by kind of work, ms: step {number}, of median length",
            PARTS,
            bars,
        )
        return
    bars = [bar for rank in report.ranks if (bar := _recorded_bar(rank)) is not None]
    if bars:
        title = "One step by kind of work, ms: median of the lightly recorded ones"
        yield from _drawn(report, title, RECORDED_PARTS, bars)


def idle_table(report: Report) -> Iterable[Section]:
    rows = []
    for rank in report.ranks:
        idle = [step.idle for step in rank.measured_steps if step.idle is not None]
        if any(causes.idle_ns for causes in idle):
            medians = (
                median_of(idle, lambda i: i.launch_bound_ns),
                median_of(idle, lambda i: i.comm_wait_ns),
                median_of(idle, lambda i: i.other_ns),
                median_of(rank.measured_steps, lambda s: s.parts.data_ns if s.parts else None),
            )
            rows.append((str(rank.rank), *map(ms, medians)))
    if rows:
        shown, left_out = rows_worth_seeing(report, rows)
        names = ("rank", "host is late", "waits for comm", "other", "waits for data")
        yield Table(
            "Why the accelerator idles, ms per step (medians)",
            tuple(map(Column, names)),
            shown,
            notes(
                "host is late: the kernel that ends the gap had not been launched; other: gaps between dependent "
                "kernels",
                left_out,
            ),
        )


def _drawn(report: Report, title: str, parts: tuple[str, ...], bars: Sequence[Bar]) -> Iterable[Section]:
    rows = [(bar.label, *map(ms, bar.parts_ns), ms(bar.total_ns)) for bar in bars]
    shown, left_out = rows_worth_seeing(report, rows)
    labels = {row[0] for row in shown}
    yield Bars(title, parts, tuple(bar for bar in bars if bar.label in labels))
    yield Table("", (Column("rank"), *map(Column, parts), Column("step")), shown, left_out)


def _bar(rank: RankReport, number: int | None) -> Bar | None:
    parts = next((step.parts for step in rank.measured_steps if step.step == number), None)
    return None if parts is None else Bar(str(rank.rank), bar_parts_ns(parts))


def bar_parts_ns(parts: Breakdown) -> tuple[int, ...]:
    """Of each of `PARTS`."""
    other = parts.data_ns + parts.other_ns
    return (parts.forward_ns, parts.backward_ns, parts.exposed_comm_ns, parts.optimizer_ns, other, parts.idle_ns)


def _recorded_bar(rank: RankReport) -> Bar | None:
    parts = [step.parts for step in rank.light_steps if step.parts is not None]
    if not parts:
        return None
    columns: list[list[int]] = [
        [p.forward_ns for p in parts],
        [p.backward_and_comm_ns for p in parts],
        [p.optimizer_ns for p in parts],
        [p.data_ns + p.other_ns for p in parts],
    ]
    return Bar(str(rank.rank), tuple(round(median(column)) for column in columns))


def overlap_table(report: Report) -> Iterable[Section]:
    rows = []
    for rank in report.ranks:
        steps = rank.measured_steps
        if not steps:
            continue
        talks = any(s.num_comm_kernels for s in steps)
        hidden = [s.overlap_ns / s.comm_ns for s in steps if s.comm_ns]
        rows.append(
            (
                str(rank.rank),
                ms(median_of(steps, lambda s: s.compute_ns)),
                ms(median_of(steps, lambda s: s.comm_ns) if talks else None),
                percent(median(hidden) if hidden else None),
                ms(median_of(steps, lambda s: s.exposed_ns) if talks else None),
                ms(median_of(steps, lambda s: s.trailing_ns) if talks else None),
            )
        )
    if rows:
        shown, left_out = rows_worth_seeing(report, rows)
        names = ("rank", "compute", "comm", "hidden", "exposed", "trailing")
        yield Table(
            "Communication and computation, ms per step (medians)",
            tuple(map(Column, names)),
            shown,
            notes(
                left_out,
                "hidden: share of comm while compute runs; exposed: the rest; trailing: gradients still on their way "
                "between the last backward op and the optimizer",
            ),
        )
