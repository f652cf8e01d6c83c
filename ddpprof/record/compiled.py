"""Modules that torch.compile must not compile."""

from __future__ import annotations

_MODULES = (
    "session",
    "baseline",
    "notes",
    "modules",
    "environment",
    "feeding",
    "framework",
    "last_step",
    "samples",
    "buckets",
    "steps",
    "window",
    "profiler",
    "data_parallel",
    "memory",
    "rpc",
    "live",
    "device",
    "graphs",
    "accumulated",
    "bounds",
    "hang_signals",
    "trace_file",
)
"""modules used in the forward and at ends of steps; `patches` is not included because it handles this itself"""


def keep_out_of_compiled_graphs() -> None:
    """Tell torch.compile to run these modules uncompiled."""
    import torch._dynamo.trace_rules as rules

    for name in _MODULES:
        rules.add(f"ddpprof.record.{name}")
