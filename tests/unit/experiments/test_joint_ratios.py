"""How many times as long the step of each of several variants takes as that of one."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from tables import record

from ddpprof.experiments.joint_ratios import Steps, is_losing, joint_ratios, start_spread, timed_blocks, timed_steps
from ddpprof.model import RecordedStep, StepMode
from ddpprof.statistics.paired_ratio import paired_ratio


def test_of_one_variant_it_is_what_pairs_say() -> None:
    one, other = [100.0, 104.0, 99.0, 107.0], [93.0, 99.0, 90.0, 104.0]
    (ratio,) = joint_ratios(one, [other])
    pairs = paired_ratio([[([a], [b])] for a, b in zip(other, one, strict=True)])
    assert pairs is not None
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((pairs.ratio, pairs.low, pairs.high))


def test_the_interval_is_that_of_a_two_way_table() -> None:
    """By hand: logarithms of three rounds (0, 0, 0), (0.1, 0.2, 0.3), (0.3, 0.2, 0.1).

    All rounds and all residuals of the first have the mean 0; of the others they are -0.1, 0, 0.1 and 0.1, 0, -0.1:
    a mean square of 0.04 / 4. Student's t of 4 degrees at 1.25 % is 3.4954.
    """
    one, *others = (np.exp(logs).tolist() for logs in ((0, 0, 0), (0.1, 0.2, 0.3), (0.3, 0.2, 0.1)))
    half = 3.4954 * np.sqrt(2 * 0.01 / 3)
    for ratio in joint_ratios(one, others):
        assert ratio.low is not None
        assert ratio.high is not None
        assert np.log([ratio.ratio, ratio.low, ratio.high]) == pytest.approx([0.2, 0.2 - half, 0.2 + half], abs=1e-4)


def test_a_machine_that_slows_down_for_a_while_drops_out() -> None:
    slow = np.array([1, 1, 3, 8, 1.0])
    for ratio, truth in zip(joint_ratios(10 * slow, [11 * slow, 9 * slow]), (1.1, 0.9), strict=True):
        assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((truth,) * 3)
        assert ratio.is_beyond_noise


def test_two_rounds_do_not_show_how_much_they_differ() -> None:
    (ratio,) = joint_ratios([1.0, 1.0], [[2.0, 4.0]])
    assert (ratio.ratio, ratio.low, ratio.high, ratio.num_pairs) == (3.0, None, None, 2)


def test_all_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Four variants that differ by nothing: pairs alone would call one of them faster or slower in one of six cases."""
    random = np.random.default_rng(1)
    tries, false_alarms, of_pairs = 400, 0, 0
    for _ in range(tries):
        one, *others = np.exp(random.normal(0, 0.05, (5, 5)) + random.normal(0, 0.1, 5))
        false_alarms += any(ratio.is_beyond_noise for ratio in joint_ratios(one, others))
        pairs = [paired_ratio([[([a], [b])] for a, b in zip(steps, one, strict=True)]) for steps in others]
        of_pairs += any(ratio is not None and ratio.is_beyond_noise for ratio in pairs)
    assert false_alarms <= 0.08 * tries  # 5 % of 400 is 20; more than 32 would come about once in 200 times
    assert of_pairs > 0.1 * tries


@pytest.mark.parametrize(
    ("own", "others", "spread", "losing"),
    [
        pytest.param([(103.0,) * 6] * 2, [(100.0,) * 6] * 2, 0.0, True, id="beyond-2-percent"),
        pytest.param([(300.0,) * 6], [(100.0,) * 6], 0.0, False, id="one-start-tells-nothing"),
        pytest.param([(101.5,) * 6] * 2, [(100.0,) * 6] * 2, 0.0, False, id="as-good"),
        pytest.param([(103.0,) * 6] * 2, [(100.0,) * 6] * 2, 0.05, False, id="starts-differ-by-more"),
        pytest.param(
            [(90.0, 95, 103, 110, 115, 120)] * 2, [(90.0, 92, 100, 110, 118, 119)] * 2, 0.0, False, id="noise"
        ),
        pytest.param([(50.0,) * 6] * 2, [(100.0,) * 6] * 2, 0.0, False, id="winning"),
        pytest.param([()], [(100.0,) * 6], 0.0, False, id="not-run"),
        pytest.param(
            [(50.0,), (200.0,) * 6, (200.0,) * 6], [(), (100.0,) * 6, (100.0,) * 6], 0.0, True, id="only-rounds-of-both"
        ),
        pytest.param([(111.0,)] * 2, [(100.0,)] * 2, 0.0, True, id="one-time-10-percent"),
        pytest.param([(109.0,)] * 2, [(100.0,)] * 2, 0.0, False, id="one-time-9-percent"),
    ],
)
def test_a_variant_loses_where_it_is_slower_beyond_doubt(
    own: list[Steps], others: list[Steps], spread: float, losing: bool
) -> None:
    assert is_losing(own, others, spread) is losing


def test_starts_differ_as_their_medians_do() -> None:
    assert start_spread([(100.0, 1.0, 200.0), (), (150.0,)]) == 0.5
    assert start_spread([]) == 0.0


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
