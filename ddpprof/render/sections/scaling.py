"""Weak and strong scaling, and where the lost time goes, in words."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.experiments.scaling import ScalePoint, Scaling, ScalingReport
from ddpprof.layout import Column, Line, Section, Table, ms, percent

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


def scaling_sections(report: ScalingReport) -> Iterable[Section]:
    for scaling, title in _TITLES.items():
        points = [point for point in report.points if point.scaling is scaling]
        if points:
            unsure = any(point.speedup.low is None for point in points)
            note = "an interval needs at least three rounds" if unsure else ""
            yield Table(title, tuple(map(Column, _COLUMNS)), tuple(map(_row, points)), note)
            yield _losses(points)
    yield Line(
        "speed-up: work per second relative to one process without DDP. Lost: the step minus "
        "the ideal step. Slower compute: shared cores and memory, smaller batches; slowed by comm: only for kernels "
        "that ran both under communication and without it.",
        is_aside=True,
    )


_COLUMNS = ("processes", "step ms", "ideal ms", "speed-up", "95 % interval", "efficiency")


def _row(point: ScalePoint) -> tuple[str, ...]:
    low, high = point.speedup.low, point.speedup.high
    return (
        str(point.nproc),
        ms(point.step_ns),
        ms(point.ideal_ns),
        f"{point.speedup.ratio:.2f}",
        "" if low is None or high is None else f"{low:.2f} – {high:.2f}",
        percent(point.efficiency),
    )


def _losses(points: Iterable[ScalePoint]) -> Section:
    rows = []
    for point in points:
        parts = [ms(getattr(point.lost, field)) if point.lost is not None else ms(None) for _, field in PARTS]
        rows.append((str(point.nproc), *parts, ms(point.lost_ns)))
    names = ("processes", *(name for name, _ in PARTS), "lost")
    return Table("Where the lost time goes, ms per step", tuple(map(Column, names)), tuple(rows))
