"""How much slower are kernels while communication runs beside them, and what does that cost a step?

    ratio of a kernel = median over its covered runs of (duration / median duration of the same work alone)
    lost per step     = sum over covered runs of (duration - median duration of the same work alone) / number of steps

A run is covered while communication goes on during at least half of it, alone while none goes on; runs in between are
neither. Communication that only waits for another rank covers too.

The same work has the same name, launch shape and input shapes. Where a trace lacks the input shapes, name and launch
shape do not tell work apart: a matrix product's depth is not in its grid. DDP covers the same places of every step, so
other work would pass for slower work. There the n-th of m runs in a step compares with the n-th of m in other steps
alone, as on CPU, where an op is the n-th of its name. Ops in which DDP's own hooks run are left out on CPU.

    control = time of runs alone in the measured steps / median duration of the same work in the baseline steps

Steps of a baseline run at another time, when the accelerator's clock or other load on the machine may be different.
That is what the control shows; the durations of the baseline are multiplied by it before anything compares with them.
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
from ddpprof.measures.buckets.overlap import spans_of
from ddpprof.measures.kernels.kernels import KernelRuns, batches_of_kernels, runs_of_kernels
from ddpprof.model import Int32Column, Int64Column, Kernel, Trace

if TYPE_CHECKING:
    Ratios: TypeAlias = array[float]
else:
    Ratios = array  # takes no parameter before Python 3.12

MIN_RUNS = 3
"""Covered and alone, each: the median of three is the first that a single disturbed run cannot move."""

ENOUGH_KNOWN = 0.2
"""of the computation under communication: what is known of less says little of the rest"""

_MOST_RATIOS = 255

_HOLDS_HOOKS = "AccumulateGrad"
"""The autograd node after which DDP's reducer copies a gradient into its bucket and launches the bucket."""


@dataclass(frozen=True, slots=True)
class KernelSlowdown:
    """One kernel's covered runs. Rows of several ranks merge exactly, see `merge_slowdowns`."""

    kernel: Kernel
    covered_ns: int
    """of all covered runs"""
    compared_ns: int
    """of those whose work also ran alone"""
    lost_ns: int
    """how much longer these took than their work does alone; negative where they took less"""
    num_compared: int
    """as many are these"""
    ratios: Ratios
    """of each of these: its duration / the median of its work alone; ascending. Of many an even selection, `thinned`"""
    num_alone: int
    """runs behind these medians"""

    @property
    def ratio(self) -> float | None:
        """``None`` where the runs are too few to say."""
        return median(self.ratios) if min(self.num_compared, self.num_alone) >= MIN_RUNS else None


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Of some steps of one rank, or of several ranks' together."""

    num_steps: int
    """steps measured, the baseline's not among them; of several ranks, of each"""
    kernels: tuple[KernelSlowdown, ...]
    """every kernel with a covered run, the one that lost most first"""
    knows_input_shapes: bool
    """of every kernel that was compared; else they were compared place by place"""
    reason: str | None
    """why nothing can be said, where nothing can"""
    control_ns: int = 0
    """of runs alone in the measured steps whose work also ran alone in baseline steps"""
    control_alone_ns: int = 0
    """how long these take there"""

    @property
    def control(self) -> float | None:
        """Beyond 1 the measured steps were slower also without communication; ``None`` without baseline steps."""
        return self.control_ns / self.control_alone_ns if self.control_alone_ns else None

    @property
    def covered_ns(self) -> int:
        return sum(row.covered_ns for row in self.kernels)

    @property
    def known_ns(self) -> int:
        """Covered time of kernels whose ratio is known."""
        return sum(row.compared_ns for row in self.kernels if row.ratio is not None)

    @property
    def known_share(self) -> float | None:
        return self.known_ns / self.covered_ns if self.covered_ns else None

    @property
    def lost_ns_per_step(self) -> int | None:
        """By the kernels whose ratio is known: what the others lose is not in it."""
        lost = [row.lost_ns for row in self.kernels if row.ratio is not None]
        return round(sum(lost) / self.num_steps) if lost else None

    @property
    def ratio(self) -> float | None:
        """Time of the kernels whose ratio is known, over what they take alone."""
        lost = [row.lost_ns for row in self.kernels if row.ratio is not None]
        return self.known_ns / (self.known_ns - sum(lost)) if lost else None


def measure_slowdown(trace: Trace, measured: Collection[int] | None = None, baseline: Collection[int] = ()) -> Slowdown:
    """Of the steps with the indices `measured` (``None``: all).

    `baseline` are steps without gradient communication: their kernels say how long work takes alone, nothing else.
    """
    measured = set(range(len(trace.steps)) if measured is None else measured)
    compare = partial(_compared, trace, spans_of(trace.collectives, None), measured, set(baseline))
    batches = batches_of_kernels(trace)
    control = _sum(map(_control, map(compare, batches))) if baseline else _Control(0, 0)
    kernels = [row for runs in map(compare, batches) for row in _rows(trace.kernels, runs, control)]
    slowdown = _slowdown(len(measured), kernels, has_comm=bool(len(trace.collectives)))
    return replace(slowdown, control_ns=control.twice_measured_ns // 2, control_alone_ns=control.twice_baseline_ns // 2)


def merge_slowdowns(ranks: Sequence[Slowdown]) -> Slowdown:
    """Each rank's kernels were compared with its own: a slower accelerator is no slowdown. The sums are exact."""
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


def thinned(slowdown: Slowdown) -> Slowdown:
    """With at most `_MOST_RATIOS` of each kernel, evenly chosen, so that a summary of a long trace stays small."""

    def fewer(row: KernelSlowdown) -> KernelSlowdown:
        if len(row.ratios) <= _MOST_RATIOS:
            return row
        chosen = np.linspace(0, len(row.ratios) - 1, _MOST_RATIOS).round().astype(int).tolist()
        return replace(row, ratios=array("d", (row.ratios[index] for index in chosen)))

    return replace(slowdown, kernels=tuple(map(fewer, slowdown.kernels)))


NO_COMMUNICATION = "the trace holds no communication"


def _slowdown(num_steps: int, kernels: Sequence[KernelSlowdown], *, has_comm: bool) -> Slowdown:
    reason = None
    if not num_steps:
        reason = "no step was profiled"
    elif not has_comm:
        reason = NO_COMMUNICATION
    elif not kernels:
        reason = "no computation ran under communication"
    elif not any(row.compared_ns for row in kernels):
        reason = "what ran under communication did so in every step: nothing tells how long it takes alone"
    elif all(row.ratio is None for row in kernels):
        reason = f"no kernel ran {MIN_RUNS} times under communication and {MIN_RUNS} times alone"
    compared = [row.kernel for row in kernels if row.ratio is not None]
    return Slowdown(
        num_steps=num_steps,
        kernels=tuple(sorted(kernels, key=lambda row: (-row.lost_ns, str(row.kernel)))),
        knows_input_shapes=bool(compared) and all(kernel.input_shapes is not None for kernel in compared),
        reason=reason,
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    """Some kernels' runs in the measured steps and the baseline's."""

    kernel: Int32Column
    same: NDArray[np.int64]
    """a number for each run; runs of the same work have the same"""
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
    """Of those with a covered run."""
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
    """On CPU the work of DDP's hooks is part of the op, and a step without communication has less of it."""
    holds = np.array([_HOLDS_HOOKS in kernel.name for kernel in trace.kernels], np.bool_)
    return holds[runs.kernel] if trace.device == "cpu" and len(runs) else np.zeros(len(runs), np.bool_)


def _same_work(trace: Trace, runs: KernelRuns) -> NDArray[np.int64]:
    """A number for each run; runs of the same work have the same."""
    by_place = np.array([kernel.input_shapes is None and kernel.position is None for kernel in trace.kernels], np.bool_)
    key = runs.step.astype(np.int64) * len(by_place) + runs.kernel
    order = np.argsort(key, kind="stable").astype(np.int32)  # in order of launch within a step
    first = np.flatnonzero(np.diff(key[order], prepend=-1))  # of a kernel in a step
    del key
    count = np.diff(np.append(first, len(runs)))
    kernel = runs.kernel[order[first]].astype(np.int64)
    has_places = by_place[kernel]
    # Of one kernel that runs as often in a step, the n-th runs of all steps are the same work.
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
    """Work that ran alone in measured steps and in the baseline: twice the time it took here, and takes there."""

    twice_measured_ns: int
    twice_baseline_ns: int

    @property
    def factor(self) -> float:
        """1 where no work did."""
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
    """Per group: the median of its values and how many there are; 0 of none."""

    twice_ns: Int64Column
    count: Int64Column


def _group_medians(group: NDArray[np.int64], values: Int64Column, chosen: NDArray[np.bool_]) -> _Medians:
    """Of the chosen values. Twice the median, which is whole."""
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
    """From one kernel's covered runs."""
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
