"""The content, order and words of an experiment's report."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.experiments.overhead import OverheadReport
from ddpprof.experiments.results import ExperimentReport
from ddpprof.experiments.scaling import ScalingReport
from ddpprof.experiments.tuning import TuneReport
from ddpprof.layout import Line, Section, clean
from ddpprof.render.sections.job import machine_words
from ddpprof.render.sections.overhead import overhead_sections
from ddpprof.render.sections.scaling import scaling_sections
from ddpprof.render.sections.sweep import sweep_sections
from ddpprof.render.sections.tuning import tuning_sections


def experiment_sections(report: ExperimentReport) -> tuple[Section, ...]:
    return (*_head(report), *_body(report))


def _head(report: ExperimentReport) -> Iterable[Section]:
    words = [clean(" ".join(report.command)), *(machine_words(report.job) if report.job is not None else [])]
    if any(words):
        yield Line(" · ".join(filter(None, words)))
    for text in report.missing:
        yield Line(f"Note: {clean(text, most=400)}", is_warning=True)


def _body(report: ExperimentReport) -> Iterable[Section]:
    if isinstance(report, OverheadReport):
        return overhead_sections(report)
    if isinstance(report, TuneReport):
        return tuning_sections(report)
    return scaling_sections(report) if isinstance(report, ScalingReport) else sweep_sections(report)
