"""Step times over the varied quantity, models and crossovers, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpprof.experiments.sweep import SweepCrossover, SweepPoint, SweepReport
from ddpprof.layout import ABSENT, Column, Line, Section, Table, clean, columns, count, ms, notes, three_digits
from ddpprof.render.sections.overhead import interval


def sweep_sections(report: SweepReport) -> Iterable[Section]:
    yield _points(report)
    models = [(curve.configuration, curve.model) for curve in report.curves if curve.model is not None]
    if models:
        yield Table(
            f"Model: constant + slope × {_size_name(report)}",
            columns("configuration", "constant ms", "slope ms", "never below ms", "error", words=("configuration",)),
            tuple(
                (clean(name), ms(m.constant_ns), f"{m.slope_ns / 1e6:.4g}", ms(m.floor_ns), f"{m.relative_error:.1%}")
                for name, m in models
            ),
            "error: root mean square error of the model, relative to the time",
        )
    for found in report.crossovers:
        yield Line(_crossover(report, found))
    if not report.crossovers and len(models) > 1:
        yield Line("According to these models, no configuration overtakes another: one is faster at every size.")
    if not models and len(report.points) > 1:
        yield Line(_fastest(report.points))


def _fastest(points: Sequence[SweepPoint]) -> str:
    """Say which variant is faster than the first beyond noise, if any; if they do unequal work, for the same work."""
    unequal = len({point.size for point in points}) > 1
    if unequal:
        points = [_for_as_much_work(point, points[0]) for point in points]
    first, work = _name(points[0], points), " for the same work" if unequal else ""
    compared = [(point, point.ratio) for point in points[1:] if point.ratio is not None]
    beyond = [(point, ratio) for point, ratio in compared if ratio.is_beyond_noise]
    if not any(ratio.is_beyond_noise is not None for _, ratio in compared):
        fastest = min(points, key=lambda point: point.step_ns)
        of_what = f" for what {first} does in a step" if unequal else ""
        return (
            f"Lowest median{work}: {_name(fastest, points)}, {ms(fastest.step_ns)} ms{of_what}. Fewer than three "
            "rounds do not show whether that is chance."
        )
    faster = [(ratio, point) for point, ratio in beyond if ratio.ratio < 1]
    if faster:
        ratio, fastest = min(faster, key=lambda one: one[0].ratio)
        return f"Fastest: {_name(fastest, points)}: {interval(ratio)} × the time of {first}{work}."
    if len(beyond) == len(points) - 1:
        return f"Fastest: {first}. All others are slower{work} beyond noise."
    shown = max(ratio.high / ratio.ratio - 1 for _, ratio in compared if ratio.high is not None)
    rounds = count(len(points[0].rounds_ns), "round")
    return (
        f"None is faster than {first}{work} beyond noise: {rounds} would show a difference of {shown:.0%}, more rounds "
        "a smaller one."
    )


def _for_as_much_work(point: SweepPoint, first: SweepPoint) -> SweepPoint:
    """Return the variant with its times for the work that the first one does in a step."""
    if point.size is None or first.size is None:
        return point
    share, ratio = first.size / point.size, point.ratio
    if ratio is not None:
        low, high = (None if end is None else end * share for end in (ratio.low, ratio.high))
        ratio = replace(ratio, ratio=ratio.ratio * share, low=low, high=high)
    return replace(point, step_ns=point.step_ns * share, ratio=ratio)


def _name(point: SweepPoint, points: Sequence[SweepPoint]) -> str:
    has_others = any(one.configuration != point.configuration for one in points)
    return f"{clean(point.label)}, {clean(point.configuration)}" if has_others else clean(point.label)


def _size_name(report: SweepReport) -> str:
    name = clean(report.varied.lstrip("-"))
    return f"{name} of all processes" if any(point.nproc > 1 for point in report.points) else name


def _points(report: SweepReport) -> Section:
    """Return a table with a row for each variant, and columns for each configuration."""
    configurations = list(dict.fromkeys(point.configuration for point in report.points))
    has_sizes = any(point.size is not None for point in report.points)
    cells = {(point.label, point.configuration): point for point in report.points}
    has_ratios = len(configurations) == 1 and any(point.ratio is not None for point in report.points)
    heads = [Column(clean(report.varied.lstrip("-")), is_number=False)]
    for name in configurations:
        heads += [Column(f"{clean(name)}: ms"), *([Column("per s")] if has_sizes else [])]
    rows = []
    for label in dict.fromkeys(point.label for point in report.points):
        row = [clean(label.removeprefix(f"{report.varied}="))]
        for name in configurations:
            row += _cells(cells.get((label, name)), has_sizes)
        ratio = cells[label, configurations[0]].ratio if has_ratios else None
        rows.append((*row, *([ABSENT if ratio is None else interval(ratio)] if has_ratios else [])))
    rate = f"per s: {_size_name(report)}, divided by the time" if has_sizes else ""
    if has_ratios:
        heads.append(Column("× the first"))
    ratios = "× the first: its time relative to the first row's, with simultaneous 95 % intervals" if has_ratios else ""
    return Table("Median step", tuple(heads), tuple(rows), notes(rate, ratios))


def _cells(point: SweepPoint | None, has_sizes: bool) -> list[str]:
    rate = ABSENT if point is None or point.per_second is None else three_digits(point.per_second)
    return [ms(None if point is None else point.step_ns), *([rate] if has_sizes else [])]


def _crossover(report: SweepReport, found: SweepCrossover) -> str:
    c = found.crossover
    low = "0" if c.low is None else three_digits(c.low)
    high = "unbounded" if c.high is None else three_digits(c.high)
    if not found.is_measured or c.low is None or c.high is None:
        return (
            f"These sizes do not show whether {clean(found.above)} overtakes {clean(found.below)}: the models cross at "
            f"{_size_name(report)} {three_digits(c.size)} (95 % interval {low} – {high})."
        )
    grows = "" if c.slope_ratio is None else f" Beyond it, its time grows {c.slope_ratio:.2f} × as slowly."
    return (
        f"{clean(found.above)} overtakes {clean(found.below)} at {_size_name(report)} {three_digits(c.size)} "
        f"(95 % interval {low} – {high}).{grows}"
    )
