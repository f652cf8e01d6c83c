from __future__ import annotations

from math import log

import numpy as np
import pytest

from ddpprof.monitor.step_noise import change_point, middle_half, noise_of_windows


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
