"""Measure how the step time depends on a setting, and above which size another configuration is faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

from ddpprof.experiments.plan import Experiment, Variant
from ddpprof.experiments.trials import EXPERIMENT_REPORT_FORMAT, TrialResult, median_step_ns, problems, rounds_of
from ddpprof.report import Job
from ddpprof.statistics.paired_ratio import Ratio, Steps, joint_ratios
from ddpprof.statistics.size_model import Crossover, SizeModel, find_crossover, fit_size_model
from ddpprof.version import __version__


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Result of one variant. Times are in ns per step."""

    label: str
    configuration: str
    nproc: int
    size: float | None
    """work per step in all processes together, such as the total batch size; ``None`` if the varied setting is not an
    amount of work
    """
    step_ns: float
    rounds_ns: tuple[float, ...]
    """median step time in each round"""
    ratio: Ratio | None = None
    """step time divided by the step time of the first variant in the same rounds; ``None`` for the first variant"""

    @property
    def per_second(self) -> float | None:
        """Work per second."""
        return None if self.size is None else self.size / self.step_ns * 1e9


@dataclass(frozen=True, slots=True)
class SweepCurve:
    """Results of one configuration for all sizes. Times are in ns."""

    configuration: str
    points: tuple[SweepPoint, ...]
    model: SizeModel | None
    """step time as a function of the size; ``None`` if there are fewer than three sizes"""


@dataclass(frozen=True, slots=True)
class SweepCrossover:
    """The size above which the second configuration is faster."""

    below: str
    """name of the configuration that is faster at smaller sizes; `above` is the one that is faster at larger sizes"""
    above: str
    crossover: Crossover
    is_measured: bool
    """True if the crossover lies between sizes at which both configurations were measured"""


@dataclass(frozen=True, slots=True)
class SweepReport:
    format: int
    ddpprof: str
    command: tuple[str, ...]
    job: Job | None
    """the job; ``None`` if the times were measured by another tool"""
    varied: str
    """name of the varied setting"""
    points: tuple[SweepPoint, ...]
    curves: tuple[SweepCurve, ...]
    """one curve for each configuration whose sizes are known"""
    crossovers: tuple[SweepCrossover, ...]
    missing: tuple[str, ...]


def build_sweep(experiment: Experiment, results: Sequence[TrialResult]) -> SweepReport | None:
    """Build the report; ``None`` if no trial has times."""
    points = []
    started = {r.trial.variant: r.job.world_size for r in results if r.job is not None}
    all_rounds = [rounds_of(results, number, experiment.rounds) for number in range(len(experiment.variants))]
    ratios = _ratios(all_rounds)
    for number, (planned, rounds) in enumerate(zip(experiment.variants, all_rounds, strict=True)):
        variant = replace(planned, nproc=started.get(number) or planned.nproc)
        step_ns = median_step_ns(rounds)
        if step_ns is not None:
            rounds_ns = tuple(median(steps) for steps in rounds if steps)
            points.append(_point(variant, step_ns, rounds_ns, ratios.get(number)))
    if not points:
        return None
    jobs = [result.job for result in results if result.job is not None]
    varied = experiment.variants[0].varied
    missing = (*_same_buckets(varied, results), *problems(experiment, results))
    return sweep_report(experiment.command, jobs[0], varied, points, missing)


def _same_buckets(varied: str, results: Sequence[TrialResult]) -> Iterator[str]:
    """Yield a sentence if a sweep of bucket sizes compares equal buckets."""
    known = [result for result in results if result.buckets]
    num_variants = len({result.trial.variant for result in known})
    if varied.startswith("bucket_cap") and num_variants > 1 and len({result.buckets for result in known}) == 1:
        yield f"DDP makes the same buckets with all values of {varied}, so all differences are due to chance"


def sweep_report(
    command: tuple[str, ...], job: Job | None, varied: str, points: Sequence[SweepPoint], missing: tuple[str, ...]
) -> SweepReport:
    """Build the report from points measured by ddpprof or by another tool."""
    configurations = dict.fromkeys(point.configuration for point in points if point.size is not None)
    curves = tuple(_curve(name, points) for name in configurations)
    return SweepReport(
        format=EXPERIMENT_REPORT_FORMAT,
        ddpprof=__version__,
        command=command,
        job=job,
        varied=varied,
        points=tuple(points),
        curves=curves,
        crossovers=tuple(found for pair in combinations(curves, 2) if (found := _crossover(*pair)) is not None),
        missing=missing,
    )


def _ratios(all_rounds: Sequence[Sequence[Steps]]) -> dict[int, Ratio]:
    """Return the ratio of each variant's step time to the first variant's step time.

    Only rounds that all variants completed are used.
    """
    measured = {number: rounds for number, rounds in enumerate(all_rounds) if any(rounds)}
    common = [index for index in range(len(all_rounds[0])) if all(rounds[index] for rounds in measured.values())]
    if 0 not in measured or len(measured) < 2 or not common:
        return {}
    first, *others = ([median(rounds[index]) for index in common] for rounds in measured.values())
    return dict(zip(list(measured)[1:], joint_ratios(first, others), strict=True))


def _point(variant: Variant, step_ns: float, rounds_ns: tuple[float, ...], ratio: Ratio | None) -> SweepPoint:
    configuration = ", ".join(filter(None, (variant.configuration, variant.processes)))
    size = variant.total_size if variant.is_work else None
    return SweepPoint(variant.label, configuration, variant.nproc, size, step_ns, rounds_ns, ratio)


def _curve(name: str, points: Sequence[SweepPoint]) -> SweepCurve:
    own = tuple(point for point in points if point.configuration == name and point.size is not None)
    return SweepCurve(name, own, fit_size_model(*_times(own)))


def _times(points: Sequence[SweepPoint]) -> tuple[list[float], list[float]]:
    """Return the sizes and the step times of all rounds of all points, as two lists of equal length."""
    pairs = [(point.size, time) for point in points if point.size is not None for time in point.rounds_ns]
    return [size for size, _ in pairs], [time for _, time in pairs]


def _crossover(a: SweepCurve, b: SweepCurve) -> SweepCrossover | None:
    found = find_crossover(_times(a.points), _times(b.points))
    if found is None or a.model is None or b.model is None:
        return None
    below, above = (a, b) if a.model.slope_ns > b.model.slope_ns else (b, a)
    ranges = [[point.size for point in curve.points if point.size is not None] for curve in (a, b)]
    inside = all(min(sizes) <= found.size <= max(sizes) for sizes in ranges)
    return SweepCrossover(below.configuration, above.configuration, found, inside)
