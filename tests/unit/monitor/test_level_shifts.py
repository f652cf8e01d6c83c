from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest

from ddpprof.monitor.level_shifts import (
    OF_MEANS,
    OF_SUMMARIES,
    LevelShift,
    LevelShifts,
    change_point,
    middle_half,
    noise_of_windows,
)


def test_equal_values_have_no_noise() -> None:
    assert noise_of_windows(np.ones(100), 32, 512, True, 0.1) == 0


def test_windows_with_two_levels_are_not_noise() -> None:
    values = np.repeat([0.0, log(1.2), 0.0], (200, 32, 200))
    assert noise_of_windows(values, 32, 512, True, log(1.1)) == 0


def test_slow_changes_are_noise_of_windows_though_neighbours_hardly_differ() -> None:
    values = 0.02 * np.sin(np.arange(512) / 40)
    assert noise_of_windows(values, 32, 512, True, log(1.1)) > 0.015


def test_the_middle_half_leaves_out_both_ends() -> None:
    assert middle_half(np.array([[9.0, 1.0, 2.0, 100.0]])).tolist() == [5.5]


@pytest.mark.parametrize(("old", "new"), [(0.0, 1.0), (1.0, 0.0)])
def test_the_change_is_where_the_new_level_begins(old: float, new: float) -> None:
    assert change_point(np.repeat([old, new], (20, 9)), old, new) == 20


def test_a_single_outlier_is_no_change() -> None:
    values = np.repeat([0.0, 5.0, 0.0, 1.0], (5, 1, 14, 9))
    assert change_point(values, 0.0, 1.0) == 20


MS = 1_000_000


def found(lengths_ms: list[float], usual: list[bool] | None = None, fed: int = 1000) -> list[LevelShift]:
    detector = LevelShifts()
    lengths = np.round(np.array(lengths_ms) * MS).astype(np.int64)
    is_usual = np.ones(len(lengths), bool) if usual is None else np.array(usual)
    for begin in range(0, len(lengths), fed):
        part = slice(begin, begin + fed)
        detector.feed(np.arange(len(lengths))[part], lengths[part], is_usual[part])
    return detector.shifts


def test_equal_steps_are_no_slow_down() -> None:
    assert found([60.0] * 1000) == []


def test_a_slow_down_has_first_step_and_size() -> None:
    (shift,) = found([60.0] * 300 + [66.0] * 30)
    assert (shift.first_step, shift.last_step) == (300, None)
    assert (shift.before_ns, shift.after_ns) == (60 * MS, 66 * MS)


def test_its_steps_are_those_from_its_first_to_its_last() -> None:
    detector = LevelShifts()
    over = LevelShift(first_step=2, last_step=4, before_ns=10, after_ns=20, num_steps=3)
    lasts = LevelShift(first_step=6, last_step=None, before_ns=10, after_ns=20, num_steps=3)
    detector.shifts += [over, lasts]
    steps = np.arange(9)
    assert [steps[one.holds(steps)].tolist() for one in (over, lasts)] == [[2, 3, 4], [6, 7, 8]]
    normal = [steps[detector.normal_before(one, steps)].tolist() for one in (over, lasts)]
    assert normal == [[0, 1], [0, 1, 5]]


def test_steps_that_all_have_a_known_reason_say_nothing() -> None:
    assert found([90.0] * 20 + [60.0] * 300, [step >= 20 for step in range(320)], fed=10) == []


def test_a_slow_down_ends() -> None:
    (shift,) = found([60.0] * 300 + [72.0] * 100 + [60.0] * 100)
    assert abs(shift.first_step - 300) <= 1
    assert shift.last_step is not None
    assert abs(shift.last_step - 399) <= 1
    assert (shift.before_ns, shift.after_ns) == (60 * MS, 72 * MS)


@pytest.mark.parametrize("num_slow", [pytest.param(19, id="not-yet"), pytest.param(24, id="found")])
def test_it_takes_a_few_steps_until_one_is_found(num_slow: int) -> None:
    assert len(found([60.0] * 300 + [66.0] * num_slow)) == (num_slow == 24)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([60.0] * 300 + [600.0] + [60.0] * 300, id="one-long-step"),
        pytest.param([60.0] * 300 + [90.0] * 15 + [60.0] * 300, id="a-burst"),
        pytest.param(([60.0] * 40 + [90.0] * 8) * 20, id="bursts"),
        pytest.param([60.0, 75.0] * 500, id="every-second-step"),
        pytest.param([60.0 * 1.00003**step for step in range(3000)], id="a-drift"),
        pytest.param([60.0] * 300 + [62.0] * 300, id="too-small"),
        pytest.param([60.0] * 300 + [45.0] * 80 + [60.0] * 200, id="faster-for-a-time"),
        pytest.param([200.0] * 5 + [60.0] * 300, id="long-first-steps"),
    ],
)
def test_what_is_no_slow_down(lengths: list[float]) -> None:
    assert found(lengths) == []


def test_steps_with_a_known_reason_are_left_out() -> None:
    lengths = [60.0] * 300 + [90.0] * 60 + [60.0] * 100
    assert len(found(lengths)) == 1
    assert found(lengths, [not 300 <= step < 360 for step in range(460)]) == []


def test_single_flagged_steps_do_not_hide_a_slow_down() -> None:
    lengths = [200.0 if step % 10 == 0 else 60.0 if step < 300 else 66.0 for step in range(330)]
    (shift,) = found(lengths, [step % 10 != 0 for step in range(330)])
    assert (shift.before_ns, shift.after_ns) == (60 * MS, 66 * MS)


def test_a_worse_slow_down_within_one_is_another() -> None:
    shifts = found([60.0] * 300 + [72.0] * 100 + [90.0] * 100 + [60.0] * 100)
    assert [(shift.before_ns, shift.after_ns) for shift in shifts] == [(60 * MS, 72 * MS), (60 * MS, 90 * MS)]
    assert shifts[0].last_step is not None
    assert shifts[1].first_step == shifts[0].last_step + 1
    assert shifts[1].last_step is not None


def test_a_noisy_time_makes_nothing_deaf_afterwards() -> None:
    draw = np.random.default_rng(0)
    noisy = [60.0 * float(factor) for factor in draw.choice([1.0, 1.2, 1.5], 400)]
    quiet = [60.0] * 700
    assert len([one for one in found([*[60.0] * 200, *noisy, *quiet, *[66.0] * 30]) if one.first_step > 1200]) == 1


@pytest.mark.parametrize(("num_longer", "num_normal"), [(300, 200), (600, 300), (1000, 200)])
def test_a_job_that_became_faster_may_become_slower(num_longer: int, num_normal: int) -> None:
    (shift,) = found([66.0] * num_longer + [60.0] * num_normal + [90.0] * 1000)
    assert abs(shift.first_step - num_longer - num_normal) <= 1
    assert (shift.before_ns, shift.after_ns, shift.last_step) == (60 * MS, 90 * MS, None)


def test_an_unfound_slow_down_is_no_noise() -> None:
    bursts = ([60.0] * 60 + [72.0] * 15) * 6
    (shift,) = found([60.0] * 100 + bursts + [60.0] * 60 + [67.0] * 30)
    assert abs(shift.first_step - 610) <= 1


def uneven(draw: np.random.Generator, num_steps: int) -> np.ndarray:
    """Return steps as of ranks that share few cores: each differs by 30 %, and 30 to 150 in a row by 15 %."""
    logs, begin = draw.normal(0, 0.3, num_steps), 0
    while begin < num_steps:
        end = begin + int(draw.integers(30, 151))
        logs[begin:end] += draw.normal(0, 0.15)
        begin = end
    return 6.0 * np.exp(logs)


def test_uneven_steps_are_no_slow_downs() -> None:
    jobs = [found(uneven(np.random.default_rng(seed), 20_000).tolist()) for seed in range(5)]
    assert sum(shift.was_slow for shifts in jobs for shift in shifts) <= 1


def test_uneven_steps_hide_no_slow_down_of_more_than_that() -> None:
    lengths = uneven(np.random.default_rng(0), 5000)
    lengths[4000:] *= 3
    (shift,) = [shift for shift in found(lengths.tolist()) if shift.was_slow]
    assert abs(shift.first_step - 4000) < 10
    assert shift.last_step is None


def test_a_slow_down_is_withdrawn_where_its_steps_differ_as_much_as_that() -> None:
    """The first steps are even by chance."""
    lengths = np.concatenate((np.full(100, 5.0), uneven(np.random.default_rng(0), 3000)))
    shifts = found(lengths.tolist())
    assert shifts
    assert not any(shift.was_slow for shift in shifts)
    assert all(shift.last_step is not None for shift in shifts)


def test_a_slow_down_of_a_job_whose_noise_was_known_is_not_withdrawn_when_its_steps_become_uneven() -> None:
    even = [60.0] * 700 + [66.0] * 100 + [60.0] * 200
    first, *_ = found([*even, *(10 * uneven(np.random.default_rng(0), 1500)).tolist()])
    assert (first.before_ns, first.after_ns, first.was_slow) == (60 * MS, 66 * MS, True)


@pytest.mark.parametrize("fed", [1, 7, 64, 5000])
def test_it_does_not_matter_how_many_steps_come_at_once(fed: int) -> None:
    draw = np.random.default_rng(1)
    lengths = [float(ms) for ms in 60 * np.exp(draw.normal(0, 0.03, 900)) * np.where(np.arange(900) // 150 % 2, 1.2, 1)]
    assert found(lengths, fed=fed) == found(lengths, fed=900)
    assert len(found(lengths)) == 3


def test_three_summaries_are_enough() -> None:
    detector = LevelShifts(OF_SUMMARIES)
    lengths = np.array([60] * 20 + [72] * 3 + [60] * 5) * MS
    detector.feed(np.arange(28) * 100, lengths, np.ones(28, bool))
    ((first, last),) = [(shift.first_step, shift.last_step) for shift in detector.shifts]
    assert first == 2000
    assert last == 2299


THROTTLED = Path(__file__).with_name("throttled_steps.txt")
"""lengths of steps in 0.1 ms, recorded on a busy machine; from step 393 on a rank had 4 % of a core"""


def test_a_slow_down_is_found_after_noisy_steps() -> None:
    """Most steps take 10 ms and some 100 ms, so that their noise grew with the slowdown until it hid it."""
    lengths_ms = [int(word) / 10 for word in THROTTLED.read_text(encoding="utf-8").split()]
    (shift,) = found(lengths_ms, fed=20)
    assert abs(shift.first_step - 395) < 10
    assert shift.last_step is None
    assert shift.was_slow


def test_a_slow_down_to_much_more_than_twice_is_found_whatever_the_noise_before() -> None:
    noisy = [4.0 if step // 40 % 2 else 60.0 for step in range(520)]
    assert found([*noisy, *[400.0] * 60])[-1].last_step is None


def of_means(lengths_ms: list[float]) -> list[LevelShift]:
    detector = LevelShifts(OF_MEANS)
    lengths = (np.array(lengths_ms) * MS).astype(np.int64)
    for begin in range(0, len(lengths), 10):
        part = slice(begin, begin + 10)
        detector.feed(np.arange(len(lengths))[part], lengths[part], np.ones(len(lengths[part]), bool))
    return detector.shifts


def throttled(num_steps: int) -> list[float]:
    """Return lengths of steps of which each fifth is much longer."""
    return [120.0 if step % 5 == 0 else 20.0 for step in range(num_steps)]


def test_means_show_a_slow_down_in_which_only_some_steps_are_longer() -> None:
    lengths_ms = [20.0] * 600 + throttled(300)
    assert found(lengths_ms) == [], "medians do not show it"
    (shift,) = of_means([*lengths_ms, *[20.0] * 300])
    assert abs(shift.first_step - 600) <= 8
    assert shift.last_step is not None
    assert abs(shift.last_step - 900) <= 8
    assert abs(shift.after_ns / shift.before_ns - 2) < 0.1
    assert abs(shift.num_steps - 300) <= 16


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([60.0] * 300 + [6000.0] + [60.0] * 300, id="one-long-step"),
        pytest.param(([60.0] * 100 + [900.0]) * 10, id="one-in-a-hundred"),
        pytest.param([20.0] * 300 + throttled(40) + [20.0] * 300, id="a-burst"),
        pytest.param(throttled(900), id="always"),
    ],
)
def test_single_long_steps_are_no_slow_down_of_means(lengths: list[float]) -> None:
    assert of_means(lengths) == []
