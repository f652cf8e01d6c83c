"""Rules about calls through ``torch.distributed.rpc`` of the rank that loses most time by them; others wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpprof.findings.finding import Finding, Observed, in_ms, size
from ddpprof.rpc.calls import RankRpc, RpcCalls

_MANY = 8
"""calls of one function per step"""
_LONG_SHARE = 0.1
"""least share of the step that one call takes for it to be long"""
_SMALL_BYTES = 64 * 1024
"""size of a call up to which its cost is latency"""


def many_small_calls(ranks: Sequence[RankRpc], o: Observed) -> Iterator[Finding]:
    """Report a function that is called again and again with little data each time."""
    found = [(rank, calls) for rank in ranks for calls in rank.calls if _is_chatty(calls)]
    if not found:
        return
    rank, calls = max(found, key=lambda one: _time_ns(one[1]))
    gain = min(_time_ns(calls) - (calls.latency_ns or 0), rank.waited_ns) if calls.kind == "sync" else None
    if not o.worth(_time_ns(calls) if gain is None else gain):
        return
    moved = calls.request_bytes + (calls.reply_bytes or 0)
    yield Finding(
        "many-small-rpcs",
        f"Rank {rank.rank} calls {calls.function} on {calls.callee} {calls.num_calls} times per step",
        f"each call takes {in_ms(calls.latency_ns or 0)} and moves {size(moved / calls.num_calls)} of tensors on "
        "average",
        f"Send them together, as one call that takes all inputs of {calls.function} in a step and returns all results, "
        "or collect them on the callee with @rpc.functions.async_execution.",
        gain,
    )


def _is_chatty(calls: RpcCalls) -> bool:
    moved = calls.request_bytes + (calls.reply_bytes or 0)
    return calls.num_calls >= _MANY and moved <= _SMALL_BYTES * calls.num_calls


def _time_ns(calls: RpcCalls) -> int:
    return calls.num_calls * (calls.latency_ns or 0)


def calls_in_a_row(ranks: Sequence[RankRpc], o: Observed) -> Iterator[Finding]:
    """Report synchronous calls that each wait for an answer before the next is sent."""
    rank = max(ranks, key=_gain_ns)
    if rank.num_sync_calls < 2 or not o.worth(_gain_ns(rank)):
        return
    yield Finding(
        "rpcs-in-a-row",
        f"Rank {rank.rank} waits {in_ms(rank.waited_ns)} per step for {rank.num_sync_calls} RPCs, one after the other",
        f"the longest takes {in_ms(rank.longest_wait_ns)}; DDP's own communication is not included",
        "If none needs another's answer, send all with rpc.rpc_async, and call torch.futures.wait_all(futures) "
        "where the answers are needed; fetch the next batch's during this one's backward pass.",
        _gain_ns(rank),
    )


def _gain_ns(rank: RankRpc) -> int:
    return rank.waited_ns - rank.longest_wait_ns


def one_long_call(ranks: Sequence[RankRpc], o: Observed) -> Iterator[Finding]:
    """Report a synchronous call during which the rank stands still for much of the step."""
    rank = max(ranks, key=lambda one: one.longest_wait_ns)
    waits = [calls for calls in rank.calls if calls.kind == "sync"]
    if not waits or not o.step_ns or rank.longest_wait_ns < _LONG_SHARE * o.step_ns:
        return
    longest = max(waits, key=lambda calls: calls.latency_ns or 0)
    yield Finding(
        "long-rpc",
        f"Rank {rank.rank} stands still until {longest.callee} answers an RPC",
        f"one synchronous call of {longest.function} takes {in_ms(rank.longest_wait_ns)} per step; DDP's own "
        "communication is not included",
        "Send it earlier with rpc.rpc_async, such as for the next batch during this one's backward pass, and wait for "
        "the answer where it is needed; or make the function itself faster.",
        rank.longest_wait_ns,
    )
