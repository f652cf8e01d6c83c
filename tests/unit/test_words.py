"""Lists name the first of many things."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ddpprof.words import ranks_in_words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "rank 3"), (range(2), "ranks 0, 1"), (range(10), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more")],
)
def test_ranks(ranks: Sequence[int], words: str) -> None:
    assert ranks_in_words(ranks) == words
