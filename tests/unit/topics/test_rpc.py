"""Calls through RPC, from records made by hand."""

from typing import Any

import pytest
from observations import MS, beside
from tables import record, recorded

from ddpprof.model import RecordedStep, RpcCall
from ddpprof.topics.rpc import RankRpc, RpcCalls, measure_rpc


def call(start: int, end: int | None, kind: str = "sync", **changes: Any) -> RpcCall:
    given = {"callee": "ps", "function": "lookup", "request_bytes": 8, "reply_bytes": 64, **changes}
    return RpcCall(kind=kind, start_ns=start, end_ns=end, **given)


def step(number: int, *calls: RpcCall, mode: str = "light") -> RecordedStep:
    return recorded(number, mode=mode, rpc=calls)


def test_medians_over_steps() -> None:
    steps = [
        step(3, call(0, 10), call(20, 40), call(30, 90, "async")),
        step(5, call(0, 14), call(20, 32), call(30, 80, "async")),
        step(7, call(0, 12), call(20, 50), call(30, 70, "async")),
    ]
    assert measure_rpc(record(1, [], steps)) == RankRpc(
        rank=1,
        num_sync_calls=2,
        waited_ns=30,
        longest_wait_ns=20,
        calls=(RpcCalls("ps", "lookup", "async", 1, 50, 8, 64), RpcCalls("ps", "lookup", "sync", 2, 13, 16, 128)),
    )


def test_calls_at_once_wait_once() -> None:
    measured = measure_rpc(record(0, [], [step(3, call(0, 10), call(5, 20))]))
    assert measured is not None
    assert (measured.waited_ns, measured.longest_wait_ns) == (20, 15)


def test_a_call_that_is_not_answered_has_no_latency() -> None:
    measured = measure_rpc(record(0, [], [step(3, call(0, None, reply_bytes=None))]))
    assert measured is not None
    assert measured.calls == (RpcCalls("ps", "lookup", "sync", 1, None, 8, None),)
    assert (measured.waited_ns, measured.longest_wait_ns) == (0, 0)


def test_the_bytes_of_answers_are_those_of_steps_that_saw_them_all() -> None:
    """In the second and third steps one of the two answers came too late."""
    late = call(20, None, reply_bytes=None)
    steps = [step(3, call(0, 10), call(20, 30)), step(5, call(0, 10), late), step(7, call(0, 10), late)]
    measured = measure_rpc(record(0, [], steps))
    assert measured is not None
    assert [one.reply_bytes for one in measured.calls] == [128]


def test_light_steps_count_where_there_are_any() -> None:
    profiled = step(9, call(0, 90), mode="profiled")
    only_light = measure_rpc(record(0, [], [step(3, call(0, 10)), profiled]))
    only_profiled = measure_rpc(record(0, [], [step(3, mode="off"), profiled]))
    assert [one.waited_ns for one in (only_light, only_profiled) if one is not None] == [10, 90]


def test_what_most_steps_do_not_call_is_left_out() -> None:
    measured = measure_rpc(
        record(0, [], [step(3, call(0, 10), call(20, 30, callee="rare")), step(5, call(0, 10)), step(7, call(0, 10))])
    )
    assert measured is not None
    assert [calls.callee for calls in measured.calls] == ["ps"]


def test_a_rank_that_calls_nobody() -> None:
    assert measure_rpc(record(0, [], [step(3), step(5, call(0, 1), mode="warmup")])) is None


def calling(*calls: RpcCalls, sync: int = 0, waited: int = 0, longest: int = 0, rank: int = 0) -> RankRpc:
    return RankRpc(rank, sync, waited, longest, calls)


def called(times: int, latency_ns: int | None, kind: str = "sync") -> RpcCalls:
    return RpcCalls("ps", "lookup", kind, times, latency_ns, 64 * times, times)


@pytest.mark.parametrize(
    "rpc",
    [
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
    assert finding.title == "Rank 1 waits 9.00 ms per step for 3 RPCs, one after another"


def test_one_long_call_could_be_sent_earlier() -> None:
    calls = (called(1, 30 * MS), called(2, 40 * MS, "async"))
    (finding,) = beside("rpc", (calling(*calls, sync=1, waited=30 * MS, longest=30 * MS),))
    assert (finding.rule, finding.gain_ns) == ("long-rpc", 30 * MS)
    assert finding.title == "Rank 0 blocks until ps answers an RPC"
    assert finding.evidence.startswith("one synchronous call to lookup takes 30.0 ms per step")


def test_of_calls_in_a_row_the_longest_is_left() -> None:
    rpc = calling(called(3, 20 * MS), sync=3, waited=60 * MS, longest=20 * MS)
    assert [(one.rule, one.gain_ns) for one in beside("rpc", (rpc,))] == [
        ("rpcs-in-a-row", 40 * MS), ("long-rpc", 20 * MS),
    ]  # fmt: skip
