"""The table of collectives: how often, how big, how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netbenches import netbench
from ranks import call, calls, job, rank, shifted

from ddpprof.intervals import union
from ddpprof.load.record import parse_netbench
from ddpprof.load.run import load_run
from ddpprof.model import UNKNOWN, CollectiveKind, ProcessGroup
from ddpprof.topics.collective_matching import RankCollectives, match_collectives, rank_collectives
from ddpprof.topics.collectives import (
    CollectiveSummary,
    LinkSpeed,
    bus_factor,
    measure_link,
    shared_durations_ns,
    summarize_collectives,
)
from ddpprof.topics.ranks.own_time import measure_arrivals

SAMPLES = Path(__file__).parents[3] / "sample_traces"
SUM, CAST, GATHER, ALL = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_TO_ALL,
)


def table(
    ranks: list[RankCollectives],
    world_size: int | None = None,
    sizes: dict[int, dict[int, int]] | None = None,
) -> tuple[CollectiveSummary, ...]:
    matched = match_collectives(ranks)
    return summarize_collectives(ranks, matched, measure_arrivals(ranks, matched, None), world_size, sizes)


def test_one_class() -> None:
    ranks = [
        rank(0, call(0, 50, size=3000), call(60, 100, size=4000)),
        rank(1, call(20, 50, size=3000), call(60, 110, size=4000)),
    ]
    (line,) = table(ranks, world_size=2)
    assert line == CollectiveSummary(
        kind="all_reduce",
        group=None,
        num_ranks=2,
        at_least_bytes=2048,
        below_bytes=4096,
        num_calls=2,
        num_bytes=7000,
        num_ranks_read=2,
        transfer_ns=35,  # 30 and 40
        shared_transfer_ns=35,
        waiting_ns=15,  # 20 and 10
        algbw_bytes_per_s=100e9,  # 3000 / 30 and 4000 / 40
        busbw_bytes_per_s=100e9,  # 2 · (2 - 1) / 2
    )


def test_kinds_groups_and_sizes_stand_apart() -> None:
    groups = [ProcessGroup("0", 2, (0, 1)), ProcessGroup("1", 2, (0, 1))]
    rows = [
        call(0, 9, size=7, group=0), call(10, 19, size=8, group=0), call(20, 29, size=15, group=0),
        call(30, 39, size=8, group=1), call(40, 49, CAST, size=8, group=0), call(50, 59, group=0),
        call(60, 69, size=0, group=0),
    ]  # fmt: skip
    lines = table([rank(r, *rows, groups=groups) for r in range(2)])
    assert [(x.kind, x.group, x.at_least_bytes, x.below_bytes, x.num_calls, x.num_bytes) for x in lines] == [
        ("all_reduce", "0", None, None, 1, None),
        ("all_reduce", "0", 0, 1, 1, 0),
        ("all_reduce", "0", 4, 8, 1, 7),
        ("all_reduce", "0", 8, 16, 2, 23),
        ("all_reduce", "1", 8, 16, 1, 8),
        ("broadcast", "0", 8, 16, 1, 8),
    ]
    assert lines[0].algbw_bytes_per_s is None


def test_one_rank_alone_cannot_tell_transfer_from_waiting() -> None:
    (line,) = table([rank(1, call(0, 50, size=64), call(50, 80, size=64))], world_size=8)
    assert (line.num_ranks_read, line.num_ranks, line.transfer_ns, line.waiting_ns) == (1, 8, 40, None)
    assert (line.algbw_bytes_per_s, line.busbw_bytes_per_s) == (None, None)


def test_what_is_not_matched_counts_as_a_call_but_not_as_a_time() -> None:
    ranks = [
        rank(0, call(0, 50, size=64), call(60, 99, size=64, step=1), call(110, 120, size=64, step=1)),
        rank(1, call(20, 50, size=64), call(60, 99, size=64, step=1)),
    ]
    (line,) = table(ranks)
    assert (line.num_calls, line.num_bytes, line.transfer_ns, line.num_ranks_read) == (3, 192, 30, 2)


def test_two_at_once_have_half_of_the_link_each() -> None:
    ranks = [rank(r, call(0, 40, size=1024), call(0, 40, CAST, size=1024)) for r in range(2)]
    for line in table(ranks, world_size=2):
        assert (line.transfer_ns, line.shared_transfer_ns) == (40, 20)
        assert line.algbw_bytes_per_s == 1024 / 20 * 1e9


def test_what_others_did_while_a_rank_waited_is_no_share_of_the_link() -> None:
    # Rank 0 has both open while it waits for rank 1, which runs one after the other.
    ranks = [
        rank(0, call(0, 30, size=512), call(0, 60, CAST, size=512, launched=1)),
        rank(1, call(20, 30, size=512), call(30, 60, CAST, size=512)),
    ]
    assert [(line.transfer_ns, line.shared_transfer_ns) for line in table(ranks)] == [(10, 10), (30, 30)]


def test_sizes_that_the_trace_lacks_may_be_given_for_one_rank() -> None:
    ranks = [rank(0, call(0, 10), call(20, 30, size=16)), rank(1, call(0, 10), call(20, 30))]
    lines = table(ranks, sizes={0: {0: 32, 1: 99}})
    assert [(line.at_least_bytes, line.num_bytes) for line in lines] == [(16, 16), (32, 32)]


def test_an_all_to_all_has_the_size_of_its_largest_rank() -> None:
    (line,) = table([rank(0, call(0, 10, ALL, size=3)), rank(1, call(0, 10, ALL, size=9))])
    assert (line.at_least_bytes, line.num_bytes) == (8, 9)


@pytest.mark.parametrize(
    ("kind", "num_ranks", "factor"),
    [
        (SUM, 4, 1.5),
        (GATHER, 4, 0.75),
        (CollectiveKind.REDUCE_SCATTER, 8, 0.875),
        (ALL, 2, 0.5),
        (CAST, 4, 1.0),
        (CollectiveKind.REDUCE, 4, 1.0),
        (CollectiveKind.BARRIER, 4, None),
        (SUM, None, None),
        (SUM, 1, None),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(kind: CollectiveKind, num_ranks: int | None, factor: float | None) -> None:
    assert bus_factor(kind, num_ranks) == factor


def test_nothing_to_tell() -> None:
    assert table([]) == ()
    assert table([rank(0), rank(1)]) == ()


@given(st.permutations(range(4)), st.integers(0, 3), st.integers(-(1 << 60), 1 << 60))
def test_neither_order_nor_clocks_matter(order: list[int], number: int, by_ns: int) -> None:
    ranks = job(4, 6, late=lambda r, c: (r * 7 + c * 3) % 5 * 1000)
    expected = table(ranks)
    assert table([ranks[r] for r in order]) == expected
    assert table([shifted(one, by_ns) if one.rank == number else one for one in ranks]) == expected


def test_a_sample_run_with_sizes_of_its_buckets() -> None:
    run = load_run(SAMPLES / "transformer-gloo-4ranks")
    ranks = [one for rank in run.ranks if (one := rank_collectives(rank)) is not None]
    assert set(ranks[0].collectives.num_bytes.tolist()) == {UNKNOWN}
    sizes = {0: dict.fromkeys(range(6), 6 << 20)}
    (line,) = table(ranks, run.world_size, sizes)
    assert (line.num_calls, line.num_bytes, line.num_ranks_read) == (6, 36 << 20, 4)
    assert line.transfer_ns == 21_817_990


def measured(**changes: object) -> tuple[LinkSpeed, ...]:
    return measure_link(parse_netbench(json.dumps(netbench(**changes)).encode(), "x"))


def test_times_are_those_of_the_slowest_rank() -> None:
    small, large = measured()
    assert (small.num_bytes, small.num_iterations) == (1_000_000, 3)
    assert (small.median_ns, small.least_ns, small.most_ns) == (1_000_000, 900_000, 7_000_000)
    assert (small.cpu_ns, large.cpu_ns) == (300_000, 2)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1.0)],
)
def test_bandwidths_are_those_of_nccl_tests(collective: str, factor: float) -> None:
    small, large = measured(collective=collective)
    assert [speed.algbw_bytes_per_s for speed in (small, large)] == [1e9, 2e9]
    assert [speed.busbw_bytes_per_s for speed in (small, large)] == [1e9 * factor, 2e9 * factor]


def test_two_at_once_are_compared_where_nothing_interrupted_them() -> None:
    assert [speed.two_at_once for speed in measured()] == [None, 1.5]
    both, alone = [20, 20, 400, 400, 400], [10, 10, 10, 300, 300]
    concurrent = [{"num_bytes": 1_000_000, "both_ns": both, "alone_ns": alone, "cpu_ns": [1, 1, 1, 1]}]
    assert [speed.two_at_once for speed in measured(concurrent=concurrent)] == [2.0, None]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        pytest.param([], [], id="none"),
        pytest.param([(3, 10)], [7], id="alone"),
        pytest.param([(0, 10), (10, 14)], [10, 4], id="one-after-the-other"),
        pytest.param([(0, 10), (0, 10)], [5, 5], id="together"),
        pytest.param([(0, 10), (4, 20)], [7, 13], id="overlap"),
        pytest.param([(0, 12), (0, 12), (0, 6)], [2 + 3, 2 + 3, 2], id="three-then-two"),
        pytest.param([(0, 10), (5, 5)], [10, 0], id="of-no-length"),
    ],
)
def test_shared_durations(spans: list[tuple[int, int]], expected: list[int]) -> None:
    assert shared_durations_ns(calls(*(call(*span) for span in spans))).tolist() == expected


SPAN = st.tuples(st.integers(0, 10**12), st.integers(0, 10**10)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(SPAN, max_size=8))
def test_the_shares_add_up_to_the_time_in_which_anything_ran(spans: list[tuple[int, int]]) -> None:
    comm = calls(*(call(*span) for span in spans))
    shared = shared_durations_ns(comm)
    assert abs(int(shared.sum()) - union(comm.start_ns, comm.end_ns).total_ns) <= len(spans)
    assert (shared <= comm.end_ns - comm.start_ns).all()
