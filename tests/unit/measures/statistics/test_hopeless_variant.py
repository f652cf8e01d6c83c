"""When a variant is given up."""

from __future__ import annotations

import pytest

from ddpprof.measures.statistics.hopeless_variant import is_losing, start_spread
from ddpprof.measures.step.trial_steps import Steps


@pytest.mark.parametrize(
    ("own", "others", "spread", "losing"),
    [
        pytest.param([(103.0,) * 6] * 2, [(100.0,) * 6] * 2, 0.0, True, id="beyond-2-percent"),
        pytest.param([(300.0,) * 6], [(100.0,) * 6], 0.0, False, id="one-start-tells-nothing"),
        pytest.param([(101.5,) * 6] * 2, [(100.0,) * 6] * 2, 0.0, False, id="as-good"),
        pytest.param([(103.0,) * 6] * 2, [(100.0,) * 6] * 2, 0.05, False, id="starts-differ-by-more"),
        pytest.param(
            [(90.0, 95, 103, 110, 115, 120)] * 2, [(90.0, 92, 100, 110, 118, 119)] * 2, 0.0, False, id="noise"
        ),
        pytest.param([(50.0,) * 6] * 2, [(100.0,) * 6] * 2, 0.0, False, id="winning"),
        pytest.param([()], [(100.0,) * 6], 0.0, False, id="not-run"),
        pytest.param(
            [(50.0,), (200.0,) * 6, (200.0,) * 6], [(), (100.0,) * 6, (100.0,) * 6], 0.0, True, id="only-rounds-of-both"
        ),
        pytest.param([(111.0,)] * 2, [(100.0,)] * 2, 0.0, True, id="one-time-10-percent"),
        pytest.param([(109.0,)] * 2, [(100.0,)] * 2, 0.0, False, id="one-time-9-percent"),
    ],
)
def test_a_variant_loses_where_it_is_slower_beyond_doubt(
    own: list[Steps], others: list[Steps], spread: float, losing: bool
) -> None:
    assert is_losing(own, others, spread) is losing


def test_starts_differ_as_their_medians_do() -> None:
    assert start_spread([(100.0, 1.0, 200.0), (), (150.0,)]) == 0.5
    assert start_spread([]) == 0.0
