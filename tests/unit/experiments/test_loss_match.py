"""Whether two trainings are the same, by their losses."""

from __future__ import annotations

from math import inf, nan

import pytest

from ddpprof.experiments.loss_match import Losses, Match, match_losses

NOW: Losses = {0: ((1.0,), (0.5,)), 1: ((1.0,), (0.75,))}
BIT = 2.0**-24


def second(loss: float, first: float = 1.0) -> Losses:
    return {0: ((first,), (loss,)), 1: ((1.0,), (0.75,))}


@pytest.mark.parametrize(
    ("setting", "order_is_kept", "match"),
    [
        pytest.param(NOW, True, Match.EXACT, id="same"),
        pytest.param(second(0.5 + BIT), True, Match.CHANGED, id="a-bit-where-none-may"),
        pytest.param(second(0.5 + BIT), False, Match.ROUNDING, id="a-bit-of-another-order"),
        pytest.param(second(0.5001), False, Match.CHANGED, id="more-than-rounding"),
        pytest.param(second(nan), False, Match.CHANGED, id="not-a-number"),
        pytest.param(second(inf), False, Match.CHANGED, id="without-bound"),
        pytest.param({0: ((1.0, 1.0), (0.5,))}, False, Match.CHANGED, id="another-number-of-losses"),
        pytest.param({0: ((1.0,),)}, True, Match.EXACT, id="fewer-steps-and-ranks"),
        pytest.param({0: ((), ())}, True, Match.CHANGED, id="no-losses-where-there-were"),
        pytest.param({}, True, Match.UNKNOWN, id="none-seen"),
    ],
)
def test_losses_match(setting: Losses, order_is_kept: bool, match: Match) -> None:
    assert match_losses([NOW, NOW], [setting], order_is_kept).match is match


def test_what_starts_differ_by_is_allowed_three_times() -> None:
    found = match_losses([second(0.5), second(0.50002)], [second(0.50005)], order_is_kept=True)
    assert (found.match, found.own, found.tolerance) == (
        Match.ROUNDING, pytest.approx(4e-5), pytest.approx(1.2e-4, 0.02),
    )  # fmt: skip
    assert match_losses([second(0.5), second(0.50002)], [second(0.50008)], order_is_kept=True).match is Match.CHANGED


def test_without_a_seed_nothing_is_known() -> None:
    for another in (0.6, 0.501):
        match = match_losses([second(0.5), second(another)], [second(5.0)], order_is_kept=True).match
        assert match is Match.UNKNOWN


def test_one_start_tells_only_that_losses_are_the_same() -> None:
    assert match_losses([NOW], [NOW], order_is_kept=True).match is Match.EXACT
    assert match_losses([NOW], [second(0.4)], order_is_kept=True).match is Match.UNKNOWN


def test_trainings_that_both_break_down_are_alike() -> None:
    assert match_losses([second(nan), second(nan)], [second(nan)], order_is_kept=True).match is Match.EXACT


def test_any_start_of_a_setting_may_betray_it() -> None:
    assert match_losses([NOW, NOW], [NOW, second(0.4)], order_is_kept=False).match is Match.CHANGED
