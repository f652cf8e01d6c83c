"""Gradient communication between the last backward compute and the optimizer."""

import pytest
from tables import collective, trace

from ddpprof.measures.buckets.trailing import measure_trailing
from ddpprof.model import Phase

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
