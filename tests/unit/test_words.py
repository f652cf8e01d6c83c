"""Lists that name the first of many things, and sentences that several rooms say."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ddpprof.words import not_averaged, ranks_in_words, trained_apart


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "rank 3"), (range(2), "ranks 0, 1"), (range(10), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more")],
)
def test_ranks(ranks: Sequence[int], words: str) -> None:
    assert ranks_in_words(ranks) == words


def test_parameters_that_are_not_averaged() -> None:
    assert trained_apart(["a"]) == "each rank has since trained its own copy of it"
    assert not_averaged(["a"]) == (
        "DDP does not average the gradients of 1 parameter that was frozen when DDP was constructed: a"
    )
    assert not_averaged("abcdef").endswith(
        "6 parameters that were frozen when DDP was constructed: a, b, c, d and 2 more"
    )
