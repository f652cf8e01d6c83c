"""Charts as plotly figures, and HTML of sections and charts.

Figures have no colors: a trace's ``meta`` has its role, and `charts.js` gives each role a color of the theme in
page.css. Text in figures is plain text. Plotly would interpret some HTML in it, so `charts.js` escapes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape as html_escape
from importlib.resources import files
from math import ceil, floor, log2, log10
from typing import Any

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from ddpprof.layout import (
    MAX_RANKS,
    PARTS,
    Bars,
    Line,
    Section,
    clean,
    duration,
    median_of,
    megabytes,
    ms,
    three_digits,
)
from ddpprof.model.whole_run import CurvePoint, WholeRun
from ddpprof.render.glossary import find_term
from ddpprof.render.html import data_element, term_id
from ddpprof.report import Report
from ddpprof.topics.buckets.steps import BucketRow
from ddpprof.topics.collectives import CollectiveSummary, power_of_two
from ddpprof.topics.kernels import kernel_name
from ddpprof.topics.overlap_slowdown import SlowedKernel
from ddpprof.topics.steps.view import of_device, parts_of_ranks, typical_step

_BAR, _AROUND = 30, 66
"""height of one bar, and height of everything else in the chart, in pixels"""

ROLES = {
    "forward": "forward",
    "backward": "backward",
    "backward and comm": "backward",
    "exposed comm": "exposed",
    "optimizer": "optimizer",
    "data, other": "other",
    "idle": "idle",
}
"""part of a step → role, which determines the color"""


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    height: int
    """height in pixels"""
    note: str = ""
    kind: str = "figure"
    """what the page's scripts do with the chart besides drawing it"""
    has_table: bool = False
    """whether the page also has a table under the same title"""


def chart_html(chart: Chart, name: str, level: int = 3) -> str:
    """Return a chart as HTML. Without scripts, only the title of a chart with `has_table` is shown."""
    figure = {"data": chart.traces, "layout": {**chart.layout, "height": chart.height}}
    shown = "" if chart.has_table else ' class="needs-script"'
    heading = f'<h{level} id="{name}-title"{shown}>{html_escape(chart.title)}</h{level}>'
    note = f'<p class="note">{html_escape(chart.note)}</p>' if chart.note else ""
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
    """Return a trace of horizontal bars, with the values in ns as ``customdata``."""
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
    """Return a logarithmic axis with tick labels at 1, 2 and 5 in every decade."""
    decades = range(floor(log10(min(values))), ceil(log10(max(values))) + 1)
    marks = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    return _log_axis(values, marks, [f"{mark:g}" for mark in marks])


def byte_ticks(sizes: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis with at most about ten powers of two."""
    low, high = floor(log2(min(sizes))), ceil(log2(max(sizes)))
    marks = [1 << power for power in range(max(0, low), high + 1, max(1, (high - low) // 8))]
    return _log_axis([*sizes, 2.0**low, 2.0**high], marks, [power_of_two(mark) for mark in marks])


def _log_axis(values: Sequence[float], marks: Sequence[float], names: Sequence[str]) -> dict[str, Any]:
    low, high = log10(min(values)), log10(max(values))
    room = max(0.05, 0.06 * (high - low))
    ticks = {"tickmode": "array", "tickvals": list(marks), "ticktext": list(names)}
    return {"type": "log", "range": [low - room, high + room], **ticks}


def bucket_label(module: int, index: int, num_bytes: int | None) -> str:
    """Return a label such as ``bucket 0, 4.24 MB``, with the module's index if it is not 0."""
    size = "" if num_bytes is None else f", {megabytes(num_bytes)} MB"
    return f"bucket {f'{module}/' if module else ''}{index}{size}"


_MAX_BUCKETS, _MAX_KERNELS = 40, 15
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon")
_STAGES = (("held back", "held"), ("queued", "queued"), ("all-reduce", "comm"))
"""name and role of each stage of a bucket: from ready to launched, from launched to started, from started to
finished
"""
_STAGES_ON_CPU = (
    "held back: from ready to launched, because buckets are launched in index order; queued: from launched to "
    "started; all-reduce: from started to finished"
)
_ON_ACCELERATORS = (
    "held back: until the host launches the all-reduce, because buckets are launched in index order; queued: until "
    "the device, which may still be busy with earlier work, starts it; all-reduce: time on the device"
)


def ranks_chart(report: Report) -> Iterable[Chart]:
    """Yield a heat map of the parts of the step, if there are many ranks."""
    ranks, values = parts_of_ranks(report)
    if len(ranks) <= MAX_RANKS:
        return
    columns = np.array(values, np.int64).T
    beyond = (columns - np.median(columns, axis=1, keepdims=True)) / 1e6
    trace = {
        "type": "heatmap",
        "x": ranks,
        "y": list(PARTS),
        "z": beyond.tolist(),
        "customdata": columns.tolist(),
        "text": [
            [f"rank {rank}: {part} {ms(ns)} ms" for rank, ns in zip(ranks, column.tolist(), strict=True)]
            for part, column in zip(PARTS, columns, strict=True)
        ],
        "hoverinfo": "text",
        "zmid": 0,
        "colorbar": {"title": {"text": "ms"}, "thickness": 12},
    }
    layout = {
        "xaxis": {"title": {"text": "rank"}, "showgrid": False},
        "yaxis": {"autorange": "reversed", "fixedrange": True, "showgrid": False},
    }
    title = f"All ranks by kind of work: step {typical_step(report)}"
    note = f"difference from the median of the ranks, ms{of_device(report)}; click a rank to add it to the bars below"
    yield Chart(title, (trace,), layout, 300, note, kind="ranks")


def bucket_chart(report: Report) -> Iterable[Chart]:
    rows = [row for row in report.buckets[:_MAX_BUCKETS] if sum(time is not None for time in _times(row)) >= 2]
    if not rows:
        return
    traces = [_stage(rows, stage) for stage in range(len(_STAGES))]
    clock = ", on the host's clock" if report.times else ""
    layout = bars_layout(f"ms after the end of the forward pass, medians{clock}", "overlay")
    note = _ON_ACCELERATORS if report.times else _STAGES_ON_CPU
    kept = [trace for trace in traces if trace["x"]]
    yield Chart("Buckets from ready to finished", kept, layout, 70 + 26 * len(rows), note)


def _times(row: BucketRow) -> tuple[int | None, ...]:
    return (row.ready_ns, row.launched_ns, row.started_ns, row.finished_ns)


def _span(row: BucketRow, stage: int) -> tuple[int, int] | None:
    begin, end = _times(row)[stage : stage + 2]
    return None if begin is None or end is None else (begin, end)


def _stage(rows: Sequence[BucketRow], stage: int) -> dict[str, Any]:
    """Return the bars of one stage, for all buckets with a known start and end of this stage."""
    name, role = _STAGES[stage]
    known = [(row, *span) for row in rows if (span := _span(row, stage)) is not None]
    labels = [bucket_label(row.module, row.index, row.num_bytes) for row, _, _ in known]
    return {
        **bar_trace(name, role, labels, [end - begin for _, begin, end in known]),
        "base": [begin / 1e6 for _, begin, _ in known],
        "text": [
            f"{label}: {name} {ms(end - begin)} ms, from {ms(begin)} to {ms(end)} ms"
            for label, (_, begin, end) in zip(labels, known, strict=True)
        ],
    }


def collective_chart(report: Report) -> Iterable[Chart]:
    """Yield a chart of bandwidth by message size, or of durations if the bandwidth is unknown."""
    rows = report.across.collectives if report.across is not None else ()
    sized = [row for row in rows if (row.num_bytes or 0) > 0 and row.num_calls > 0]
    rated = [row for row in sized if row.busbw_bytes_per_s is not None]
    timed = [row for row in sized if row.transfer_ns > 0]
    if rated:
        best = max(row.busbw_bytes_per_s or 0 for row in rated) / 1e9
        traces = _by_kind(rated, [(row.busbw_bytes_per_s or 0) / 1e9 for row in rated], "GB/s")
        layout = _over_size(rated, "busbw, GB/s", {"rangemode": "tozero"})
        layout["shapes"] = [limit_line(best)]
        layout["annotations"] = [
            {
                "xref": "paper", "x": 0, "y": best, "text": f"highest busbw: {three_digits(best)} GB/s",
                "showarrow": False, "xanchor": "left", "yanchor": "bottom",
            }
        ]  # fmt: skip
        note = "busbw: link bandwidth as defined by nccl-tests; latency dominates small messages"
        yield Chart("Bandwidth by message size", traces, layout, 340, note)
    elif timed:
        durations = [row.transfer_ns / 1e6 for row in timed]
        traces = _by_kind(timed, durations, "ms")
        layout = _over_size(timed, f"duration, ms{of_device(report)}", decade_ticks(durations))
        note = "calls could not be matched between ranks, so durations include waiting, and the bandwidth is unknown"
        yield Chart("Duration by message size", traces, layout, 340, note)


def _over_size(rows: Sequence[CollectiveSummary], what: str, axis: dict[str, Any]) -> dict[str, Any]:
    sizes = {"title": {"text": "message size"}, **byte_ticks([_size(row) for row in rows])}
    return {"xaxis": sizes, "yaxis": {"title": {"text": what}, **axis}}


def _size(row: CollectiveSummary) -> float:
    return (row.num_bytes or 0) / row.num_calls


def _by_kind(rows: Sequence[CollectiveSummary], values: Sequence[float], unit: str) -> list[dict[str, Any]]:
    traces = []
    names = [row.kind.replace("_", "-") + (f", group {clean(row.group, most=30)}" if row.group else "") for row in rows]
    for number, name in enumerate(dict.fromkeys(names)):
        own = [(row, value) for row, value, of in zip(rows, values, names, strict=True) if of == name]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [_size(row) for row, _ in own],
                "y": [value for _, value in own],
                "text": [_about(name, row, value, unit) for row, value in own],
                "hoverinfo": "text",
                "marker": {"size": 11, "symbol": _SYMBOLS[number % len(_SYMBOLS)]},
                "meta": {"role": f"series-{number % 6}"},
            }
        )
    return traces


def _about(name: str, row: CollectiveSummary, value: float, unit: str) -> str:
    size = megabytes(round(_size(row)))
    return (
        f"{name} of {size} MB: {three_digits(value)} {unit}; {row.num_calls} calls, transfer {ms(row.transfer_ns)} ms"
    )


_SEEN = 0.01
"""a bar is shown if it has at least this fraction of the length of the longest bar"""


_WORTH_A_CHART = 0.001
"""the chart is shown if all kernels together lose at least this share of the step"""


def slowdown_chart(report: Report) -> Iterable[Chart | Line]:
    kernels = report.overlap_slowdown.kernels if report.overlap_slowdown is not None else ()
    most_ns = max((row.lost_ns for row in kernels), default=0)
    seen = [row for row in kernels if row.ratio is not None and abs(row.lost_ns) > most_ns * _SEEN]
    known = seen[:_MAX_KERNELS]
    if not known:
        return
    lost_ns = sum(abs(row.lost_ns) for row in kernels)
    step_ns = median_of([step for rank in report.ranks for step in rank.measured_steps], lambda step: step.duration_ns)
    if lost_ns < _WORTH_A_CHART * (step_ns or 0):
        yield Line("All kernels together lose less than 0.1% of the step to communication, so there is no chart.")
        return
    labels = [f"{number}. {row.ratio:.2f} × {kernel_name(row.kernel)}" for number, row in enumerate(known, 1)]
    trace = {**bar_trace("lost", "series-1", labels, [row.lost_ns for row in known]), "text": list(map(_slowed, known))}
    layout = {**bars_layout(f"lost, ms{of_device(report)} per step and rank"), "showlegend": False}
    note = "factor: duration during communication / duration without communication"
    yield Chart("Time lost by kernel", (trace,), layout, 90 + 28 * len(known), note)


def _slowed(row: SlowedKernel) -> str:
    name = clean(row.kernel.name, most=120)
    return f"{name}: {row.ratio:.2f} × as long ({row.num_covered} runs during communication, {row.num_alone} alone)"


_MOST_MARKS = 20
_LEAST_POINTS = 3
_MINUTE_NS = 60 * 10**9


def whole_run_chart(report: Report) -> Iterable[Chart]:
    """Yield a chart of the median and the longest step over time."""
    run = report.whole_run
    shown = run.shown if run is not None else None
    if run is None or shown is None or len(shown.curve) < _LEAST_POINTS:
        return
    begin_ns = shown.curve[0].start_ns
    traces = (
        _line("longest", "series-1", shown.curve, [point.longest_ns for point in shown.curve]),
        _line("median", "series-0", shown.curve, [point.median_ns for point in shown.curve]),
    )
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "minutes since the first recorded step"}},
        "yaxis": {"title": {"text": "step time, ms"}, "rangemode": "tozero"},
        **_marks(_moments(run)[:_MOST_MARKS], begin_ns),
    }
    note = f"rank {shown.rank}; each point covers up to {max(point.num_steps for point in shown.curve)} steps"
    yield Chart("Step time during the run", traces, layout, 320, note)


def _line(name: str, role: str, curve: Sequence[CurvePoint], lengths_ns: Sequence[int]) -> dict[str, Any]:
    begin_ns = curve[0].start_ns
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [(point.start_ns - begin_ns) / _MINUTE_NS for point in curve],
        "y": [length / 1e6 for length in lengths_ns],
        "text": [
            f"{name} {ms(length)} ms, from step {point.first_step} on, after {duration(point.start_ns - begin_ns)}"
            for point, length in zip(curve, lengths_ns, strict=True)
        ],
        "hoverinfo": "text",
        "meta": {"role": role},
    }


def _moments(run: WholeRun) -> list[tuple[int, str]]:
    """Return the times, in ns since 1970, at which slowdowns and a hang began, each with a label."""
    slower = [(one.began_ns, f"+{one.growth:.0%}") for one in run.slowdowns if one.began_ns is not None]
    if run.hang is not None and run.hang.since_unix_ns is not None and not run.hang.has_failed:
        slower.append((run.hang.since_unix_ns, "hang"))
    return sorted(slower)


def _marks(marks: Sequence[tuple[int, str]], begin_ns: int) -> dict[str, Any]:
    """Return a vertical line with a label for each time."""
    at = [(at_ns - begin_ns) / _MINUTE_NS for at_ns, _ in marks]
    lines = [{"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x, "name": "limit"} for x in at]
    notes = [
        {"yref": "paper", "y": 1, "x": x, "text": clean(text), "showarrow": False, "xanchor": "left"}
        for x, (_, text) in zip(at, marks, strict=True)
    ]
    return {"shapes": lines, "annotations": notes} if marks else {}


Block = Section | Chart


def blocks_html(blocks: Iterable[Block], names: str = "", level: int = 3) -> str:
    """Return sections and charts as HTML. `Lanes` are left out, because a page has a timeline instead.

    `names`: prefix of ids; empty in a notebook, where only the titles of charts are shown, without links and buttons.
    `level`: level of headings.
    """
    return _template().render(blocks=tuple(blocks), names=names, level=level).strip()


@cache
def _template() -> Template:
    markup = files("ddpprof.render.html").joinpath("blocks.html").read_text(encoding="utf-8")
    environment = Environment(
        loader=FunctionLoader(lambda _name: markup), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals.update(chart=_chart, column_name=column_name)
    return environment.get_template("blocks.html")


def _chart(chart: Bars | Chart, name: str, level: int) -> Markup:
    made = bars_chart(chart) if isinstance(chart, Bars) else chart
    return Markup(chart_html(made, name, level))  # noqa: S704 (`chart_html` escapes all text)


def column_name(name: str) -> Markup:
    """Return a column name as HTML, with a link to its definition if there is one."""
    term = find_term(name) or find_term(name.rsplit(" ", 1)[0])
    return escape(name) if term is None else Markup('<a class="term" href="#{}">{}</a>').format(term_id(term), name)
