"""Timelines of real runs: their spans add up to the report, and their clocks to one."""

from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from drawn_runs import build_timeline
from ranks import shifted_trace
from shared import TRACES

from ddpprof.cli.arguments import numbers
from ddpprof.load.run import load_run
from ddpprof.model import Run
from ddpprof.report.build import build_report
from ddpprof.report.timeline import Timeline

CHECKOUT = Path(__file__).parents[3]
GLOO = CHECKOUT / "sample_traces" / "convnet-gloo-2ranks"
RUNS = [*sorted((CHECKOUT / "sample_traces").glob("*-gloo-*")), *sorted((TRACES).glob("*.json.gz"))]


@pytest.fixture(scope="module")
def two_ranks() -> Run:
    return load_run(GLOO)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_lengths_are_those_of_the_report(path: Path) -> None:
    run = load_run(path)
    report = build_report(run)
    timeline = build_timeline(run, report)
    assert [rank.rank for rank in timeline.ranks] == [rank.rank for rank in report.ranks]
    for rank, of_rank in zip(timeline.ranks, report.ranks, strict=True):
        assert len(rank.steps) == len(of_rank.steps) > 0
        for step, of_step in zip(rank.steps, of_rank.steps, strict=True):
            assert step.exposed.total_ns == of_step.exposed_ns
            assert step.overlap.total_ns == of_step.overlap_ns
            assert (None if step.trailing is None else step.trailing.total_ns) == of_step.trailing_ns
            parts = None if step.parts is None else tuple(part.total_ns for part in step.parts)
            assert parts == (None if of_step.parts is None else astuple(of_step.parts))
            assert len(step.collectives) == of_step.num_comm_kernels


def test_a_clock_that_is_ahead_is_put_back_within_its_noise(two_ranks: Run) -> None:
    """Without the seven seconds both ranks have their host's clock, and no noise."""
    ahead = two_ranks.ranks[1]
    trace = shifted_trace(ahead.trace, 7_000_000_000)
    moved = replace(two_ranks, ranks=(two_ranks.ranks[0], replace(ahead, trace=trace)))
    before = build_timeline(two_ranks, build_report(two_ranks)).ranks[1]
    report = build_report(moved)
    after = build_timeline(moved, report).ranks[1]
    noise_ns = report.across.clock.ranks[1].noise_ns
    assert noise_ns < 1_000_000
    assert after.on_common_clock
    for one, other in zip(before.steps, after.steps, strict=True):
        assert np.abs(one.collectives.end_ns - other.collectives.end_ns).max() <= noise_ns


def without_a_common_collective(two: Run, ahead_ns: int) -> Timeline:
    """`ahead_ns`: of the clock of the second one's host."""
    first, second = two.ranks
    silent = replace(second.trace, collectives=type(second.trace.collectives)(
        *(getattr(second.trace.collectives, name)[:0] for name in second.trace.collectives.__dataclass_fields__)
    ))  # fmt: skip
    alone = replace(two, ranks=(first, replace(second, trace=shifted_trace(silent, ahead_ns))))
    return build_timeline(alone, build_report(alone))


def test_ranks_without_a_collective_in_common_say_so(two_ranks: Run) -> None:
    timeline = without_a_common_collective(two_ranks, 0)
    assert [rank.on_common_clock for rank in timeline.ranks] == [False, False]
    assert timeline.clock_error_ns is None


@pytest.mark.parametrize("ahead_ns", [-3_600_000_000_000, 3_600_000_000_000])
def test_clocks_by_which_ranks_never_ran_together_are_not_believed(two_ranks: Run, ahead_ns: int) -> None:
    apart = without_a_common_collective(two_ranks, ahead_ns)
    begins = [rank.trace.steps[0].start_ns + rank.trace.epoch_ns for rank in two_ranks.ranks]
    near = without_a_common_collective(two_ranks, 0)
    for rank, other, late in zip(apart.ranks, near.ranks, (0, begins[1] - begins[0]), strict=True):
        assert [step.start_ns for step in rank.steps] == [step.start_ns - late for step in other.steps]
    assert begins[0] != begins[1]


def test_only_chosen_steps_and_ranks(two_ranks: Run) -> None:
    timeline = build_timeline(two_ranks, build_report(two_ranks), numbers("13-99"), numbers("1"))
    assert [(rank.rank, [step.step for step in rank.steps]) for rank in timeline.ranks] == [(1, [13, 14])]


def test_every_bucket_ends_with_its_collective(two_ranks: Run) -> None:
    for rank in build_timeline(two_ranks, build_report(two_ranks)).ranks:
        for step in rank.steps:
            ends = set(step.collectives.end_ns.tolist())
            assert [bucket.finished_ns in ends for bucket in step.buckets] == [True, True]
            assert all(b.ready_ns <= b.launched_ns <= b.started_ns <= b.finished_ns for b in step.buckets)
            assert [bucket.num_bytes for bucket in step.buckets] == [4239400, 1555584]
