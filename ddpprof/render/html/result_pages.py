"""Render HTML pages of comparisons, experiments and predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ddpprof.comparison import Comparison, MetricChange
from ddpprof.experiments.overhead import OverheadReport
from ddpprof.experiments.scaling import ScalePoint, Scaling, ScalingReport
from ddpprof.experiments.sweep import SweepCurve, SweepPoint, SweepReport
from ddpprof.experiments.tuning import TuneReport
from ddpprof.layout import Line, Section, clean, in_ms
from ddpprof.predict.predict import PredictedParts
from ddpprof.render.html import Page, PagePart, definitions, render_page
from ddpprof.render.html.charts import Chart, bar_trace, bars_layout, blocks_html, decade_ticks, error_bars, limit_line
from ddpprof.render.json import render_json
from ddpprof.render.json_documents import ComparisonFile, Written
from ddpprof.render.sections.comparison import interval_of
from ddpprof.render.sections.experiments import PARTS, short_label
from ddpprof.report.whatif import WhatIf
from ddpprof.statistics.paired_ratio import Ratio
from ddpprof.topics.steps.view import WRAPPER_PARTS


def result_page(title: str, result: Written, sections: Iterable[Section]) -> str:
    """Return a complete HTML file that begins with the conclusions of the result.

    Raises `DdpprofError` if plotly is not installed.
    """
    said = list(sections)
    lines = [section for section in said if isinstance(section, Line) and not section.is_aside]
    rest = [section for section in said if section not in lines]
    parts = [
        PagePart("charts", "At a glance", blocks_html(_charts(result), "charts")),
        PagePart("numbers", "In numbers", blocks_html(rest, "numbers")),
        definitions(),
    ]
    kept = [part for part in parts if part.html]
    return render_page(Page(title, blocks_html(lines, "head"), kept, {"report": render_json(result).encode()}))


def _charts(result: Written) -> Iterable[Chart]:
    match result:
        case ComparisonFile():
            return comparison_charts(result.comparison)
        case OverheadReport():
            return overhead_charts(result)
        case ScalingReport():
            return scaling_charts(result)
        case SweepReport():
            return sweep_charts(result)
        case TuneReport():
            return tuning_charts(result)
        case WhatIf():
            return [whatif_chart(result)]
    return ()


_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
_NUM_SERIES = 6
_STEP_ROLES = {"forward": "forward", "backward": "backward", "slowed": "held", "exposed": "exposed", "rest": "other"}
_LOSS_ROLES = ("series-0", "exposed", "series-3", "held", "series-2", "idle")
"""roles of the parts of lost time, in the order of `PARTS`; roles determine colors"""


def comparison_charts(comparison: Comparison) -> Iterable[Chart]:
    """Yield a chart of B minus A with intervals. Changes that may be noise are gray."""
    known = [change for change in comparison.metrics if change.difference is not None]
    if not known:
        return
    groups = (
        ("B takes more", "exposed", True),
        ("B takes less", "series-0", False),
        ("noise, or too few runs", "idle", None),
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
    note = (
        "lines: intervals, based on the variation between runs, or between steps if there is only one run on each side"
    )
    yield Chart("What changed", traces, layout, 70 + 26 * len(known), note)


def _grew(change: MetricChange) -> bool | None:
    """Return True if B takes more time; ``None`` if the change may be noise."""
    difference = change.difference
    return difference.shift_ns > 0 if difference is not None and change.is_beyond_noise else None


def _changes(name: str, role: str, changes: Sequence[MetricChange]) -> dict[str, Any]:
    shifts_ns = [change.difference.shift_ns for change in changes if change.difference is not None]
    made = bar_trace(name, role, [change.metric for change in changes], shifts_ns)
    ends = [interval_of(change) or (ns, ns) for change, ns in zip(changes, shifts_ns, strict=True)]
    low = [(ns - end[0]) / 1e6 for ns, end in zip(shifts_ns, ends, strict=True)]
    high = [(end[1] - ns) / 1e6 for ns, end in zip(shifts_ns, ends, strict=True)]
    texts = [f"{c.metric}: {ns / 1e6:+.2f} ms ({name})" for c, ns in zip(changes, shifts_ns, strict=True)]
    return {**made, "text": texts, "error_x": error_bars(low, high)}


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
        "text": [f"{name}, {size:g}: {in_ms(ns)}" for size, ns in pairs], "hoverinfo": "text",
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
    """Return a chart with a bar for each variant, for a varied setting that is not a size."""
    names = dict.fromkeys(point.configuration for point in points)
    traces = []
    for number, name in enumerate(names):
        own = [point for point in points if point.configuration == name]
        made = bar_trace(
            clean(name, most=80) or "step", f"series-{number % _NUM_SERIES}",
            [clean(point.label, most=80) for point in own], [point.step_ns for point in own],
        )  # fmt: skip
        below = [(point.step_ns - min(point.rounds_ns)) / 1e6 for point in own]
        beyond = [(max(point.rounds_ns) - point.step_ns) / 1e6 for point in own]
        traces.append({**made, "error_x": error_bars(below, beyond)})
    layout = {**bars_layout("step, ms", "group"), "showlegend": len(names) > 1}
    layout["xaxis"]["rangemode"] = "tozero"
    note = "bars: medians; lines: from the fastest to the slowest round"
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
        "shapes": [limit_line(1)],
    }
    note = "efficiency: ideal step time divided by measured step time; dashed: ideal; error bars: 95 % intervals"
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
        "text": [f"{scaling} scaling, {p.nproc} processes: {p.efficiency:.0%}, {in_ms(p.step_ns)}" for p in points],
        "marker": {"size": 9, "symbol": _SYMBOLS[number]}, "meta": {"role": f"series-{number}"},
        "error_y": error_bars(below, beyond),
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
    note = "parts below zero take less time than in the ideal step"
    return Chart("Causes of lost time", traces, bars_layout("lost, ms per step"), 70 + 34 * len(labels), note)


def overhead_charts(report: OverheadReport) -> Iterable[Chart]:
    """Yield a chart of the measured overhead and the parts that explain it."""
    wrapper, parts = report.wrapper, report.parts
    known: list[tuple[str, str, float]] = []
    if wrapper is not None:
        names = enumerate(WRAPPER_PARTS.items())
        known += [(name, f"series-{number}", getattr(wrapper, field)) for number, (field, name) in names]
    if parts is not None and report.explained_ns is not None:
        known.append(("exposed communication", "exposed", parts.transfer_ns + parts.waiting_ns))
    rows = ["measured", "explained by"]
    traces = [bar_trace("measured", "idle", rows[:1], [report.overhead_ns])]
    traces += [bar_trace(name, role, rows[1:], [ns]) for name, role, ns in known]
    yield Chart("Overhead of DDP per step", traces, bars_layout("ms per step"), 140)


def tuning_charts(report: TuneReport) -> Iterable[Chart]:
    """Yield a chart of the measured and predicted step time of each setting."""
    known = [(short_label(one.label) or "unchanged", one) for one in (report.now, *report.tried) if one.step_ns]
    labels = [label for label, _ in known]
    traces = [bar_trace("measured", "series-0", labels, [one.step_ns or 0.0 for _, one in known])]
    forecasts = [(label, one.forecast) for label, one in known if one.forecast is not None]
    if forecasts:
        predicted = bar_trace("predicted", "idle", [label for label, _ in forecasts], [f.step_ns for _, f in forecasts])
        below = [(f.step_ns - f.low_ns) / 1e6 for _, f in forecasts]
        beyond = [(f.high_ns - f.step_ns) / 1e6 for _, f in forecasts]
        traces.append({**predicted, "error_x": error_bars(below, beyond)})
    layout = {**bars_layout("ms", "group"), "showlegend": True}
    yield Chart("Step time", traces, layout, 80 + 44 * len(labels), "lines: 95 % intervals of the predictions")


def whatif_chart(answer: WhatIf) -> Chart:
    """Return a chart with the parts of each predicted step."""
    labels = [clean(one.label, most=60) for one in answer.outcomes]
    traces = []
    for part in fields(PredictedParts):
        name = part.name.removesuffix("_ns")
        values = [getattr(one.prediction.parts, part.name) for one in answer.outcomes]
        traces.append(bar_trace(name, _STEP_ROLES[name], labels, values))
    return Chart("Predicted step", traces, bars_layout("ms"), 66 + 30 * len(labels))
