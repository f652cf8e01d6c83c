"""`build.build_report(run)`: everything that is known about a run, in one tree.

tables/             the report as Arrow tables, for data frames and SQL
"""

from ddpprof.report.tree import (
    REPORT_FORMAT,
    Bound,
    BoundBy,
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
    "Job",
    "LightStepReport",
    "Module",
    "RankReport",
    "Report",
    "StepReport",
    "WhatHelps",
    "WouldHelp",
]
