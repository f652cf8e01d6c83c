"""Measure how much slower kernels run during communication, and the time lost per step.

    ratio of a kernel = median over its covered runs of (duration / median duration of the same work alone)
    lost per step     = sum over covered runs of (duration - median duration of the same work alone) / number of steps

A run is covered if communication runs during at least half of it, and alone if no communication runs during it. Other
runs are ignored. Communication counts even while it only waits for another rank.

Two runs do the same work if they have the same name, launch shape and input shapes. If a trace lacks input shapes, name
and launch shape are not sufficient: for example, the grid of a matrix product does not show its inner dimension. The
n-th of m runs in a step is then compared only with the n-th of m runs in other steps. This is also done on CPU, where
ops are identified by name and position. On CPU, ops that contain DDP's hooks are excluded.

    control = duration of runs alone in measured steps / median duration of the same work in baseline steps

The clock rate of the accelerator or the load on the machine may differ between measured and baseline steps. Therefore,
baseline durations are multiplied by the control before they are compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ddpprof.intervals import Spans
from ddpprof.model import Int32Column, Int64Column, Kernel, Trace
from ddpprof.topics.kernels import KernelRuns, batches_of_kernels, runs_of_kernels
from ddpprof.topics.steps.overlap import spans_of

if TYPE_CHECKING:
    Ratios: TypeAlias = array[float]
else:
    Ratios = array  # takes no parameter before Python 3.12


MIN_RUNS = 3
"""a ratio needs at least this many executions that overlap with communication, and as many that do not, so that one
disturbed execution does not change the median
"""

ENOUGH_KNOWN = 0.2
"""an overall ratio is reported if the slowdown is known for at least this share of the computation during
communication
"""

_MOST_RATIOS = 255

_HOLDS_HOOKS = "AccumulateGrad"
"""autograd node that runs DDP's hook; the hook copies a gradient into its bucket and launches full buckets"""


@dataclass(frozen=True, slots=True)
class KernelSlowdown:
    """The covered runs of one kernel: its executions during communication."""

    kernel: Kernel
    covered_ns: int
    """total duration of the covered runs, that is, of the kernel's executions during communication"""
    compared_ns: int
    """total duration of the compared runs: the covered runs of work that also ran alone, without communication"""
    lost_ns: int
    """time by which the compared runs took longer than the same work alone; may be negative"""
    num_compared: int
    """number of compared runs"""
    ratios: Ratios
    """for each compared run, or a selection of them (`thinned`): its duration divided by the median duration of the
    same work alone; ascending
    """
    num_alone: int
    """number of runs without communication from which the medians in `ratios` are computed"""

    @property
    def ratio(self) -> float | None:
        """Median ratio; ``None`` if there are too few runs."""
        return median(self.ratios) if min(self.num_compared, self.num_alone) >= MIN_RUNS else None


@dataclass(frozen=True, slots=True)
class OverlapSlowdown:
    """The slowdown of computation by communication, on one rank or several ranks together."""

    num_steps: int
    """number of measured steps, not counting baseline steps, summed over ranks"""
    kernels: tuple[KernelSlowdown, ...]
    """all kernels that ran during communication, in descending order of lost time"""
    knows_input_shapes: bool
    """True if the input shapes of all compared kernels are known; otherwise, runs with the same position in the step
    were assumed to do the same work
    """
    reason: str | None
    """why the slowdown is unknown; ``None`` if it is known"""
    control_ns: int = 0
    """total duration of runs without communication in measured steps, for work that also occurs in baseline steps"""
    control_alone_ns: int = 0
    """total duration of runs of the same work in baseline steps"""

    @property
    def control(self) -> float | None:
        """Ratio of measured to baseline durations of work without communication; ``None`` if there is no baseline."""
        return self.control_ns / self.control_alone_ns if self.control_alone_ns else None

    @property
    def covered_ns(self) -> int:
        return sum(row.covered_ns for row in self.kernels)

    @property
    def known_ns(self) -> int:
        """Total duration of the compared runs of kernels with a known ratio."""
        return sum(row.compared_ns for row in self.kernels if row.ratio is not None)

    @property
    def known_share(self) -> float | None:
        return self.known_ns / self.covered_ns if self.covered_ns else None

    @property
    def lost_ns_per_step(self) -> int | None:
        """Time lost per step in the kernels with a known ratio."""
        lost = [row.lost_ns for row in self.kernels if row.ratio is not None]
        return round(sum(lost) / self.num_steps) if lost else None

    @property
    def ratio(self) -> float | None:
        """Ratio of `known_ns` to the time that the same runs would take alone."""
        lost = [row.lost_ns for row in self.kernels if row.ratio is not None]
        return self.known_ns / (self.known_ns - sum(lost)) if lost else None


def measure_slowdown(
    trace: Trace, measured: Collection[int] | None = None, baseline: Collection[int] = ()
) -> OverlapSlowdown:
    """Measure the slowdown in the steps with the indices `measured` (``None``: all steps).

    `baseline`: indices of steps without gradient communication, which show how long work takes alone.
    """
    measured = set(range(len(trace.steps)) if measured is None else measured)
    compare = partial(_compared, trace, spans_of(trace.collectives, None), measured, set(baseline))
    batches = batches_of_kernels(trace)
    control = _sum(map(_control, map(compare, batches))) if baseline else _Control(0, 0)
    kernels = [row for runs in map(compare, batches) for row in _rows(trace.kernels, runs, control)]
    slowdown = _slowdown(len(measured), kernels, has_comm=bool(len(trace.collectives)))
    return replace(slowdown, control_ns=control.twice_measured_ns // 2, control_alone_ns=control.twice_baseline_ns // 2)


def merge_slowdowns(ranks: Sequence[OverlapSlowdown]) -> OverlapSlowdown:
    """Merge the slowdowns of ranks. Each rank is compared with itself, so a slower accelerator does not matter."""
    rows: dict[Kernel, list[KernelSlowdown]] = {}
    for rank in ranks:
        for row in rank.kernels:
            rows.setdefault(row.kernel, []).append(row)
    merged = [
        KernelSlowdown(
            kernel=kernel,
            covered_ns=sum(row.covered_ns for row in same),
            compared_ns=sum(row.compared_ns for row in same),
            lost_ns=sum(row.lost_ns for row in same),
            num_compared=sum(row.num_compared for row in same),
            ratios=_as_array(np.sort(np.concatenate([row.ratios for row in same]))),
            num_alone=sum(row.num_alone for row in same),
        )
        for kernel, same in rows.items()
    ]
    has_comm = any(rank.reason != NO_COMMUNICATION for rank in ranks)
    return replace(
        _slowdown(sum(rank.num_steps for rank in ranks), merged, has_comm=has_comm),
        control_ns=sum(rank.control_ns for rank in ranks),
        control_alone_ns=sum(rank.control_alone_ns for rank in ranks),
    )


def thinned(slowdown: OverlapSlowdown) -> OverlapSlowdown:
    """Return the slowdown with at most `_MOST_RATIOS` ratios per kernel, evenly selected, to limit its size."""

    def fewer(row: KernelSlowdown) -> KernelSlowdown:
        if len(row.ratios) <= _MOST_RATIOS:
            return row
        chosen = np.linspace(0, len(row.ratios) - 1, _MOST_RATIOS).round().astype(int).tolist()
        return replace(row, ratios=array("d", (row.ratios[index] for index in chosen)))

    return replace(slowdown, kernels=tuple(map(fewer, slowdown.kernels)))


NO_COMMUNICATION = "the trace has no communication"


def _slowdown(num_steps: int, kernels: Sequence[KernelSlowdown], *, has_comm: bool) -> OverlapSlowdown:
    reason = None
    if not num_steps:
        reason = "no step was profiled"
    elif not has_comm:
        reason = NO_COMMUNICATION
    elif not kernels:
        reason = "no computation ran during communication"
    elif not any(row.compared_ns for row in kernels):
        reason = (
            "no kernel that ran during communication also ran without communication, so there is nothing to compare "
            "with"
        )
    elif all(row.ratio is None for row in kernels):
        reason = f"no kernel ran at least {MIN_RUNS} times during communication and {MIN_RUNS} times without it"
    compared = [row.kernel for row in kernels if row.ratio is not None]
    return OverlapSlowdown(
        num_steps=num_steps,
        kernels=tuple(sorted(kernels, key=lambda row: (-row.lost_ns, str(row.kernel)))),
        knows_input_shapes=bool(compared) and all(kernel.input_shapes is not None for kernel in compared),
        reason=reason,
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    """Runs of some kernels in the measured and baseline steps."""

    kernel: Int32Column
    same: NDArray[np.int64]
    """identifier of the work that each run does; equal for runs of the same work"""
    duration_ns: Int64Column
    in_measured: NDArray[np.bool_]
    in_baseline: NDArray[np.bool_]
    is_covered: NDArray[np.bool_]
    is_alone: NDArray[np.bool_]


def _compared(trace: Trace, comm: Spans, measured: set[int], baseline: set[int], kernels: range) -> _Compared:
    runs = runs_of_kernels(trace, measured | baseline, kernels)
    in_measured, in_baseline = (np.isin(runs.step, list(steps)) for steps in (measured, baseline - measured))
    start, end = trace.compute.start_ns[runs.piece], trace.compute.end_ns[runs.piece]
    under_comm_ns = runs.sum_pieces(comm.within(start, end))
    usable = (runs.duration_ns > 0) & ~_holds_hooks(trace, runs)
    return _Compared(
        kernel=runs.kernel,
        same=_same_work(trace, runs),
        duration_ns=runs.duration_ns,
        in_measured=in_measured,
        in_baseline=in_baseline,
        is_covered=usable & in_measured & (2 * under_comm_ns >= runs.duration_ns),
        is_alone=usable & (under_comm_ns == 0),
    )


def _rows(kernels: Sequence[Kernel], runs: _Compared, control: _Control) -> list[KernelSlowdown]:
    """Return the slowdown of each kernel with a covered run."""
    duration_ns = runs.duration_ns
    if not runs.in_measured.all():
        as_measured = np.maximum(np.rint(duration_ns * control.factor).astype(np.int64), 1)
        duration_ns = np.where(runs.in_measured, duration_ns, as_measured)
    alone = _group_medians(runs.same, duration_ns, runs.is_alone)
    return [
        _of_kernel(kernels[index], runs.same[rows], duration_ns[rows], alone)
        for index in np.unique(runs.kernel[runs.is_covered]).tolist()
        for rows in [np.flatnonzero(runs.is_covered & (runs.kernel == index))]
    ]


def _holds_hooks(trace: Trace, runs: KernelRuns) -> NDArray[np.bool_]:
    """Return a boolean array: True for runs that include DDP's hooks, which on CPU are part of an op's duration."""
    holds = np.array([_HOLDS_HOOKS in kernel.name for kernel in trace.kernels], np.bool_)
    return holds[runs.kernel] if trace.device == "cpu" and len(runs) else np.zeros(len(runs), np.bool_)


def _same_work(trace: Trace, runs: KernelRuns) -> NDArray[np.int64]:
    """Return an identifier for each run. Runs of the same work have equal identifiers."""
    by_place = np.array([kernel.input_shapes is None and kernel.position is None for kernel in trace.kernels], np.bool_)
    key = runs.step.astype(np.int64) * len(by_place) + runs.kernel
    order = np.argsort(key, kind="stable").astype(np.int32)  # in order of launch within a step
    first = np.flatnonzero(np.diff(key[order], prepend=-1))  # first run of each kernel in a step
    del key
    count = np.diff(np.append(first, len(runs)))
    kernel = runs.kernel[order[first]].astype(np.int64)
    has_places = by_place[kernel]
    # If a kernel runs equally often in several steps, its n-th runs in these steps are the same work.
    alike, which = np.unique(kernel * (len(runs) + 1) + np.where(has_places, count, 0), return_inverse=True)
    num_places = np.zeros(len(alike), np.int64)
    num_places[which] = np.where(has_places, count, 1)
    begin = np.cumsum(num_places) - num_places
    place = np.arange(len(runs)) - np.repeat(first, count)
    place[~np.repeat(has_places, count)] = 0
    same = np.empty(len(runs), np.int64)
    same[order] = np.repeat(begin[which], count) + place
    return same


@dataclass(frozen=True, slots=True)
class _Control:
    """Doubled total time of work that ran alone in measured steps, and of the same work in baseline steps."""

    twice_measured_ns: int
    twice_baseline_ns: int

    @property
    def factor(self) -> float:
        """Ratio of measured to baseline durations; 1 if no work can be compared."""
        baseline_ns = self.twice_baseline_ns // 2
        return self.twice_measured_ns // 2 / baseline_ns if baseline_ns else 1.0


def _control(runs: _Compared) -> _Control:
    there = _group_medians(runs.same, runs.duration_ns, runs.is_alone & runs.in_baseline)
    rows = np.flatnonzero(runs.is_alone & runs.in_measured & (there.count[runs.same] > 0))
    return _Control(2 * int(runs.duration_ns[rows].sum()), int(there.twice_ns[runs.same[rows]].sum()))


def _sum(controls: Iterable[_Control]) -> _Control:
    of_all = list(controls)
    return _Control(sum(one.twice_measured_ns for one in of_all), sum(one.twice_baseline_ns for one in of_all))


@dataclass(frozen=True, slots=True)
class _Medians:
    """Median and number of values of each group; 0 for an empty group.

    Medians are doubled, so that they are integers.
    """

    twice_ns: Int64Column
    count: Int64Column


def _group_medians(group: NDArray[np.int64], values: Int64Column, chosen: NDArray[np.bool_]) -> _Medians:
    """Return the doubled median and the number of the chosen values of each group."""
    num_groups = int(group.max(initial=-1)) + 1
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((values[rows], group[rows]))]
    count = np.bincount(group[rows], minlength=num_groups)
    first = np.cumsum(count) - count
    known = count > 0
    low, high = first + (count - 1) // 2, first + count // 2
    twice = np.zeros(num_groups, np.int64)
    twice[known] = values[rows[low[known]]] + values[rows[high[known]]]
    return _Medians(twice, count)


def _of_kernel(kernel: Kernel, same: NDArray[np.int64], duration_ns: Int64Column, alone: _Medians) -> KernelSlowdown:
    """Summarize the covered runs of one kernel."""
    known = alone.count[same] > 0
    compared, twice_alone = duration_ns[known], alone.twice_ns[same[known]]
    return KernelSlowdown(
        kernel=kernel,
        covered_ns=int(duration_ns.sum()),
        compared_ns=int(compared.sum()),
        lost_ns=round(int((2 * compared - twice_alone).sum()) / 2),
        num_compared=len(compared),
        ratios=_as_array(np.sort(2 * compared / twice_alone)),
        num_alone=int(alone.count[np.unique(same[known])].sum()),
    )


def _as_array(values: NDArray[np.float64]) -> Ratios:
    return array("d", values.tobytes())
