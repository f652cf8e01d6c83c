"""Ranks that draw the same random numbers: the same state at every step, and another one in each."""

import pytest

from ddpprof.measures.ranks.random_numbers import SameRandomNumbers, find_same_random_numbers

DRAWING = {3: 11, 4: 12, 5: 13, 6: 14}


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        pytest.param(DRAWING, DRAWING, SameRandomNumbers((0, 1), 4), id="same"),
        pytest.param(DRAWING, {**DRAWING, 7: 15}, SameRandomNumbers((0, 1), 4), id="one-recorded-longer"),
        pytest.param(DRAWING, {**DRAWING, 6: 15}, None, id="one-drew-more-in-the-end"),
        pytest.param(DRAWING, {3: 21, 4: 22, 5: 23, 6: 24}, None, id="other-seeds"),
        pytest.param(dict.fromkeys(DRAWING, 1), dict.fromkeys(DRAWING, 1), None, id="none-drawn"),
        pytest.param({3: 1, 4: 1, 5: 2, 6: 2}, {3: 1, 4: 1, 5: 2, 6: 2}, None, id="a-new-pass-over-the-loader"),
        pytest.param({3: 11, 4: 12, 5: 13}, {3: 11, 4: 12, 5: 13}, None, id="too-few-steps"),
        pytest.param(DRAWING, {}, None, id="one-without-records"),
    ],
)
def test_states_of_two_ranks(first: dict[int, int], second: dict[int, int], same: SameRandomNumbers | None) -> None:
    assert find_same_random_numbers({0: first, 1: second}) == same


def test_every_rank_counts() -> None:
    assert find_same_random_numbers({0: DRAWING}) is find_same_random_numbers({}) is None
    assert find_same_random_numbers({0: DRAWING, 2: DRAWING, 1: DRAWING}) == SameRandomNumbers((0, 1, 2), 4)
    assert find_same_random_numbers({0: DRAWING, 1: DRAWING, 2: {3: 11, 4: 12, 5: 13, 6: 99}}) is None
