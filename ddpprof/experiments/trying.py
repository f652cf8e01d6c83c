"""Measure the gain of advised changes: `ddpprof try` runs the job with each change and unchanged.

    measured gain = unchanged step × (1 - ratio). The ratio and its 95 % interval are from `paired_ratio`. A trial is
                    represented by its median step or, for a finding about a few long steps, by its mean step
    confirmed     = the interval is above 0, and reaches the lower end of the predicted gain
    no difference = the interval includes 0, and its upper end is below half of the expected gain or 1 % of the step

If a finding has no prediction, its gain is an upper bound, and any gain that exceeds the noise confirms it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import fmean, median

import msgspec

from ddpprof import rundir
from ddpprof.engine.finding import Change, ChangeKind, Finding, Predicted
from ddpprof.errors import CannotRecord, DdpprofError, NotARun, writing
from ddpprof.experiments.plan import (
    CHANGES_FILE,
    Experiment,
    Trial,
    Variant,
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
    problems,
    read_trial,
    rounds_of,
)
from ddpprof.experiments.vary import COMPILATIONS
from ddpprof.files import Location
from ddpprof.model.json_files import Measured, Outcome, TriedChange
from ddpprof.report import Job
from ddpprof.statistics.paired_ratio import ENOUGH_ROUNDS, Ratio, paired_ratio
from ddpprof.version import __version__

NOW = 0
"""index of the variant without changes"""
_MOST_MORE_ROUNDS = 50
_NOTICEABLE = 0.01
"""a gain below this share of the step does not count as a difference"""


@dataclass(frozen=True, slots=True)
class Promise:
    """One change to try, and the gain that its finding predicts."""

    label: str
    """short name of the change, such as ``bucket_cap_mb=1``, or name of the other script"""
    code: str
    """the change as Python code; empty if the change cannot be written as code"""
    number: int | None = None
    """number of the finding in the report; ``None`` if the user gave another script instead of a finding"""
    rule: str = ""
    title: str = ""
    gain_ns: int | None = None
    """expected gain, in ns per step; if `predicted` is ``None``, the largest possible gain"""
    predicted: Predicted | None = None
    """predicted gain with its interval, if the gain could be predicted"""
    is_lossy: bool = False
    keeps_order: bool = True
    """True if the change keeps the order in which gradients are added; losses should then be bitwise identical"""
    keeps_batches: bool = True
    """False if the change may alter the batches, for example because other workers draw the random augmentations"""

    @property
    def least_ns(self) -> int:
        """Lower end of the interval of the predicted gain, in ns."""
        return max(0, self.predicted.low_ns) if self.predicted is not None else 0


@dataclass(frozen=True, slots=True)
class TryPlan:
    """The changes to try: one for each variant of the experiment after the first, which is the unchanged job."""

    run: str
    """path of the run whose findings recommend the changes"""
    promises: tuple[Promise, ...]


@dataclass(frozen=True, slots=True)
class TriedPromise:
    """Result of one change. Times are in ns per step."""

    promise: Promise
    outcome: Outcome
    step_ns: float | None
    """median over rounds of the step time with the change"""
    measured: Measured | None
    ratio: Ratio | None
    """step time divided by the step time of the unchanged job"""
    losses: LossMatch | None
    more_rounds: int | None = None
    """if there is no verdict yet: estimated number of further rounds that a verdict needs"""


@dataclass(frozen=True, slots=True)
class TryReport:
    format: int
    ddpprof: str
    command: tuple[str, ...]
    job: Job | None
    run: str
    step_ns: float | None
    """median over rounds of the step time of the unchanged job"""
    rounds: int
    tried: tuple[TriedPromise, ...]
    missing: tuple[str, ...]
    uses_means: bool = False
    """True if `step_ns` and the gains are based on mean instead of median steps, so that long steps count"""


def promise_of(number: int, finding: Finding, change: Change, world_size: int | None) -> Promise:
    """Return the `Promise` of the finding with this number."""
    arguments = change.values if change.kind is ChangeKind.DDP else ()
    return replace(
        _promise(_label(change), number, finding),
        keeps_order=change.kind not in _CHANGES_ORDER and keeps_order(arguments, world_size),
        keeps_batches=change.kind is not ChangeKind.LOADER,
    )


def promise_of_script(script: str, title: str, number: int | None, finding: Finding | None) -> Promise:
    """Return the `Promise` of another script. If a finding is given, the script follows its advice."""
    if number is None or finding is None:
        return Promise(label=script, code=script, title=title, keeps_order=False)
    return replace(_promise(script, number, finding), keeps_order=False, keeps_batches=False)


def _promise(label: str, number: int, finding: Finding) -> Promise:
    """Return the promise of a finding. The change is assumed not to alter the losses; callers may override this."""
    return Promise(
        label=label,
        code=finding.code,
        number=number,
        rule=finding.rule,
        title=finding.title,
        gain_ns=finding.expected_ns,
        predicted=finding.predicted,
        is_lossy=finding.is_lossy,
    )


_CHANGES_ORDER = (ChangeKind.NO_SYNC, ChangeKind.COMPILATION, ChangeKind.ENVIRONMENT, ChangeKind.SWITCH)
"""kinds of changes that may alter the order in which gradients or other values are added"""


def _label(change: Change) -> str:
    if change.kind is ChangeKind.COMM_HOOK:
        return next(iter(change.values))
    if change.kind is ChangeKind.NO_SYNC:
        return "no_sync"
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in change.values.items()}
    return ", ".join(f"{name}={value}" for name, value in values.items())


def variant_with(now: Variant, change: Change) -> Variant:
    """Return the variant with the change. Raises `DdpprofError` if ddpprof cannot apply it."""
    label = _label(change)
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in change.values.items()}
    match change.kind:
        case ChangeKind.DDP:
            return replace(now, label=label, ddp=values)
        case ChangeKind.COMM_HOOK:
            return replace(now, label=label, comm_hook=next(iter(values)))
        case ChangeKind.ENVIRONMENT:
            return replace(now, label=label, variables={name: str(value) for name, value in values.items()})
        case ChangeKind.LOADER:
            return replace(now, label=label, loader=values)
        case ChangeKind.COMPILATION:
            arguments = {name: value for name, value in values.items() if name not in COMPILATIONS}
            changed = replace(now, label=label, ddp={**now.ddp, **arguments})
            for name in values.keys() & COMPILATIONS.keys():
                changed = changed.compiled(name, str(values[name]))
            return changed
        case ChangeKind.SWITCH:
            return replace(now, label=label, switches={name: bool(value) for name, value in values.items()})
        case ChangeKind.NO_SYNC:
            return replace(now, label=label, passes_per_reduction=int(str(values["num_passes"])))


@dataclass(frozen=True)
class Trying:
    """An experiment of `ddpprof try`, and its results so far."""

    experiment: Experiment
    plan: TryPlan
    results: Sequence[TrialResult]
    losses: Mapping[Trial, Losses]

    def report(self) -> TryReport:
        """Return the report. Raises `DdpprofError` if the unchanged job has no times."""
        as_it_is = self._rounds(NOW)
        if not any(as_it_is):
            problem = next(
                (result.problem for result in self.results if result.problem), "the first round has not finished"
            )
            raise DdpprofError(f"there are no results to compare yet: {problem}")
        return TryReport(
            format=EXPERIMENT_REPORT_FORMAT,
            ddpprof=__version__,
            command=self.experiment.command,
            job=next((result.job for result in self.results if result.job is not None), None),
            run=self.plan.run,
            step_ns=median_step_ns(as_it_is),
            rounds=sum(1 for steps in as_it_is if steps),
            tried=tuple(self._tried(number, one) for number, one in enumerate(self.plan.promises, NOW + 1)),
            missing=problems(replace(self.experiment, rounds=self._num_rounds), self.results),
            uses_means=self.experiment.uses_means,
        )

    @property
    def failed(self) -> frozenset[int]:
        """Variants with a trial that failed."""
        return frozenset(result.trial.variant for result in self.results if result.problem)

    @property
    def is_decided(self) -> bool:
        """Whether the rounds so far give a verdict on every change."""
        return any(self._rounds(NOW)) and all(one.outcome is not Outcome.CANNOT_TELL for one in self.report().tried)

    @property
    def _num_rounds(self) -> int:
        """Number of planned rounds: `enough_rounds`, or all rounds if a later round has begun."""
        enough = self.experiment.enough_rounds or self.experiment.rounds
        return enough if all(one.trial.round < enough for one in self.results) else self.experiment.rounds

    def _rounds(self, variant: int) -> list[Steps]:
        rounds = rounds_of(self.results, variant, self.experiment.rounds)
        return [(fmean(steps),) if steps else () for steps in rounds] if self.experiment.uses_means else rounds

    def _losses_of(self, variant: int) -> list[Losses]:
        return [losses for trial, losses in self.losses.items() if trial.variant == variant and losses]

    def _tried(self, variant: int, promise: Promise) -> TriedPromise:
        rounds, as_it_is = self._rounds(variant), self._rounds(NOW)
        pairs = [[pair] for pair in zip(rounds, as_it_is, strict=True)]
        ratio = paired_ratio(pairs, len(self.plan.promises) * self.experiment.num_looks)
        losses = match_losses(self._losses_of(NOW), self._losses_of(variant), promise.keeps_order)
        num_rounds = sum(1 for own, other in zip(rounds, as_it_is, strict=True) if own and other)
        failed = variant in self.failed
        if ratio is None:
            outcome = Outcome.FAILED if failed else Outcome.CANNOT_TELL
            measured = Measured(None, None, None, outcome, 0) if failed else None
            return TriedPromise(promise, outcome, None, measured, None, None)
        step_ns = median(ns for steps in as_it_is for ns in steps)
        gain = _gain(ratio, step_ns)
        outcome = Outcome.FAILED if failed else _outcome(promise, gain, step_ns)
        is_comparable = promise.keeps_batches and not promise.is_lossy and promise.number is not None
        if losses.match is Match.CHANGED and is_comparable:
            outcome = Outcome.OTHER_RESULTS
        return TriedPromise(
            promise=promise,
            outcome=outcome,
            step_ns=median_step_ns(rounds),
            measured=Measured(gain.gain_ns, gain.low_ns, gain.high_ns, outcome, num_rounds),
            ratio=ratio,
            losses=losses,
            more_rounds=_more_rounds(promise, gain, num_rounds) if outcome is Outcome.CANNOT_TELL else None,
        )


@dataclass(frozen=True, slots=True)
class _Gain:
    gain_ns: int
    low_ns: int | None
    high_ns: int | None


def _gain(ratio: Ratio, step_ns: float) -> _Gain:
    def saved_ns(of_step: float | None) -> int | None:
        return None if of_step is None else round(step_ns * (1 - of_step))

    return _Gain(saved_ns(ratio.ratio) or 0, saved_ns(ratio.high), saved_ns(ratio.low))


def _outcome(promise: Promise, gain: _Gain, step_ns: float) -> Outcome:
    if gain.low_ns is None or gain.high_ns is None:
        return Outcome.CANNOT_TELL
    if gain.high_ns < 0:
        return Outcome.SLOWER
    if gain.low_ns > 0:
        return Outcome.CONFIRMED if gain.high_ns >= promise.least_ns else Outcome.SMALLER
    noticeable_ns = max((promise.gain_ns or 0) / 2, _NOTICEABLE * step_ns)
    return Outcome.NO_DIFFERENCE if gain.high_ns < noticeable_ns else Outcome.CANNOT_TELL


def _more_rounds(promise: Promise, gain: _Gain, num_rounds: int) -> int:
    """Estimate how many further rounds make the interval narrow enough. Its width is proportional to 1/sqrt(rounds)."""
    if gain.low_ns is None or gain.high_ns is None:
        return max(1, ENOUGH_ROUNDS - num_rounds)
    wanted_ns = max(abs(gain.gain_ns), (promise.gain_ns or 0) / 4, 1)
    wider = (gain.high_ns - gain.low_ns) / 2 / wanted_ns
    return min(_MOST_MORE_ROUNDS, max(1, ceil(num_rounds * (wider**2 - 1))))


@dataclass(frozen=True)
class KeptTrying(Trying):
    """An experiment of `ddpprof try` that is stored in a directory."""

    directory: Location


def read_trying(directory: Location) -> KeptTrying:
    """Read the experiment in `directory`. Raises `DdpprofError`."""
    experiment, plan = read_plan(directory), read_beside_plan(directory / CHANGES_FILE, TryPlan)
    if len(plan.promises) != len(experiment.variants) - 1:
        raise NotARun(
            f"{directory / CHANGES_FILE} has {len(plan.promises)} changes, but they do not match the plan in "
            "the same directory."
        )
    results = [result for trial in experiment.trials() if (result := read_trial(directory, trial)) is not None]
    losses = {result.trial: losses_of(directory / result.trial.name) for result in results}
    return KeptTrying(experiment, plan, results, losses, directory)


def write_changes(directory: Path, plan: TryPlan) -> None:
    """Write the changes to try. Raises `CannotRecord`."""
    write_beside_plan(directory / CHANGES_FILE, plan)


def keep_in_run(report: TryReport) -> Path | None:
    """Write the measured gains into the run, and return the file. Returns ``None`` if there is no gain or no run."""
    run = Path(report.run)
    if not rundir.is_run(run):
        return None
    path = run / rundir.TRIED_FILE
    new = [
        TriedChange(one.promise.rule, one.promise.code, one.measured)
        for one in report.tried
        if one.measured is not None and one.promise.number is not None
    ]
    if not new:
        return None
    before = rundir.read_json(path, list[TriedChange]) or []
    kept = [one for one in before if (one.rule, one.code) not in {(other.rule, other.code) for other in new}]
    with writing(run, CannotRecord):
        rundir.write_json(path, msgspec.to_builtins([*kept, *new]))
    return path
