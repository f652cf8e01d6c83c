"""Ranks that draw the same random numbers: the same state at every step, and another one in each."""

import pytest
from observations import loader
from tables import recorded

from ddpprof.model import Loader
from ddpprof.topics.data import (
    SameRandomNumbers,
    find_same_random_numbers,
    find_same_worker_seeds,
    states_of_generators,
)

DRAWING = {3: 11, 4: 12, 5: 13, 6: 14}
IDLE = dict.fromkeys(DRAWING, 1)


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        pytest.param(DRAWING, DRAWING, True, id="same"),
        pytest.param(DRAWING, {**DRAWING, 7: 15}, True, id="one-recorded-longer"),
        pytest.param(DRAWING, {**DRAWING, 6: 15}, False, id="one-drew-more-in-the-end"),
        pytest.param(DRAWING, {3: 21, 4: 22, 5: 23, 6: 24}, False, id="other-seeds"),
        pytest.param(IDLE, IDLE, False, id="none-drawn"),
        pytest.param({3: 1, 4: 1, 5: 2, 6: 2}, {3: 1, 4: 1, 5: 2, 6: 2}, False, id="not-in-every-step"),
        pytest.param({3: 11, 4: 12, 5: 13}, {3: 11, 4: 12, 5: 13}, False, id="too-few-steps"),
        pytest.param(DRAWING, {}, False, id="one-without-records"),
    ],
)
def test_states_of_two_ranks(first: dict[int, int], second: dict[int, int], is_same: bool) -> None:
    found = find_same_random_numbers({0: {"cpu": first}, 1: {"cpu": second}})
    assert found == (SameRandomNumbers(("cpu",), (0, 1), 4) if is_same else None)


def test_every_rank_counts() -> None:
    one = {"cpu": DRAWING}
    assert find_same_random_numbers({0: one}) is find_same_random_numbers({}) is None
    assert find_same_random_numbers({0: one, 2: one, 1: one}) == SameRandomNumbers(("cpu",), (0, 1, 2), 4)
    assert find_same_random_numbers({0: one, 1: one, 2: {"cpu": {3: 11, 4: 12, 5: 13, 6: 99}}}) is None


def test_every_generator_counts_by_itself() -> None:
    """Augmentation on the CPU may draw different numbers while dropout on the GPU draws the same."""
    ranks = {
        0: {"cpu": {3: 1, 4: 2, 5: 3, 6: 4}, "cuda": DRAWING},
        1: {"cpu": {3: 5, 4: 6, 5: 7, 6: 8}, "cuda": DRAWING},
    }
    assert find_same_random_numbers(ranks) == SameRandomNumbers(("cuda",), (0, 1), 4)
    ranks = {0: {"cpu": IDLE, "cuda": DRAWING}, 1: {"cpu": IDLE, "cuda": DRAWING}}
    assert find_same_random_numbers(ranks) == SameRandomNumbers(("cuda",), (0, 1), 4)
    ranks = {0: {"cpu": DRAWING, "cuda": DRAWING}, 1: {"cpu": DRAWING, "cuda": DRAWING}}
    assert find_same_random_numbers(ranks) == SameRandomNumbers(("cpu", "cuda"), (0, 1), 4)


def test_what_a_rank_noted() -> None:
    steps = [recorded(number=3, random_states={"cpu": 1, "cuda": 7}), recorded(number=4, random_states={"cuda": 8})]
    assert states_of_generators(steps) == {"cpu": {3: 1}, "cuda": {3: 7, 4: 8}}
    assert states_of_generators([]) == {}


def seeded(*seeds: int, draws: bool = True, fed: int = 9) -> Loader:
    return loader(worker_seeds=seeds, draws_in_workers=draws, num_fed=fed)


@pytest.mark.parametrize(
    ("loaders", "is_found"),
    [
        pytest.param([(seeded(7, 8),), (seeded(7, 9),)], True, id="in-the-first-pass"),
        pytest.param([(seeded(7),), (seeded(8),)], False, id="other-seeds"),
        pytest.param([(seeded(7),), (seeded(7),), (seeded(8),)], False, id="one-rank-has-its-own"),
        pytest.param([(seeded(7, draws=False),), (seeded(7, draws=False),)], False, id="nothing-is-drawn"),
        pytest.param([(seeded(7, fed=0),), (seeded(7, fed=0),)], False, id="of-an-evaluation"),
        pytest.param([(seeded(),), (seeded(),)], False, id="without-workers"),
        pytest.param([(seeded(7),)], False, id="one-rank"),
        pytest.param([(), (seeded(7),)], False, id="a-rank-without-loaders"),
    ],
)
def test_workers_that_get_the_same_seeds(loaders: list[tuple[Loader, ...]], is_found: bool) -> None:
    assert (find_same_worker_seeds(dict(enumerate(loaders))) is not None) is is_found
