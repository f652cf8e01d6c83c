"""Pages of comparisons, sweeps, scaling experiments, overheads and predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpprof.comparison.compare import Comparison
from ddpprof.comparison.gate import ConditionVerdict
from ddpprof.comparison.repeated import RepeatedReport
from ddpprof.experiments.overhead import OverheadReport
from ddpprof.experiments.results import ExperimentReport
from ddpprof.experiments.scaling import ScalingReport
from ddpprof.experiments.tuning import TuneReport
from ddpprof.layout import Line, Section
from ddpprof.render.html.blocks import blocks_html
from ddpprof.render.html.chart import Chart
from ddpprof.render.html.definitions import definitions
from ddpprof.render.html.page import Page, PagePart, render_page
from ddpprof.render.html.result_charts import (
    comparison_charts,
    overhead_charts,
    scaling_charts,
    sweep_charts,
    tuning_charts,
    whatif_chart,
)
from ddpprof.render.json import ComparisonFile, Written, render_json
from ddpprof.render.sections.comparison import comparison_sections
from ddpprof.render.sections.experiments import experiment_sections
from ddpprof.render.sections.repeated import repeated_sections
from ddpprof.render.sections.whatif import whatif_sections
from ddpprof.report.whatif import WhatIf


def comparison_page(
    comparison: Comparison, verdicts: Sequence[ConditionVerdict] = (), how_to_record: Sequence[str] = ()
) -> str:
    """Return a whole HTML file. Raises `DdpprofError` if plotly is not installed."""
    file = ComparisonFile(comparison, tuple(verdicts))
    title = f"{comparison.a} and {comparison.b}"
    shown = comparison_sections(comparison, verdicts, how_to_record)
    return _page(title, shown, comparison_charts(comparison), file)


def repeated_page(report: RepeatedReport) -> str:
    """Likewise."""
    return _page(report.name, repeated_sections(report), (), report)


def experiment_page(title: str, report: ExperimentReport) -> str:
    """Likewise."""
    return _page(title, experiment_sections(report), _charts(report), report)


def whatif_page(answer: WhatIf) -> str:
    """Likewise."""
    return _page(answer.job.name, whatif_sections(answer), [whatif_chart(answer)], answer)


def _charts(report: ExperimentReport) -> Iterable[Chart]:
    if isinstance(report, OverheadReport):
        return overhead_charts(report)
    if isinstance(report, TuneReport):
        return tuning_charts(report)
    return scaling_charts(report) if isinstance(report, ScalingReport) else sweep_charts(report)


def _page(title: str, sections: Iterable[Section], charts: Iterable[Chart], file: Written) -> str:
    """Return the page, with its lines, which are the conclusion, first."""
    said = list(sections)
    lines = [section for section in said if isinstance(section, Line) and not section.is_aside]
    rest = [section for section in said if section not in lines]
    parts = [
        PagePart("charts", "At a glance", blocks_html(charts, "charts")),
        PagePart("numbers", "In numbers", blocks_html(rest, "numbers")),
        definitions(),
    ]
    kept = [part for part in parts if part.html]
    return render_page(Page(title, blocks_html(lines, "head"), kept, {"report": render_json(file).encode()}))
