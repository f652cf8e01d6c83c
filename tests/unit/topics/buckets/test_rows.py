"""One row per bucket, over steps and ranks."""

import pytest
from msgspec.structs import replace
from tables import ddp_module

from ddpprof.topics.buckets.rows import BucketRow, summarise_buckets
from ddpprof.topics.buckets.steps import BucketStep

MODULE = ddp_module((100, 20, 3), [[2, 1], [0]])


def row(step: int = 10, index: int = 0, origin: int = 0, **changes: int | None) -> BucketStep:
    given: dict = {
        "first_ready_ns": 5, "ready_ns": 20, "launched_ns": 21, "started_ns": 22, "finished_ns": 40,
        "last_parameter": 1, "previous_ready_ns": 5, **changes,
    }  # fmt: skip
    return BucketStep(step=step, module=0, index=index, origin_ns=origin, **given)


def test_one_row_is_its_own_median() -> None:
    assert summarise_buckets([MODULE], {0: [row()]}, one_clock=True) == (
        BucketRow(
            module=0, index=0, num_bytes=23, num_parameters=2, first_parameter="p2", last_parameter="p1",
            first_ready_ns=5, ready_ns=20, launched_ns=21, started_ns=22, finished_ns=40, transfer_ns=18,
            slowest_parameter="p1", slowest_parameter_delay_ns=15, late_rank=None, late_by_ns=None,
        ),
    )  # fmt: skip


def test_medians_are_over_steps_and_ranks() -> None:
    ranks = {0: [row(10, ready_ns=10), row(11, ready_ns=30)], 1: [row(10, ready_ns=20), row(11, ready_ns=None)]}
    (summary,) = summarise_buckets([MODULE], ranks, one_clock=True)
    assert summary.ready_ns == 20
    assert summary.slowest_parameter_delay_ns == 15


def test_buckets_come_in_order_and_what_was_not_observed_is_none() -> None:
    absent = row(index=1, ready_ns=None, previous_ready_ns=None, started_ns=None, last_parameter=None)
    first, second = summarise_buckets([MODULE], {0: [absent, row()]}, one_clock=True)
    assert (first.index, second.index, second.num_bytes) == (0, 1, 100)
    assert (second.ready_ns, second.transfer_ns, second.slowest_parameter, second.slowest_parameter_delay_ns) == (
        None, None, None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spans", "transfer_ns"),
    [
        pytest.param({0: [(0, 50)], 1: [(40, 50)]}, 10, id="the-shortest-of-the-ranks"),
        pytest.param({0: [(0, 50), (0, 8)], 1: [(40, 50), (0, 30)]}, 9, id="median-over-steps"),
        pytest.param({0: [(None, 50)], 1: [(40, 50)]}, 10, id="of-the-ranks-that-say"),
        pytest.param({0: [(None, 50)], 1: [(40, None)]}, None, id="none-says"),
    ],
)
def test_transfer(spans: dict[int, list[tuple[int | None, int | None]]], transfer_ns: int | None) -> None:
    ranks = {
        rank: [row(10 + step, started_ns=start, finished_ns=end) for step, (start, end) in enumerate(times)]
        for rank, times in spans.items()
    }
    (summary,) = summarise_buckets([MODULE], ranks, one_clock=True)
    assert summary.transfer_ns == transfer_ns


LATE = {0: [row(10, launched_ns=20), row(11, launched_ns=20), row(12, launched_ns=90)],
        1: [row(10, launched_ns=50), row(11, launched_ns=70), row(12, launched_ns=20)]}  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "one_clock", "late"),
    [
        pytest.param(LATE, True, (1, 50), id="late-in-most-steps"),
        pytest.param(LATE, False, (None, None), id="no-common-clock"),
        pytest.param({0: LATE[0]}, True, (None, None), id="one-rank"),
        pytest.param({0: [row(launched_ns=None)], 1: [row()]}, True, (None, None), id="a-launch-is-missing"),
        pytest.param(
            {0: [row(origin=100, launched_ns=20)], 1: [row(origin=0, launched_ns=70)]}, True, (0, 50),
            id="by-the-clock-not-since-the-forward",
        ),
    ],
)  # fmt: skip
def test_the_late_rank(ranks: dict, one_clock: bool, late: tuple[int | None, int | None]) -> None:
    (summary,) = summarise_buckets([MODULE], ranks, one_clock)
    assert (summary.late_rank, summary.late_by_ns) == late


def test_no_rows_no_table() -> None:
    assert summarise_buckets([MODULE], {0: [], 1: []}, one_clock=True) == ()


def test_medians_are_over_all_backward_passes_of_a_step() -> None:
    rows = [row(step, pass_index=index, ready_ns=20 + index) for step in (10, 11) for index in (0, 1, 2)]
    (summary,) = summarise_buckets([MODULE], {0: rows}, one_clock=True)
    assert (summary.num_passes, summary.ready_ns) == (3, 21)


def test_ranks_are_compared_pass_by_pass() -> None:
    ranks = {
        0: [row(10, pass_index=0, launched_ns=20), row(10, pass_index=1, launched_ns=90)],
        1: [row(10, pass_index=0, launched_ns=24), row(10, pass_index=1, launched_ns=94)],
    }
    (summary,) = summarise_buckets([MODULE], ranks, one_clock=True)
    assert (summary.late_rank, summary.late_by_ns) == (1, 4)


def test_sparse_gradients_have_no_size() -> None:
    sparse = replace(MODULE, parameters=tuple(replace(one, is_sparse=True) for one in MODULE.parameters))
    (summary,) = summarise_buckets([sparse], {0: [row()]}, one_clock=True)
    assert summary.num_bytes is None
