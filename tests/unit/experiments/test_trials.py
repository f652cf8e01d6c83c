"""The steps of a trial that were timed."""

from __future__ import annotations

from math import inf, nan

import pytest
from msgspec.structs import replace
from tables import record

from ddpprof.experiments.trials import Losses, Match, match_losses, timed_blocks, timed_steps
from ddpprof.model import RecordedStep, StepMode


def step(number: int, took: int, mode: str = "off") -> RecordedStep:
    return RecordedStep(number=number, mode=StepMode(mode), start_ns=1000 * number, end_ns=1000 * number + took)


def test_runs_of_consecutive_steps_are_blocks() -> None:
    steps = (step(3, 10), step(4, 12), step(5, 99, "without_ddp"), step(6, 98, "without_ddp"), step(9, 14))
    rank = replace(record(), steps=steps)
    assert timed_blocks([rank]) == ((10, 12), (14,))
    assert timed_blocks([rank], StepMode.WITHOUT_DDP) == ((99, 98),)
    assert timed_steps([rank]) == (10, 12, 14)


def test_of_several_ranks_the_mean_of_the_steps_that_all_have() -> None:
    ranks = [replace(record(), steps=(step(3, 10), step(4, 20))), replace(record(), steps=(step(4, 30), step(5, 1)))]
    assert timed_blocks(ranks) == ((25,),)


def test_without_ranks_or_timed_steps_there_are_none() -> None:
    assert timed_blocks([]) == ()
    assert timed_steps([replace(record(), steps=(step(1, 5, "light"),))]) == ()


def test_of_an_accelerators_steps_only_the_block_is_known() -> None:
    steps = (step(3, 1), step(4, 1), step(5, 28), step(9, 7, "without_ddp"), step(10, 9, "without_ddp"))
    rank = replace(record(device="cuda"), steps=steps)
    assert timed_blocks([rank]) == ((10,),)
    assert timed_blocks([rank], StepMode.WITHOUT_DDP) == ((8,),)


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
