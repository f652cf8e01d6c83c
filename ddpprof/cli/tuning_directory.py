"""The directory of `ddpprof tune` and its content."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from ddpprof import rundir
from ddpprof.errors import CannotRecord, DdpprofError, NotARun
from ddpprof.experiments.plan import (
    CHOICE_FILE,
    EXPERIMENT_FILE,
    PROFILE_DIRECTORY,
    Experiment,
    Trial,
    read_end,
    read_plan,
)
from ddpprof.files import Location
from ddpprof.files.small import read_small
from ddpprof.load.losses import load_losses
from ddpprof.load.run import load_run
from ddpprof.measures.statistics.loss_match import Losses
from ddpprof.measures.step.step_times import timed_steps
from ddpprof.report.build import build_report
from ddpprof.report.tree import Job
from ddpprof.report.trials import TrialResult, trial_result
from ddpprof.report.tuning import Choice, Measured, TuneReport, build_tuning, refused, stopped


@dataclass(frozen=True)
class Tuning:
    directory: Location
    experiment: Experiment
    choice: Choice
    measured: Measured
    job: Job

    def result(self, trial: Trial) -> TrialResult:
        return next(result for result in self.measured.results if result.trial == trial)

    def stopped(self) -> set[int]:
        return stopped(self.experiment, self.choice, self.measured, self.job)

    def refused(self) -> set[int]:
        return refused(self.experiment, self.choice, self.measured, self.job)

    def report(self) -> TuneReport:
        """Return the report. Raises `DdpprofError` if there is nothing to compare yet."""
        report = build_tuning(self.experiment, self.choice, self.measured, self.job)
        if report is None:
            problem = next((result.problem for result in self.measured.results if result.problem), None)
            raise DdpprofError(
                f"{self.directory} has nothing to compare yet: {problem or 'the first round is not over'}"
            )
        return report


def read_tuning(directory: Location) -> Tuning:
    """Read the directory. Raises `DdpprofError`."""
    experiment, choice = read_plan(directory), _read_choice(directory)
    if len(choice.candidates) != len(experiment.variants):
        raise NotARun(
            f"{directory / CHOICE_FILE} has {len(choice.candidates)} settings, but {EXPERIMENT_FILE} beside it has "
            f"{len(experiment.variants)}."
        )
    trials = [trial for trial in experiment.trials() if read_end(directory / trial.name) is not None]
    profile = directory / PROFILE_DIRECTORY
    run = load_run(profile)
    measured = Measured(
        results=[_result(directory, trial) for trial in trials],
        losses={trial: _losses(directory / trial.name) for trial in trials},
        profile_losses=_losses(profile),
        profile_ns=timed_steps([rank.record for rank in run.ranks if rank.record is not None]),
    )
    return Tuning(directory, experiment, choice, measured, build_report(run).job)


def _result(directory: Location, trial: Trial) -> TrialResult:
    ended = read_end(directory / trial.name)
    if ended is None or ended.problem is not None:
        return TrialResult(trial, problem=ended.problem if ended is not None else None)
    return trial_result(trial, load_run(directory / trial.name))


def _losses(folder: Location) -> Losses:
    losses = {rank: load_losses(folder, rank) for rank in rundir.ranks_in(folder)}
    return {rank: steps for rank, steps in losses.items() if steps}


def has_choice(directory: Location) -> bool:
    return (directory / CHOICE_FILE).is_file()


def _read_choice(directory: Location) -> Choice:
    path = directory / CHOICE_FILE
    try:
        return msgspec.json.decode(read_small(path), type=Choice)
    except FileNotFoundError as error:
        raise NotARun(
            f"{directory} has nothing to compare yet. Continue with: ddpprof tune --resume {directory}"
        ) from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotARun(f"{path} cannot be read ({error}).") from error


def write_choice(directory: Path, choice: Choice) -> None:
    """Write the choice. Raises `CannotRecord`."""
    try:
        rundir.write_json(directory / CHOICE_FILE, msgspec.to_builtins(choice))
    except OSError as error:
        raise CannotRecord(f"cannot write {directory}: {error.strerror}.") from error
