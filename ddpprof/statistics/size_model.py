"""Model times as a linear function of a size, and find the size from which one configuration is faster than another.

    time      = max(constant + slope × size, floor)
    crossover = the largest size at which both configurations take the same time

The floor describes small sizes that all take the same time because the launch takes longer than the work. It is used
if it improves the Bayesian information criterion (BIC): the floor is then fitted to the smallest sizes, and the line
to the other sizes. Both are least-squares fits of relative errors, because the times of a sweep span orders of
magnitude.
Intervals are bootstrapped from relative residuals (Efron and Tibshirani, An Introduction to the Bootstrap, 9.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose, log, sqrt

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
_DRAWS = 400
_LEAST_ON_LINE = 3
"""minimum number of sizes for fitting a straight line"""

_Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SizeModel:
    constant_ns: float
    slope_ns: float
    """time per unit of size"""
    floor_ns: float | None
    """shortest time, which applies to the smallest sizes; ``None`` if the straight line also fits these sizes"""
    floor_until: float | None
    """largest size that takes `floor_ns`"""
    relative_error: float
    """root-mean-square error of the model over the points, as a fraction of the time"""

    def time_ns(self, size: float) -> float:
        return max(self.constant_ns + self.slope_ns * size, self.floor_ns or 0.0)


@dataclass(frozen=True, slots=True)
class Crossover:
    """Intersection of two fitted models; above it, the configuration with the smaller slope is faster."""

    size: float
    low: float | None
    high: float | None
    """upper end of the interval of `size`; ``None`` if the interval has no upper end"""
    slope_ratio: float | None
    """larger slope divided by the smaller slope; ``None`` if the smaller slope is not positive"""


def fit_size_model(sizes: Sequence[float], times_ns: Sequence[float]) -> SizeModel | None:
    """Fit a model. A size may occur several times. Return ``None`` for fewer than three sizes."""
    x, y = _sorted(sizes, times_ns)
    return _fit(x, y) if len(np.unique(x)) >= _LEAST_ON_LINE else None


def find_crossover(
    a: tuple[Sequence[float], Sequence[float]], b: tuple[Sequence[float], Sequence[float]]
) -> Crossover | None:
    """Return the crossover of two configurations, or ``None`` if one is always faster or there is too little data.

    `a`, `b`: sizes and times in ns.
    """
    points = [_sorted(*a), _sorted(*b)]
    if any(len(np.unique(x)) < _LEAST_ON_LINE for x, _ in points):
        return None
    models = [_fit(x, y) for x, y in points]
    if any(model.time_ns(size) <= 0 for model, (x, _) in zip(models, points, strict=True) for size in x):
        return None  # the line is not positive at a measured size
    size = _meet(*models)
    if size is None:
        return None
    steep, flat = sorted((model.slope_ns for model in models), reverse=True)
    random = np.random.default_rng(0)
    drawn = [_redrawn(x, y, model, random) for (x, y), model in zip(points, models, strict=True)]
    sides = [_side(one, two) for one, two in zip(*drawn, strict=True)]
    low, high = np.quantile(np.array(sides), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], method="nearest")
    ends = (float(low) if low > 0 else None, float(high) if np.isfinite(high) else None)
    return Crossover(size, *ends, steep / flat if flat > 0 else None)


def _sorted(sizes: Sequence[float], times_ns: Sequence[float]) -> tuple[_Values, _Values]:
    x, y = np.asarray(sizes, np.float64), np.asarray(times_ns, np.float64)
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def _fit(x: _Values, y: _Values) -> SizeModel:
    """Fit a line, or a constant up to some size and a line above it. Return the fit with the smallest BIC."""
    best, least = None, np.inf
    starts = np.flatnonzero(np.diff(x, prepend=-np.inf))  # the first point of each size
    for first in starts[: len(starts) - _LEAST_ON_LINE + 1]:
        model, squares = _divided(x, y, int(first))
        num_parameters = 4 if first else 2  # constant and slope; floor and its end
        bic = len(x) * log(max(squares / len(x), 1e-12)) + num_parameters * log(len(x))
        if best is None or bic < least:
            best, least = model, bic
    assert best is not None
    return best


def _divided(x: _Values, y: _Values, first: int) -> tuple[SizeModel, float]:
    """Fit a floor to the points before `first`, and a line to the other points.

    Also return the squared relative error.
    """
    constant, slope = _line(x[first:], y[first:])
    floor = float(np.sum(1 / y[:first]) / np.sum(1 / y[:first] ** 2)) if first else None
    fitted = np.where(np.arange(len(x)) < first, floor or 0.0, constant + slope * x)
    squares = float((((y - fitted) / y) ** 2).sum())
    until = float(x[first - 1]) if first else None
    return SizeModel(constant, slope, floor, until, sqrt(squares / len(x))), squares


def _line(x: _Values, y: _Values) -> tuple[float, float]:
    weight = 1 / y**2
    mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
    spread = np.sum(weight * (x - mean_x) ** 2)  # 0 if a very short time outweighs all others
    slope = np.sum(weight * (x - mean_x) * (y - mean_y)) / spread if spread else 0.0
    return float(mean_y - slope * mean_x), float(slope)


def _meet(a: SizeModel, b: SizeModel) -> float | None:
    """Return the largest size at which both models give the same time, or ``None`` if there is none."""
    if _are_parallel(a, b):
        return None
    sizes = [(b.constant_ns - a.constant_ns) / (a.slope_ns - b.slope_ns)]
    for one, other in ((a, b), (b, a)):
        if one.floor_ns is not None and other.slope_ns:
            sizes.append((one.floor_ns - other.constant_ns) / other.slope_ns)
    met = [size for size in sizes if size > 0 and isclose(a.time_ns(size), b.time_ns(size), rel_tol=1e-9)]
    return max(met, default=None)


def _are_parallel(a: SizeModel, b: SizeModel) -> bool:
    return isclose(a.slope_ns, b.slope_ns, rel_tol=1e-6)


def _side(a: SizeModel, b: SizeModel) -> float:
    """Return the crossover, or 0 or infinity if one of the models is faster at every size."""
    size = _meet(a, b)
    if size is not None:
        return size
    steep, flat = (a, b) if a.slope_ns > b.slope_ns else (b, a)
    return 0.0 if not _are_parallel(a, b) or steep.constant_ns >= flat.constant_ns else float("inf")


def _redrawn(x: _Values, y: _Values, model: SizeModel, random: np.random.Generator) -> list[SizeModel]:
    fitted = np.array([model.time_ns(size) for size in x])
    num_parameters = 2 if model.floor_ns is None else 4
    residuals = (y / fitted - 1) * sqrt(len(x) / max(1, len(x) - num_parameters))
    return [_fit(x, fitted * (1 + random.choice(residuals, len(x)))) for _ in range(_DRAWS)]
