"""Calls through ``torch.distributed.rpc``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpprof.layout import ABSENT, Column, Line, Section, Table, clean, cut_off, ms, notes
from ddpprof.rpc.calls import RankRpc, RpcCalls

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
            "latency: one call, as the caller sees it; kB: tensors of all calls",
            f"up to {left_out} further calls per step were not kept" if left_out else "",
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
