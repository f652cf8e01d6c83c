"""One step as it went on, in columns of a terminal."""

import io

import pytest
from tables import collective, trace

from ddpprof.model import Phase, Trace
from ddpprof.render.sections.lanes import step_lanes
from ddpprof.render.terminal import render_terminal
from ddpprof.report.timeline import RankTimeline, Timeline
from ddpprof.topics.buckets.steps import BucketStep
from ddpprof.topics.steps.timeline import StepTimeline, bucket_span, move_timeline, step_timeline

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
