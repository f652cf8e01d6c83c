"""Summarize each kernel: how often it runs per step, how long, and how much its duration varies.

    total per step = sum of its durations / number of steps      spread = (3rd quartile - 1st quartile) / median

A run is one kernel execution on an accelerator, or one op on CPU, without the communication calls inside it. If kernels
of several streams overlap, each counts with its full duration, so totals may add up to more than the step.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.numbers import Number
from ddpprof.layout import clean
from ddpprof.model import UNKNOWN, Int32Column, Int64Column, Kernel, Phase, Trace

_BATCH_RUNS = 400_000


MOST_KERNELS = 500
"""maximum number of kernels in a report; the kernels left out take little time"""


@dataclass(frozen=True, slots=True)
class KernelSummary:
    """All runs of one kernel in the selected steps of one rank."""

    kernel: Kernel
    phase: Annotated[str, Number("phase of the step in which the kernel takes the most time")]
    num_steps: Annotated[int, Number("number of steps examined, with or without the kernel")]
    num_runs: Annotated[int, Number("number of runs in these steps")]
    total_ns: Annotated[int, Number("total duration of all runs")]
    median_ns: Annotated[int, Number("median duration of a run")]
    spread: Annotated[float | None, Number("interquartile range divided by the median", column="spread_ratio")]
    """the spread is ``None`` if there is only one run, or if the median is 0"""

    @property
    def runs_per_step(self) -> float:
        return self.num_runs / self.num_steps

    @property
    def total_ns_per_step(self) -> int:
        return round(self.total_ns / self.num_steps)


@dataclass(frozen=True, slots=True)
class KernelRuns:
    """Runs of kernels, one row each, in launch order, with the pieces that make up each run."""

    kernel: Int32Column
    """index into ``Trace.kernels``"""
    step: Int32Column
    phase: NDArray[np.int8]
    duration_ns: Int64Column
    piece: NDArray[np.int64]
    """rows of ``Trace.compute``"""
    run_of_piece: NDArray[np.int64] | None
    """for each piece, index of the run to which it belongs; ``None`` if each run consists of one piece"""

    def __len__(self) -> int:
        return len(self.kernel)

    def sum_pieces(self, values: Int64Column) -> Int64Column:
        """Return the sum of `values` over the pieces of each run."""
        if self.run_of_piece is None:
            return values
        total = np.zeros(len(self), np.int64)
        np.add.at(total, self.run_of_piece, values)
        return total


def summarize_kernels(trace: Trace, steps: Collection[int]) -> tuple[KernelSummary, ...]:
    """Summarize the kernels in the steps with these indices, in descending order of total duration."""
    num_steps = len(set(steps))
    summaries = [
        summary
        for kernels in batches_of_kernels(trace)
        for summary in _summaries(trace.kernels, runs_of_kernels(trace, steps, kernels), num_steps)
    ]
    return tuple(sorted(summaries, key=lambda s: (-s.total_ns, str(s.kernel))))


def _summaries(kernels: Sequence[Kernel], runs: KernelRuns, num_steps: int) -> list[KernelSummary]:
    order = np.lexsort((runs.duration_ns, runs.kernel))
    duration, kernel = runs.duration_ns[order], runs.kernel[order]
    distinct, first, count = np.unique(kernel, return_index=True, return_counts=True)
    total = np.add.reduceat(duration, first) if len(first) else first
    quartile, median, third = (_quantiles(duration, first, count, share) for share in (0.25, 0.5, 0.75))
    in_phase = np.zeros((len(distinct), len(Phase)), np.int64)
    np.add.at(in_phase, (np.repeat(np.arange(len(distinct)), count), runs.phase[order]), duration)
    return [
        KernelSummary(
            kernel=kernels[index],
            phase=Phase(int(in_phase[row].argmax())).name.lower(),
            num_steps=num_steps,
            num_runs=int(count[row]),
            total_ns=int(total[row]),
            median_ns=round(median[row]),
            spread=float((third[row] - quartile[row]) / median[row]) if count[row] > 1 and median[row] else None,
        )
        for row, index in enumerate(distinct.tolist())
    ]


def _quantiles(
    values: Int64Column, first: NDArray[np.int64], count: NDArray[np.int64], share: float
) -> NDArray[np.float64]:
    """Return a quantile of each group of ascending values, like ``numpy.quantile``, but for all groups at once."""
    place = share * (count - 1)
    below = np.floor(place).astype(np.int64)
    part = place - below
    low, high = (values[first + np.minimum(index, count - 1)].astype(np.float64) for index in (below, below + 1))
    between: NDArray[np.float64] = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    return between


def batches_of_kernels(trace: Trace) -> list[range]:
    """Return the indices of all kernels in batches with few runs each, to limit memory use."""
    num_runs = np.zeros(len(trace.kernels), np.int64)
    for first in range(0, len(trace.compute), _BATCH_RUNS):
        kernel = trace.compute.kernel[first : first + _BATCH_RUNS]
        num_runs += np.bincount(kernel[kernel != UNKNOWN], minlength=len(num_runs))
    batch = (np.cumsum(num_runs) - num_runs) // _BATCH_RUNS
    bounds = [0, *(1 + np.flatnonzero(np.diff(batch))).tolist(), len(num_runs)]
    return [range(first, end) for first, end in pairwise(bounds)]


def runs_of_kernels(trace: Trace, steps: Collection[int], kernels: range) -> KernelRuns:
    """Return the runs of the kernels with these indices in the steps with these indices."""
    work = trace.compute
    piece = np.flatnonzero((work.kernel >= kernels.start) & (work.kernel < kernels.stop))
    piece = piece[np.isin(work.step[piece], list(steps))]
    if (np.diff(work.start_ns[piece]) == 0).any():  # the order of events in the file is arbitrary
        piece = piece[np.lexsort((work.end_ns[piece], work.start_ns[piece]))]
    piece = piece[np.argsort(work.launched_ns[piece], kind="stable")]  # pieces of one launch stay in order of start
    rows, run_of_piece = piece, None
    duration = work.end_ns[piece] - work.start_ns[piece]
    if trace.device == "cpu":  # the position of an op in its step is part of its identity
        key = np.stack((work.step[piece], work.kernel[piece]))
        _, first, run_of_piece = np.unique(key, axis=1, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rows, run_of_piece = piece[first[order]], np.argsort(order)[run_of_piece.reshape(-1)]
        of_pieces, duration = duration, np.zeros(len(rows), np.int64)
        np.add.at(duration, run_of_piece, of_pieces)
    return KernelRuns(work.kernel[rows], work.step[rows], work.phase[rows], duration, piece, run_of_piece)


_OF_NO_INTEREST = re.compile(r"^void |at::native::|\(anonymous namespace\)::")


def kernel_name(kernel: Kernel) -> str:
    """Return the kernel's name without torch's usual prefixes, with its position if several ops share the name."""
    place = f" (no. {kernel.position + 1})" if kernel.position else ""
    return clean(_OF_NO_INTEREST.sub("", kernel.name), most=50) + place
