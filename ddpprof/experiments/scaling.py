"""Measure how training scales with the number of processes, and the causes of lost time.

    weak scaling     each process keeps its batch size   ideal: step time of one process without DDP
    strong scaling   all processes share one batch       ideal: 1/n of that

    speed-up         = work per second / work per second of one process
    efficiency       = ideal step / step
    loss             = step - ideal step
    maximum speed-up = number of processes × ideal step / max(ideal step, transfer time of a step)

A step takes at least as long as its transfers. The loss is divided into the parts of the step (`StepParts`). The loss
of a part is its time minus its time in the ideal step, so that the losses of the parts add up to the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from ddpprof.experiments.plan import Experiment
from ddpprof.experiments.trials import (
    EXPERIMENT_REPORT_FORMAT,
    StepParts,
    TrialResult,
    mean_of,
    median_step_ns,
    problems,
    rounds_of,
    scaled,
)
from ddpprof.report import Job
from ddpprof.statistics.paired_ratio import Ratio, paired_ratio
from ddpprof.version import __version__


class Scaling(StrEnum):
    WEAK = "weak"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class LostTime:
    """Time lost per step by cause, in ns.

    The parts add up to the loss.

    A negative value means that the part takes less time than in the ideal step.
    """

    wrapper_ns: float
    """DDP's own work on the training thread"""
    transfer_ns: float
    """exposed communication, without waiting for other ranks"""
    waiting_ns: float
    """time spent waiting for other ranks (skew)"""
    slowdown_ns: float
    """slowdown of computation by concurrent communication; 0 if unknown"""
    data_ns: float
    compute_ns: float
    """slowdown of computation for other reasons: ranks share cores and memory, or batches are smaller"""


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """Result for one number of processes."""

    scaling: Scaling
    nproc: int
    step_ns: float
    ideal_ns: float
    speedup: Ratio
    """work per second, relative to one process without DDP"""
    lost: LostTime | None
    """lost time by cause; ``None`` if no steps were profiled"""
    transfer_ns: float | None = None
    """communication time per step, hidden or exposed, without waiting for other ranks; ``None`` if no steps were
    profiled
    """
    samples_per_s: float | None = None
    """samples per second in all processes together; ``None`` if the batch size is unknown"""

    @property
    def efficiency(self) -> float:
        return self.speedup.ratio / self.nproc

    @property
    def most_speedup(self) -> float | None:
        """Maximum speed-up, with as much communication as possible hidden behind computation."""
        if self.transfer_ns is None:
            return None
        return self.nproc * self.ideal_ns / max(self.ideal_ns, self.transfer_ns)

    @property
    def lost_ns(self) -> float:
        return self.step_ns - self.ideal_ns


@dataclass(frozen=True, slots=True)
class ScalingReport:
    format: int
    ddpprof: str
    command: tuple[str, ...]
    job: Job
    """the job, as run with the largest number of processes"""
    points: tuple[ScalePoint, ...]
    missing: tuple[str, ...]


def build_scaling(experiment: Experiment, results: Sequence[TrialResult]) -> ScalingReport | None:
    """Build the report; ``None`` if there is no job to compare with the single process without DDP."""
    bases = {v.label: n for n, v in enumerate(experiment.variants) if v.without_ddp}
    points = [
        _point(experiment, results, number, bases[variant.label])
        for number, variant in enumerate(experiment.variants)
        if not variant.without_ddp and variant.label in bases
    ]
    known = [point for point in points if point is not None]
    if not known:
        return None
    jobs = [result.job for result in results if result.job is not None]
    return ScalingReport(
        format=EXPERIMENT_REPORT_FORMAT,
        ddpprof=__version__,
        command=experiment.command,
        job=max(jobs, key=lambda job: job.world_size or 0),
        points=tuple(known),
        missing=problems(experiment, results),
    )


def _point(experiment: Experiment, results: Sequence[TrialResult], number: int, base: int) -> ScalePoint | None:
    variant = experiment.variants[number]
    own, alone = (rounds_of(results, n, experiment.rounds) for n in (number, base))
    ratio = paired_ratio([[pair] for pair in zip(alone, own, strict=True)])
    step_ns, alone_ns = median_step_ns(own), median_step_ns(alone)
    if ratio is None or step_ns is None or alone_ns is None:
        return None
    is_strong = bool(variant.label)
    share = 1 / variant.nproc if is_strong else 1.0
    mine = [result for result in results if result.trial.variant == number]
    transfers = [result.transfer_ns for result in mine if result.transfer_ns is not None]
    samples = next((result.num_samples for result in mine if result.num_samples is not None), None)
    ideal_ns = alone_ns * share
    return ScalePoint(
        scaling=Scaling.STRONG if is_strong else Scaling.WEAK,
        nproc=variant.nproc,
        step_ns=step_ns,
        ideal_ns=ideal_ns,
        speedup=ratio if is_strong else _times(ratio, variant.nproc),
        lost=_lost(results, number, base, step_ns, alone_ns, share),
        transfer_ns=median(transfers) if transfers else None,
        samples_per_s=None if samples is None else samples / step_ns * 1e9,
    )


def _times(ratio: Ratio, factor: float) -> Ratio:
    low, high = (None if end is None else end * factor for end in (ratio.low, ratio.high))
    return Ratio(ratio.ratio * factor, low, high, ratio.num_pairs)


def _lost(
    results: Sequence[TrialResult], number: int, base: int, step_ns: float, alone_ns: float, share: float
) -> LostTime | None:
    step, alone = _parts(results, number, step_ns), _parts(results, base, alone_ns)
    if step is None or alone is None:
        return None
    more_compute = step.compute_ns - share * alone.compute_ns
    slowdown = [r.slowdown_ns for r in results if r.trial.variant == number and r.slowdown_ns is not None]
    slowed = min(max(0.0, sum(slowdown) / len(slowdown) if slowdown else 0.0), max(0.0, more_compute))
    return LostTime(
        wrapper_ns=step.wrapper_ns - share * alone.wrapper_ns,
        transfer_ns=step.transfer_ns - share * alone.transfer_ns,
        waiting_ns=step.waiting_ns - share * alone.waiting_ns,
        slowdown_ns=slowed,
        data_ns=step.data_ns - share * alone.data_ns,
        compute_ns=more_compute - slowed,
    )


def _parts(results: Sequence[TrialResult], variant: int, step_ns: float) -> StepParts | None:
    """Return the parts of a step as means over rounds, scaled to add up to `step_ns`."""
    found = mean_of(StepParts, [r.parts for r in results if r.trial.variant == variant and r.parts is not None])
    return None if found is None else scaled(found, step_ns / found.step_ns)
