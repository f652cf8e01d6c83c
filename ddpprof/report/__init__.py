"""`build_report(run)`: everything that is known about a run, in one tree."""

from ddpprof.report.build import build_report
from ddpprof.report.tree import (
    REPORT_FORMAT,
    Bound,
    BoundBy,
    DeviceWork,
    Job,
    LightStepReport,
    Module,
    RankReport,
    Report,
    StepReport,
    WhatHelps,
    WouldHelp,
)

__all__ = [
    "REPORT_FORMAT",
    "Bound",
    "BoundBy",
    "DeviceWork",
    "Job",
    "LightStepReport",
    "Module",
    "RankReport",
    "Report",
    "StepReport",
    "WhatHelps",
    "WouldHelp",
    "build_report",
]
