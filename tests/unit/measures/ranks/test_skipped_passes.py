"""Which rank skipped a backward pass?"""

from __future__ import annotations

import pytest

from ddpprof.measures.ranks.skipped_passes import Passes, SkippedPass, find_skipped_pass

WAITS = Passes(120, has_finished=False)
FINISHED = Passes(120, has_finished=True)
SKIPPED = Passes(119, has_finished=True, num_unpaired=1, first_unpaired_step=60)


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        pytest.param([FINISHED, FINISHED], None, id="none"),
        pytest.param([WAITS, SKIPPED], SkippedPass(1, 60, 1), id="one"),
        pytest.param([WAITS, SKIPPED, Passes(117, True, 3, 70)], SkippedPass(2, 70, 3), id="most"),
        pytest.param([FINISHED, Passes(120, True, 12, 10)], None, id="a-loss-is-logged-without-a-backward-pass"),
        pytest.param([FINISHED, Passes(120, True, 1, 60)], None, id="a-forward-failed-and-was-repeated"),
        pytest.param([WAITS, Passes(119, False, 12, 10)], None, id="it-logs-losses-and-is-only-behind"),
        pytest.param([Passes(119, True, 1, 70), SKIPPED], None, id="all-skipped-as-many"),
        pytest.param([WAITS, Passes(119, has_finished=True)], None, id="fewer-batches"),
        pytest.param([SKIPPED], None, id="one-rank"),
    ],
)
def test_which_rank_skipped(ranks: list[Passes], found: SkippedPass | None) -> None:
    assert find_skipped_pass(dict(enumerate(ranks))) == found
