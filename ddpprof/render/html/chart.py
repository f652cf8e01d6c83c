"""A chart: a plotly figure without colours.

A trace's ``meta`` names its role; `charts.js` gives each role a colour of the theme, from page.css. Text in figures
is not meant as markup, but plotly interprets some HTML in it, so `charts.js` escapes all of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log2, log10
from typing import Any

from ddpprof.layout import Bars, megabytes, ms
from ddpprof.render.html.embed import data_element
from ddpprof.render.sections.collectives import power_of_two

_BAR, _AROUND = 30, 66
"""height of one bar and of the axis, px"""

ROLES = {
    "forward": "forward",
    "backward": "backward",
    "backward and comm": "backward",
    "exposed comm": "exposed",
    "optimizer": "optimizer",
    "data, other": "other",
    "idle": "idle",
}
"""roles of the parts of a step"""


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    height: int
    """height, px"""
    note: str = ""
    kind: str = "figure"
    """what the page's scripts do with it besides drawing"""
    has_table: bool = False
    """whether a table follows under the same title"""


def chart_html(chart: Chart, name: str, level: int = 3) -> str:
    """Return a chart as HTML. Without scripts only the title of bars is shown, since their table follows."""
    figure = {"data": chart.traces, "layout": {**chart.layout, "height": chart.height}}
    shown = "" if chart.has_table else ' class="needs-script"'
    heading = f'<h{level} id="{name}-title"{shown}>{escape(chart.title)}</h{level}>'
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    return (
        f'{heading}<figure class="chart needs-script" aria-labelledby="{name}-title">'
        f'<div class="plot" id="{name}" data-kind="{chart.kind}" data-figure="{name}-figure" '
        f'style="min-height:{chart.height}px"></div>{note}</figure>'
        f"{data_element(f'{name}-figure', json.dumps(figure, allow_nan=False).encode())}"
    )


def bars_chart(bars: Bars, kind: str = "figure") -> Chart:
    """Return a chart with one stacked bar per rank."""
    labels = [f"rank {bar.label}" for bar in bars.bars]
    traces = [
        bar_trace(part, ROLES.get(part, "other"), labels, [bar.parts_ns[index] for bar in bars.bars])
        for index, part in enumerate(bars.parts)
    ]
    return Chart(bars.title, traces, bars_layout("ms"), _AROUND + _BAR * len(labels), kind=kind, has_table=True)


def bar_trace(name: str, role: str, labels: Sequence[str], values_ns: Sequence[float]) -> dict[str, Any]:
    """Return a horizontal bar trace, whose ``customdata`` are nanoseconds."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(labels),
        "x": [ns / 1e6 for ns in values_ns],
        "customdata": list(values_ns),
        "text": [f"{label}: {name} {ms(ns)} ms" for label, ns in zip(labels, values_ns, strict=True)],
        "hoverinfo": "text",
        "textposition": "none",
        "meta": {"role": role},
    }


def bars_layout(what: str, mode: str = "relative") -> dict[str, Any]:
    return {
        "barmode": mode,
        "xaxis": {"title": {"text": what}},
        "yaxis": {"autorange": "reversed", "fixedrange": True, "type": "category"},
    }


def error_bars(below: Sequence[float], beyond: Sequence[float]) -> dict[str, Any]:
    return {"type": "data", "symmetric": False, "array": list(beyond), "arrayminus": list(below)}


def limit_line(height: float) -> dict[str, Any]:
    """Return a horizontal line across the chart."""
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height, "name": "limit"}


def decade_ticks(values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis with 1, 2 and 5 in every decade, written out; plotly shows only their first digits."""
    decades = range(floor(log10(min(values))), ceil(log10(max(values))) + 1)
    marks = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    return _log_axis(values, marks, [f"{mark:g}" for mark in marks])


def byte_ticks(sizes: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis with about ten powers of two at most."""
    low, high = floor(log2(min(sizes))), ceil(log2(max(sizes)))
    marks = [1 << power for power in range(max(0, low), high + 1, max(1, (high - low) // 8))]
    return _log_axis([*sizes, 2.0**low, 2.0**high], marks, [power_of_two(mark) for mark in marks])


def _log_axis(values: Sequence[float], marks: Sequence[float], names: Sequence[str]) -> dict[str, Any]:
    low, high = log10(min(values)), log10(max(values))
    room = max(0.05, 0.06 * (high - low))
    ticks = {"tickmode": "array", "tickvals": list(marks), "ticktext": list(names)}
    return {"type": "log", "range": [low - room, high + room], **ticks}


def bucket_label(module: int, index: int, num_bytes: int | None) -> str:
    """Return a label such as ``bucket 0, 4.24 MB``, with the module's number if it is not the first."""
    size = "" if num_bytes is None else f", {megabytes(num_bytes)} MB"
    return f"bucket {f'{module}/' if module else ''}{index}{size}"
