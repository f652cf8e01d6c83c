"""Measure the overhead of DDP: the difference between step times with and without DDP, and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ddpprof.experiments.plan import Experiment
from ddpprof.experiments.trials import (
    EXPERIMENT_REPORT_FORMAT,
    StepParts,
    TrialResult,
    WrapperParts,
    mean_of,
    problems,
    rounds_of,
)
from ddpprof.report import Job
from ddpprof.statistics.paired_ratio import Pair, Ratio, paired_ratio
from ddpprof.version import __version__

WITH, WITHOUT = 0, 1
"""indices of the variants with and without DDP in the experiment"""


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Median step times of one round, in ns."""

    with_ns: float
    without_ns: float
    ratio: float
    """step time with DDP divided by step time without DDP, as the median over the pairs of blocks"""
    num_pairs: int


@dataclass(frozen=True, slots=True)
class OverheadReport:
    """The overhead of DDP. Times are in ns per step."""

    format: int
    ddpprof: str
    command: tuple[str, ...]
    job: Job
    with_ns: float
    without_ns: float
    ratio: Ratio
    """step time with DDP divided by step time without DDP"""
    rounds: tuple[RoundTimes, ...]
    wrapper: WrapperParts | None
    """DDP's own work on the training thread; on an accelerator, this work may be hidden completely behind the device's
    work
    """
    parts: StepParts | None
    """parts of the step with DDP"""
    missing: tuple[str, ...]
    transfer_ns: float | None = None
    """communication time per step, hidden or exposed, without waiting for other ranks; ``None`` if no steps were
    profiled
    """
    num_samples: int | None = None
    """number of samples per step on all ranks together; known only if a single DataLoader feeds the training"""

    @property
    def least_ns(self) -> float | None:
        """Shortest possible step with DDP: as much communication as possible is hidden behind computation."""
        return None if self.transfer_ns is None else max(self.without_ns, self.transfer_ns)

    @property
    def overhead_ns(self) -> float:
        return (self.ratio.ratio - 1) * self.without_ns

    @property
    def explained_ns(self) -> float | None:
        """Time attributed to DDP: its own work and exposed communication; ``None`` on accelerators."""
        if self.parts is None or self.job.device != "cpu":
            return None
        return self.parts.wrapper_ns + self.parts.transfer_ns + self.parts.waiting_ns


def build_overhead(experiment: Experiment, results: Sequence[TrialResult]) -> OverheadReport | None:
    """Build the report; ``None`` if no round has both variants."""
    rounds = _by_turns(results) if experiment.variants[WITH].ddp_blocks else _apart(experiment, results)
    ratio = paired_ratio(rounds)
    times = tuple(map(_round_times, rounds))
    if ratio is None:
        return None
    return OverheadReport(
        format=EXPERIMENT_REPORT_FORMAT,
        ddpprof=__version__,
        command=experiment.command,
        job=next(result.job for result in results if result.job is not None and result.trial.variant == WITH),
        with_ns=median(one.with_ns for one in times),
        without_ns=median(one.without_ns for one in times),
        ratio=ratio,
        rounds=times,
        wrapper=mean_of(WrapperParts, [result.wrapper for result in results if result.wrapper is not None]),
        parts=mean_of(StepParts, [result.parts for result in results if result.parts is not None]),
        missing=problems(experiment, results),
        transfer_ns=_mean([one.transfer_ns for one in results if one.trial.variant == WITH]),
        num_samples=next((one.num_samples for one in results if one.num_samples is not None), None),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _by_turns(results: Sequence[TrialResult]) -> list[list[Pair]]:
    """Return the pairs of blocks with and without DDP in each round. The blocks alternate within one process."""
    rounds: list[list[Pair]] = [list(zip(one.blocks_ns, one.without_ddp_ns, strict=False)) for one in results]
    return [pairs for pairs in rounds if pairs]


def _apart(experiment: Experiment, results: Sequence[TrialResult]) -> list[list[Pair]]:
    """Return the pairs of jobs with and without DDP in each round."""
    both = zip(*(rounds_of(results, variant, experiment.rounds) for variant in (WITH, WITHOUT)), strict=True)
    return [[(with_ddp, without)] for with_ddp, without in both if with_ddp and without]


def _round_times(pairs: Sequence[Pair]) -> RoundTimes:
    with_ns, without_ns = (median(median(pair[side]) for pair in pairs) for side in (0, 1))
    return RoundTimes(with_ns, without_ns, median(median(a) / median(b) for a, b in pairs), len(pairs))
