"""Calls through ``torch.distributed.rpc``, from the record to the words for them."""

from __future__ import annotations

from ddpprof.rpc.calls import RankRpc, measure_rpc
from ddpprof.rpc.rules import calls_in_a_row, many_small_calls, one_long_call
from ddpprof.rpc.sections import rpc_table
from ddpprof.side_street import SideStreet

RPC: SideStreet[RankRpc, tuple[RankRpc, ...]] = SideStreet(
    folder="rpc",
    report_field="rpc",
    sections={"collectives": rpc_table},
    rules=(many_small_calls, calls_in_a_row, one_long_call),
    of_rank=lambda rank, _: None if rank.record is None else measure_rpc(rank.record),
    of_ranks=tuple,
)
