"""How a job failed: which rank was first, and what followed from it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tables import record

from ddpprof.model import ProcessExit, Record
from ddpprof.topics.failure import find_failure, rank_end, with_exits

LOST = "failed: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:10434."
LATE = "failed: RuntimeError: [b.cc:78] Timed out waiting 20000ms for recv operation to complete."
BOOM = "failed: ValueError: boom"


def of(rank: int, ended: str | None, at: int | None = None, **changes: Any) -> Record:
    time = {"ended_unix_ns": at} if ended is not None else {"last_step_unix_ns": at}
    return replace(record(rank), host="a", pid=100 + rank, ended=ended, **time, **changes)


def job(exit_code: int, interrupted: bool = False) -> ProcessExit:
    return ProcessExit(exit_code, is_job=True, interrupted=interrupted)


def seen(rank: int, exit_code: int, at: int | None = None) -> ProcessExit:
    return ProcessExit(exit_code, host="a", pid=100 + rank, unix_ns=at)


@pytest.mark.parametrize(
    ("records", "exits", "first", "others"),
    [
        pytest.param([of(0, LOST, 20), of(1, BOOM, 10)], [], 1, [0], id="an-error"),
        pytest.param([of(0, BOOM, 20), of(1, BOOM, 10)], [], 1, [0], id="the-earlier-of-two-errors"),
        pytest.param([of(0, LOST, 10), of(1, BOOM, 20)], [], 1, [0], id="an-error-before-what-it-caused-by-the-clock"),
        pytest.param([of(0, LOST, 20), of(1, None, 5)], [seen(1, -9, 8), seen(0, 1, 9)], 1, [0], id="killed"),
        pytest.param([of(0, None, 5), of(1, BOOM, 8)], [seen(1, 1), seen(0, -15)], 1, [0], id="ended-by-torchrun"),
        pytest.param([of(0, LATE, 30), of(1, None, 5)], [seen(0, 1, 30), seen(1, -15, 31)], None, [0, 1], id="hang"),
        pytest.param([of(0, LOST, 30), of(1, "finished", 25)], [], None, [0], id="uneven"),
        pytest.param([of(0, LOST, 30), of(1, "finished", 25)], [seen(1, 5), seen(0, -15)], 1, [0], id="sys-exit"),
        pytest.param([of(0, "finished"), of(1, "finished")], [seen(0, 3), seen(1, -15), job(1)], 0, [], id="exit-code"),
        pytest.param([of(0, LOST, 9), of(1, None)], [], 1, [0], id="the-only-one-that-can-have-been-lost"),
        pytest.param([of(0, LOST, 9), of(1, None), of(2, None)], [], None, [0, 1, 2], id="one-of-two-was-lost"),
        pytest.param([of(0, None), of(1, None)], [job(1)], None, [0, 1], id="all-without-a-word"),
        pytest.param([of(0, None), of(1, "finished")], [ProcessExit(3, rank=0)], 0, [], id="a-rank-wrapped-in-a-job"),
        pytest.param([of(0, LOST, 20)], [ProcessExit(-9, rank=1, unix_ns=8)], 1, [0], id="killed-and-without-a-record"),
    ],
)
def test_a_failure(records: list[Record], exits: list[ProcessExit], first: int | None, others: list[int]) -> None:
    failure = find_failure([rank_end(one) for one in records], exits)
    assert failure is not None
    assert (failure.first.rank if failure.first else None) == first
    assert [end.rank for end in failure.others] == others
    finished = [one.rank for one in records if one.ended == "finished"]
    assert [end.rank for end in failure.finished] == [rank for rank in finished if rank != first]


@pytest.mark.parametrize(
    ("ended", "exits"),
    [
        pytest.param(["finished", "finished"], [], id="finished"),
        pytest.param(["finished", "stopped"], [job(0)], id="stopped"),
        pytest.param(["stopped recording: disk full.", "finished"], [job(0)], id="the-recording-stopped"),
        pytest.param([None, None], [], id="may-still-run"),
        pytest.param([None, "finished"], [job(0)], id="the-script-ends-with-os-exit"),
        pytest.param([BOOM, LOST], [job(0)], id="the-error-was-caught-or-the-job-started-again"),
        pytest.param(["interrupted", None], [], id="Ctrl-C"),
        pytest.param([None, LOST], [job(-15, interrupted=True), ], id="the-job-was-asked-to-end"),
        pytest.param([], [job(1)], id="nothing-recorded"),
    ],
)  # fmt: skip
def test_no_failure(ended: list[str | None], exits: list[ProcessExit]) -> None:
    assert find_failure([rank_end(of(rank, one)) for rank, one in enumerate(ended)], exits) is None


def test_what_is_known_of_a_rank_that_was_killed() -> None:
    failure = find_failure([rank_end(of(1, None, 7, num_steps=41))], [seen(1, -9, 8), job(1)])
    assert failure is not None
    assert failure.first is not None
    assert (failure.first.num_steps, failure.first.exit_code, failure.first.unix_ns) == (41, -9, 8)


def test_an_exit_of_an_earlier_attempt_is_not_of_a_rank_that_went_on_after_it() -> None:
    end = rank_end(of(1, None, 7))
    before, after = ProcessExit(3, rank=1, unix_ns=5), ProcessExit(-9, rank=1, unix_ns=9)
    assert with_exits([end], [before, after])[0].exit_code == -9
    assert with_exits([end], [before])[0].exit_code is None


def test_ranks_on_one_gpu_have_not_lost_each_other() -> None:
    refused = "failed: DistBackendError: Multiple Ranks are using the same GPU/Partition : rank 1 (NCCL error)"
    failure = find_failure([rank_end(of(0, refused, 20)), rank_end(of(1, refused, 10))], [])
    assert failure is not None
    assert failure.first is not None
    assert failure.first.rank == 1
