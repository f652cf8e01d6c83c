"""Whether ranks train on the same samples: known from what they were fed, or nothing is said."""

from __future__ import annotations

from typing import Any

import pytest
from observations import loader

from ddpprof.measures.ranks.same_samples import find_same_samples
from ddpprof.model import Batch, Loader


def fed(*samples: range, iteration: int = 1, **changes: Any) -> Loader:
    """A loader that yielded these samples, a batch each."""
    batches = tuple(Batch(iteration, place, tuple(one)) for place, one in enumerate(samples, 1))
    return loader(**{"batches": batches, "num_passed_on": len(batches), **changes})


FOUR = (range(4), range(4, 8), range(8, 12), range(12, 16))
OTHER = (range(100, 104), range(104, 108), range(108, 112))


def test_the_same_batches() -> None:
    same = find_same_samples({0: (fed(*FOUR),), 1: (fed(*FOUR[:3]),)})
    assert same is not None
    assert (same.ranks, same.num_batches, same.num_samples, same.same_batches) == ((0, 1), 3, 12, True)


def test_other_ranks_samples_in_another_order() -> None:
    mine, others = (range(32),), (range(16, 48),)
    same = find_same_samples({0: (fed(*mine),), 1: (fed(*others),)})
    assert same is not None
    assert (same.num_batches, same.num_samples, same.num_compared, same.same_batches) == (0, 16, 32, False)


@pytest.mark.parametrize(
    ("zero", "one"),
    [
        pytest.param(fed(*FOUR), fed(*OTHER), id="divided"),
        pytest.param(fed(*FOUR[:2]), fed(*FOUR[:2]), id="too-few-batches"),
        pytest.param(fed(*[range(1)] * 9), fed(*[range(1)] * 9), id="data-that-does-not-change"),
        pytest.param(fed(*[range(8)] * 9), fed(*[range(8)] * 9), id="one-batch-again-and-again"),
        pytest.param(fed(*FOUR, num_fed=0), fed(*FOUR, num_fed=0), id="evaluation"),
        pytest.param(fed(*FOUR, num_passed_on=1), fed(*FOUR, num_passed_on=1), id="parts-of-a-batch-reach-the-model"),
        pytest.param(fed(), fed(), id="batches-that-cannot-be-read"),
        pytest.param(fed(range(15)), fed(range(15), range(20, 99)), id="too-few-shared"),
        pytest.param(fed(range(100)), fed(range(80, 180)), id="a-small-part-shared"),
        pytest.param(fed(range(32), range(8)), fed(range(16, 48)), id="a-rank-gets-samples-twice-itself"),
        pytest.param(fed(range(32)), fed(range(32), iteration=2), id="of-different-epochs"),
        pytest.param(fed(*FOUR), fed(*FOUR, num_iterations=4), id="of-passes-that-differ"),
    ],
)
def test_nothing_is_said(zero: Loader, one: Loader) -> None:
    assert find_same_samples({0: (zero,), 1: (one,)}) is None


def test_a_loader_that_is_divided_is_enough() -> None:
    both = {0: (fed(*FOUR), fed(*FOUR)), 1: (fed(*FOUR), fed(*OTHER))}
    assert find_same_samples(both) is None
    assert find_same_samples({rank: loaders[:1] for rank, loaders in both.items()}) is not None


def test_ranks_with_other_loaders_are_not_compared() -> None:
    assert find_same_samples({0: (fed(*FOUR), fed(*FOUR)), 1: (fed(*FOUR),)}) is None
    assert find_same_samples({0: (fed(*FOUR),)}) is None
    assert find_same_samples({}) is None
