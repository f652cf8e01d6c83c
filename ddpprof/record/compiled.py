"""ddpprof's own code in torch.compile: it runs uncompiled, except `optimizer_hooks`."""

from __future__ import annotations

import functools
import pkgutil

import ddpprof.record

_OTHER_PACKAGES = ("ddpprof.model", "ddpprof.monitor")
_COMPILED = "optimizer_hooks"


@functools.cache
def keep_out_of_compiled_graphs() -> None:
    """Tell torch.compile to leave ddpprof's code in training alone, but not the functions of others that it calls."""
    import torch._dynamo.trace_rules as rules

    own = (module.name for module in pkgutil.iter_modules(ddpprof.record.__path__) if module.name != _COMPILED)
    for name in (*(f"ddpprof.record.{name}" for name in own), *_OTHER_PACKAGES):
        rules.add(name)
