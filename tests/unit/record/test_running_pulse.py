"""A running pulse looks several times a second for what has to be said at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddpprof.record.running_pulse import _ROUNDS_PER_LOOK, RunningPulse


def running(unfrozen: list[tuple[str, ...]], said: list[str]) -> RunningPulse:
    """A pulse whose notes find these parameters, round by round."""
    pulse = cast("Any", RunningPulse.__new__(RunningPulse))
    pulse.captures = SimpleNamespace(round=lambda: None)
    pulse._notes = SimpleNamespace(unfrozen=iter(unfrozen).__next__)
    pulse._job, pulse._unfrozen, pulse._looks_for_unfrozen = SimpleNamespace(warn=said.append), (), True
    pulse._num_rounds, pulse._tells_rate = 0, False
    return cast("RunningPulse", pulse)


@pytest.mark.parametrize(
    ("found", "num_said"),
    [
        pytest.param([(), (), ()], 0, id="none"),
        pytest.param([(), ("a",), ("a", "b"), ("a", "b")], 1, id="said-once-no-more-are-unfrozen"),
        pytest.param([("a",)], 0, id="perhaps-more-will-be"),
    ],
)
def test_parameters_that_ddp_does_not_average_are_named_while_the_job_trains(
    found: list[tuple[str, ...]], num_said: int
) -> None:
    said: list[str] = []
    pulse = running(found, said)
    for _ in range(len(found) * _ROUNDS_PER_LOOK):
        pulse._round()
    assert len(said) == num_said
    if said:
        assert said[0].startswith("DDP does not average the gradients of 2 parameters")
        for _ in range(_ROUNDS_PER_LOOK):
            pulse._round()  # which looks no more
    assert len(said) == num_said
