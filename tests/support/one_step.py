"""A trace of one step of one rank, as a file for commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FORWARD, _BACKWARD = "DistributedDataParallel.forward", "autograd::engine::evaluate_function: MmBackward0"


def event(category: str, name: str, start: int, end: int, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": end - start, "args": {}}


def write_one_step(folder: Path) -> Path:
    """Write 100 µs: forward 20, backward 40, of a collective of 40 half is hidden."""
    events = [
        event("user_annotation", "ProfilerStep#3", 0, 100),
        event("user_annotation", _FORWARD, 0, 20),
        event("cpu_op", "aten::mm", 0, 20),
        event("cpu_op", _BACKWARD, 20, 60),
        event("cpu_op", "c10d::allreduce_", 39, 40),
        event("user_annotation", "gloo:all_reduce", 40, 80, tid=2),
    ]
    path = folder / "trace_rank0.json"
    info = {"backend": "gloo", "rank": 0, "world_size": 2}
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    return path
