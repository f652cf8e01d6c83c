"""Lengths of unions, by sets of instants."""

import pytest
from tables import collective, trace

from ddpprof.model import Phase
from ddpprof.topics.steps.overlap import BackwardCompute, Overlap, backward_passes, measure_overlap, measure_trailing

B, F = Phase.BACKWARD, Phase.FORWARD


@pytest.mark.parametrize(
    ("compute", "comm", "expected", "hidden"),
    [
        pytest.param([], [], Overlap(0, 0, 0, 0, 0, 0), None, id="nothing"),
        pytest.param([(0, 10, B, 0)], [], Overlap(10, 0, 0, 0, 0, 0), None, id="no-communication"),
        pytest.param([], [(0, 10)], Overlap(0, 10, 0, 10, 0, 1), 0.0, id="no-compute"),
        pytest.param([(0, 10, B, 0)], [(5, 25)], Overlap(10, 20, 5, 15, 0, 1), 0.25, id="partly"),
        pytest.param([(0, 10, B, 0)], [(2, 4), (6, 8)], Overlap(10, 4, 4, 0, 0, 2), 1.0, id="all-hidden"),
        pytest.param(
            [(0, 10, B, 0), (5, 15, F, 0)],
            [(0, 12), (10, 20)],
            Overlap(15, 20, 15, 5, 0, 2),
            0.75,
            id="two-streams-each",
        ),
        pytest.param([(0, 10, B, 0)], [(10, 20)], Overlap(10, 10, 0, 10, 0, 1), 0.0, id="touching-is-not-overlap"),
    ],
)
def test_overlap_of_a_step(compute, comm, expected, hidden) -> None:
    measured = measure_overlap(trace(compute=compute, comm=[collective(*span) for span in comm]), 0)
    assert (measured, measured.hidden_fraction) == (expected, hidden)


def test_a_step_takes_its_own_rows_wherever_they_run_and_the_whole_takes_all() -> None:
    made = trace(
        steps=[(0, 50), (50, 100)],
        compute=[(0, 10, B, 0), (60, 70, B, 0), (60, 80, B, 1), (90, 95, B, -1)],
        comm=[collective(65, 75, step=0)],
        copies=[(0, 3, B, 0), (2, 5, B, 0), (70, 71, B, 1)],
        device="gpu",
    )
    assert measure_overlap(made, 0) == Overlap(20, 10, 5, 5, 5, 1)
    assert measure_overlap(made, 1) == Overlap(20, 0, 0, 0, 1, 0)
    assert measure_overlap(made, None) == Overlap(35, 10, 10, 0, 6, 1)


BACKWARD, OPTIMIZER = (10, 50, Phase.BACKWARD, 0), (80, 90, Phase.OPTIMIZER, 0)


@pytest.mark.parametrize(
    ("compute", "comm", "expected"),
    [
        pytest.param([OPTIMIZER], [collective(50, 70)], None, id="no-backward"),
        pytest.param([BACKWARD, OPTIMIZER], [], 0, id="no-communication"),
        pytest.param([BACKWARD, OPTIMIZER], [collective(20, 40)], 0, id="hidden"),
        pytest.param([BACKWARD, OPTIMIZER], [collective(40, 70)], 20, id="from-the-end-of-backward"),
        pytest.param([BACKWARD, OPTIMIZER], [collective(40, 95)], 30, id="up-to-the-optimizer"),
        pytest.param([BACKWARD], [collective(40, 95)], 45, id="no-optimizer"),
        pytest.param(
            [BACKWARD, OPTIMIZER], [collective(50, 60), collective(55, 70)], 20, id="two-at-once"
        ),
        pytest.param(
            [BACKWARD, OPTIMIZER], [collective(50, 70, Phase.FORWARD)], 0, id="not-the-buffers"
        ),
        pytest.param(
            [BACKWARD, OPTIMIZER], [collective(50, 70, Phase.OTHER)], 0, id="not-the-user's-own"
        ),
        pytest.param(
            [BACKWARD, OPTIMIZER], [collective(50, 70, step=1)], 0, id="not-of-another-step"
        ),
        pytest.param(
            [BACKWARD, (0, 5, Phase.OPTIMIZER, 0), OPTIMIZER], [collective(40, 70)], 20,
            id="an-optimizer-before-backward-does-not-count",
        ),
        pytest.param(
            [BACKWARD, (52, 60, Phase.FINALIZE, 0), OPTIMIZER], [collective(50, 70)], 20,
            id="finalisation-is-no-backward-compute",
        ),
        pytest.param(
            [BACKWARD, (60, 65, Phase.FORWARD, 0), (65, 75, Phase.BACKWARD, 0), OPTIMIZER],
            [collective(45, 62), collective(70, 95)], 10 + 5, id="of-each-of-two-passes-up-to-the-next-forward",
        ),
        pytest.param(
            [BACKWARD, OPTIMIZER, (91, 95, Phase.BACKWARD, 0)], [collective(40, 70), collective(92, 99)], 20 + 4,
            id="of-each-of-two-passes-with-an-optimizer-between-them",
        ),
    ],
)  # fmt: skip
def test_trailing(compute, comm, expected) -> None:
    assert measure_trailing(trace(steps=[(0, 100), (100, 200)], compute=compute, comm=comm), 0) == expected


def test_a_kernel_that_no_mark_holds_may_be_a_hooks() -> None:
    comm = [collective(50, 70, Phase.OTHER), collective(60, 75, Phase.FORWARD)]
    on_gpu = trace(steps=[(0, 100)], compute=[BACKWARD, OPTIMIZER], comm=comm, device="gpu")
    assert measure_trailing(on_gpu, 0) == 20


B, F, O = Phase.BACKWARD, Phase.FORWARD, Phase.OPTIMIZER  # noqa: E741


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        pytest.param([(0, 10, F, 0)], (), id="none"),
        pytest.param(
            [(0, 10, F, 0), (10, 20, B, 0), (22, 30, B, 0)],
            (BackwardCompute(10, 30, None),),
            id="one",
        ),
        pytest.param(
            [
                (10, 20, B, 0),
                (25, 30, O, 0),
                (35, 40, F, 0),
                (40, 50, B, 0),
                (60, 70, O, 0),
            ],
            (BackwardCompute(10, 20, 25), BackwardCompute(40, 50, 60)),
            id="two-parts-of-a-gan",
        ),
        pytest.param(
            [(10, 20, B, 0), (30, 40, F, 0), (40, 50, B, 0)],
            (BackwardCompute(10, 20, 30), BackwardCompute(40, 50, None)),
            id="accumulation",
        ),
        pytest.param(
            [(10, 20, B, 0), (30, 40, F, 1)],
            (BackwardCompute(10, 20, None),),
            id="not-of-the-next-step",
        ),
    ],
)
def test_backward_passes(compute: list[tuple[int, int, Phase, int]], expected: tuple[BackwardCompute, ...]) -> None:
    assert backward_passes(trace(steps=[(0, 100), (100, 200)], compute=compute), 0) == expected
