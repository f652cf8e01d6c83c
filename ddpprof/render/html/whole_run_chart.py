"""Chart of the whole run: the length of steps over time, with the moments from which the training was slower."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ddpprof.layout import clean, duration, ms
from ddpprof.model.whole_run import CurvePoint, WholeRun
from ddpprof.render.html.chart import Chart
from ddpprof.report import Report

_MOST_MARKS = 20
_LEAST_POINTS = 3
_MINUTE_NS = 60 * 10**9


def whole_run_chart(report: Report) -> Iterable[Chart]:
    """Draw the median and the longest step of each of up to 200 stretches."""
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
        "xaxis": {"title": {"text": "minutes since the first noted step"}},
        "yaxis": {"title": {"text": "length of a step, ms"}, "rangemode": "tozero"},
        **_marks(_moments(run)[:_MOST_MARKS], begin_ns),
    }
    note = f"rank {shown.rank}; a point stands for up to {max(point.num_steps for point in shown.curve)} steps"
    yield Chart("Length of steps over time", traces, layout, 320, note)


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
    """Return the moments, ns since 1970, at which something began that made the training slower, with a word for it."""
    slower = [(one.began_ns, f"+{one.growth:.0%}") for one in run.slowdowns if one.began_ns is not None]
    if run.hang is not None and run.hang.since_unix_ns is not None:
        slower.append((run.hang.since_unix_ns, "hang"))
    return sorted(slower)


def _marks(marks: Sequence[tuple[int, str]], begin_ns: int) -> dict[str, Any]:
    """Return a line across the chart for each moment, with its text."""
    at = [(at_ns - begin_ns) / _MINUTE_NS for at_ns, _ in marks]
    lines = [{"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x, "name": "limit"} for x in at]
    notes = [
        {"yref": "paper", "y": 1, "x": x, "text": clean(text), "showarrow": False, "xanchor": "left"}
        for x, (_, text) in zip(at, marks, strict=True)
    ]
    return {"shapes": lines, "annotations": notes} if marks else {}
