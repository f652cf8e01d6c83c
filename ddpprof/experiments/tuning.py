"""Select the settings that `ddpprof tune` tries, based on a profile of the job, and evaluate their trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import median

from ddpprof.engine.frameworks import compression, ddp_argument
from ddpprof.errors import DdpprofError, NotARun
from ddpprof.experiments.plan import (
    CHOICE_FILE,
    EXPERIMENT_FILE,
    PROFILE_DIRECTORY,
    Experiment,
    Trial,
    read_beside_plan,
    read_plan,
    write_beside_plan,
)
from ddpprof.experiments.trials import (
    EXPERIMENT_REPORT_FORMAT,
    Losses,
    LossMatch,
    Match,
    Steps,
    TrialResult,
    keeps_order,
    losses_of,
    match_losses,
    median_step_ns,
    read_trial,
    rounds_of,
    timed_steps,
)
from ddpprof.files import Location
from ddpprof.load.run import load_run
from ddpprof.model import DdpModule
from ddpprof.model.backends import backend_of
from ddpprof.predict.candidates import Candidate, Forecast, Knobs, Shortlist, shortlist, spread
from ddpprof.predict.network import Network
from ddpprof.report import Job
from ddpprof.report.build import build_report
from ddpprof.report.run_profile import Benches, KnownRun, Profiled, profile_run, training_of
from ddpprof.statistics.between_runs import shift_between
from ddpprof.statistics.paired_ratio import Ratio, joint_ratios, paired_ratio
from ddpprof.topics.unused_parameters import searches, uses_everything
from ddpprof.version import __version__


def shortlisted(known: KnownRun, bench: Network | None, most: int, allow_lossy: bool) -> tuple[Shortlist, str | None]:
    """Choose at most `most` settings to try. If there is no prediction, also return the reason.

    `bench`: measurement of the job's own network. Raises `DdpprofError`.
    """
    job, modules = known.report.job, known.modules
    if not modules:
        raise DdpprofError("the profile has no DDP module, so there is nothing to tune.")
    if (job.world_size or 1) < 2:
        raise DdpprofError(
            "the job has only one rank, so it has no gradient communication. Use more ranks: ddpprof "
            "tune --nproc 2 train.py"
        )
    if bench is not None and bench.world_size != job.world_size:
        raise DdpprofError(f"--network was measured with {bench.world_size} ranks, but the job has {job.world_size}.")
    largest = max(modules, key=lambda module: sum(parameter.num_bytes for parameter in module.parameters))
    knobs = knobs_of(largest, job, allow_lossy and all(module.comm_hook is None for module in modules))
    profiled, unpredicted = _profiled(known, Benches(of_run=bench))
    if profiled is None:
        return spread(training_of(known.report, largest), knobs, most), unpredicted
    return shortlist(profiled.profile, knobs, most), None


def _profiled(known: KnownRun, benches: Benches) -> tuple[Profiled | None, str | None]:
    try:
        profiled = profile_run(known, benches)
    except DdpprofError as error:
        return None, str(error)
    if not profiled.profile.training.knows_parameters:
        return None, "the profile does not show when each gradient became ready."
    return profiled, None


def knobs_of(module: DdpModule, job: Job, allow_lossy: bool) -> Knobs:
    """Return the options to try."""
    settings = module.settings
    return Knobs(
        view=not settings.get("gradient_as_bucket_view"),
        without_search=_without_search(module, job),
        compression=backend_of(job.backend).halving if allow_lossy and module.comm_hook is None else None,
        accepted=job.accepted_caps,
        drops_list=bool(settings.get("has_bucket_cap_mb_list")),
    )


def _without_search(module: DdpModule, job: Job) -> Mapping[str, bool]:
    """Return the arguments that make the search for unused parameters unnecessary; empty if there are none.

    ``static_graph=True`` needs a static graph and no gradient accumulation: torch fails if the first backward pass with
    this argument does not reduce gradients.
    """
    if not searches(module):
        return {}
    if uses_everything(module):
        return {"find_unused_parameters": False}
    return {"static_graph": True} if module.graph_is_static is True and job.num_micro_steps == 1 else {}


NOW = 0
"""index of the variant without changes"""
_AS_GOOD = 1.01
"""among all settings whose step time is at most this many times the shortest, the setting with the shortest code is
recommended
"""


@dataclass(frozen=True, slots=True)
class TuningPlan:
    """The settings to try, in the order of the experiment's variants."""

    candidates: tuple[Candidate, ...]
    untried: tuple[Candidate, ...]
    """settings that were considered but not chosen"""
    promises: bool
    """True if any setting is predicted to be faster"""
    unpredicted: str | None
    """why there is no prediction; ``None`` if there is one"""
    profile_steps: int
    trial_steps: int


class Fate(StrEnum):
    """Status of a setting in the experiment."""

    TRIED = "tried"
    """the setting was run in all rounds so far"""
    LOSING = "losing"
    """the setting is no longer run, because it was clearly slower in at least two runs"""
    REFUSED = "refused"
    """the setting is no longer run, because it changes the losses"""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TriedSetting:
    """Result of one setting. Times are in ns per step."""

    label: str
    code: str
    """the setting as Python code for the script"""
    is_lossy: bool
    forecast: Forecast | None
    num_buckets: int | None
    """predicted number of buckets"""
    step_ns: float | None
    """median over rounds of the step time"""
    rounds_ns: tuple[float, ...]
    """median step time in each round"""
    ratio: Ratio | None
    """step time divided by that of the unchanged job in the rounds in which both were run; the 95 % intervals of all
    settings hold simultaneously
    """
    losses: LossMatch | None
    """comparison with the losses of the unchanged job; ``None`` for the unchanged job itself"""
    fate: Fate


@dataclass(frozen=True, slots=True)
class TuneReport:
    format: int
    ddpprof: str
    command: tuple[str, ...]
    job: Job
    now: TriedSetting
    """the unchanged job"""
    tried: tuple[TriedSetting, ...]
    best: int | None
    """index in `tried` of the recommended setting; ``None`` if no setting is significantly faster than the unchanged
    job
    """
    rounds: int
    promises: bool
    """True if any setting was predicted to be faster"""
    unpredicted: str | None
    """why there is no prediction; ``None`` if there is one"""
    untried: tuple[Candidate, ...]
    """settings that were considered but not tried"""
    num_distinct: int
    """number of settings with different effects in DDP, including the unchanged job"""
    num_steps: int
    """number of training steps that were run, including the steps of the profile"""
    exhaustive_steps: int
    """number of training steps that would be needed to run all `num_distinct` settings in all rounds"""
    missing: tuple[str, ...]
    start_ratio: float | None = None
    """step time of the slowest run of a setting divided by that of its fastest run; the maximum over all settings.
    ``None`` if no setting was run twice
    """


@dataclass(frozen=True)
class Tuning:
    """The plan of a tuning experiment, and the results so far."""

    experiment: Experiment
    choice: TuningPlan
    job: Job
    results: Sequence[TrialResult]
    losses: Mapping[Trial, Losses]
    profile_losses: Losses
    profile_ns: Steps
    """durations of those steps of the profile run that ran without the profiler; they also count as steps of the
    unchanged job
    """

    def result(self, trial: Trial) -> TrialResult:
        return next(result for result in self.results if result.trial == trial)

    def refused(self) -> set[int]:
        """Return the variants that should not change the losses but do."""
        return {
            number
            for number in self._others
            if self.choice.candidates[number].comm_hook is None and self._match(number).match is Match.CHANGED
        }

    def failed(self) -> set[int]:
        return {result.trial.variant for result in self.results if result.problem is not None}

    def stopped(self) -> set[int]:
        """Return the variants that need no more rounds, because they are clearly slower or change the losses."""
        out = self.refused() | self.failed()
        rounds = {number: self._rounds(number) for number in (NOW, *self._others) if number not in out}
        spread = max((self._start_ratio(number) or 1.0 for number in rounds), default=1.0) - 1
        losing = {
            number
            for number, own in rounds.items()
            if number != NOW and any(is_losing(own, others, spread) for others in rounds.values() if others is not own)
        }
        return self.refused() | losing

    def next_trial(self) -> Trial | None:
        """Return the trial to run next; ``None`` if no trial is left.

        The second round begins with the fastest setting so far and the unchanged job, because one run is not enough for
        a comparison.
        """
        done, out = {result.trial for result in self.results}, self.stopped() | self.failed()
        left = [trial for trial in self.experiment.trials() if trial not in done and trial.variant not in out]
        number = min((trial.round for trial in left), default=0)
        left = [trial for trial in left if trial.round == number]
        if number == 1 and left:
            first_steps = {one: median(self._rounds(one)[0]) for one in (NOW, *self._others) if self._rounds(one)[0]}
            leader = min(first_steps, key=lambda one: first_steps[one], default=NOW)
            left.sort(key=lambda trial: (trial.variant != leader, trial.variant != NOW))
        return left[0] if left else None

    def tune_report(self) -> TuneReport | None:
        """Build the report; ``None`` unless the unchanged job and at least one other variant have times."""
        choice, rounds, fates = self.choice, self.experiment.rounds, self._fates()
        ratios = self._ratios(fates)
        now, *others = [self._tried(number, fate, ratios.get(number)) for number, fate in enumerate(fates)]
        if now.step_ns is None or not any(one.rounds_ns for one in others):
            return None
        num_distinct = len(choice.candidates) + len(choice.untried)
        return TuneReport(
            format=EXPERIMENT_REPORT_FORMAT,
            ddpprof=__version__,
            command=self.experiment.command,
            job=self.job,
            now=now,
            tried=tuple(others),
            best=_best(others),
            rounds=rounds,
            promises=choice.promises,
            unpredicted=choice.unpredicted,
            untried=choice.untried,
            num_distinct=num_distinct,
            num_steps=choice.profile_steps + len(self.results) * choice.trial_steps,
            exhaustive_steps=num_distinct * rounds * choice.trial_steps,
            missing=tuple(self._missing()),
            start_ratio=max(filter(None, map(self._start_ratio, range(len(fates)))), default=None),
        )

    @property
    def _others(self) -> range:
        return range(NOW + 1, len(self.experiment.variants))

    def _rounds(self, variant: int) -> list[Steps]:
        return rounds_of(self.results, variant, self.experiment.rounds)

    def _losses_of(self, variant: int) -> list[Losses]:
        return [losses for trial, losses in self.losses.items() if trial.variant == variant]

    def _start_ratio(self, variant: int) -> float | None:
        """Return the ratio of a variant's slowest run to its fastest run. The profile counts as a run of the unchanged
        job.
        """
        starts = [steps for steps in (*self._rounds(variant), *([self.profile_ns] if variant == NOW else [])) if steps]
        return 1 + start_spread(starts) if len(starts) > 1 else None

    def _match(self, number: int) -> LossMatch:
        as_it_is = [one for one in (self.profile_losses, *self._losses_of(NOW)) if one]
        order_is_kept = keeps_order(self.choice.candidates[number].arguments, self.job.world_size)
        return match_losses(as_it_is, self._losses_of(number), order_is_kept)

    def _ratios(self, fates: Sequence[Fate]) -> dict[int, Ratio | None]:
        """Return step times relative to the unchanged job, by variant. Variants still tried share a noise estimate."""
        as_it_is, *others = map(self._rounds, range(len(self.experiment.variants)))
        going_on = {number: rounds for number, rounds in enumerate(others, NOW + 1) if fates[number] is Fate.TRIED}
        compared = (as_it_is, *going_on.values())
        common = [index for index in range(self.experiment.rounds) if all(rounds[index] for rounds in compared)]
        ratios = {
            number: paired_ratio([[pair] for pair in zip(rounds, as_it_is, strict=True)], len(others))
            for number, rounds in enumerate(others, NOW + 1)
        }
        if going_on and common:
            of_now, *medians = [[median(rounds[index]) for index in common] for rounds in compared]
            ratios |= zip(going_on, joint_ratios(of_now, medians, len(others)), strict=True)
        return ratios

    def _tried(self, number: int, fate: Fate, ratio: Ratio | None) -> TriedSetting:
        candidate, rounds = self.choice.candidates[number], self._rounds(number)
        return TriedSetting(
            label=candidate.label,
            code=code_of(candidate, self.job),
            is_lossy=candidate.comm_hook is not None,
            forecast=candidate.forecast,
            num_buckets=candidate.num_buckets,
            step_ns=median_step_ns(rounds),
            rounds_ns=tuple(median(steps) for steps in rounds if steps),
            ratio=ratio,
            losses=self._match(number) if number != NOW else None,
            fate=fate,
        )

    def _fates(self) -> list[Fate]:
        """Return the state of each variant."""
        fates = [Fate.TRIED] * len(self.experiment.variants)
        for fate, numbers in (
            (Fate.LOSING, self.stopped()),
            (Fate.REFUSED, self.refused()),
            (Fate.FAILED, self.failed()),
        ):
            for number in numbers:
                fates[number] = fate
        return fates

    def _missing(self) -> Iterator[str]:
        for result in self.results:
            if result.problem is not None:
                label = self.experiment.variants[result.trial.variant].label or "unchanged"
                yield f"{label}, round {result.trial.round + 1}: {result.problem}"
        rounds = sum(map(bool, self._rounds(NOW)))
        if rounds < self.experiment.rounds:
            yield f"{rounds} of {self.experiment.rounds} rounds have been run"


def code_of(candidate: Candidate, job: Job) -> str:
    """Return the setting as code in the script, or as an option of its framework."""
    without_hook = ddp_argument(job.framework, *candidate.words)
    if candidate.comm_hook is None:
        return without_hook
    hooked = compression(job.framework, job.backend, *candidate.words)
    left = f"{candidate.comm_hook}, which can be set with register_comm_hook, but not through {job.framework}"
    return hooked or ", and ".join(filter(None, [without_hook, left]))


def _best(tried: Sequence[TriedSetting]) -> int | None:
    """Return the index of the recommended setting; ``None`` if none is significantly faster than the unchanged job."""
    faster = [
        (one.ratio.ratio, len(one.code), index)
        for index, one in enumerate(tried)
        if one.fate is Fate.TRIED and one.ratio is not None and one.ratio.high is not None and one.ratio.high < 1
    ]
    as_good = [one for one in faster if one[0] <= min(faster)[0] * _AS_GOOD]
    return min(as_good, key=lambda one: one[1])[-1] if as_good else None


@dataclass(frozen=True)
class KeptTuning(Tuning):
    """A tuning experiment that is stored in a directory."""

    directory: Location

    def with_ended(self, trial: Trial) -> KeptTuning:
        """Return the experiment including the result of a trial that has just ended. Raises `DdpprofError`."""
        others = [result for result in self.results if result.trial != trial]
        result = read_trial(self.directory, trial) or TrialResult(trial)
        losses = {**self.losses, trial: losses_of(self.directory / trial.name)}
        return replace(self, results=[*others, result], losses=losses)

    def report(self) -> TuneReport:
        """Return the report. Raises `DdpprofError` if there is nothing to compare yet."""
        report = self.tune_report()
        if report is None:
            problem = next((result.problem for result in self.results if result.problem), None)
            raise DdpprofError(
                f"{self.directory} has no results to compare yet: {problem or 'the first round has not finished'}"
            )
        return report


def read_tuning(directory: Location) -> KeptTuning:
    """Read the experiment in `directory`. Raises `DdpprofError`."""
    experiment, choice = read_plan(directory), _read_choice(directory)
    if len(choice.candidates) != len(experiment.variants):
        raise NotARun(
            f"{directory / CHOICE_FILE} has {len(choice.candidates)} settings, but {EXPERIMENT_FILE} in the same "
            f"directory has {len(experiment.variants)}."
        )
    results = [result for trial in experiment.trials() if (result := read_trial(directory, trial)) is not None]
    profile = directory / PROFILE_DIRECTORY
    run = load_run(profile)
    return KeptTuning(
        experiment,
        choice,
        build_report(run).job,
        results=results,
        losses={result.trial: losses_of(directory / result.trial.name) for result in results},
        profile_losses=losses_of(profile),
        profile_ns=timed_steps([rank.record for rank in run.ranks if rank.record is not None]),
        directory=directory,
    )


def has_choice(directory: Location) -> bool:
    return (directory / CHOICE_FILE).is_file()


def _read_choice(directory: Location) -> TuningPlan:
    absent = f"{directory} has no results to compare yet. Continue with: ddpprof tune --resume {directory}"
    return read_beside_plan(directory / CHOICE_FILE, TuningPlan, absent)


def write_choice(directory: Path, choice: TuningPlan) -> None:
    """Write the chosen settings. Raises `CannotRecord`."""
    write_beside_plan(directory / CHOICE_FILE, choice)


_MARGIN = 0.02
_MARGIN_WITHOUT_INTERVAL = 0.1
_LEAST_STARTS = 2


def is_losing(rounds: Sequence[Steps], others: Sequence[Steps], spread: float) -> bool:
    """Return True if a variant is clearly slower than another variant.

    `rounds` and `others` are the steps of both variants by round. A round that was not run is empty.
    """
    both = [(own, other) for own, other in zip(rounds, others, strict=False) if own and other]
    if len(both) < _LEAST_STARTS:
        return False
    own_ns, other_ns = ([ns for pair in both for ns in pair[side]] for side in (0, 1))
    shift = shift_between(other_ns, own_ns)
    if shift is None:
        return False
    least, surely = (_MARGIN_WITHOUT_INTERVAL, shift.shift) if shift.low is None else (_MARGIN, shift.low)
    return surely > max(least, spread) * median(other_ns)


def start_spread(starts: Sequence[Steps]) -> float:
    """Return how much longer the median step is in the slowest launch of a job than in the fastest, as a fraction."""
    medians = [median(steps) for steps in starts if steps]
    return max(medians) / min(medians) - 1 if medians else 0.0
