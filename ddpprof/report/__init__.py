"""`build.build_report(run)`: everything that is known about a run, in one tree."""

from ddpprof.report.tree import REPORT_FORMAT, Job, Module, Report
from ddpprof.topics.bound import Bound, BoundBy, WhatHelps, WouldHelp
from ddpprof.topics.steps.measure import LightStepReport, RankReport, StepReport

__all__ = [
    "REPORT_FORMAT",
    "Bound",
    "BoundBy",
    "Job",
    "LightStepReport",
    "Module",
    "RankReport",
    "Report",
    "StepReport",
    "WhatHelps",
    "WouldHelp",
]
