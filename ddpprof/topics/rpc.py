"""Measure calls through ``torch.distributed.rpc``: number and latency per calling rank, callee and function.

    latency   time from the call to the reply, on the caller
    waited    total time of synchronous calls, during which the caller is blocked

RPCs are not part of DDP's communication. Steps of light recording are preferred, because the profiler slows both ends
of a call. The rules examine the rank that loses the most time to calls, because the other ranks wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.topic import ReportView, Topic, View
from ddpprof.intervals import Spans, union
from ddpprof.layout import ABSENT, Line, Section, clean, cut_off, in_ms, ms, notes, table_of
from ddpprof.model import Record, RpcCall, StepMode
from ddpprof.statistics import median_known

_LONG_SHARE = 0.1
"""a single call is reported if the caller waits for it for at least this share of the step"""
_MAX_ROWS = 24


@dataclass(frozen=True, slots=True)
class RpcCalls:
    """Calls to one function on one callee, per step: medians over steps. Byte counts include only tensors."""

    callee: str
    function: str
    kind: str
    num_calls: int
    latency_ns: int | None
    """time from a call to its reply; ``None`` if no call was answered within its step"""
    request_bytes: int
    """total number of bytes sent in all calls"""
    reply_bytes: int | None
    """bytes received in all calls together, in steps in which all calls were answered; ``None`` if there is no such
    step
    """


@dataclass(frozen=True, slots=True)
class RankRpc:
    """RPCs of one rank; times are medians over steps, in ns per step."""

    rank: int
    num_sync_calls: int
    waited_ns: int
    longest_wait_ns: int
    """longest wait for a single synchronous call"""
    calls: tuple[RpcCalls, ...]
    """calls in descending order of their total time"""


def measure_rpc(record: Record) -> RankRpc | None:
    """Measure the rank's RPCs; return ``None`` if no step has a call."""
    light = [step for step in record.steps if step.mode is StepMode.LIGHT]
    steps = light or [step for step in record.steps if step.mode is StepMode.PROFILED]
    sync = [[call for call in step.rpc if call.kind == "sync"] for step in steps]
    keys = dict.fromkeys((call.callee, call.function, call.kind) for step in steps for call in step.rpc)
    if not keys:
        return None
    made = [_calls(key, [step.rpc for step in steps]) for key in keys]
    return RankRpc(
        rank=record.rank,
        num_sync_calls=median_known(map(len, sync)) or 0,
        waited_ns=median_known(map(_length, sync)) or 0,
        longest_wait_ns=median_known(max((_length([call]) for call in calls), default=0) for calls in sync) or 0,
        calls=tuple(
            sorted((one for one in made if one.num_calls), key=lambda one: -one.num_calls * (one.latency_ns or 0))
        ),
    )


def spans_of(calls: Iterable[RpcCall], epoch_ns: int = 0) -> Spans:
    """Return the union of the answered calls, in ns since `epoch_ns`."""
    times = [(call.start_ns, call.end_ns) for call in calls if call.end_ns is not None]
    spans = np.array(times, np.int64).reshape(-1, 2) - epoch_ns
    return union(spans[:, 0], spans[:, 1])


def _length(calls: Sequence[RpcCall]) -> int:
    return spans_of(calls).total_ns


def _calls(key: tuple[str, str, str], of_steps: Sequence[Sequence[RpcCall]]) -> RpcCalls:
    steps = [[call for call in calls if (call.callee, call.function, call.kind) == key] for calls in of_steps]
    latencies = [call.end_ns - call.start_ns for calls in steps for call in calls if call.end_ns is not None]
    answered = [calls for calls in steps if all(call.reply_bytes is not None for call in calls)]
    return RpcCalls(
        *key,
        num_calls=median_known(map(len, steps)) or 0,
        latency_ns=median_known(latencies),
        request_bytes=median_known(sum(call.request_bytes for call in calls) for calls in steps) or 0,
        reply_bytes=median_known(sum(call.reply_bytes or 0 for call in calls) for calls in answered)
        if latencies
        else None,
    )


def calls_that_block(ranks: Sequence[RankRpc], view: View) -> Iterator[Finding]:
    """Report sequential synchronous calls, and a single long call."""
    rank = max(ranks, key=lambda one: one.waited_ns - one.longest_wait_ns)
    gain = rank.waited_ns - rank.longest_wait_ns
    if rank.num_sync_calls > 1 and view.worth(gain):
        yield Finding(
            "rpcs-in-a-row",
            f"Rank {rank.rank} waits {in_ms(rank.waited_ns)} per step for {rank.num_sync_calls} RPCs, one after "
            "another",
            f"the longest takes {in_ms(rank.longest_wait_ns)}; DDP's own communication is not included",
            "Combine calls to the same function into one call. If no call needs the result of another call, send all "
            "calls with rpc.rpc_async, and call torch.futures.wait_all(futures) where the results are needed. Send the "
            "calls for the next batch before the backward pass of the current batch.",
            gain,
            numbers=only_known(
                num_calls=rank.num_sync_calls, waiting_ns=rank.waited_ns, longest_wait_ns=rank.longest_wait_ns
            ),
        )
    rank = max(ranks, key=lambda one: one.longest_wait_ns)
    waits = [calls for calls in rank.calls if calls.kind == "sync"]
    if waits and view.step_ns and rank.longest_wait_ns >= _LONG_SHARE * view.step_ns:
        longest = max(waits, key=lambda calls: calls.latency_ns or 0)
        yield Finding(
            "long-rpc",
            f"Rank {rank.rank} blocks until {longest.callee} answers an RPC",
            f"one synchronous call to {longest.function} takes {in_ms(rank.longest_wait_ns)} per step; DDP's own "
            "communication is not included",
            "Send the call earlier with rpc.rpc_async, for example for the next batch before the backward pass of the "
            "current batch, and wait for the result where it is needed. Or make the function itself faster.",
            rank.longest_wait_ns,
            numbers=only_known(longest_wait_ns=rank.longest_wait_ns),
        )


def rpc_table(ranks: Sequence[RankRpc], _report: ReportView) -> Iterable[Section]:
    rows = [(rank.rank, calls) for rank in ranks for calls in rank.calls]
    if not rows:
        return
    yield table_of(
        "RPCs per step (medians)",
        rows[:_MAX_ROWS],
        {
            "rank": lambda row: str(row[0]),
            "calls": lambda row: clean(row[1].function, most=60),
            "on": lambda row: clean(row[1].callee, most=40),
            "kind": lambda row: clean(row[1].kind, most=30),
            "times": lambda row: str(row[1].num_calls),
            "latency ms": lambda row: ms(row[1].latency_ns),
            "kB out": lambda row: f"{row[1].request_bytes / 1e3:.1f}",
            "kB back": lambda row: ABSENT if row[1].reply_bytes is None else f"{row[1].reply_bytes / 1e3:.1f}",
        },
        ("calls", "on", "kind"),
        notes(
            "latency: time of one call, measured by the caller; kB: size of the tensors in all calls",
            cut_off(len(rows), _MAX_ROWS, "rows"),
        ),
    )
    waits = "; ".join(f"rank {rank.rank} {ms(rank.waited_ns)}" for rank in ranks[:_MAX_ROWS])
    yield Line(
        f"Waiting in synchronous RPCs, ms per step: {waits}. This does not include DDP's communication.", is_aside=True
    )


RPC: Topic[RankRpc, tuple[RankRpc, ...]] = Topic(
    name="rpc",
    sections={"collectives": rpc_table},
    rules=(calls_that_block,),
    of_rank=lambda rank, _steps, _modules: None if rank.record is None else measure_rpc(rank.record),
    rank_type=RankRpc,
    of_ranks=tuple,
)
