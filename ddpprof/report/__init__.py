"""`build_report(run)`: everything that is known about a run, in one tree.

across_ranks.py     measures across ranks: collectives on all, their clocks, who waits for whom, and slowed kernels
bound.py            What bounds a step whose communication is not hidden, and what would help?
build.py            construction of a report from a run
other_file.py       the report of a file of another tool, which a side street has read
predicted_gains.py  How much would each change advised by a finding give back on its own?
rank_summary.py     the contribution of ranks to a report: kilobytes each
rule_input.py       construction of the input of the rules in `findings`
run_profile.py      construction of the `Profile` from which predictions start
side_streets.py     the side streets: ways to train in parallel beside DDP
tables/             the report as Arrow tables, for data frames and SQL
timeline.py         steps of several ranks over time, on one clock
times.py            Whose time is each number of the report?
tree.py             the report: the measures of a run as one tree
whatif.py           the recorded step with other settings: a prediction for each, and the best buckets found
"""

from ddpprof.report.build import build_report
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
    "build_report",
]
