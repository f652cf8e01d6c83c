"""Gradient communication between the last backward compute and the optimizer."""

import pytest
from tables import collective, trace

from ddpprof.events import Phase
from ddpprof.measures.trailing import Trailing, measure_trailing

BACKWARD, OPTIMIZER = (10, 50, Phase.BACKWARD, 0), (80, 90, Phase.OPTIMIZER, 0)


@pytest.mark.parametrize(
    ("compute", "comm", "expected"),
    [
        pytest.param([OPTIMIZER], [collective(50, 70)], None, id="no-backward"),
        pytest.param([BACKWARD, OPTIMIZER], [], Trailing(0, 50, 80), id="no-communication"),
        pytest.param([BACKWARD, OPTIMIZER], [collective(20, 40)], Trailing(0, 50, 80), id="hidden"),
        pytest.param([BACKWARD, OPTIMIZER], [collective(40, 70)], Trailing(20, 50, 80), id="from-the-end-of-backward"),
        pytest.param([BACKWARD, OPTIMIZER], [collective(40, 95)], Trailing(30, 50, 80), id="up-to-the-optimizer"),
        pytest.param([BACKWARD], [collective(40, 95)], Trailing(45, 50, None), id="no-optimizer"),
        pytest.param(
            [BACKWARD, OPTIMIZER], [collective(50, 60), collective(55, 70)], Trailing(20, 50, 80), id="two-at-once"
        ),
        pytest.param(
            [BACKWARD, OPTIMIZER], [collective(50, 70, Phase.FORWARD)], Trailing(0, 50, 80), id="not-the-buffers"
        ),
        pytest.param(
            [BACKWARD, OPTIMIZER], [collective(50, 70, Phase.OTHER)], Trailing(0, 50, 80), id="not-the-user's-own"
        ),
        pytest.param(
            [BACKWARD, OPTIMIZER], [collective(50, 70, step=1)], Trailing(0, 50, 80), id="not-of-another-step"
        ),
        pytest.param(
            [BACKWARD, (0, 5, Phase.OPTIMIZER, 0), OPTIMIZER], [collective(40, 70)], Trailing(20, 50, 80),
            id="an-optimizer-before-backward-does-not-count",
        ),
        pytest.param(
            [BACKWARD, (52, 60, Phase.FINALIZE, 0), OPTIMIZER], [collective(50, 70)], Trailing(20, 50, 80),
            id="finalisation-is-no-backward-compute",
        ),
    ],
)  # fmt: skip
def test_trailing(compute, comm, expected) -> None:
    assert measure_trailing(trace(steps=[(0, 100), (100, 200)], compute=compute, comm=comm), 0) == expected


def test_a_kernel_that_no_mark_holds_may_be_a_hooks() -> None:
    comm = [collective(50, 70, Phase.OTHER), collective(60, 75, Phase.FORWARD)]
    on_gpu = trace(steps=[(0, 100)], compute=[BACKWARD, OPTIMIZER], comm=comm, device="gpu")
    assert measure_trailing(on_gpu, 0) == Trailing(20, 50, 80)
