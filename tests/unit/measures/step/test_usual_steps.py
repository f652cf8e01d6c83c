"""The profiled steps that tables average over."""

import pytest

from ddpprof.measures.step.usual_steps import usual_steps


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        pytest.param([], (), id="none"),
        pytest.param([(12, 100)], (12,), id="one"),
        pytest.param([(12, 100), (13, 150), (14, 100)], (12, 13, 14), id="as-long-as-it-may-be"),
        pytest.param([(12, 100), (13, 151), (14, 100)], (12, 14), id="longer"),
        pytest.param([(12, 10), (13, 100), (14, 100)], (12, 13, 14), id="a-short-one-is-usual"),
        pytest.param([(12, 100), (12, 100), (13, 300), (13, 0), (14, 100), (14, 100)], (12, 13, 14), id="over-ranks"),
    ],
)
def test_usual_steps(lengths: list[tuple[int, int]], expected: tuple[int, ...]) -> None:
    assert usual_steps(lengths) == expected


@pytest.mark.parametrize(
    ("lengths", "evaluated", "expected"),
    [
        pytest.param([(12, 50), (13, 70)], {13}, (12,), id="longer-by-its-evaluation"),
        pytest.param([(12, 50), (13, 50)], {13}, (12, 13), id="no-longer-than-others"),
        pytest.param([(12, 85), (13, 85), (14, 50)], {12, 13}, (14,), id="most-of-them"),
        pytest.param([(12, 50), (13, 70)], {12, 13}, (12, 13), id="in-every-step"),
    ],
)
def test_an_evaluation_is_no_part_of_a_usual_step(
    lengths: list[tuple[int, int]], evaluated: set[int], expected: tuple[int, ...]
) -> None:
    assert usual_steps(lengths, evaluated) == expected
