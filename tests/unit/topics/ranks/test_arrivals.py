"""Transfer and waiting need no common clock; who came last does."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import call, job, rank, shifted, without

from ddpprof.intervals import Spans, subtract, union
from ddpprof.model import NO_STEP, UNKNOWN, ProcessGroup
from ddpprof.topics.collective_matching import RankCollectives, match_collectives
from ddpprof.topics.ranks.clock import find_common_clock
from ddpprof.topics.ranks.own_time import Arrivals, RankWaiting, measure_arrivals, summarize_waiting

MS = 1_000_000
THREE = [
    rank(0, call(0, 50), call(60, 90)),
    rank(1, call(30, 50), call(61, 90)),
    rank(2, call(10, 50), call(80, 90)),
]


def arrivals(ranks: list[RankCollectives], with_clock: bool = True) -> Arrivals:
    matched = match_collectives(ranks)
    return measure_arrivals(ranks, matched, find_common_clock(ranks, matched) if with_clock else None)


def waiting(ranks: list[RankCollectives]) -> tuple[RankWaiting, ...]:
    matched = match_collectives(ranks)
    return summarize_waiting(matched, measure_arrivals(ranks, matched, find_common_clock(ranks, matched)))


def lists(*columns: Any) -> list[Any]:
    return [column.tolist() for column in columns]


def test_the_last_to_come_does_not_wait() -> None:
    found = arrivals(THREE)
    assert found.last_rank is not None
    assert lists(found.waiting_ns, found.last_rank) == [[[30, 0, 20], [20, 19, 0]], [1, 2]]


def test_without_a_common_clock_there_is_waiting_but_nobody_comes_last() -> None:
    found = arrivals(THREE, with_clock=False)
    assert found.waiting_ns.tolist() == [[30, 0, 20], [20, 19, 0]]
    assert found.last_rank is None


def test_ranks_that_do_not_take_part_neither_wait_nor_come_last() -> None:
    world, pair = ProcessGroup("0", 3, (0, 1, 2)), ProcessGroup("1", 2, (0, 1))
    ranks = [
        rank(r, call(r, 10, group=0), *([call(20 + r, 30, group=1)] if r < 2 else []), groups=[world, pair])
        for r in range(3)
    ]
    found = arrivals(ranks)
    assert found.waiting_ns.tolist() == [[2, 1, 0], [1, 0, UNKNOWN]]
    assert found.last_rank is not None
    assert found.last_rank.tolist() == [2, 1]


def test_each_ranks_summary() -> None:
    assert waiting(THREE) == (
        RankWaiting(0, 2, 0, 25, 50, 50),
        RankWaiting(1, 2, 1, 10, 19, 19),  # the median of 0 and 19 is 9.5
        RankWaiting(2, 2, 1, 10, 20, 20),
    )


def test_waiting_adds_up_within_a_step_and_is_a_median_over_steps() -> None:
    late = {0: 2 * MS, 1: 0, 2: 6 * MS, 3: 2 * MS}
    zero, one = waiting(job(2, 4, late=lambda r, c: late[c] * r))
    assert (zero.waiting_per_step_ns, zero.total_waiting_ns) == (2 * MS, 10 * MS)
    assert (one.waiting_per_step_ns, one.num_last) == (0, 3)  # both come together once, and rank 0 is counted


def test_collectives_of_no_step_have_no_sum_per_step() -> None:
    ranks = [rank(r, call(r, 9, step=NO_STEP, sequence=1, group=0), groups=[ProcessGroup("0")]) for r in range(2)]
    assert [one.waiting_per_step_ns for one in waiting(ranks)] == [None, None]


def test_nothing_matched() -> None:
    found = arrivals([rank(0, call(0, 9))])
    assert found.waiting_ns.shape == (0, 1)
    assert waiting([rank(0, call(0, 9))]) == ()


@given(st.integers(0, 3), st.integers(-(1 << 60), 1 << 60))
def test_a_shifted_clock_changes_nothing(number: int, by_ns: int) -> None:
    ranks = job(4, 8, late=lambda r, c: (r * 7 + c * 3) % 5 * MS)
    before, after = arrivals(ranks), arrivals([shifted(one, by_ns) if one.rank == number else one for one in ranks])
    for name in ("waiting_ns", "last_rank"):
        assert np.array_equal(getattr(before, name), getattr(after, name)), name


@pytest.mark.parametrize("dropped", range(3))
def test_without_a_rank_the_others_seem_to_wait_less_or_the_same(dropped: int) -> None:
    whole, fewer = arrivals(THREE), arrivals([one for one in THREE if one.rank != dropped])
    assert (np.delete(whole.waiting_ns, dropped, axis=1) >= fewer.waiting_ns).all()


def test_a_collective_that_one_rank_lost_costs_its_step() -> None:
    ranks = job(3, 4)
    assert len(arrivals([*ranks[:2], without(ranks[2], 1)]).waiting_ns) == 3


def test_of_ranks_that_come_at_once_none_is_the_last() -> None:
    ranks = [rank(0, call(0, 10), call(20, 30)), rank(1, call(0, 10), call(20, 30))]
    matched = match_collectives(ranks)
    arrivals = measure_arrivals(ranks, matched, find_common_clock(ranks, matched))
    assert arrivals.last_rank is not None
    assert arrivals.last_rank.tolist() == [UNKNOWN, UNKNOWN]
    assert [one.num_last for one in summarize_waiting(matched, arrivals)] == [0, 0]


def test_waiting_in_collectives_at_once_counts_once_in_a_step() -> None:
    ranks = [rank(0, call(0, 100), call(10, 110)), rank(1, call(80, 100), call(90, 110))]
    matched = match_collectives(ranks)
    waiting = summarize_waiting(matched, measure_arrivals(ranks, matched, None))
    assert [one.waiting_per_step_ns for one in waiting] == [90, 0]
    assert [one.total_waiting_ns for one in waiting] == [160, 0]


def test_exposed_is_the_waiting_under_which_nothing_is_computed() -> None:
    ranks = [rank(0, call(0, 100), call(10, 110)), rank(1, call(80, 100), call(90, 110))]
    matched = match_collectives(ranks)
    computes = Spans(np.array([20, 85]), np.array([50, 200]))
    exposed = {one.rank: subtract(union(one.collectives.start_ns, one.collectives.end_ns), computes) for one in ranks}
    waiting = summarize_waiting(matched, measure_arrivals(ranks, matched, None), exposed)
    assert [one.exposed_waiting_ns for one in waiting] == [20 + 35, 0]  # it waits from 0 to 90
