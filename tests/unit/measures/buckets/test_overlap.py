"""Lengths of unions, by sets of instants."""

import pytest
from tables import collective, trace

from ddpprof.measures.buckets.overlap import Overlap, measure_overlap
from ddpprof.model import Phase

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
