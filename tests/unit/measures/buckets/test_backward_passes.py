"""The backward passes of a step, by what computes in it."""

import pytest
from tables import trace

from ddpprof.measures.buckets.backward_passes import BackwardCompute, backward_passes
from ddpprof.model import Phase

B, F, O = Phase.BACKWARD, Phase.FORWARD, Phase.OPTIMIZER  # noqa: E741


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        pytest.param([(0, 10, F, 0)], (), id="none"),
        pytest.param([(0, 10, F, 0), (10, 20, B, 0), (22, 30, B, 0)], (BackwardCompute(10, 30, None),), id="one"),
        pytest.param(
            [(10, 20, B, 0), (25, 30, O, 0), (35, 40, F, 0), (40, 50, B, 0), (60, 70, O, 0)],
            (BackwardCompute(10, 20, 25), BackwardCompute(40, 50, 60)),
            id="two-parts-of-a-gan",
        ),
        pytest.param(
            [(10, 20, B, 0), (30, 40, F, 0), (40, 50, B, 0)],
            (BackwardCompute(10, 20, 30), BackwardCompute(40, 50, None)),
            id="accumulation",
        ),
        pytest.param([(10, 20, B, 0), (30, 40, F, 1)], (BackwardCompute(10, 20, None),), id="not-of-the-next-step"),
    ],
)
def test_backward_passes(compute: list[tuple[int, int, Phase, int]], expected: tuple[BackwardCompute, ...]) -> None:
    assert backward_passes(trace(steps=[(0, 100), (100, 200)], compute=compute), 0) == expected
