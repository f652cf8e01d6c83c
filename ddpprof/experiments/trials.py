"""The result of one trial of an experiment: its step times, the parts of its profiled steps, and its losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import combinations
from math import inf, isfinite
from operator import attrgetter
from statistics import fmean, median
from typing import TypeVar

from ddpprof import rundir
from ddpprof.errors import DdpprofError
from ddpprof.experiments.conduct import steps_of, still_needed
from ddpprof.experiments.plan import Experiment, Trial, read_end
from ddpprof.files import Location
from ddpprof.load.record import load_losses
from ddpprof.load.run import load_run
from ddpprof.model import Record, Run, StepMode
from ddpprof.model.ddp_module import Buckets
from ddpprof.report import Job, RankReport, Report
from ddpprof.report.build import build_report

EXPERIMENT_REPORT_FORMAT = 1
"""version of the JSON documents of `overhead`, `scale` and `sweep`"""

Steps = tuple[float, ...]
"""step times in ns, in order"""


@dataclass(frozen=True, slots=True)
class StepParts:
    """Parts of an unprofiled step in ns: means over steps and ranks, with the same proportions as in profiled steps."""

    wrapper_ns: float
    """DDP's own work on the training thread; 0 on an accelerator, where the host works in parallel"""
    transfer_ns: float
    """exposed communication, without the time spent waiting for other ranks"""
    waiting_ns: float
    """exposed communication in which a rank waits for another rank"""
    data_ns: float
    compute_ns: float
    """all other time: computation, and the time in which the host launches it"""

    @property
    def step_ns(self) -> float:
        return self.wrapper_ns + self.transfer_ns + self.waiting_ns + self.data_ns + self.compute_ns


@dataclass(frozen=True, slots=True)
class WrapperParts:
    """DDP's own work on the training thread in an unprofiled step, in ns; means over steps and ranks."""

    pre_forward_ns: float
    unused_search_ns: float
    copy_in_ns: float
    launch_ns: float
    copy_out_ns: float
    finalise_ns: float


_Parts = TypeVar("_Parts", StepParts, WrapperParts)


@dataclass(frozen=True, slots=True)
class TrialResult:
    trial: Trial
    blocks_ns: tuple[Steps, ...] = ()
    """step times of the timed steps; several blocks if blocks with DDP alternate with blocks without DDP, else one"""
    without_ddp_ns: tuple[Steps, ...] = ()
    num_steps: int | None = None
    """number of timed steps; on an accelerator, `blocks_ns` has only one value per block"""
    problem: str | None = None
    """why there are no step times; ``None`` if there are step times"""
    job: Job | None = None
    parts: StepParts | None = None
    wrapper: WrapperParts | None = None
    slowdown_ns: float | None = None
    """computation time lost to concurrent communication, in ns per step, if known"""
    transfer_ns: float | None = None
    """communication time per step, hidden or exposed, without waiting for other ranks; ``None`` if no steps were
    profiled
    """
    num_samples: int | None = None
    """number of samples per step on all ranks together; known only if a single DataLoader feeds the training"""
    buckets: tuple[Buckets, ...] = ()
    """buckets of each DDP module"""


def read_trial(directory: Location, trial: Trial) -> TrialResult | None:
    """Return the result of a trial, or ``None`` if it has not ended. Raises `NotARun`."""
    ended = read_end(directory / trial.name)
    if ended is None:
        return None
    if ended.problem is not None:
        return TrialResult(trial, problem=ended.problem)
    return trial_result(trial, load_run(directory / trial.name))


def trial_result(trial: Trial, run: Run) -> TrialResult:
    report = build_report(run)
    records = [rank.record for rank in run.ranks if rank.record is not None]
    steps = timed_steps(records)
    profiled = [rank for rank in report.ranks if rank.measured_steps]
    scale = median(steps) / _mean(profiled, "parts.step_ns") if steps and profiled else None
    return TrialResult(
        trial,
        timed_blocks(records),
        timed_blocks(records, StepMode.WITHOUT_DDP),
        min((sum(step.mode is StepMode.OFF for step in record.steps) for record in records), default=0),
        None if steps else "training ended before any step was timed",
        report.job,
        _parts(report, profiled, scale) if scale is not None else None,
        _wrapper(profiled, scale) if scale is not None else None,
        report.overlap_slowdown.lost_ns if report.overlap_slowdown is not None else None,
        _transfer_ns(report, profiled) if profiled else None,
        _num_samples(records, report.job.num_micro_steps or 1),
        tuple(module.buckets for module in records[0].modules) if records else (),
    )


def _transfer_ns(report: Report, ranks: Sequence[RankReport]) -> float:
    """Return the mean communication time without waiting, over ranks and steps."""
    waits = {one.rank: one.waiting_per_step_ns or 0 for one in (report.across.waiting if report.across else ())}
    waiting = fmean(waits.get(rank.rank, 0) for rank in ranks)
    return max(0.0, _mean(ranks, "comm_ns") - waiting)


def _num_samples(records: Sequence[Record], num_micro_steps: int) -> int | None:
    """Return the number of samples per step over all ranks; ``None`` unless each rank has one training DataLoader."""
    feeding = [[one.batch_size for one in record.loaders if one.feeds_training] for record in records]
    sizes = [of_rank[0] if len(of_rank) == 1 else None for of_rank in feeding]
    known = [size for size in sizes if size is not None]
    return num_micro_steps * sum(known) if known and len(known) == len(records) else None


def losses_of(folder: Location) -> Losses:
    """Return the losses stored by the ranks of a trial."""
    losses = {rank: load_losses(folder, rank) for rank in rundir.ranks_in(folder)}
    return {rank: steps for rank, steps in losses.items() if steps}


def rounds_of(results: Iterable[TrialResult], variant: int, num_rounds: int) -> list[Steps]:
    """Return a variant's step times by round. Rounds without times are empty."""
    found = {result.trial.round: sum(result.blocks_ns, ()) for result in results if result.trial.variant == variant}
    return [found.get(number, ()) for number in range(num_rounds)]


def median_step_ns(rounds: Iterable[Steps]) -> float | None:
    """Return the median over rounds of the median over steps."""
    known = [median(steps) for steps in rounds if steps]
    return median(known) if known else None


def mean_of(kind: type[_Parts], all_parts: Sequence[_Parts]) -> _Parts | None:
    """Return the mean of each part; ``None`` if `all_parts` is empty."""
    if not all_parts:
        return None
    return kind(*(fmean(getattr(parts, field.name) for parts in all_parts) for field in fields(kind)))


def scaled(parts: StepParts, factor: float) -> StepParts:
    return StepParts(*(getattr(parts, part.name) * factor for part in fields(StepParts)))


def problems(experiment: Experiment, results: Sequence[TrialResult]) -> tuple[str, ...]:
    """Return sentences about trials without times, and about the number of trials that have not been run."""
    said = [
        f"{experiment.variants[result.trial.variant].title}, round {result.trial.round + 1}: {result.problem}"
        for result in results
        if result.problem is not None
    ]
    said += [short for number in range(len(experiment.variants)) if (short := _short(experiment, results, number))]
    failed, known = {r.trial.variant for r in results if r.problem is not None}, {r.trial for r in results}
    undone = sum(trial not in known for trial in still_needed(experiment, experiment.trials(), failed))
    return (*said, *([f"{undone} of {experiment.num_trials} trials have not been run"] if undone else []))


def refuse_short_job(experiment: Experiment, result: TrialResult, num_trained: int, on_accelerator: bool) -> None:
    """Raise `DdpprofError` if training is too short for a trial, and suggest options for shorter trials."""
    variant = experiment.variants[result.trial.variant]
    wanted = steps_of(experiment, variant, on_accelerator)
    short = _short(experiment, [result], result.trial.variant)
    if num_trained >= wanted or (short is None and result.blocks_ns):
        return
    if variant.ddp_blocks:
        option, most = "--blocks", variant.ddp_blocks
        needs = {n: steps_of(experiment, replace(variant, ddp_blocks=n), on_accelerator) for n in range(1, most)}
    else:
        option, most = "--timed-steps", experiment.timed_steps
        needs = {n: steps_of(replace(experiment, timed_steps=n), variant, on_accelerator) for n in range(1, most)}
    fits = max((number for number, steps in needs.items() if steps <= num_trained), default=None)
    instead = "" if fits is None else f", or measure fewer steps in each trial: {option} {fits}"
    raise DdpprofError(
        f"training runs for only {num_trained} steps, but a trial needs {wanted}. Make the script run more "
        f"steps{instead}."
    )


def _short(experiment: Experiment, results: Sequence[TrialResult], number: int) -> str | None:
    """Return a note if a variant's training ended before all steps were timed."""
    variant, own = experiment.variants[number], [r for r in results if r.trial.variant == number and r.blocks_ns]
    if variant.ddp_blocks:
        what, asked = "pairs of blocks", variant.ddp_blocks
        timed = min((min(len(r.blocks_ns), len(r.without_ddp_ns)) for r in own), default=asked)
    else:
        what, asked = "steps", experiment.timed_steps
        timed = min((r.num_steps for r in own if r.num_steps is not None), default=asked)
    if timed >= asked:
        return None
    return f"{variant.title}: only {timed} of {asked} {what} were timed before training ended"


def _mean(ranks: Sequence[RankReport], name: str) -> float:
    """Return the mean of a field over all steps. `name`: for example ``parts.data_ns``. ``None`` counts as 0."""
    value = attrgetter(name)
    return fmean(fmean(value(step) or 0 for step in rank.measured_steps) for rank in ranks)


def _parts(report: Report, ranks: Sequence[RankReport], scale: float) -> StepParts:
    waits = {one.rank: one.exposed_waiting_ns or 0 for one in (report.across.waiting if report.across else ())}
    step, exposed, data = (_mean(ranks, f"parts.{name}_ns") for name in ("step", "exposed_comm", "data"))
    waiting = min(exposed, fmean(waits.get(rank.rank, 0) for rank in ranks))
    wrapper = _mean(ranks, "wrapper.total_ns") if report.job.device == "cpu" else 0.0
    compute = step - exposed - data - wrapper
    return scaled(StepParts(wrapper, exposed - waiting, waiting, data, compute), scale)


def _wrapper(ranks: Sequence[RankReport], scale: float) -> WrapperParts:
    return WrapperParts(*(scale * _mean(ranks, f"wrapper.{part.name}") for part in fields(WrapperParts)))


def timed_blocks(ranks: Sequence[Record], mode: StepMode = StepMode.OFF) -> tuple[Steps, ...]:
    """Return blocks of consecutive steps that all ranks have recorded. The time of a step is the mean over the ranks.

    Without DDP, ranks do not wait for each other, so waiting for the slowest rank counts as overhead of DDP. On an
    accelerator, the host runs ahead of the device, and only the start and end of a block are known. The block is then
    returned as one step of mean duration.
    """
    of_ranks = [
        {step.number: step.end_ns - step.start_ns for step in rank.steps if step.mode is mode} for rank in ranks
    ]
    common = set.intersection(*map(set, of_ranks)) if of_ranks else set()
    blocks: list[list[float]] = []
    for number in sorted(common):
        if number - 1 not in common:
            blocks.append([])
        blocks[-1].append(fmean(steps[number] for steps in of_ranks))
    if any(rank.device != "cpu" for rank in ranks):
        return tuple((fmean(block),) for block in blocks)
    return tuple(map(tuple, blocks))


def timed_steps(ranks: Sequence[Record]) -> Steps:
    """Return the steps of all blocks."""
    return tuple(step for block in timed_blocks(ranks) for step in block)


Losses = Mapping[int, Sequence[Sequence[float]]]
"""rank → step → loss of each backward pass"""

_ROUNDING = 2.0**-20
"""relative difference of losses that is tolerated per step: 16 times the rounding error of single precision, because
many gradients are summed
"""
_OWN_FACTOR = 3
"""differences between runs of the same job are multiplied by this factor, because a few runs do not show the largest
difference
"""
_CHANCE = 1e-4
"""losses are compared only if runs of the same job differ by at most this. Rounding in a few steps cannot cause a
larger difference. Larger differences are caused by a missing seed, or by half-precision values that are added in
varying order
"""


class Match(StrEnum):
    """Result of comparing the losses of two training runs."""

    EXACT = "exact"
    """all losses are bitwise identical"""
    ROUNDING = "rounding"
    CHANGED = "changed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LossMatch:
    """Result of comparing losses, and the numbers on which it is based."""

    match: Match
    num_steps: int
    """number of steps whose losses were compared"""
    difference: float | None
    own: float | None
    """difference between runs of the unchanged job; ``None`` with fewer than two runs"""
    tolerance: float | None
    """tolerated difference at the last compared step"""


_OF_BUCKETS = ("bucket_cap_mb", "bucket_cap_mb_list", "find_unused_parameters", "static_graph")
"""arguments of DDP that change which bucket a gradient is in"""
_ORDER_OF_TWO = 2
"""with at most this number of ranks, a sum does not depend on the order of additions"""


def keeps_order(arguments: Iterable[str], world_size: int | None) -> bool:
    """Return True if DDP still adds the same numbers in the same order when these arguments are changed."""
    return (world_size or 1) <= _ORDER_OF_TWO or not any(name in _OF_BUCKETS for name in arguments)


_NOTHING = LossMatch(Match.UNKNOWN, 0, None, None, None)


def match_losses(as_it_is: Sequence[Losses], setting: Sequence[Losses], order_is_kept: bool) -> LossMatch:
    """Compare the losses of training with another setting to the losses of the unchanged training, step by step.

        difference  |loss - unchanged loss| / |unchanged loss|, maximum over steps and ranks
        own         the same difference, between several runs of the unchanged training

    If two runs are bitwise identical, training is deterministic, and a setting that keeps the order of additions must
    give bitwise identical losses, too. With two ranks, all settings keep the order, because a + b = b + a. With more
    ranks, a change of the buckets may change the order of additions and thus the rounding of gradients (by 2⁻²⁴ in
    single precision). The difference of the losses grows from step to step. `order_is_kept`: see `keeps_order`.
    """
    own = [_differences(a, b) for a, b in combinations(as_it_is, 2)]
    theirs = [_differences(as_it_is[0], one) for one in setting] if as_it_is else []
    found = [one for one in theirs if one]
    if not found:
        return _NOTHING
    num_steps, most = min(map(len, found)), max(map(max, found))
    known = [one for one in own if one]
    if not known:
        return LossMatch(Match.EXACT if most == 0 else Match.UNKNOWN, num_steps, most, None, None)
    chance = max(map(max, known))
    if chance > _CHANCE:
        return LossMatch(Match.UNKNOWN, num_steps, most, chance, None)
    rounding = 0.0 if order_is_kept and chance == 0 else _ROUNDING
    tolerances = [_OWN_FACTOR * chance + rounding * (step + 1) for step in range(max(map(len, found)))]
    agrees = all(difference <= tolerances[step] for one in found for step, difference in enumerate(one))
    match = Match.EXACT if most == 0 else Match.ROUNDING if agrees else Match.CHANGED
    return LossMatch(match, num_steps, most, chance, tolerances[num_steps - 1])


def _differences(a: Losses, b: Losses) -> list[float]:
    """Return the largest difference over ranks in each step for which both runs have losses."""
    of_ranks = [zip(a[rank], b[rank], strict=False) for rank in sorted(a.keys() & b.keys())]
    steps = zip(*of_ranks, strict=False)
    return [most for pairs in steps if (most := _of_step(pairs)) is not None]


def _of_step(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """Return the largest difference between the losses of two runs in a step.

    Returns ``None`` if there are no losses, and ``inf`` if the runs have different numbers of losses.
    """
    if not any(a or b for a, b in pairs):
        return None
    if any(len(a) != len(b) for a, b in pairs):
        return inf
    return max(_relative(x, y) for a, b in pairs for x, y in zip(a, b, strict=True))


def _relative(a: float, b: float) -> float:
    if a == b or not (isfinite(a) or isfinite(b)):
        return 0.0
    return abs(a - b) / abs(a) if a and isfinite(a) and isfinite(b) else inf
