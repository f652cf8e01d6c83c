"""One clock for all ranks, from collectives that end together: offset, drift, and by how much they may be wrong."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import call, job, rank, shifted, without

from ddpprof.load.run import load_run
from ddpprof.model import CollectiveKind
from ddpprof.topics.collective_matching import RankCollectives, match_collectives, rank_collectives
from ddpprof.topics.ranks.clock import CommonClock, HostClock, RankClock, common_ns, find_common_clock

SAMPLES = Path(__file__).parents[4] / "sample_traces"
MS = 1_000_000
HOUR = 3_600_000 * MS


def clock_of(ranks: list[RankCollectives]) -> CommonClock:
    clock = find_common_clock(ranks, match_collectives(ranks))
    assert clock is not None
    return clock


def offsets(ranks: list[RankCollectives]) -> list[int]:
    return [one.offset_ns for one in clock_of(ranks).ranks]


def test_offsets_are_those_of_the_clocks() -> None:
    assert offsets(job(4, 5, offsets=[0, 7, -HOUR, 3 * HOUR])) == [0, 7, -HOUR, 3 * HOUR]


def test_the_lowest_rank_is_the_reference() -> None:
    assert offsets(job(3, 5, offsets=[1000, 0, 400])) == [0, -1000, -600]


def test_the_traces_epoch_counts() -> None:
    ranks = job(2, 5)
    assert offsets([ranks[0], replace(ranks[1], epoch_ns=250)]) == [0, 250]


def test_the_bound_is_what_causality_allows() -> None:
    # rank 1 starts 1 ms late and ends 1 ms after: its clock may be 1 ms ahead of what it seems, or rank 0's 2 ms behind
    (zero, one) = clock_of(job(2, 5, late=lambda r, _: r * MS)).ranks
    assert zero == RankClock(0, "node0", 0, 0.0, 0, 5)
    assert one == RankClock(1, "node1", 0, 0.0, 2 * MS, 5, noise_ns=0)


def test_the_noise_is_three_standard_errors_of_the_ends() -> None:
    ranks = [rank(0, *[call(t, t + 500) for t in range(0, 9000, 1000)])]
    ends = [500, 510, 490, 500, 520, 480, 500, 510, 490]
    ranks.append(rank(1, *[call(1000 * i, 1000 * i + end) for i, end in enumerate(ends)]))
    (_, one) = clock_of(ranks).ranks
    assert one.offset_ns == 0
    assert one.noise_ns == 15, "1.4826 x the median deviation of 10, by the root of 9, times 3"


def test_the_bound_is_the_intersection_over_collectives() -> None:
    ranks = [rank(0, call(0, 10), call(20, 24)), rank(1, call(7, 10), call(18, 24))]
    # [7 - 10, 10 - 0] and [18 - 24, 24 - 20]
    assert clock_of(ranks).ranks[1].bound_ns == 4


def test_the_estimate_is_moved_to_where_causality_allows_it() -> None:
    # Two of three ends of rank 1 are noticed late; the third says that its clock is at most 5 ahead.
    late = rank(1, call(0, 40), call(20, 60), call(40, 45), host="another")
    ranks = [rank(0, call(0, 10), call(20, 30), call(40, 50)), late]
    assert [(one.offset_ns, one.bound_ns) for one in clock_of(ranks).ranks] == [(0, 0), (5, 15)]


def test_ends_that_are_noticed_late_do_not_move_the_clock_of_a_rank_on_the_same_host() -> None:
    ranks = [rank(0, call(0, 10), call(20, 30), call(40, 50)), rank(1, call(0, 40), call(20, 60), call(40, 45))]
    assert [(one.offset_ns, one.bound_ns) for one in clock_of(ranks).ranks] == [(0, 0), (0, 10)]


def test_collectives_that_contradict_each_other_leave_no_bound() -> None:
    ranks = [rank(0, call(0, 10), call(20, 30)), rank(1, call(0, 10), call(70, 80))]
    assert clock_of(ranks).ranks[1].bound_ns is None


@pytest.mark.parametrize("kind", [CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.SEND_RECV])
def test_collectives_that_do_not_end_together_make_no_clock(kind: CollectiveKind) -> None:
    ranks = job(2, 5, kind=kind)
    assert find_common_clock(ranks, match_collectives(ranks)) is None


def test_nothing_matched_makes_no_clock() -> None:
    assert find_common_clock([], match_collectives([])) is None
    assert find_common_clock([rank(0, call(0, 9))], match_collectives([rank(0, call(0, 9))])) is None


def test_a_rank_that_shares_nothing_with_the_reference_has_no_clock() -> None:
    ranks = job(3, 2)
    clock = clock_of([*ranks[:2], without(ranks[2], 0, 1)])
    assert [one.rank for one in clock.ranks] == [0, 1]
    assert clock.find(2) is None


def test_a_clock_that_drifts() -> None:
    ranks = job(2, 200, offsets=[0, 5 * MS], drift_ppm={1: 40.0}, noise_ns=2_000)
    clock = clock_of(ranks)
    assert clock.ranks[1].drift_ppm == pytest.approx(40, abs=2)
    ends = [one.collectives.end_ns for one in ranks]
    assert np.abs(common_ns(clock.at_ns, clock.ranks[1], ends[1]) - ends[0]).max() < 25_000  # of a drift by 80 µs


@pytest.mark.parametrize(
    ("num_collectives", "noise_ns"),
    [pytest.param(7, 0, id="too-few"), pytest.param(40, 500_000, id="less-than-the-noise")],
)
def test_a_drift_that_cannot_be_told_is_none(num_collectives: int, noise_ns: int) -> None:
    ranks = job(2, num_collectives, drift_ppm={1: 40.0}, noise_ns=noise_ns, seed=1)
    assert clock_of(ranks).ranks[1].drift_ppm == 0


def test_noise_is_no_drift() -> None:
    drifts = [clock_of(job(2, 60, noise_ns=300_000, seed=seed)).ranks[1].drift_ppm for seed in range(40)]
    assert sum(drift != 0 for drift in drifts) <= 2


def test_ranks_of_one_host_share_its_clock_where_they_agree() -> None:
    hosts = ["a", "a", "b", "b", "b"]
    clock = clock_of(job(5, 30, offsets=[0, 0, HOUR, HOUR, HOUR], noise_ns=100_000, hosts=hosts, seed=3))
    assert clock.ranks[1].offset_ns == 0
    assert len({one.offset_ns for one in clock.ranks[2:]}) == 1
    assert clock.ranks[2].offset_ns == pytest.approx(HOUR, abs=100_000)
    first, second = clock.hosts
    assert (first.host, first.num_ranks, first.offset_ns) == ("a", 2, 0)
    assert (second.host, second.num_ranks, second.offset_ns) == ("b", 3, clock.ranks[2].offset_ns)


def test_ranks_under_one_host_name_need_not_share_a_clock() -> None:
    offset = [0, 5 * MS, HOUR, HOUR + 5 * MS, HOUR]
    clock = clock_of(job(5, 30, offsets=offset, noise_ns=100_000, hosts=["a", "a", "b", "b", "b"]))
    assert [one.offset_ns for one in clock.ranks] == pytest.approx(offset, abs=200_000)
    assert [host.offset_ns for host in clock.hosts] == [None, None]


def test_hosts_of_ranks_without_a_host_name_are_unknown() -> None:
    ranks = [replace(one, host=None) for one in job(2, 3)]
    assert clock_of(ranks).hosts == ()
    assert clock_of(job(1, 3) + job(2, 3)[1:]).hosts[0] == HostClock("node0", 1, 0, 0.0, 0)


@given(st.integers(1, 3), st.integers(-(1 << 60), 1 << 60))
def test_a_shifted_clock_changes_nothing_but_its_own_offset(number: int, by_ns: int) -> None:
    ranks = job(4, 12, noise_ns=50_000)
    before = clock_of(ranks)
    after = clock_of([shifted(one, by_ns) if one.rank == number else one for one in ranks])
    moved = replace(before.ranks[number], offset_ns=before.ranks[number].offset_ns + by_ns)
    assert after.ranks == tuple(moved if one.rank == number else one for one in before.ranks)


@given(st.permutations(range(4)), st.integers(1, 3))
def test_order_and_other_ranks_do_not_matter(order: list[int], dropped: int) -> None:
    ranks = job(4, 12, offsets=[0, HOUR, 5, -5], noise_ns=50_000)
    whole = clock_of(ranks)
    assert clock_of([ranks[number] for number in order]) == whole
    fewer = clock_of([one for one in ranks if one.rank != dropped])
    assert fewer.ranks == tuple(one for one in whole.ranks if one.rank != dropped)


def sample(run: str) -> list[RankCollectives]:
    return [one for rank in load_run(SAMPLES / run).ranks if (one := rank_collectives(rank)) is not None]


@pytest.mark.parametrize("run", ["convnet-gloo-2ranks", "transformer-gloo-4ranks"])
def test_the_ranks_of_a_sample_run_share_the_clock_of_their_host(run: str) -> None:
    clock = clock_of(sample(run))
    assert {(one.offset_ns, one.drift_ppm, one.num_collectives) for one in clock.ranks} == {(0, 0.0, 6)}
    assert max(one.bound_ns or 0 for one in clock.ranks) == 100_000


@pytest.mark.parametrize("run", ["convnet-gloo-2ranks", "transformer-gloo-4ranks"])
def test_a_shifted_trace_of_a_sample_run_is_found_under_the_same_host_name(run: str) -> None:
    ranks = sample(run)
    ranks[1] = shifted(ranks[1], HOUR)
    one = clock_of(ranks).ranks[1]
    assert one.bound_ns is not None
    assert abs(one.offset_ns - HOUR) <= one.bound_ns
