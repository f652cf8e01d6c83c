"""Four copies of one real rank, each by a clock of its own: nobody is late, and the clocks are found."""

import functools
from pathlib import Path

import pytest
from ranks import shifted_trace

from ddpprof.load.run import load_run
from ddpprof.model import UNKNOWN, Rank, Trace
from ddpprof.topics.collective_matching import RankCollectives, match_collectives, rank_collectives
from ddpprof.topics.ranks.clock import find_common_clock
from ddpprof.topics.ranks.own_time import measure_arrivals, measure_progress, summarize_waiting
from ddpprof.topics.ranks.stragglers import find_stragglers

SAMPLES = Path(__file__).parents[3] / "sample_traces"
SHIFTS = [0, 3_600_000_000_000, -70_000_017, 250_000_000]


@functools.cache
def original(run: str) -> Trace:
    trace = load_run(SAMPLES / run).ranks[0].trace
    assert trace is not None
    return trace


def copies(run: str) -> list[Trace]:
    return [shifted_trace(original(run), by) for by in SHIFTS]


def collectives(run: str) -> list[RankCollectives]:
    found = [rank_collectives(Rank(rank, trace, None)) for rank, trace in enumerate(copies(run))]
    return [one for one in found if one is not None]


RUNS = pytest.mark.parametrize("run", ["convnet-gloo-2ranks", "transformer-gloo-4ranks"])


@RUNS
def test_nobody_is_late(run: str) -> None:
    found = find_stragglers({rank: measure_progress(trace) for rank, trace in enumerate(copies(run))})
    assert found is not None
    assert found.stragglers == ()
    assert {(one.num_last, one.late_ns) for one in found.ranks} == {(0, 0)}


@RUNS
def test_the_clocks_are_found_under_one_host_name(run: str) -> None:
    ranks = collectives(run)
    assert len({one.host for one in ranks}) == 1
    matched = match_collectives(ranks)
    clock = find_common_clock(ranks, matched)
    assert clock is not None
    assert [one.offset_ns for one in clock.ranks] == SHIFTS
    arrivals = measure_arrivals(ranks, matched, clock)
    assert arrivals.last_rank is not None
    assert (arrivals.last_rank == UNKNOWN).all()  # all come at once
    assert {one.total_waiting_ns for one in summarize_waiting(matched, arrivals)} == {0}
