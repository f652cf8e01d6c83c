"""Bandwidths and the price of two collectives at once, by arithmetic."""

from __future__ import annotations

import json

import pytest
from netbenches import netbench

from ddpprof.load.netbench import parse_netbench
from ddpprof.measures.collectives.link_speed import LinkSpeed, measure_link


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
