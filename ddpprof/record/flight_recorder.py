"""Which bucket was launched last? torch's flight recorder has noted every collective, without anybody's help.

It is asked once, when a step takes far too long; a dump of its 2,000 entries takes some 50 ms.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""functions of torch that dump it: the first where there is NCCL, the second also for gloo"""


class AllReduce(NamedTuple):
    created_ns: int
    """time since 1970"""
    numel: int


def all_reduces_since(since_ns: int) -> tuple[AllReduce, ...]:
    """Return the all-reduces that this process has launched since then, in order; none if torch does not tell."""
    for name in _DUMPS:
        dump = getattr(getattr(torch._C, "_distributed_c10d", None), name, None)
        if dump is None:
            continue
        try:
            entries = json.loads(dump(True, False)).get("entries", [])
        except (RuntimeError, TypeError, ValueError, AttributeError):
            continue
        found = tuple(
            AllReduce(int(entry["time_created_ns"]), _numel(entry))
            for entry in entries
            if _is_all_reduce(entry) and int(entry["time_created_ns"]) >= since_ns
        )
        if entries:
            return found
    return ()


def _is_all_reduce(entry: dict[str, Any]) -> bool:
    return str(entry.get("profiling_name", "")).endswith((":all_reduce", ":allreduce")) and "time_created_ns" in entry


def _numel(entry: dict[str, Any]) -> int:
    sizes = entry.get("input_sizes") or [[0]]
    return math.prod(sizes[0])


def last_bucket(launched: Sequence[AllReduce], bucket_numels: Sequence[Sequence[int]]) -> tuple[int, int, int] | None:
    """Return module, index and launch, ns since 1970, of the last bucket among the all-reduces of a backward pass.

    Each module's reducer goes through its buckets in order. All-reduces of other sizes are not of buckets.
    """
    following = [0] * len(bucket_numels)
    found = None
    for created_ns, numel in launched:
        for module, numels in enumerate(bucket_numels):
            index = following[module]
            if index < len(numels) and numels[index] == numel:
                following[module] = index + 1
                found = (module, index, created_ns)
                break
    return found
