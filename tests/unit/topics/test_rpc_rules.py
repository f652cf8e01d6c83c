"""Rules about RPC."""

import pytest
from observations import MS, beside

from ddpprof.topics.rpc import RankRpc, RpcCalls


def calling(*calls: RpcCalls, sync: int = 0, waited: int = 0, longest: int = 0, rank: int = 0) -> RankRpc:
    return RankRpc(rank, sync, waited, longest, waited, 0, calls)


def called(times: int, latency_ns: int | None, kind: str = "sync", size: int = 64 * 1024) -> RpcCalls:
    """`size`: bytes of a call, all but one of them its request's."""
    return RpcCalls("ps", "lookup", kind, times, latency_ns, times * (size - 1), times)


@pytest.mark.parametrize(
    ("rpc", "gain_ns"),
    [
        pytest.param(calling(called(8, MS), sync=1, waited=8 * MS, longest=8 * MS), 7 * MS, id="eight"),
        pytest.param(calling(called(8, MS), sync=1, waited=3 * MS, longest=3 * MS), 3 * MS, id="at-once"),
        pytest.param(calling(called(8, MS, "async")), None, id="asynchronous"),
    ],
)
def test_many_small_rpcs(rpc: RankRpc, gain_ns: int | None) -> None:
    (finding,) = beside("rpc", (rpc,))
    assert (finding.rule, finding.gain_ns) == ("many-small-rpcs", gain_ns)
    assert finding.title == "Rank 0 calls lookup on ps 8 times per step"
    assert finding.evidence == "each call takes 1.00 ms and moves 65.5 kB of tensors on average"


@pytest.mark.parametrize(
    "rpc",
    [
        pytest.param(calling(called(7, MS), waited=7 * MS, longest=7 * MS), id="few"),
        pytest.param(calling(called(8, MS, size=64 * 1024 + 1), waited=8 * MS, longest=8 * MS), id="large"),
        pytest.param(calling(called(8, MS // 9), waited=MS, longest=MS), id="quick"),
        pytest.param(calling(called(8, None)), id="never-answered"),
        pytest.param(calling(sync=2, waited=3 * MS, longest=2 * MS + 1), id="hardly-in-a-row"),
        pytest.param(calling(sync=1, waited=9 * MS, longest=MS), id="one"),
    ],
)
def test_rpcs_that_are_no_mistake(rpc: RankRpc) -> None:
    assert beside("rpc", (rpc,)) == ()


def test_rpcs_in_a_row_of_the_rank_that_loses_most() -> None:
    ranks = (calling(sync=3, waited=6 * MS, longest=2 * MS), calling(sync=3, waited=9 * MS, longest=3 * MS, rank=1))
    (finding,) = beside("rpc", ranks)
    assert (finding.rule, finding.gain_ns) == ("rpcs-in-a-row", 6 * MS)
    assert finding.title == "Rank 1 waits 9.00 ms per step for 3 RPCs, one after the other"


def test_one_long_call_could_be_sent_earlier() -> None:
    calls = (called(1, 30 * MS), called(2, 40 * MS, "async"))
    (finding,) = beside("rpc", (calling(*calls, sync=1, waited=30 * MS, longest=30 * MS),))
    assert (finding.rule, finding.gain_ns) == ("long-rpc", 30 * MS)
    assert finding.title == "Rank 0 blocks until ps answers an RPC"
    assert finding.evidence.startswith("one synchronous call of lookup takes 30.00 ms per step")


def test_of_calls_in_a_row_the_longest_is_left() -> None:
    rpc = calling(called(3, 20 * MS), sync=3, waited=60 * MS, longest=20 * MS)
    assert [(one.rule, one.gain_ns) for one in beside("rpc", (rpc,))] == [
        ("rpcs-in-a-row", 40 * MS), ("long-rpc", 20 * MS),
    ]  # fmt: skip
