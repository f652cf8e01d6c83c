"""Pages of comparisons, sweeps, scaling experiments, overheads and predictions."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.experiments.overhead import OverheadReport
from ddpprof.experiments.scaling import ScalingReport
from ddpprof.experiments.sweep import SweepReport
from ddpprof.experiments.tuning import TuneReport
from ddpprof.layout import Line, Section
from ddpprof.render.html.blocks import blocks_html
from ddpprof.render.html.charts import Chart
from ddpprof.render.html.page import Page, PagePart, definitions, render_page
from ddpprof.render.html.result_charts import (
    comparison_charts,
    overhead_charts,
    scaling_charts,
    sweep_charts,
    tuning_charts,
    whatif_chart,
)
from ddpprof.render.json import render_json
from ddpprof.render.json_documents import ComparisonFile, Written
from ddpprof.report.whatif import WhatIf


def result_page(title: str, result: Written, sections: Iterable[Section]) -> str:
    """Return a whole HTML file that begins with the result's lines, which are the conclusion.

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
