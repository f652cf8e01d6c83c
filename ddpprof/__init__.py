"""A profiler for PyTorch DistributedDataParallel: what does DDP cost, and which knob to turn.

    with ddpprof.profile("runs/a"):
        train()

or, without an edit of the script, ``ddpprof trace train.py`` on the command line. What was recorded, as numbers:

    report = ddpprof.build_report(ddpprof.load_run("runs/a"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpprof.load.run import load_run
    from ddpprof.record import hooks
    from ddpprof.record.profile import profile
    from ddpprof.report import build_report

__all__ = ["__version__", "build_report", "hooks", "load_run", "profile"]

__version__ = "0.1.0"

_HOME = {
    "build_report": "ddpprof.report",
    "load_run": "ddpprof.load.run",
    "profile": "ddpprof.record.profile",
}


def __getattr__(name: str) -> object:
    """Import on first use, so that ``import ddpprof`` needs neither torch nor numpy."""
    if name == "hooks":
        return import_module("ddpprof.record.hooks")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
