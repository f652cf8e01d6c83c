"""What do calls through ``torch.distributed.rpc`` cost? Per calling rank: whom, what, how often, how long.

    latency   from the call to the answer, as the caller sees it
    waited    |synchronous calls|: the caller stands still
    in flight |all calls|

RPCs are not DDP's communication, and the trace does not count them as such. Steps of light recording are used where
there are any, because the profiler slows both ends of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddpprof.intervals import union
from ddpprof.measures.statistics.medians import median_known
from ddpprof.model import Record, RecordedStep, RpcCall, StepMode

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class RpcCalls:
    """Calls of one function on one callee, per step: medians over steps. Bytes count tensors only."""

    callee: str
    function: str
    kind: str
    num_calls: int
    latency_ns: int | None
    """latency of one call; ``None`` if none was answered within its step"""
    request_bytes: int
    """sum over all calls"""
    reply_bytes: int | None
    """sum over all calls, in steps in which all were answered; ``None`` if there are none"""


@dataclass(frozen=True, slots=True)
class RankRpc:
    """RPCs of one rank; times are medians over steps, in ns per step."""

    rank: int
    num_sync_calls: int
    waited_ns: int
    longest_wait_ns: int
    """longest wait for one synchronous call"""
    in_flight_ns: int
    num_left_out: int
    """calls per step that were only counted"""
    calls: tuple[RpcCalls, ...]
    """longest total time first"""


def measure_rpc(record: Record) -> RankRpc | None:
    """Measure the rank's RPCs; ``None`` if no step has a call."""
    light = [step for step in record.steps if step.mode is StepMode.LIGHT]
    steps = light or [step for step in record.steps if step.mode is StepMode.PROFILED]
    if not any(step.rpc for step in steps):
        return None
    sync = [[call for call in step.rpc if call.kind == "sync"] for step in steps]
    return RankRpc(
        rank=record.rank,
        num_sync_calls=median_known(len(calls) for calls in sync) or 0,
        waited_ns=median_known(_length(calls) for calls in sync) or 0,
        longest_wait_ns=median_known(max((_length([call]) for call in calls), default=0) for calls in sync) or 0,
        in_flight_ns=median_known(_length(step.rpc) for step in steps) or 0,
        num_left_out=median_known(step.rpc_left_out for step in steps) or 0,
        calls=_groups(steps),
    )


def _length(calls: Sequence[RpcCall]) -> int:
    """Return the length of the union of the answered calls."""
    times = [(call.start_ns, call.end_ns) for call in calls if call.end_ns is not None]
    spans = np.array(times, np.int64).reshape(-1, 2)
    return union(spans[:, 0], spans[:, 1]).total_ns


def _groups(steps: Sequence[RecordedStep]) -> tuple[RpcCalls, ...]:
    by_step: list[dict[Key, list[RpcCall]]] = []
    for step in steps:
        groups: dict[Key, list[RpcCall]] = {}
        for call in step.rpc:
            groups.setdefault((call.callee, call.function, call.kind), []).append(call)
        by_step.append(groups)
    keys = dict.fromkeys(key for groups in by_step for key in groups)
    made = [_group(key, [groups.get(key, []) for groups in by_step]) for key in keys]
    usual = [one for one in made if one.num_calls]
    return tuple(sorted(usual, key=lambda one: one.num_calls * (one.latency_ns or 0), reverse=True))


def _group(key: Key, steps: Sequence[Sequence[RpcCall]]) -> RpcCalls:
    callee, function, kind = key
    answered = [call.end_ns - call.start_ns for calls in steps for call in calls if call.end_ns is not None]
    is_answered = any(call.reply_bytes is not None for calls in steps for call in calls)
    whole = [calls for calls in steps if all(call.reply_bytes is not None for call in calls)]
    return RpcCalls(
        callee=callee,
        function=function,
        kind=kind,
        num_calls=median_known(len(calls) for calls in steps) or 0,
        latency_ns=median_known(answered),
        request_bytes=median_known(sum(call.request_bytes for call in calls) for calls in steps) or 0,
        reply_bytes=median_known(sum(call.reply_bytes or 0 for call in calls) for calls in whole)
        if is_answered
        else None,
    )
