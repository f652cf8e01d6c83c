"""What do calls through ``torch.distributed.rpc`` cost? Per calling rank: callee, function, how often, how long.

    latency   from the call to the answer, on the caller's side
    waited    |synchronous calls|: the caller is blocked
    in flight |all calls|

RPCs are not DDP's communication, and the trace does not count them as such. Steps of light recording are used where
there are any, because the profiler slows both ends of a call. Rules are about the rank that loses the most time to
calls; other ranks wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ddpprof.engine.finding import Finding, in_ms, only_known, size
from ddpprof.engine.topic import Topic, View
from ddpprof.intervals import union
from ddpprof.layout import ABSENT, Column, Line, Section, Table, clean, cut_off, ms, notes
from ddpprof.model import Record, RecordedStep, RpcCall, StepMode
from ddpprof.statistics.medians import median_known

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
    """total over all calls"""
    reply_bytes: int | None
    """total over all calls, in steps in which all were answered; ``None`` if there are none"""


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
    """number of calls per step that were only counted"""
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
    """Return the length of the union of the answered calls, ns."""
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


_MANY = 8
"""calls of one function per step"""
_LONG_SHARE = 0.1
"""least share of the step that one call takes for it to be long"""
_SMALL_BYTES = 64 * 1024
"""size of a call up to which latency dominates its cost"""


def many_small_calls(ranks: Sequence[RankRpc], view: View) -> Iterator[Finding]:
    """Report a function that is called many times with little data each time."""
    found = [(rank, calls) for rank in ranks for calls in rank.calls if _is_chatty(calls)]
    if not found:
        return
    rank, calls = max(found, key=lambda one: _time_ns(one[1]))
    gain = min(_time_ns(calls) - (calls.latency_ns or 0), rank.waited_ns) if calls.kind == "sync" else None
    if not view.worth(_time_ns(calls) if gain is None else gain):
        return
    moved = calls.request_bytes + (calls.reply_bytes or 0)
    yield Finding(
        "many-small-rpcs",
        f"Rank {rank.rank} calls {calls.function} on {calls.callee} {calls.num_calls} times per step",
        f"each call takes {in_ms(calls.latency_ns or 0)} and moves {size(moved / calls.num_calls)} of tensors on "
        "average",
        f"Combine them into one call that takes all inputs of {calls.function} in a step and returns all results, or "
        "collect them on the callee with @rpc.functions.async_execution.",
        gain,
        numbers=only_known(num_calls=calls.num_calls, latency_ns=calls.latency_ns, moved_bytes=moved),
    )


def _is_chatty(calls: RpcCalls) -> bool:
    moved = calls.request_bytes + (calls.reply_bytes or 0)
    return calls.num_calls >= _MANY and moved <= _SMALL_BYTES * calls.num_calls


def _time_ns(calls: RpcCalls) -> int:
    return calls.num_calls * (calls.latency_ns or 0)


def calls_in_a_row(ranks: Sequence[RankRpc], view: View) -> Iterator[Finding]:
    """Report synchronous calls that each wait for an answer before the next is sent."""
    rank = max(ranks, key=_gain_ns)
    if rank.num_sync_calls < 2 or not view.worth(_gain_ns(rank)):
        return
    yield Finding(
        "rpcs-in-a-row",
        f"Rank {rank.rank} waits {in_ms(rank.waited_ns)} per step for {rank.num_sync_calls} RPCs, one after the other",
        f"the longest takes {in_ms(rank.longest_wait_ns)}; DDP's own communication is not included",
        "If no call needs the answer of another, send all with rpc.rpc_async, and call "
        "torch.futures.wait_all(futures) where the answers are needed. Send the calls for the next batch before the "
        "backward pass of this one.",
        _gain_ns(rank),
        numbers=only_known(
            num_calls=rank.num_sync_calls, waiting_ns=rank.waited_ns, longest_wait_ns=rank.longest_wait_ns
        ),
    )


def _gain_ns(rank: RankRpc) -> int:
    return rank.waited_ns - rank.longest_wait_ns


def one_long_call(ranks: Sequence[RankRpc], view: View) -> Iterator[Finding]:
    """Report a synchronous call that blocks the rank for much of the step."""
    rank = max(ranks, key=lambda one: one.longest_wait_ns)
    waits = [calls for calls in rank.calls if calls.kind == "sync"]
    if not waits or not view.step_ns or rank.longest_wait_ns < _LONG_SHARE * view.step_ns:
        return
    longest = max(waits, key=lambda calls: calls.latency_ns or 0)
    yield Finding(
        "long-rpc",
        f"Rank {rank.rank} blocks until {longest.callee} answers an RPC",
        f"one synchronous call of {longest.function} takes {in_ms(rank.longest_wait_ns)} per step; DDP's own "
        "communication is not included",
        "Send it earlier with rpc.rpc_async, for example for the next batch before the backward pass of this one, "
        "and wait for the answer where it is needed. Or make the function itself faster.",
        rank.longest_wait_ns,
        numbers=only_known(longest_wait_ns=rank.longest_wait_ns),
    )


_MAX_ROWS = 24


def rpc_table(ranks: Sequence[RankRpc]) -> Iterable[Section]:
    rows = [_row(rank, calls) for rank in ranks for calls in rank.calls]
    if not rows:
        return
    names = ("rank", "calls", "on", "kind", "times", "latency ms", "kB out", "kB back")
    words = ("calls", "on", "kind")
    left_out = max(rank.num_left_out for rank in ranks)
    yield Table(
        "RPCs per step (medians)",
        tuple(Column(name, is_number=name not in words) for name in names),
        tuple(rows[:_MAX_ROWS]),
        notes(
            "latency: of one call, as the caller sees it; kB: tensors of all calls",
            f"up to {left_out} more calls per step were not recorded" if left_out else "",
            cut_off(len(rows), _MAX_ROWS, "rows"),
        ),
    )
    waits = "; ".join(f"rank {rank.rank} {ms(rank.waited_ns)}" for rank in ranks[:_MAX_ROWS])
    yield Line(f"Waiting in synchronous RPCs, ms per step: {waits}. None of it is DDP's communication.", is_aside=True)


def _row(rank: RankRpc, calls: RpcCalls) -> tuple[str, ...]:
    return (
        str(rank.rank),
        clean(calls.function, most=60),
        clean(calls.callee, most=40),
        clean(calls.kind, most=30),
        str(calls.num_calls),
        ms(calls.latency_ns),
        f"{calls.request_bytes / 1e3:.1f}",
        ABSENT if calls.reply_bytes is None else f"{calls.reply_bytes / 1e3:.1f}",
    )


RPC: Topic[RankRpc, tuple[RankRpc, ...]] = Topic(
    name="rpc",
    sections={"collectives": rpc_table},
    rules=(many_small_calls, calls_in_a_row, one_long_call),
    of_rank=lambda rank, _steps, _modules: None if rank.record is None else measure_rpc(rank.record),
    rank_type=RankRpc,
    of_ranks=tuple,
)
