"""Calls through RPC, from records made by hand."""

from typing import Any

from tables import record, recorded

from ddpprof.model import RecordedStep, RpcCall
from ddpprof.topics.rpc import RankRpc, RpcCalls, measure_rpc


def call(start: int, end: int | None, kind: str = "sync", **changes: Any) -> RpcCall:
    given = {"callee": "ps", "function": "lookup", "request_bytes": 8, "reply_bytes": 64, **changes}
    return RpcCall(kind=kind, start_ns=start, end_ns=end, **given)


def step(number: int, *calls: RpcCall, mode: str = "light", left_out: int = 0) -> RecordedStep:
    return recorded(number, mode=mode, rpc=calls, rpc_left_out=left_out)


def test_medians_over_steps() -> None:
    steps = [
        step(3, call(0, 10), call(20, 40), call(30, 90, "async")),
        step(5, call(0, 14), call(20, 32), call(30, 80, "async"), left_out=4),
        step(7, call(0, 12), call(20, 50), call(30, 70, "async"), left_out=2),
    ]
    assert measure_rpc(record(1, [], steps)) == RankRpc(
        rank=1,
        num_sync_calls=2,
        waited_ns=30,
        longest_wait_ns=20,
        in_flight_ns=74,
        num_left_out=2,
        calls=(RpcCalls("ps", "lookup", "async", 1, 50, 8, 64), RpcCalls("ps", "lookup", "sync", 2, 13, 16, 128)),
    )


def test_calls_at_once_wait_once() -> None:
    measured = measure_rpc(record(0, [], [step(3, call(0, 10), call(5, 20))]))
    assert measured is not None
    assert (measured.waited_ns, measured.longest_wait_ns, measured.in_flight_ns) == (20, 15, 20)


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
