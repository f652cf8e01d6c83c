"""Build the report of an experiment from its trials."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ddpprof.errors import DdpprofError
from ddpprof.experiments.overhead import OverheadReport, build_overhead
from ddpprof.experiments.plan import Experiment, ExperimentKind, is_experiment, read_plan
from ddpprof.experiments.scaling import ScalingReport, build_scaling
from ddpprof.experiments.sweep import SweepPoint, SweepReport, build_sweep, sweep_report
from ddpprof.experiments.trials import TrialResult, read_trial
from ddpprof.experiments.trying import TryReport, read_trying
from ddpprof.experiments.tuning import TuneReport, read_tuning
from ddpprof.files import Location
from ddpprof.load.rank import load_times
from ddpprof.model import TimesTable

ExperimentReport = OverheadReport | ScalingReport | SweepReport | TuneReport | TryReport


def read_experiment(path: Location) -> ExperimentReport:
    """Return the report of an experiment directory, or of a table of times from another tool. Raises `DdpprofError`."""
    if not is_experiment(path):
        return sweep_of_table(load_times(path))
    experiment = read_plan(path)
    if experiment.kind is ExperimentKind.TUNE:
        return read_tuning(path).report()
    if experiment.kind is ExperimentKind.TRY:
        return read_trying(path).report()
    results = [result for trial in experiment.trials() if (result := read_trial(path, trial)) is not None]
    report = build_experiment(experiment, results)
    if report is None:
        problem = next((result.problem for result in results if result.problem), "no variant has run to completion")
        raise DdpprofError(f"{path} has no results to compare yet: {problem}")
    return report


def build_experiment(experiment: Experiment, results: Sequence[TrialResult]) -> ExperimentReport | None:
    """Build the report; ``None`` if too few trials have times to compare."""
    match experiment.kind:
        case ExperimentKind.OVERHEAD:
            return build_overhead(experiment, results)
        case ExperimentKind.SCALE:
            return build_scaling(experiment, results)
        case ExperimentKind.SWEEP:
            return build_sweep(experiment, results)
        case ExperimentKind.TUNE | ExperimentKind.TRY:
            raise AssertionError("experiments that need other files in addition to their trials: see `read_experiment`")


def sweep_of_table(table: TimesTable) -> SweepReport:
    points = [
        SweepPoint(f"{table.varied}={size:g}", configuration, 1, size, median(times), tuple(times))
        for configuration, of_sizes in table.times_ns.items()
        for size, times in of_sizes.items()
    ]
    return sweep_report((), None, table.varied, points, ())
