"""Everything in a step, moved as a whole."""

import io
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from drawn_runs import build_timeline
from ranks import shifted_trace
from shared import TRACES
from tables import collective, ddp_module, recorded, trace

from ddpprof.cli.arguments import numbers
from ddpprof.load.run import load_run
from ddpprof.model import UNKNOWN, Phase, Run, Trace
from ddpprof.render.terminal import render_terminal
from ddpprof.report.build import build_report
from ddpprof.topics.buckets.steps import BucketStep, measure_buckets
from ddpprof.topics.steps.timeline import (
    BucketSpan,
    RankTimeline,
    StepTimeline,
    Timeline,
    bucket_span,
    move_timeline,
    step_lanes,
    step_timeline,
)

MOVED = 1000
COMPUTE = [
    (0, 10, Phase.FORWARD, 0),
    (10, 50, Phase.BACKWARD, 0),
    (80, 90, Phase.OPTIMIZER, 0),
    (105, 110, Phase.FORWARD, 1),
]


def spans(of) -> list[tuple[int, int]]:
    return list(zip(of.start_ns.tolist(), of.end_ns.tolist(), strict=True))


@pytest.fixture
def made() -> StepTimeline:
    comm = [collective(30, 70, launched=UNKNOWN), collective(105, 109, step=1)]
    return move_timeline(step_timeline(trace([(0, 100), (100, 200)], COMPUTE, comm), 0), MOVED, ())


def test_only_what_is_of_the_step(made: StepTimeline) -> None:
    assert (made.step, made.start_ns, made.end_ns) == (10, 1000, 1100)
    assert spans(made.compute) == [(1000, 1010), (1010, 1050), (1080, 1090)]
    assert spans(made.collectives) == [(1030, 1070)]


def test_communication_is_hidden_exposed_and_trailing(made: StepTimeline) -> None:
    assert spans(made.overlap) == [(1030, 1050)]
    assert spans(made.exposed) == spans(made.trailing) == [(1050, 1070)]


def test_the_parts_of_the_bar_cover_the_step(made: StepTimeline) -> None:
    assert [spans(part) for part in made.parts] == [
        [(1000, 1010)], [(1010, 1050)], [(1050, 1070)], [(1080, 1090)], [], [], [], [(1070, 1080), (1090, 1100)]
    ]  # fmt: skip


def test_unknown_launches_stay_unknown(made: StepTimeline) -> None:
    assert made.collectives.launched_ns.tolist() == [UNKNOWN]


def test_buckets_are_where_their_collectives_are() -> None:
    """The record counts from 1970, the trace from its epoch; both come out on one clock."""
    modules = [ddp_module((4, 4), [[1], [0]])]
    step = recorded(start=500, end=600, ready={0: (540, 520)}, forwards=recorded().forwards)
    shown = trace(
        compute=COMPUTE[:3], comm=[collective(31, 40, launched=30), collective(45, 60, launched=41)], epoch=500
    )
    rows = measure_buckets(modules, step, shown)
    found = tuple(bucket_span(row, size, MOVED - 500) for row, size in zip(rows, [4, None], strict=True))
    assert found == (BucketSpan(0, 0, 4, 1020, 1030, 1031, 1040), BucketSpan(0, 1, None, 1040, 1041, 1045, 1060))


def test_a_step_of_an_accelerator_without_work_has_no_parts() -> None:
    made = move_timeline(step_timeline(trace([(0, 100)], device="gpu"), 0), MOVED, ())
    assert (made.start_ns, made.end_ns, made.parts, made.trailing) == (1000, 1100, None, None)
    assert len(made.exposed) == 0


MS = 1_000_000
FORWARD, BACKWARD, OPTIMIZER = (
    (0, 20 * MS, Phase.FORWARD, 0), (20 * MS, 60 * MS, Phase.BACKWARD, 0), (80 * MS, 100 * MS, Phase.OPTIMIZER, 0)
)  # fmt: skip


def of(made: Trace, *buckets: BucketStep) -> StepTimeline:
    return move_timeline(step_timeline(made, 0), 0, tuple(bucket_span(one, None, 0) for one in buckets))


def bucket(index: int, started: int, finished: int) -> BucketStep:
    return BucketStep(10, 0, index, 0, 0, 0, started, started, finished, None, None)


STEP = of(
    trace(
        [(0, 100 * MS)], [FORWARD, BACKWARD, OPTIMIZER], [collective(10 * MS, 20 * MS), collective(50 * MS, 80 * MS)]
    ),
    bucket(0, 50 * MS, 80 * MS),
)


def timeline(*steps: StepTimeline, on_common_clock: bool = True, error: int | None = 2 * MS) -> Timeline:
    ranks = (RankTimeline(number, "cpu", ("x",), on_common_clock, (0,), (step,)) for number, step in enumerate(steps))
    return Timeline(tuple(ranks), error)


def drawn(shown: Timeline, width: int, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    render_terminal(step_lanes(shown, 10), file, width)
    file.seek(0)
    return file.read()


def test_every_column_is_a_part_of_the_step() -> None:
    assert drawn(timeline(STEP), 58) == (
        "\nStep 10 over time, ms: rank 0\n"
        "       0         20        40        60        80\n"
        "rank 0 ██████████▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒##########\n"
        "  comm      +++++               000000000000000\n"
        "█ forward  ▓ backward  ▒ exposed comm  # optimizer\n"
        "comm: the bucket in transit; +: other communication\n"
    )


def test_without_unicode() -> None:
    assert "rank 0 ++++++++++********************!!!!!!!!!!##########\n" in drawn(timeline(STEP), 58, "ascii")


def test_a_rank_that_comes_later_stands_further_right() -> None:
    made = trace([(0, 100 * MS)], [FORWARD, BACKWARD, OPTIMIZER], [collective(50 * MS, 80 * MS)])
    moved = move_timeline(step_timeline(made, 0), 100 * MS, ())
    lines = drawn(timeline(STEP, moved), 108).splitlines()
    assert lines[1] == "Step 10 over time, ms: all ranks on one clock, accurate to ±2.00 ms"
    assert lines[3].startswith("rank 0 ██████████▓")
    assert lines[5].startswith(f"rank 1 {'':50}██████████▓")


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        pytest.param(timeline(STEP, STEP, error=None), "all ranks on one clock\n", id="error-not-known"),
        pytest.param(timeline(STEP, STEP, on_common_clock=False), "each rank on its own clock\n", id="no-clock"),
    ],
)
def test_what_is_known_of_the_clocks(shown: Timeline, words: str) -> None:
    assert words in drawn(shown, 80)


def test_only_the_first_buckets_have_a_sign_of_their_own() -> None:
    made = of(trace([(0, 100 * MS)], [FORWARD, BACKWARD], [collective(50 * MS, 80 * MS)]), bucket(36, 50 * MS, 80 * MS))
    shown = drawn(timeline(made), 80)
    assert "  comm                                     ******" in shown
    assert "*: any bucket with index 36 or higher" in shown


def test_a_step_without_work_is_not_drawn() -> None:
    assert drawn(timeline(of(trace([(0, 100 * MS)], device="gpu"))), 80) == ""


def test_a_step_in_which_nothing_lasts_is_not_drawn() -> None:
    made = of(trace([(0, 0)], [(0, 0, Phase.FORWARD, 0)]))
    assert made.parts is not None
    assert drawn(timeline(made), 58) == ""


CHECKOUT = Path(__file__).parents[4]
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
