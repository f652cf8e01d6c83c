"""A profiler for PyTorch DistributedDataParallel: what does DDP cost, and which knob to turn.

    with ddpprof.profile("runs/a"):
        train()

or, without an edit of the script, ``ddpprof trace train.py`` on the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpprof.record import hooks
    from ddpprof.record.profile import profile

__all__ = ["__version__", "hooks", "profile"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import `profile` and `hooks` on first use, so that ``import ddpprof`` needs neither torch nor numpy."""
    if name == "profile":
        from ddpprof.record.profile import profile

        return profile
    if name == "hooks":
        from ddpprof.record import hooks

        return hooks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
