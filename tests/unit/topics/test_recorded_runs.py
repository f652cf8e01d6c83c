"""A step's parts by light recording; they add up to the step."""

import pytest
from tables import forward, recorded

from ddpprof.model import RecordedStep
from ddpprof.topics.steps.breakdown import RecordedBreakdown, measure_recorded_breakdown


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(recorded(forwards=(), mode="off"), None, id="inside-not-recorded"),
        pytest.param(recorded(data_ns=None), None, id="data-not-recorded"),
        pytest.param(recorded(forwards=(forward(end=-(1 << 61)),)), None, id="a-forward-that-ends-before-it-begins"),
        pytest.param(
            recorded(forwards=(forward(10, 12, 29, 30),), optimizers=((70, 80),), data_ns=5),
            RecordedBreakdown(20, 40, 10, 5, 25),
            id="one-of-each",
        ),
        pytest.param(
            recorded(forwards=(forward(10, 12, 29, 30),)), RecordedBreakdown(20, 70, 0, 0, 10), id="no-optimizer"
        ),
        pytest.param(
            recorded(
                forwards=(forward(0, 0, 10, 10), forward(30, 30, 40, 40)), optimizers=((70, 80),)
            ),
            RecordedBreakdown(20, 50, 10, 0, 20),
            id="accumulation",
        ),
        pytest.param(
            recorded(forwards=(forward(0, 0, 10, 10), forward(50, 50, 60, 60)), optimizers=((30, 40), (80, 90))),
            RecordedBreakdown(20, 40, 20, 0, 20),
            id="two-optimizers",
        ),
        pytest.param(
            recorded(
                forwards=(forward(20, 20, 30, 30), forward(70, 70, 80, 80)), optimizers=((90, 100),), data_ns=50
            ),
            RecordedBreakdown(20, 20, 10, 50, 0),
            id="waits-for-further-batches-are-not-backward",
        ),
        pytest.param(
            recorded(
                forwards=(forward(10, 10, 20, 20, has_gradients=False), forward(70, 70, 80, 80)),
                optimizers=((90, 100),), data_ns=40,
            ),
            RecordedBreakdown(20, 10, 10, 40, 20),
            id="nothing-follows-a-forward-without-gradients",
        ),
    ],
)  # fmt: skip
def test_parts(step: RecordedStep, expected: RecordedBreakdown | None) -> None:
    assert measure_recorded_breakdown(step) == expected
    if expected is not None:
        parts = [getattr(expected, name) for name in RecordedBreakdown.__slots__]
        assert sum(parts) == 100
