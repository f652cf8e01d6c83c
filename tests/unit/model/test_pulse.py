"""How long a step usually takes, by the rows of a pulse."""

from __future__ import annotations

import numpy as np
import pytest
from hung_ranks import steps

from ddpprof.model.pulse import PulseSteps, StepFlag, usual_ns


def mixed(num_ordinary: int, num_saving: int) -> PulseSteps:
    """Steps of 7 ns, and others of 100 ns in which the script saved."""
    parts = steps(num_ordinary, length_ns=7), steps(num_saving, length_ns=100, flags=StepFlag.SAVED)
    return PulseSteps(*(np.concatenate([getattr(one, name) for one in parts]) for name in PulseSteps.__slots__))


@pytest.mark.parametrize(
    ("num_ordinary", "num_saving", "fewest", "expected"),
    [
        pytest.param(1, 9, 1, 7, id="one-ordinary-step-is-enough"),
        pytest.param(0, 9, 1, 100, id="every-step-saves"),
        pytest.param(4, 9, 5, 100, id="too-few-ordinary-steps"),
        pytest.param(5, 9, 5, 7, id="enough-ordinary-steps"),
        pytest.param(4, 0, 5, None, id="too-few-steps"),
        pytest.param(0, 0, 1, None, id="none"),
    ],
)
def test_the_usual_length(num_ordinary: int, num_saving: int, fewest: int, expected: int | None) -> None:
    assert usual_ns(mixed(num_ordinary, num_saving), fewest) == expected
