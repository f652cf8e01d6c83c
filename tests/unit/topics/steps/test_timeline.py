"""Everything in a step, moved as a whole."""

import pytest
from tables import collective, ddp_module, recorded, trace

from ddpprof.model import UNKNOWN, Phase
from ddpprof.topics.buckets.steps import measure_buckets
from ddpprof.topics.steps.timeline import BucketSpan, StepTimeline, bucket_span, move_timeline, step_timeline

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
        [(1000, 1010)], [(1010, 1050)], [(1050, 1070)], [(1080, 1090)], [], [], [(1070, 1080), (1090, 1100)]
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
