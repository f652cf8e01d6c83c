"""Attempts of one job: how each ended, and what changed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tables import ddp_module, record, recorded

from ddpprof.model import Attempt, Record
from ddpprof.statistics.between_runs import Shift
from ddpprof.topics.attempts import AttemptChange, how_it_ended, summarize_attempts
from ddpprof.topics.failure import RankEnd


def attempt(number: int, *records: Record, **changes: Any) -> Attempt:
    given = {"restarts": number, "created_unix_s": 100.0 + number, "world_size": len(records), "is_shown": False}
    return Attempt(number=number, records=records, **{**given, **changes})


def of_steps(rank: int, *lengths: int, mode: str = "off", **changes: Any) -> Record:
    steps = [recorded(number, 0, length, mode) for number, length in enumerate(lengths)]
    return replace(record(rank, [ddp_module()], steps), **changes)


def test_an_attempt() -> None:
    one = attempt(0, of_steps(0, 10, 20, 60, host="a"), of_steps(1, 30, 40, host="b"), is_shown=True)
    (summary,) = summarize_attempts([one])
    assert (summary.attempt, summary.restarts, summary.world_size, summary.hosts) == (0, 0, 2, ("a", "b"))
    assert (summary.num_steps, summary.step_mode, summary.step_ns) == (3, "off", 30)  # 20, 30, 60
    assert (summary.after_first_ns, summary.changes, summary.step_change, summary.is_shown) == (0, (), None, True)


def test_steps_of_one_kind_are_compared() -> None:
    before = attempt(0, replace(of_steps(0), steps=(recorded(0, 0, 10, "off"), recorded(1, 0, 50, "light"))))
    without = attempt(1)
    after = attempt(2, of_steps(0, 70, mode="light"))
    summaries = summarize_attempts([before, without, after])
    assert [one.step_change for one in summaries] == [None, None, Shift(20.0, None, None)]
    assert [one.step_mode for one in summaries] == ["off", None, "light"]
    assert [one.after_first_ns for one in summaries] == [0, 1_000_000_000, 2_000_000_000]


def test_a_difference_has_its_noise() -> None:
    summaries = summarize_attempts([attempt(0, of_steps(0, 1, 2, 3, 4)), attempt(1, of_steps(0, 11, 12, 13, 14))])
    assert summaries[1].step_change == Shift(10.0, 7.0, 13.0)


def test_what_changed() -> None:
    before = attempt(0, of_steps(0, host="a"), of_steps(1, host="b"))
    module = ddp_module((4, 4), ((0, 1),), bucket_cap_mb=5.0)
    after = attempt(2, replace(of_steps(0, host="a"), modules=(module,)))
    assert summarize_attempts([before, attempt(1), after])[2].changes == (
        AttemptChange("ranks", "2", "1"),
        AttemptChange("hosts", "a, b", "a"),
        AttemptChange("buckets", "2 (4, 4 bytes)", "1 (8 bytes)"),
        AttemptChange("bucket_cap_mb", "25.0", "5.0"),
    )
    assert summarize_attempts([before, attempt(1), after])[1].changes == ()


@pytest.mark.parametrize(
    ("ended", "lost"),
    [
        ("failed: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:10434.", True),
        ("failed: DistBackendError: NCCL error in: x.cpp", True),
        ("failed: ValueError: bad batch", False),
        ("finished", False),
        (None, False),
    ],
)
def test_who_failed_for_another(ended: str | None, lost: bool) -> None:
    (end,) = summarize_attempts([attempt(0, of_steps(3, ended=ended, host="a"))])[0].ends
    assert end == RankEnd(3, "a", ended, lost, pid=7, backend="gloo")


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        pytest.param((), "before any rank started recording", id="nothing"),
        pytest.param(("finished", "finished"), "finished", id="finished"),
        pytest.param(("failed: KeyError: x", None, None), "rank 0 failed: KeyError: x; ranks 1, 2 killed", id="error"),
        pytest.param(
            ("failed: closed by peer", None), "rank 1 killed; rank 0 lost contact with the other ranks", id="kill"
        ),
        pytest.param(("finished", None), "rank 1 killed; rank 0 finished", id="at-the-end"),
        pytest.param(("stopped recording: disk", "finished", "finished"),
                     "rank 0 stopped recording: disk; ranks 1, 2 finished", id="recording"),
        pytest.param((None,) * 10, "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more killed", id="many"),
    ],
)  # fmt: skip
def test_how_an_attempt_ended(ends: tuple[str | None, ...], said: str) -> None:
    records = [of_steps(rank, ended=ended) for rank, ended in enumerate(ends)]
    (summary,) = summarize_attempts([attempt(0, *records)])
    assert how_it_ended(summary.ends) == said


def test_an_attempt_that_a_rank_ended_with_an_exit_code() -> None:
    ends = [
        RankEnd(0, "a", "failed: closed by peer", True, exit_code=-15),
        RankEnd(1, "a", "finished", False, exit_code=5),
    ]
    assert how_it_ended(ends) == "rank 1 ended with exit code 5; rank 0 lost contact with the other ranks"
