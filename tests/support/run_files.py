"""Files of a run, as text: ``run.json``, the facts of a rank, and a trace."""

import json
from pathlib import Path
from typing import Any

from ddpprof.load.run import load_run

RUN = {"format": 1, "run_id": "a", "ddpprof": "0.1", "created_unix_s": 1.5, "command": ["train.py"], "world_size": 2,
       "settings": {"steps": 5}}  # fmt: skip


def trace_text(start_us: int = 0, **keys: Any) -> str:
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": start_us, "dur": 9}
    return json.dumps({**keys, "traceEvents": [step]})


def distributed(rank: int, world_size: int = 2) -> dict[str, Any]:
    return {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": world_size}}


def facts(rank: int, **changes: Any) -> dict[str, Any]:
    return {
        "format": 1, "run_id": "a", "rank": rank, "world_size": 2, "local_rank": rank, "host": "node", "pid": 7,
        "device": "cpu", "backend": "gloo", "torch": "2.13", "modules": [], "loaders": [], "checkpoints": [],
        "profiler_pause_ns": None, "ended": "finished", **changes,
    }  # fmt: skip


def ranks_with_trace(path: Path) -> list[tuple[int, bool, bool]]:
    return [(rank.rank, rank.trace is not None, rank.record is not None) for rank in load_run(path).ranks]
