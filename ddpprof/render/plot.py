"""Plots of sweeps, scaling experiments and predictions, with matplotlib."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from typing import Any
from warnings import catch_warnings, filterwarnings

import numpy as np

from ddpprof.errors import DdpprofError, how_to_install, writing
from ddpprof.experiments.results import ExperimentReport
from ddpprof.experiments.scaling import Scaling, ScalingReport
from ddpprof.experiments.sweep import SweepReport
from ddpprof.files import Location, RemotePath
from ddpprof.layout import clean
from ddpprof.own_files import write_whole
from ddpprof.report.whatif import WhatIf

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""palette of Okabe and Ito, which colour-blind readers can tell apart"""
_MARKERS = "osD^vP*"
_LEAST_POINTS = 2
"""least number of points of a line"""


def can_plot(report: ExperimentReport) -> bool:
    """Return whether there is a curve to draw, and matplotlib to draw it with."""
    if find_spec("matplotlib") is None:
        return False
    return isinstance(report, ScalingReport) or (isinstance(report, SweepReport) and bool(report.curves))


def plot(report: ExperimentReport, path: Location) -> None:
    """Write a PNG. Raises `DdpprofError`."""
    with _axes(path) as axes:
        if isinstance(report, SweepReport):
            _sweep(axes, report)
        elif isinstance(report, ScalingReport):
            _scaling(axes, report)


@contextmanager
def _axes(path: Location) -> Iterator[Any]:
    """Give the axes of a plot that is written at the end. Raises `DdpprofError`."""
    if find_spec("matplotlib") is None:
        raise DdpprofError(f"pictures need matplotlib. {how_to_install('matplotlib')}")
    from matplotlib import rc_context, rcdefaults
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context():
        rcdefaults()  # settings in the current folder may be a stranger's, and let LaTeX run
        figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        yield axes
        picture = BytesIO()
        with catch_warnings():
            filterwarnings("ignore", "Glyph")  # the font lacks a character of a name, and shows a box
            figure.savefig(picture)
    with writing(path):
        if isinstance(path, RemotePath):
            path.write_bytes(picture.getvalue())
        else:
            write_whole(path, picture.getvalue())


def plot_whatif(answer: WhatIf, path: Location) -> None:
    """Plot predicted steps over one cap for all buckets, with intervals. Raises `DdpprofError`."""
    if path.suffix != ".png":
        raise DdpprofError(f"{path}: a plot is a PNG, so give it a name that ends in .png.")
    known = [(one.cap_mib, one.prediction) for one in answer.outcomes[1:] if one.cap_mib is not None]
    points = sorted(known, key=lambda point: point[0])
    if len(points) < _LEAST_POINTS:
        raise DdpprofError("there is nothing to plot: give several values of --bucket-cap-mb, or none.")
    with _axes(path) as axes:
        caps = [cap for cap, _ in points]
        ends = [[one.low_ns / 1e6 for _, one in points], [one.high_ns / 1e6 for _, one in points]]
        axes.fill_between(caps, *ends, color=_COLOURS[0], alpha=0.15, linewidth=0, label="95 % interval")
        axes.plot(caps, [one.step_ns / 1e6 for _, one in points], "o-", color=_COLOURS[0], label="predicted")
        axes.axhline(
            answer.measured_step_ns / 1e6, color="#666666", linewidth=1, linestyle="--", label="measured, as recorded"
        )
        axes.set(xscale="log", xlabel="bucket_cap_mb", ylabel="step, ms")
        axes.set_xticks(caps, [f"{cap:g}" for cap in caps])
        axes.minorticks_off()
        axes.legend(frameon=False)


def _sweep(axes: Any, report: SweepReport) -> None:
    for index, curve in enumerate(report.curves):
        colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
        pairs = [(point.size, time / 1e6) for point in curve.points for time in point.rounds_ns]
        axes.plot(*zip(*pairs, strict=True), marker, color=colour, markersize=5, label=_plain(curve.configuration))
        if curve.model is not None:
            sizes = [point.size for point in curve.points if point.size is not None]
            x = np.geomspace(min(sizes), max(sizes), 200)
            axes.plot(x, [curve.model.time_ns(size) / 1e6 for size in x], "-", color=colour, linewidth=1.2)
    for found in report.crossovers:
        axes.axvline(found.crossover.size, color="#666666", linewidth=1, linestyle="--")
        if found.crossover.low is not None and found.crossover.high is not None:
            axes.axvspan(found.crossover.low, found.crossover.high, color="#666666", alpha=0.12, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel=_plain(report.varied.lstrip("-")), ylabel="step, ms")
    axes.legend(frameon=False)


def _scaling(axes: Any, report: ScalingReport) -> None:
    most = max(point.nproc for point in report.points)
    axes.plot([1, most], [1, most], "--", color="#888888", linewidth=1, label="ideal")
    for index, scaling in enumerate(Scaling):
        points = [point for point in report.points if point.scaling is scaling]
        if points:
            ends = [(p.speedup.low or p.speedup.ratio, p.speedup.high or p.speedup.ratio) for p in points]
            ratios = [p.speedup.ratio for p in points]
            below = [max(0.0, r - low) for r, (low, _) in zip(ratios, ends, strict=True)]
            beyond = [max(0.0, high - r) for r, (_, high) in zip(ratios, ends, strict=True)]
            axes.errorbar(
                [p.nproc for p in points],
                ratios,
                yerr=[below, beyond],
                fmt=f"{_MARKERS[index]}-",
                color=_COLOURS[index],
                capsize=3,
                label=f"{scaling} scaling",
            )
    axes.set(xlabel="processes", ylabel="speed-up over one process without DDP")
    axes.set_xticks(sorted({point.nproc for point in report.points}))
    axes.legend(frameon=False)


def _plain(text: str) -> str:
    """Return a name for a picture, without the dollar signs between which matplotlib would typeset mathematics."""
    return clean(text, most=80).replace("$", r"\$")
