"""Evidence of ranks that hang, built by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from msgspec.structs import replace as replace_struct

from ddpprof.model import DdpModule, Parameter, ProcessExit, Record
from ddpprof.model.overdue import Frame
from ddpprof.model.pulse import Activity, PulseIdentity, PulseSteps
from ddpprof.model.pulse_layout import decode_rows, empty_state
from ddpprof.monitor.evidence import RankEvidence
from ddpprof.monitor.processes import Process
from ddpprof.monitor.pulse_files import machine_id

NOW_NS = 1_000_000_000_000
S = 1_000_000_000
ENGINE = Frame("/site-packages/torch/autograd/graph.py", 800, "_engine_run_backward")
USER = Frame("/home/me/train.py", 20, "train")


def distributed(function: str) -> Frame:
    return Frame("/site-packages/torch/distributed/distributed_c10d.py", 3000, function)


def process(state: str = "S", **other: Any) -> Process:
    values: dict[str, Any] = {
        "pid": 100,
        "name": "python",
        "state": state,
        "tracer": None,
        "main_thread_cpu_s": 5.0,
        "threads_cpu_s": 0.0,
        "children_cpu_s": 0.0,
        "num_paged_in": 0,
        "swapped_bytes": 0,
        "seen_s": 0.0,
        "wait": None,
        "moved_bytes": 0,
    }
    return Process(**{**values, **other})


def record(rank: int, ended: str | None = None, unused: tuple[str, ...] | None = None) -> Record:
    """Return a record of a module with three parameters in two buckets."""
    parameters = tuple(Parameter(name, 8) for name in ("first", "second", "third"))
    module = DdpModule("Net", {}, None, parameters, ((2,), (1, 0)), 0, 0, 0, unused=unused)
    where: dict[str, Any] = {"host": "host", "pid": 100, "device": "cpu", "backend": "gloo", "torch": "2"}
    return Record(rank=rank, world_size=2, modules=(module,), ended=ended, **where)


def steps(num_steps: int = 10, length_ns: int = S // 10, flags: int = 0) -> PulseSteps:
    empty = decode_rows(PulseSteps, b"")
    columns = {name: [0] * num_steps for name in empty.__slots__}
    columns |= {"number": list(range(num_steps)), "length_ns": [length_ns] * num_steps, "flags": [flags] * num_steps}
    return PulseSteps(**{name: np.array(column, dtype=np.int64) for name, column in columns.items()})


def rank(number: int, *stack: Frame, since_s: float = 10, **state: int) -> RankEvidence:
    """Return a living rank on this machine that stands at `stack` since `since_s`; its process sleeps."""
    since = NOW_NS - int(since_s * S)
    times = {"since_ns": since, "step_since_ns": since, "tick_ns": NOW_NS}
    state = {"step": 10, "num_steps": 10, **state}
    identity = PulseIdentity(
        run_id="run",
        rank=number,
        world_size=2,
        host="host",
        machine_id=machine_id(),
        pid=100 + number,
        created_ns=0,
        shared="",
        kept="",
    )
    return RankEvidence(
        identity=identity,
        state=replace(empty_state(), **{**times, **state}),
        steps=steps(),
        stack=stack,
        record=record(number),
        process=process(pid=100 + number),
        workers=(),
        computes=False,
        helpers_compute=False,
        moves_data=False,
        is_swapping=False,
        exit=None,
        num_oom_kills=None,
        now_ns=NOW_NS,
    )


def on_device(one: RankEvidence, device: str = "cuda") -> RankEvidence:
    return replace(one, identity=replace_struct(one.identity, device=device))


def waiting(number: int, passes: int = 11, bucket: int = 1, since_s: float = 8) -> RankEvidence:
    """Return a rank that waits in the reducer, with `bucket` as the last one that it has launched."""
    state = {"num_passes": passes, "module": 0, "bucket": bucket, "bucket_ns": NOW_NS - int(since_s * S)}
    return rank(number, USER, ENGINE, since_s=since_s + 1, activity=Activity.BACKWARD, **state)


def died(one: RankEvidence, ended: str | None = None, exit_code: int | None = None, **other: Any) -> RankEvidence:
    seen = None if exit_code is None else ProcessExit(exit_code, rank=one.rank)
    return replace(one, process=None, record=record(one.rank, ended, **other), exit=seen)
