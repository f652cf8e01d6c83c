"""Charts of comparisons and experiments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ddpprof.comparison.compare import Comparison, MetricChange
from ddpprof.experiments.overhead import OverheadReport
from ddpprof.experiments.scaling import ScalePoint, Scaling, ScalingReport
from ddpprof.experiments.sweep import SweepCurve, SweepPoint, SweepReport
from ddpprof.layout import clean, ms
from ddpprof.measures.statistics.paired_ratio import Ratio
from ddpprof.render.html.chart import Chart, bar_trace, decade_ticks
from ddpprof.render.sections.comparison import interval_of
from ddpprof.render.sections.scaling import PARTS

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
_NUM_SERIES = 6
_LOSS_ROLES = ("series-0", "exposed", "series-3", "held", "series-2", "idle")
"""roles of the parts of the lost time"""


def comparison_charts(comparison: Comparison) -> Iterable[Chart]:
    """Draw B minus A with its interval; changes that may be noise are grey."""
    known = [change for change in comparison.metrics if change.difference is not None]
    if not known:
        return
    groups = (
        ("B takes more", "exposed", True),
        ("B takes less", "series-0", False),
        ("noise, or too few runs to tell", "idle", None),
    )
    traces = []
    for name, role, more in groups:
        own = [change for change in known if _grew(change) is more]
        if own:
            traces.append(_changes(name, role, own))
    layout = {
        "barmode": "overlay",
        "showlegend": True,
        "xaxis": {"title": {"text": "B - A, ms per step"}, "zeroline": True},
        "yaxis": {
            "autorange": "reversed", "type": "category", "fixedrange": True,
            "categoryorder": "array", "categoryarray": [change.metric for change in known],
        },
    }  # fmt: skip
    note = "lines: intervals, from the differences between runs; for one run on each side, from the spread of its steps"
    yield Chart("What changed", traces, layout, 70 + 26 * len(known), note)


def _grew(change: MetricChange) -> bool | None:
    """Return whether B takes more; ``None`` if the change may be noise."""
    difference = change.difference
    return difference.shift_ns > 0 if difference is not None and change.is_beyond_noise else None


def _changes(name: str, role: str, changes: Sequence[MetricChange]) -> dict[str, Any]:
    shifts_ns = [change.difference.shift_ns for change in changes if change.difference is not None]
    made = bar_trace(name, role, [change.metric for change in changes], shifts_ns)
    ends = [interval_of(change) or (ns, ns) for change, ns in zip(changes, shifts_ns, strict=True)]
    low = [ns - end[0] for ns, end in zip(shifts_ns, ends, strict=True)]
    high = [end[1] - ns for ns, end in zip(shifts_ns, ends, strict=True)]
    texts = [f"{c.metric}: {ns / 1e6:+.2f} ms ({name})" for c, ns in zip(changes, shifts_ns, strict=True)]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [ns / 1e6 for ns in high],
        "arrayminus": [ns / 1e6 for ns in low],
    }
    return {**made, "text": texts, "error_x": bars}


def sweep_charts(report: SweepReport) -> Iterable[Chart]:
    if report.curves:
        traces = [trace for number, curve in enumerate(report.curves) for trace in _curve(curve, number)]
        name = clean(report.varied.lstrip("-"), most=60)
        layout = {
            "xaxis": {"title": {"text": name}, **decade_ticks([x for trace in traces for x in trace["x"]])},
            "yaxis": {
                "title": {"text": "step, ms"}, **decade_ticks([y for trace in traces for y in trace["y"]]),
            },
            "shapes": [
                {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": found.crossover.size,
                 "x1": found.crossover.size, "name": "limit"}
                for found in report.crossovers if found.is_measured
            ],
        }  # fmt: skip
        note = "points: medians of rounds; lines: fitted models; dashed: where two configurations take equally long"
        yield Chart("Step time by size", traces, layout, 420, note if report.crossovers else note.rpartition(";")[0])
    elif report.points:
        yield _variants(report.points)


def _curve(curve: SweepCurve, number: int) -> Iterable[dict[str, Any]]:
    role, name = f"series-{number % _NUM_SERIES}", clean(curve.configuration, most=80)
    pairs = [(point.size, ns) for point in curve.points if point.size is not None for ns in point.rounds_ns]
    yield {
        "type": "scatter", "mode": "markers", "name": name, "x": [size for size, _ in pairs],
        "y": [ns / 1e6 for _, ns in pairs], "customdata": [ns for _, ns in pairs],
        "text": [f"{name}, {size:g}: {ms(ns)} ms" for size, ns in pairs], "hoverinfo": "text",
        "marker": {"size": 9, "symbol": _SYMBOLS[number % len(_SYMBOLS)]}, "meta": {"role": role},
    }  # fmt: skip
    if curve.model is not None:
        sizes = np.geomspace(min(size for size, _ in pairs), max(size for size, _ in pairs), 80).tolist()
        x = [size for size in sizes if curve.model.time_ns(size) > 0]  # a logarithmic axis has no zero
        yield {
            "type": "scatter", "mode": "lines", "name": f"model of {name}", "x": x,
            "y": [curve.model.time_ns(size) / 1e6 for size in x], "hoverinfo": "skip", "showlegend": False,
            "line": {"width": 1.5}, "meta": {"role": role},
        }  # fmt: skip


def _variants(points: Sequence[SweepPoint]) -> Chart:
    """Draw a bar per variant, with a line from its fastest to its slowest round, if what varies is not a size."""
    names = dict.fromkeys(point.configuration for point in points)
    traces = []
    for number, name in enumerate(names):
        own = [point for point in points if point.configuration == name]
        made = bar_trace(
            clean(name, most=80) or "step", f"series-{number % _NUM_SERIES}",
            [clean(point.label, most=80) for point in own], [point.step_ns for point in own],
        )  # fmt: skip
        made["error_x"] = {
            "type": "data", "symmetric": False,
            "array": [(max(point.rounds_ns) - point.step_ns) / 1e6 for point in own],
            "arrayminus": [(point.step_ns - min(point.rounds_ns)) / 1e6 for point in own],
        }  # fmt: skip
        traces.append(made)
    layout = {
        "barmode": "group",
        "xaxis": {"title": {"text": "step, ms"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "fixedrange": True, "type": "category"},
        "showlegend": len(names) > 1,
    }
    note = "bars: medians; lines: from the fastest round to the slowest"
    return Chart("Step time by variant", traces, layout, 70 + 34 * len(points), note)


def scaling_charts(report: ScalingReport) -> Iterable[Chart]:
    traces = []
    for number, scaling in enumerate(Scaling):
        points = [point for point in report.points if point.scaling is scaling]
        if points:
            traces.append(_efficiency(scaling, points, number))
    layout = {
        "xaxis": {"title": {"text": "processes"}, "tickvals": sorted({point.nproc for point in report.points})},
        "yaxis": {"title": {"text": "efficiency"}, "rangemode": "tozero", "tickformat": ".0%"},
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "name": "limit"}],
    }
    note = "efficiency: ideal step divided by the step; dashed: ideal; lines at the points: 95 % intervals"
    yield Chart("Efficiency", traces, layout, 340, note)
    lost = [point for point in report.points if point.lost is not None]
    if lost:
        yield _losses(lost)


def _efficiency(scaling: Scaling, points: Sequence[ScalePoint], number: int) -> dict[str, Any]:
    values = [point.efficiency for point in points]
    below, beyond = zip(*(_ends(point.speedup, point.nproc, point.efficiency) for point in points), strict=True)
    return {
        "type": "scatter", "mode": "lines+markers", "name": f"{scaling} scaling",
        "x": [point.nproc for point in points], "y": values, "hoverinfo": "text", "line": {"width": 1.5},
        "text": [f"{scaling} scaling, {p.nproc} processes: {p.efficiency:.0%}, {ms(p.step_ns)} ms" for p in points],
        "marker": {"size": 9, "symbol": _SYMBOLS[number]}, "meta": {"role": f"series-{number}"},
        "error_y": {"type": "data", "symmetric": False, "array": beyond, "arrayminus": below},
    }  # fmt: skip


def _ends(speedup: Ratio, nproc: int, value: float) -> tuple[float, float]:
    low, high = speedup.low or speedup.ratio, speedup.high or speedup.ratio
    return max(0.0, value - low / nproc), max(0.0, high / nproc - value)


def _losses(points: Sequence[ScalePoint]) -> Chart:
    labels = [f"{point.scaling}, {point.nproc}" for point in points]
    traces = [
        bar_trace(name, role, labels, [getattr(point.lost, field) for point in points])
        for (name, field), role in zip(PARTS, _LOSS_ROLES, strict=True)
    ]
    layout = {
        "barmode": "relative",
        "xaxis": {"title": {"text": "lost, ms per step"}},
        "yaxis": {"autorange": "reversed", "fixedrange": True, "type": "category"},
    }
    note = "parts left of zero took less time than in the ideal step"
    return Chart("Where the lost time goes", traces, layout, 70 + 34 * len(labels), note)


def overhead_charts(report: OverheadReport) -> Iterable[Chart]:
    """Draw the measured overhead next to what explains it."""
    wrapper, parts = report.wrapper, report.parts
    known: list[tuple[str, str, float]] = []
    if wrapper is not None:
        known += [
            ("pre-forward", "series-0", wrapper.pre_forward_ns),
            ("unused search", "series-1", wrapper.unused_search_ns),
            ("copy in", "series-2", wrapper.copy_in_ns),
            ("launch", "series-3", wrapper.launch_ns),
            ("copy out", "series-4", wrapper.copy_out_ns),
            ("finalise", "series-5", wrapper.finalise_ns),
        ]
    if parts is not None and report.explained_ns is not None:
        known.append(("exposed communication", "exposed", parts.transfer_ns + parts.waiting_ns))
    rows = ["measured", "explained by"]
    traces = [bar_trace("measured", "idle", rows[:1], [report.overhead_ns])]
    traces += [bar_trace(name, role, rows[1:], [ns]) for name, role, ns in known]
    layout = {
        "barmode": "relative",
        "xaxis": {"title": {"text": "ms per step"}},
        "yaxis": {"autorange": "reversed", "fixedrange": True, "type": "category"},
    }
    yield Chart("What DDP adds to a step", traces, layout, 140)
