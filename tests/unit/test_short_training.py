"""Options for trainings of few steps."""

import pytest

from ddpprof.short_training import DEFAULT_STEPS, options_for


@pytest.mark.parametrize(
    ("num_steps", "expected"),
    [
        (1, None),
        (2, (1, 0, 0, 1)),
        (3, (1, 0, 1, 1)),
        (5, (1, 0, 1, 3)),
        (10, (2, 2, 1, 5)),
        (16, (3, 6, 1, 5)),
    ],
)
def test_the_options_fit_into_the_training(num_steps: int, expected: tuple[int, ...] | None) -> None:
    options = options_for(num_steps)
    if expected is None:
        assert options is None
        return
    assert options is not None
    assert tuple(int(word) for word in options.split()[1::2]) == expected
    assert sum(expected) <= num_steps


def test_a_training_that_is_long_enough_needs_no_options() -> None:
    assert options_for(DEFAULT_STEPS) == ""
