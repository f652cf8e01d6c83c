"""Chart of the tried settings: measured and predicted steps."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.experiments.tuning import TuneReport
from ddpprof.render.html.chart import Chart, bar_trace, bars_layout
from ddpprof.render.sections.tuning import short_label


def tuning_charts(report: TuneReport) -> Iterable[Chart]:
    known = [(short_label(one.label) or "as it is", one) for one in (report.now, *report.tried) if one.step_ns]
    labels = [label for label, _ in known]
    traces = [bar_trace("measured", "series-0", labels, [one.step_ns or 0.0 for _, one in known])]
    forecasts = [(label, one.forecast) for label, one in known if one.forecast is not None]
    if forecasts:
        predicted = bar_trace("predicted", "idle", [label for label, _ in forecasts], [f.step_ns for _, f in forecasts])
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [(f.high_ns - f.step_ns) / 1e6 for _, f in forecasts],
            "arrayminus": [(f.step_ns - f.low_ns) / 1e6 for _, f in forecasts],
        }
        traces.append({**predicted, "error_x": bars})
    layout = {**bars_layout("ms"), "barmode": "group", "showlegend": True}
    yield Chart("Step", traces, layout, 80 + 44 * len(labels), "lines: 95 % intervals of the predictions")
