"""Horovod timelines built by hand, for tests. Times are µs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Event = dict[str, Any]

START: list[Event] = [
    {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1}},
    {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
]


def tensor(pid: int, name: str) -> list[Event]:
    return [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}},
        {"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}},
    ]


def cycle(ts: int) -> Event:
    return {"ph": "i", "name": "CYCLE_START", "ts": ts, "s": "g"}


def negotiation(
    pid: int, start: int, end: int, kind: str = "ALLREDUCE", ticks: Mapping[int, int] | None = None
) -> list[Event]:
    ranks = [{"ph": "X", "name": str(rank), "ts": ts, "pid": pid, "dur": 0} for rank, ts in (ticks or {}).items()]
    return [begin(pid, f"NEGOTIATE_{kind}", start), *ranks, end_of(pid, end)]


def begin(pid: int, name: str, ts: int) -> Event:
    return {"ph": "B", "name": name, "ts": ts, "pid": pid}


def end_of(pid: int, ts: int, shape: Sequence[int] | None = None, dtype: str = "float32") -> Event:
    args = {} if shape is None else {"args": {"dtype": dtype, "shape": json.dumps(list(shape))}}
    return {"ph": "E", "ts": ts, "pid": pid, **args}


def together(
    pids: Sequence[int],
    start: int,
    activities: Sequence[tuple[str, int, int]],
    end: int,
    shape: Sequence[int] | None = (1000,),
    kind: str = "ALLREDUCE",
) -> list[Event]:
    """Return the events of tensors that are reduced at once; each activity is name, start, end."""
    events = [begin(pid, kind, start) for pid in pids]
    for name, begins, ends in activities:
        events += [begin(pid, name, begins) for pid in pids]
        events += [end_of(pid, ends) for pid in pids]
    return events + [end_of(pid, end, shape) for pid in pids]


def fused(start: int, comm: tuple[int, int], end: int, name: str = "GLOO_ALLREDUCE") -> list[tuple[str, int, int]]:
    """Return activities with copies in from one µs after `start`, and out until one before `end`."""
    return [
        ("MEMCPY_IN_FUSION_BUFFER", start + 1, comm[0]),
        (name, *comm),
        ("MEMCPY_OUT_FUSION_BUFFER", comm[1], end - 1),
    ]


def text(*events: Event) -> str:
    """Write events like Horovod: every event closes the array, the next one opens it again."""
    return "[\n" + ",\n".join(json.dumps(event) for event in (*START, *events)) + "]"
