"""What torch.compile must leave alone."""

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
    "ending",
    "trace_file",
)
"""They run in the forward and at the ends of steps. `patches` is not among them: it takes care of itself."""


def keep_out_of_compiled_graphs() -> None:
    """torch.compile runs these modules as they are."""
    import torch._dynamo.trace_rules as rules

    for name in _MODULES:
        rules.add(f"ddpprof.record.{name}")
