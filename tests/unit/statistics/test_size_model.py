"""Times over sizes: constant, slope, floor, and where two configurations cross."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from shared import REFERENCE

from ddpprof.statistics.size_model import find_crossover, fit_size_model

PUBLISHED = REFERENCE / "batch_crossover.csv"
SIZES = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]


def line(constant: float, slope: float, floor: float = 0.0) -> list[float]:
    return [max(floor, constant + slope * size) for size in SIZES]


def test_a_straight_line_is_found() -> None:
    model = fit_size_model(SIZES, line(10, 3))
    assert model is not None
    assert (model.constant_ns, model.slope_ns) == (pytest.approx(10), pytest.approx(3))
    assert model.floor_ns is None
    assert model.relative_error == pytest.approx(0, abs=1e-9)
    assert model.time_ns(100) == pytest.approx(310)


def test_a_floor_is_found() -> None:
    model = fit_size_model(SIZES, line(10, 3, floor=40))
    assert model is not None
    assert (model.constant_ns, model.slope_ns) == (pytest.approx(10), pytest.approx(3))
    assert (model.floor_ns, model.floor_until) == (pytest.approx(40), 8.0)
    assert model.time_ns(1) == pytest.approx(40)


def test_the_order_of_the_points_is_of_no_account() -> None:
    order = [3, 0, 6, 1, 5, 2, 4]
    times = line(10, 3, floor=34)
    assert fit_size_model([SIZES[i] for i in order], [times[i] for i in order]) == fit_size_model(SIZES, times)


@pytest.mark.parametrize("sizes", [[], [1.0], [1.0, 2.0], [4.0, 4.0, 8.0]], ids=["none", "one", "two", "two-repeated"])
def test_fewer_than_three_sizes_give_no_model(sizes: list[float]) -> None:
    assert fit_size_model(sizes, [1.0] * len(sizes)) is None
    assert find_crossover((sizes, [1.0] * len(sizes)), (SIZES, line(1, 1))) is None


def test_two_lines_cross_where_they_take_the_same_time() -> None:
    found = find_crossover((SIZES, line(10, 3)), (SIZES, line(50, 1)))
    assert found is not None
    assert found.size == pytest.approx(20)
    assert (found.low, found.high) == (pytest.approx(20), pytest.approx(20))
    assert found.slope_ratio == pytest.approx(3)


def test_either_order_gives_the_same_crossover() -> None:
    a, b = (SIZES, line(10, 3)), (SIZES, line(50, 1))
    one, other = find_crossover(a, b), find_crossover(b, a)
    assert one is not None
    assert other is not None
    assert (one.size, one.slope_ratio) == (pytest.approx(other.size), pytest.approx(other.slope_ratio))


@pytest.mark.parametrize(
    ("constant", "slope"),
    [pytest.param(60, 3, id="parallel"), pytest.param(60, 4, id="slower-everywhere"), pytest.param(5, 2, id="faster")],
)
def test_where_one_is_faster_at_every_size_nothing_crosses(constant: float, slope: float) -> None:
    assert find_crossover((SIZES, line(10, 3)), (SIZES, line(constant, slope))) is None


@pytest.mark.parametrize("slope", [0.0, -0.25], ids=["none", "falling"])
def test_a_time_that_does_not_grow_has_no_ratio_of_slopes(slope: float) -> None:
    found = find_crossover((SIZES, line(10, 3)), (SIZES, line(75, slope)))
    assert found is not None
    assert found.size == pytest.approx(65 / (3 - slope))
    assert found.slope_ratio is None


@pytest.mark.parametrize(
    ("a", "b", "crossover"),
    [
        pytest.param((10, 3, 40), (30, 2), 20, id="beyond-the-floor"),
        pytest.param((0, 3, 40), (5, 2), None, id="lines-cross-below-the-floor"),
        pytest.param((0, 3, 40), (8, 4), 8, id="a-line-through-the-others-floor"),
    ],
)
def test_a_floor_counts_where_two_cross(a: tuple[float, ...], b: tuple[float, ...], crossover: float | None) -> None:
    found = find_crossover((SIZES, line(*a)), (SIZES, line(*b)))
    assert (None if found is None else found.size) == (None if crossover is None else pytest.approx(crossover))


def test_a_line_that_comes_to_nothing_crosses_none() -> None:
    sizes, falling = [1.0, 2.0, 4.0, 8.0], [10.0, 10.0, 1.0, 100.0]
    model = fit_size_model(sizes, falling)
    assert model is not None
    assert model.time_ns(8) == 0
    assert find_crossover((sizes, falling), (sizes, sizes)) is None


def test_one_time_may_outweigh_all_others() -> None:
    model = fit_size_model([1, 2, 3], [1e-12, 1e12, 1e12])
    assert model is not None
    assert np.isfinite(model.time_ns(2))


def test_noise_widens_the_interval_around_the_truth() -> None:
    random = np.random.default_rng(2)
    noisy = [
        (SIZES * 3, (np.array(line(*truth) * 3) * np.exp(random.normal(0, 0.03, 21))).tolist())
        for truth in ((10, 3), (50, 1))
    ]
    found = find_crossover(*noisy)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < 20 < found.high
    assert 1 < found.high - found.low < 10


def test_data_that_do_not_bound_the_crossover_say_so() -> None:
    random = np.random.default_rng(3)
    noisy = [
        (SIZES, (np.array(line(*truth)) * np.exp(random.normal(0, 0.2, 7))).tolist()) for truth in ((10, 3), (30, 2.9))
    ]
    found = find_crossover(*noisy)
    assert found is None or found.low is None or found.high is None


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the numbers of others are not part of the project: no ../shared")
def test_a_published_experiment() -> None:
    """MNIST on one T4 and on two nodes: below a batch between 128 and 256 the single GPU is faster."""
    with PUBLISHED.open() as file:
        rows = list(csv.DictReader(file))
    sizes = [float(row["batch"]) for row in rows]
    single = [float(row["single_s"]) for row in rows]
    for node in ("node0_s", "node1_s"):
        found = find_crossover((sizes, single), (sizes, [float(row[node]) for row in rows]))
        assert found is not None
        assert 128 < found.size < 256
        assert found.slope_ratio == pytest.approx(2, rel=0.05)
