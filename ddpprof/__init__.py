"""A profiler for PyTorch DistributedDataParallel: what does DDP cost, and which setting should you change?

    with ddpprof.profile("runs/a"):
        train()

``with ddpprof.watch("runs/a")`` keeps only a short record of every step, at a cost of a few microseconds per step.

To record a script without editing it, run ``ddpprof trace train.py`` on the command line. To get the numbers of a run:

    report: ddpprof.Report = ddpprof.build_report(ddpprof.load_run("runs/a"))

``report.tables`` contains its numbers as Arrow tables. Notebooks show reports, and the results of
`ddpprof.compare_reports` and `ddpprof.whatif`, as HTML.

To use individual parts of ddpprof, or the command line from Python:

    trace: ddpprof.Trace = ddpprof.load_trace("rank0.pt.trace.json.gz")       one trace of torch.profiler as tables
    overlap = ddpprof.measure_overlap(trace, step=0)                          or of the whole trace with ``step=None``
    shift = ddpprof.shift_between([10.1, 10.0, 10.2, 9.9], [11.0, 11.2, 10.9, 11.1])     two samples, in any unit
    ddpprof.between_runs.difference_between(steps_of_a_ns, steps_of_b_ns, noise_ns)      two jobs, one value per run
    exit_code = ddpprof.main(["whatif", "runs/a", "--bucket-cap-mb", "50"])

`ddpprof.hooks` provides communication hooks for DDP. A process that only reads many traces can first call
`give_back_large_arrays`. The memory of large arrays then returns to the system when they are freed.

Unreadable input raises `ddpprof.DdpprofError`, whose message says what is wrong and what to do. Times are in ns, and
sizes are in bytes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ddpprof.version import __version__

if TYPE_CHECKING:
    from ddpprof import integrations
    from ddpprof.cli import main
    from ddpprof.comparison import compare_reports
    from ddpprof.errors import DdpprofError
    from ddpprof.load.file_bytes import give_back_large_arrays
    from ddpprof.load.rank import load_trace
    from ddpprof.load.run import load_run
    from ddpprof.model import Run, Trace
    from ddpprof.pipeline.analysis import whatif
    from ddpprof.record import hooks
    from ddpprof.record.api import profile, watch
    from ddpprof.report import Report
    from ddpprof.report.build import build_report
    from ddpprof.statistics import between_runs
    from ddpprof.statistics.between_runs import Shift, shift_between
    from ddpprof.topics.steps.overlap import Overlap, measure_overlap

_HOME = {
    "DdpprofError": "ddpprof.errors",
    "Overlap": "ddpprof.topics.steps.overlap",
    "Report": "ddpprof.report",
    "Run": "ddpprof.model",
    "Shift": "ddpprof.statistics.between_runs",
    "Trace": "ddpprof.model",
    "between_runs": "ddpprof.statistics.between_runs",
    "build_report": "ddpprof.report.build",
    "compare_reports": "ddpprof.comparison",
    "give_back_large_arrays": "ddpprof.load.file_bytes",
    "hooks": "ddpprof.record.hooks",
    "integrations": "ddpprof.integrations",
    "load_run": "ddpprof.load.run",
    "load_trace": "ddpprof.load.rank",
    "main": "ddpprof.cli",
    "measure_overlap": "ddpprof.topics.steps.overlap",
    "profile": "ddpprof.record.api",
    "shift_between": "ddpprof.statistics.between_runs",
    "watch": "ddpprof.record.api",
    "whatif": "ddpprof.pipeline.analysis",
}

__all__ = [
    "DdpprofError",
    "Overlap",
    "Report",
    "Run",
    "Shift",
    "Trace",
    "__version__",
    "between_runs",
    "build_report",
    "compare_reports",
    "give_back_large_arrays",
    "hooks",
    "integrations",
    "load_run",
    "load_trace",
    "main",
    "measure_overlap",
    "profile",
    "shift_between",
    "watch",
    "whatif",
]


def __dir__() -> list[str]:
    """Return the public names, for completion in notebooks and shells."""
    return sorted(__all__)


def __getattr__(name: str) -> object:
    """Import a name on first use, so that ``import ddpprof`` needs neither torch nor numpy."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(_HOME[name])
    return getattr(home, name, home)  # some names are modules
