"""The steps that are recorded by default, and options for trainings of few steps."""

import pytest

from ddpprof.ranks_and_steps import default_steps, options_for
from ddpprof.record.settings import Settings
from ddpprof.record.steps import Schedule


@pytest.mark.parametrize(
    ("num_steps", "on_accelerator", "expected"),
    [
        (1, False, None),
        (2, False, (1, 0, 0, 1)),
        (3, False, (1, 0, 1, 1)),
        (5, False, (1, 0, 1, 3)),
        (10, False, (2, 2, 1, 5)),
        (16, False, (3, 6, 1, 5)),
        (11, True, None),
        (12, True, (11, 0, 0, 1)),
        (15, True, (11, 0, 1, 3)),
        (24, True, (11, 6, 1, 5)),
    ],
)
def test_the_options_fit_into_the_training(
    num_steps: int, on_accelerator: bool, expected: tuple[int, ...] | None
) -> None:
    options = options_for(num_steps, on_accelerator)
    if expected is None:
        assert options is None
        return
    assert options is not None
    skip, cost, warmup, steps = (int(word) for word in options.split()[1::2])
    assert (skip, cost, warmup, steps) == expected
    settings = Settings(out="", skip_first=skip, cost_steps=cost, warmup=warmup, steps=steps)
    assert Schedule(settings, on_accelerator).num_steps <= num_steps


@pytest.mark.parametrize(("on_accelerator", "enough"), [(False, 17), (True, 25)])
def test_a_training_that_is_long_enough_needs_no_options(on_accelerator: bool, enough: int) -> None:
    assert default_steps(on_accelerator) == enough
    assert Schedule(Settings(out=""), on_accelerator).num_steps == enough
    assert options_for(enough, on_accelerator) == ""
    assert options_for(enough - 1, on_accelerator)
