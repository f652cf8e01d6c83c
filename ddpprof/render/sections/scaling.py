"""Weak and strong scaling, and where the lost time goes, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ddpprof.experiments.scaling import ScalePoint, Scaling, ScalingReport
from ddpprof.layout import Line, Section, Table, columns, ms, percent, table_of
from ddpprof.statistics.paired_ratio import Ratio

_TITLES = {
    Scaling.WEAK: "Weak scaling: every process keeps its batch",
    Scaling.STRONG: "Strong scaling: all processes share one batch",
}
PARTS = (
    ("DDP's own work", "wrapper_ns"),
    ("exposed transfer", "transfer_ns"),
    ("waiting for ranks", "waiting_ns"),
    ("slowed by comm", "slowdown_ns"),
    ("data", "data_ns"),
    ("slower compute", "compute_ns"),
)


_PERFECT = 1.005
"""efficiency from which it is shown as more than 100 %"""


def scaling_sections(report: ScalingReport) -> Iterable[Section]:
    for scaling, title in _TITLES.items():
        points = [point for point in report.points if point.scaling is scaling]
        if points:
            unsure = any(point.speedup.low is None for point in points)
            note = "an interval needs at least three rounds" if unsure else ""
            yield table_of(title, points, _CELLS, note=note)
            yield _losses(points)
    if any(point.efficiency > _PERFECT for point in report.points):
        yield Line(
            "Efficiency above 100% means that each of several processes does more per second than the one process "
            "without DDP that they are compared with. Either that one was slowed in its own trials, by other work or "
            "by more threads than it has cores, or the difference is chance: the interval then includes the number of "
            "processes."
        )
    yield Line(
        "speed-up: work per second relative to one process without DDP. Lost: the step minus "
        "the ideal step. Slower compute: shared cores and memory, smaller batches; slowed by comm: only for kernels "
        "that ran both under communication and without it.",
        is_aside=True,
    )


_CELLS: Mapping[str, Callable[[ScalePoint], str]] = {
    "processes": lambda point: str(point.nproc),
    "step ms": lambda point: ms(point.step_ns),
    "ideal ms": lambda point: ms(point.ideal_ns),
    "speed-up": lambda point: f"{point.speedup.ratio:.2f}",
    "95 % interval": lambda point: _interval(point.speedup),
    "efficiency": lambda point: percent(point.efficiency),
}


def _interval(ratio: Ratio) -> str:
    if ratio.is_vague:
        return "varies too much"
    return "" if ratio.low is None or ratio.high is None else f"{ratio.low:.2f} – {ratio.high:.2f}"


def _losses(points: Iterable[ScalePoint]) -> Section:
    rows = []
    for point in points:
        parts = [ms(getattr(point.lost, field)) if point.lost is not None else ms(None) for _, field in PARTS]
        rows.append((str(point.nproc), *parts, ms(point.lost_ns)))
    names = columns("processes", *(name for name, _ in PARTS), "lost")
    return Table("Where the lost time goes, ms per step", names, tuple(rows))
