"""The directory of `ddpprof tune` and its content."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ddpprof import rundir
from ddpprof.errors import CannotRecord, DdpprofError, NotARun, writing
from ddpprof.experiments.hopeless_variant import timed_steps
from ddpprof.experiments.loss_match import Losses
from ddpprof.experiments.plan import CHOICE_FILE, EXPERIMENT_FILE, PROFILE_DIRECTORY, Trial, read_plan
from ddpprof.experiments.trials import TrialResult, read_trial
from ddpprof.experiments.tuning import TuneReport, Tuning, TuningPlan
from ddpprof.files import Location
from ddpprof.files.small import read_small
from ddpprof.load.losses import load_losses
from ddpprof.load.run import load_run
from ddpprof.report.build import build_report


@dataclass(frozen=True)
class KeptTuning(Tuning):
    """A tuning, and the directory that its trials are in."""

    directory: Location

    def with_ended(self, trial: Trial) -> KeptTuning:
        """Return the tuning with a trial that has ended since it was read. Raises `DdpprofError`."""
        others = [result for result in self.results if result.trial != trial]
        result = read_trial(self.directory, trial) or TrialResult(trial)
        losses = {**self.losses, trial: _losses(self.directory / trial.name)}
        return replace(self, results=[*others, result], losses=losses)

    def report(self) -> TuneReport:
        """Return the report. Raises `DdpprofError` if there is nothing to compare yet."""
        report = self.tune_report()
        if report is None:
            problem = next((result.problem for result in self.results if result.problem), None)
            raise DdpprofError(
                f"{self.directory} has nothing to compare yet: {problem or 'the first round is not over'}"
            )
        return report


def read_tuning(directory: Location) -> KeptTuning:
    """Read the directory. Raises `DdpprofError`."""
    experiment, choice = read_plan(directory), _read_choice(directory)
    if len(choice.candidates) != len(experiment.variants):
        raise NotARun(
            f"{directory / CHOICE_FILE} has {len(choice.candidates)} settings, but {EXPERIMENT_FILE} beside it has "
            f"{len(experiment.variants)}."
        )
    results = [result for trial in experiment.trials() if (result := read_trial(directory, trial)) is not None]
    profile = directory / PROFILE_DIRECTORY
    run = load_run(profile)
    return KeptTuning(
        experiment,
        choice,
        build_report(run).job,
        results=results,
        losses={result.trial: _losses(directory / result.trial.name) for result in results},
        profile_losses=_losses(profile),
        profile_ns=timed_steps([rank.record for rank in run.ranks if rank.record is not None]),
        directory=directory,
    )


def _losses(folder: Location) -> Losses:
    losses = {rank: load_losses(folder, rank) for rank in rundir.ranks_in(folder)}
    return {rank: steps for rank, steps in losses.items() if steps}


def has_choice(directory: Location) -> bool:
    return (directory / CHOICE_FILE).is_file()


def _read_choice(directory: Location) -> TuningPlan:
    path = directory / CHOICE_FILE
    try:
        return msgspec.json.decode(read_small(path), type=TuningPlan)
    except FileNotFoundError as error:
        raise NotARun(
            f"{directory} has nothing to compare yet. Continue with: ddpprof tune --resume {directory}"
        ) from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotARun(f"{path} cannot be read ({error}).") from error


def write_choice(directory: Path, choice: TuningPlan) -> None:
    """Write the choice. Raises `CannotRecord`."""
    with writing(directory, CannotRecord):
        rundir.write_json(directory / CHOICE_FILE, msgspec.to_builtins(choice))
