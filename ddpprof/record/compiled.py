"""Has torch.compile compiled anything in this process?"""

from __future__ import annotations

import sys


def has_compiled() -> bool:
    """Return whether it has, as torch's own counters tell."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"]["ok"])
