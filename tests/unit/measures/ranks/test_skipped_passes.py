"""Which rank skipped a backward pass?"""

from __future__ import annotations

import pytest

from ddpprof.measures.ranks.skipped_passes import SkippedPass, Unpaired, find_skipped_pass

NONE = Unpaired(0, None, 100)


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        pytest.param([NONE, NONE], None, id="none"),
        pytest.param([NONE, Unpaired(1, 60, 99)], SkippedPass(1, 60, 1), id="one"),
        pytest.param([NONE, Unpaired(1, 60, 99), Unpaired(3, 70, 97)], SkippedPass(2, 70, 3), id="most"),
        pytest.param([Unpaired(1, 60, 100), Unpaired(1, 60, 100)], None, id="all-together"),
        pytest.param([Unpaired(2, 60, 99), Unpaired(1, 60, 70)], None, id="one-has-not-come-as-far"),
        pytest.param([Unpaired(1, 60, 61), Unpaired(0, None, 60)], None, id="the-other-is-still-in-that-step"),
        pytest.param([Unpaired(1, 60, 61)], None, id="one-rank"),
    ],
)
def test_which_rank_skipped(ranks: list[Unpaired], found: SkippedPass | None) -> None:
    assert find_skipped_pass(dict(enumerate(ranks))) == found
