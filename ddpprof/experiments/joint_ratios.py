"""Compare the step times of several variants with the step times of a reference variant. All variants run once in
every round.

    log step = round + variant + noise
    ratio    = median over rounds of (step of the variant / step of the reference)
    interval = simultaneous 95 % intervals: Student's t of the mean logarithm, with the residual noise of all variants,
               at 5 % divided by the number of ratios (Bonferroni)

The noise is estimated from all variants, because with few rounds the spread of a single variant may be small by chance
(Montgomery, Design and Analysis of Experiments, 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt
from statistics import fmean, median

import numpy as np

from ddpprof.model import Record, StepMode
from ddpprof.statistics.between_runs import shift_between
from ddpprof.statistics.paired_ratio import CONFIDENCE, ENOUGH_ROUNDS, Ratio, student_quantile


def joint_ratios(
    one: Sequence[float], others: Sequence[Sequence[float]], comparisons: int | None = None
) -> tuple[Ratio, ...]:
    """Return the ratio of each of `others` to `one`. Each sequence has one step time per round.

    `comparisons`: number of simultaneous intervals; the number of `others` by default.
    """
    ratios = [median(a / b for a, b in zip(steps, one, strict=True)) for steps in others]
    if len(one) < ENOUGH_ROUNDS:
        return tuple(Ratio(ratio, None, None, len(one)) for ratio in ratios)
    logs = np.log([one, *others])
    noise = logs - logs.mean(axis=1, keepdims=True) - logs.mean(axis=0) + logs.mean()
    degrees = len(others) * (len(one) - 1)
    error = sqrt(2 * float((noise**2).sum()) / degrees / len(one))
    half = student_quantile((1 - CONFIDENCE) / 2 / (comparisons or len(others)), degrees) * error
    means = (logs.mean(axis=1)[1:] - logs.mean(axis=1)[0]).tolist()
    return tuple(
        Ratio(ratio, min(ratio, exp(mean - half)), max(ratio, exp(mean + half)), len(one))
        for ratio, mean in zip(ratios, means, strict=True)
    )


_MARGIN = 0.02
_MARGIN_WITHOUT_INTERVAL = 0.1
_LEAST_STARTS = 2


def is_losing(rounds: Sequence[Steps], others: Sequence[Steps], spread: float) -> bool:
    """Return True if the variant is clearly slower than another. Arguments: steps by round; empty if not run."""
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
    """Return the median step of the slowest start of a job divided by that of the fastest start, minus 1."""
    medians = [median(steps) for steps in starts if steps]
    return max(medians) / min(medians) - 1 if medians else 0.0


Steps = tuple[float, ...]
"""step times in ns, in order"""


def timed_blocks(ranks: Sequence[Record], mode: StepMode = StepMode.OFF) -> tuple[Steps, ...]:
    """Return blocks of consecutive steps that every rank has. The time of a step is the mean over the ranks.

    Without DDP, ranks do not wait for each other, so waiting for the slowest rank counts as overhead of DDP. On an
    accelerator, the host runs ahead and only the start and end of a block are known, so a block is returned as one step
    of mean duration.
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
