"""Runs of one job compared: their steps, and how many of them have each finding."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.comparison.repeated import RepeatedReport
from ddpprof.layout import Column, Line, Section, Table, clean, count, ms


def repeated_sections(report: RepeatedReport) -> tuple[Section, ...]:
    return (
        Line(clean(report.name)),
        *(Line(f"Note: {clean(text, most=400)}", is_warning=True) for text in report.missing),
        *_runs(report),
        *_findings(report),
    )


def _runs(report: RepeatedReport) -> Iterable[Section]:
    rows = tuple((clean(run.name), str(run.num_steps), ms(run.step_ns)) for run in report.runs)
    spread = report.spread
    yield Table(
        "Runs, ms per step (mean over ranks, median over steps)",
        (Column("run", is_number=False), Column("steps"), Column("step")),
        rows,
        ""
        if spread is None
        else f"the slowest run takes {spread:.0%} longer than the fastest, which is noise between runs",
    )


def _findings(report: RepeatedReport) -> Iterable[Section]:
    if not report.findings:
        yield Line(f"No run of {count(len(report.runs), 'run')} has a finding.")
        return
    rows = tuple(
        (clean(one.title), f"{one.num_runs_beyond_noise} of {len(report.runs)}", str(one.num_runs))
        for one in report.findings
    )
    columns = (Column("finding", is_number=False), Column("beyond noise in"), Column("seen in"))
    yield Table("Findings of all runs", columns, rows, "titles are from the first run with the finding")
