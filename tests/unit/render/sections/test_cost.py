"""The first screen says what ddpprof itself costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reports import report

from ddpprof.render.sections.cost import recording_cost_remark


@pytest.mark.parametrize(
    ("light_ratio", "says"),
    [
        pytest.param(1.2, "light 1.200 ×,", id="beyond-the-spread"),
        pytest.param(1.05, "light 1.050 × (noise),", id="within-it"),
        pytest.param(0.8, "light 0.800 × (noise),", id="recording-makes-no-step-faster"),
    ],
)
def test_a_cost_that_may_be_none_is_noise(light_ratio: float, says: str) -> None:
    made = report()
    ranks = [
        rank if rank.recording_cost is None
        else replace(rank, recording_cost=replace(rank.recording_cost, light_ratio=light_ratio))
        for rank in made.ranks
    ]  # fmt: skip
    (remark,) = recording_cost_remark(replace(made, ranks=tuple(ranks)))
    assert says in str(remark)
