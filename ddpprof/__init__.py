"""A profiler for PyTorch DistributedDataParallel: what does DDP cost, and which knob should you turn?

    with ddpprof.profile("runs/a"):
        train()

To leave the script unedited, run ``ddpprof trace train.py`` on the command line. To get the numbers of a run:

    report: ddpprof.Report = ddpprof.build_report(ddpprof.load_run("runs/a"))

``report.tables`` are its numbers as Arrow tables. In a notebook, a report shows itself, and so do the results of
`ddpprof.compare_reports` and `ddpprof.whatif`; ``%load_ext ddpprof`` adds ``%%ddpprof``, which traces a cell.

Unreadable input raises `ddpprof.DdpprofError`, which says why and what to do. Times are in ns, sizes in bytes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpprof.comparison.compare import compare_reports
    from ddpprof.errors import DdpprofError
    from ddpprof.load.run import load_run
    from ddpprof.model import Run
    from ddpprof.pipeline.whatif import whatif
    from ddpprof.record import hooks
    from ddpprof.record.profile import profile
    from ddpprof.report import Report, build_report

__all__ = [
    "DdpprofError",
    "Report",
    "Run",
    "__version__",
    "build_report",
    "compare_reports",
    "hooks",
    "load_run",
    "profile",
    "whatif",
]

__version__ = "0.1.0"

_HOME = {
    "DdpprofError": "ddpprof.errors",
    "Report": "ddpprof.report",
    "Run": "ddpprof.model",
    "build_report": "ddpprof.report",
    "compare_reports": "ddpprof.comparison.compare",
    "load_ipython_extension": "ddpprof.notebook_magic",
    "load_run": "ddpprof.load.run",
    "profile": "ddpprof.record.profile",
    "whatif": "ddpprof.pipeline.whatif",
}


def __getattr__(name: str) -> object:
    """Import a name on first use, so that ``import ddpprof`` needs neither torch nor numpy."""
    if name == "hooks":
        return import_module("ddpprof.record.hooks")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
