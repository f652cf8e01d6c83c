"""Construction of an experiment's report from its trials."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ddpprof.experiments.plan import Experiment, Kind
from ddpprof.model import TimesTable
from ddpprof.report.overhead import OverheadReport, build_overhead
from ddpprof.report.scaling import ScalingReport, build_scaling
from ddpprof.report.sweep import SweepPoint, SweepReport, build_sweep, sweep_report
from ddpprof.report.trials import TrialResult
from ddpprof.report.tuning import TuneReport

ExperimentReport = OverheadReport | ScalingReport | SweepReport | TuneReport


def build_experiment(experiment: Experiment, results: Sequence[TrialResult]) -> ExperimentReport | None:
    """Build the report; ``None`` if too few trials have times for a comparison."""
    match experiment.kind:
        case Kind.OVERHEAD:
            return build_overhead(experiment, results)
        case Kind.SCALE:
            return build_scaling(experiment, results)
        case Kind.SWEEP:
            return build_sweep(experiment, results)
        case Kind.TUNE:
            raise AssertionError("tuning needs more than the trials: see ddpprof.cli.tuning_directory")


def sweep_of_table(table: TimesTable) -> SweepReport:
    points = [
        SweepPoint(f"{table.varied}={size:g}", configuration, 1, size, median(times), tuple(times))
        for configuration, of_sizes in table.times_ns.items()
        for size, times in of_sizes.items()
    ]
    return sweep_report((), None, table.varied, points, ())
