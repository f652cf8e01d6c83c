"""Numbers as they are shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ddpprof.layout import ms, ranks_in_words


@pytest.mark.parametrize(
    ("ns", "shown"), [(None, "-"), (0, "0.00"), (-1e-9, "0.00"), (-5e6, "-5.00"), (1_234_567, "1.23")]
)
def test_milliseconds(ns: float | None, shown: str) -> None:
    assert ms(ns) == shown


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "rank 3"), (range(2), "ranks 0, 1"), (range(10), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more")],
)
def test_ranks(ranks: Sequence[int], words: str) -> None:
    assert ranks_in_words(ranks) == words
